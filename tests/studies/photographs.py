"""Writes an ImageNet of made-up photographs into DIR/imagenet: `python -m tests.studies.photographs DIR [--images N]`.

For machines without the real one: JPEGs of its usual size (about 500 x 375 pixels, 110 kB), in its folders or in tar
shards, so that loaders have real files to read and real decoders work to do.
"""

from __future__ import annotations

import argparse
import io
import os
import tarfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it
from torchvision.io import encode_jpeg

CLASSES = 20


def photograph(number: int) -> bytes:
    """Smooth areas and some grain: it compresses as photographs do."""
    random = torch.Generator().manual_seed(number)
    high, wide = (int(torch.randint(low, top, (), generator=random)) for low, top in ((333, 420), (450, 540)))
    smooth = torch.rand(1, 3, high // 16, wide // 16, generator=random)
    image = F.interpolate(smooth, size=(high, wide), mode="bicubic")[0]
    image = image + 0.075 * torch.randn(3, high, wide, generator=random)
    return encode_jpeg((image.clamp(0, 1) * 255).to(torch.uint8), quality=90).numpy().tobytes()


def write_files(folder: Path, images: int) -> None:
    for label in range(CLASSES):
        (folder / f"n{label:08}").mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        for number, data in enumerate(workers.map(photograph, range(images), chunksize=32)):
            (folder / f"n{number % CLASSES:08}" / f"{number:07}.JPEG").write_bytes(data)


def write_shards(folder: Path, images: int, shards: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        made = list(workers.map(photograph, range(images), chunksize=32))
    for shard in range(shards):
        with tarfile.open(folder / f"part-{shard:04}.tar", "w") as archive:
            for number in range(shard, images, shards):
                _add(archive, f"{number:07}.jpg", made[number])
                _add(archive, f"{number:07}.cls", str(number % CLASSES).encode())


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--shards", type=int, default=0, help="write as many tar shards instead of files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for split in ("train", "val"):
        folder = options.root / "imagenet" / split
        if options.shards:
            write_shards(folder, options.images, options.shards)
        else:
            write_files(folder, options.images)


if __name__ == "__main__":
    main()
