"""Tiny data sets in the published formats, written for a test; each writer returns what it wrote.

Random pixels from a seed. `Written.images` are what a reader must give back: pixels as (N, channels, height, width),
or for encoded sets the bytes of each file.
"""

import io
import json
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_accel.workloads.data.files import DataError

FOODS = ("apple_pie", "pizza", "waffles")
SYNSETS = ("n01440764", "n01443537", "n02105855")
# Height, width and kind of the JPEGs that a set cycles through: real sets hold all of these.
JPEG_KINDS = ((40, 60, "rgb"), (70, 30, "rgb"), (32, 32, "grey"), (50, 50, "cmyk"), (33, 47, "rgb"))


@dataclass(frozen=True)
class Written:
    images: np.ndarray | list[bytes]
    labels: list[int]
    paths: tuple[Path, ...]  # the files of the set that hold images


def pixels(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def some_labels(count: int, classes: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed + 1).integers(0, classes, count).tolist()


def jpeg(height: int, width: int, kind: str = "rgb", seed: int = 0) -> bytes:
    """Return one encoded image; it is smooth, so that decoders agree on it."""
    import torch
    from torchvision.io import encode_jpeg

    rows, columns = np.mgrid[0:height, 0:width]
    start = np.random.default_rng(seed).integers(0, 100, 4)
    planes = np.stack([start[each] + rows * (each + 1) + columns for each in range(4)]) % 256
    planes = planes.astype(np.uint8)
    if kind == "cmyk":
        from PIL import Image

        out = io.BytesIO()
        Image.fromarray(planes.transpose(1, 2, 0).copy(), mode="CMYK").save(out, "JPEG")
        return out.getvalue()
    channels = 1 if kind == "grey" else 3
    return bytes(encode_jpeg(torch.from_numpy(planes[:channels].copy()), quality=95).numpy())


def decoded_jpeg(height: int, width: int, seed: int = 0) -> Any:
    """Return its pixels, (3, height, width), decoded by PIL."""
    import torch
    from PIL import Image

    return torch.tensor(np.asarray(Image.open(io.BytesIO(jpeg(height, width, seed=seed)))).transpose(2, 0, 1))


def jpegs(count: int, seed: int = 0) -> list[bytes]:
    return [jpeg(*JPEG_KINDS[each % len(JPEG_KINDS)], seed=seed + each) for each in range(count)]


def write_cifar_binary(root: Path, *, train: int = 20, test: int = 8, seed: int = 0) -> dict[str, Written]:
    """`cifar-100-binary/{train,test}.bin`."""
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    written = {}
    for split, count in (("train", train), ("test", test)):
        seeds = seed + (split == "test")
        images, labels = pixels(count, 3, 32, 32, seed=seeds), some_labels(count, 100, seeds)
        path = folder / f"{split}.bin"
        path.write_bytes(
            b"".join(
                bytes([label // 5, label]) + image.tobytes()
                for label, image in zip(labels, images, strict=True)
            )
        )
        written[split] = Written(images, labels, (path,))
    return written


def write_mnist(root: Path, *, train: int = 20, test: int = 8, seed: int = 0) -> dict[str, Written]:
    """`MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte`; images before labels in `paths`."""
    folder = root / "MNIST/raw"
    folder.mkdir(parents=True)
    written = {}
    for split, prefix, count in (("train", "train", train), ("test", "t10k", test)):
        seeds = seed + (split == "test")
        images, labels = pixels(count, 1, 28, 28, seed=seeds), some_labels(count, 10, seeds)
        parts = {
            f"{prefix}-images-idx3-ubyte": struct.pack(">4I", 2051, count, 28, 28) + images.tobytes(),
            f"{prefix}-labels-idx1-ubyte": struct.pack(">2I", 2049, count) + bytes(labels),
        }
        paths = tuple(put(folder / name, content) for name, content in parts.items())
        written[split] = Written(images, labels, paths)
    return written


def write_food101(root: Path, *, train: int = 7, test: int = 4, seed: int = 0) -> dict[str, Written]:
    """`food-101/{images/<class>/<id>.jpg, meta/}`, of three classes, in the order of the lists."""
    folder = root / "food-101"
    (folder / "meta").mkdir(parents=True)
    written = {}
    for split, count in (("train", train), ("test", test)):
        labels = sorted(some_labels(count, len(FOODS), seed))
        images = jpegs(count, seed + (1000 if split == "test" else 0))
        listed: dict[str, list[str]] = {name: [] for name in FOODS}
        paths = []
        for index, (label, image) in enumerate(zip(labels, images, strict=True)):
            listed[FOODS[label]].append(f"{FOODS[label]}/{split}{index}")
            paths.append(put(folder / "images" / FOODS[label] / f"{split}{index}.jpg", image))
        (folder / "meta" / f"{split}.json").write_text(json.dumps(listed))
        written[split] = Written(images, labels, tuple(paths))
    return written


def write_imagenet_folders(root: Path, *, train: int = 7, test: int = 4, seed: int = 0) -> dict[str, Written]:
    """`imagenet/{train,val}/<class>/*.JPEG`, of three classes; every class has an image in each split."""
    written = {}
    for split, count in (("train", train), ("val", test)):
        labels = sorted(each % len(SYNSETS) for each in range(count))
        images = jpegs(count, seed + (1000 if split == "val" else 0))
        endings = ("JPEG", "jpg", "jpeg")
        paths = [
            put(root / "imagenet" / split / SYNSETS[label] / f"{index:04}.{endings[index % 3]}", image)
            for index, (label, image) in enumerate(zip(labels, images, strict=True))
        ]
        written["train" if split == "train" else "test"] = Written(images, labels, tuple(paths))
    return written


def write_shards(
    folder: Path, *, images: int = 7, per_shard: int = 3, classes: int = 3, seed: int = 0
) -> Written:
    """`<folder>/00000.tar` and so on, in the layout of webdataset; `folder` is a split: `imagenet/train`."""
    folder.mkdir(parents=True)
    labels = some_labels(images, classes, seed)
    encoded = jpegs(images, seed)
    paths = []
    for start in range(0, images, per_shard):
        members = {}
        for index in range(start, min(start + per_shard, images)):
            members[f"n{labels[index]:02}/{index:06}.jpg"] = encoded[index]
            members[f"n{labels[index]:02}/{index:06}.cls"] = str(labels[index]).encode()
            members[f"n{labels[index]:02}/{index:06}.json"] = b"{}"
        paths.append(write_tar(folder / f"{start // per_shard:05}.tar", members))
    return Written(encoded, labels, tuple(paths))


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def unread(images: Any, index: int) -> str:
    """Return why an image cannot be read; the text begins with its name."""
    with pytest.raises(DataError) as caught:
        images.read(index)
    assert str(caught.value).startswith(f"{images.name(index)}: ")
    return str(caught.value)
