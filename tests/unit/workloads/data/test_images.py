"""Labelled image sets: pixels and folders are read exactly; damage is one error with the file."""

import gzip
import hashlib
import os
import pickle
import sys

import numpy as np
import pytest
import torch
from torchvision import datasets

from pytest_accel.workloads.build import find_set
from pytest_accel.workloads.data.files import IMAGE_SETS, DataError, DataMissing
from pytest_accel.workloads.data.images import open_images
from pytest_accel.workloads.data.loader import ArrayImages, EncodedImages
from tests.support.data_sets import (
    SYNSETS,
    pixels,
    unread,
    write_cifar_binary,
    write_food101,
    write_imagenet_folders,
    write_mnist,
)
from tests.support.detection_sets import write_cityscapes, write_coco

SPLITS = ("train", "test")


def refused(root, name, split="train", kind=DataError):
    """Return the text of the error that opening the set raises."""
    with pytest.raises(DataError) as caught:
        open_images(root, name, split)
    assert type(caught.value) is kind
    assert "\n" in str(caught.value)  # what is wrong, then what to do
    return str(caught.value)


def assert_read(images, written):
    assert isinstance(images, EncodedImages)
    assert len(images) == len(written.images)
    assert images.labels.dtype == torch.int64
    assert images.labels.tolist() == written.labels
    read = [images.read(index) for index in range(len(images))]
    assert all((each.dtype, each.dim()) == (torch.uint8, 1) for each in read)
    assert [each.numpy().tobytes() for each in read] == written.images


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("name", "write"), [("cifar100", write_cifar_binary), ("mnist", write_mnist)])
def test_pixels_in_memory_are_those_that_were_written(tmp_path, name, write, split):
    written = write(tmp_path)[split]
    images = open_images(tmp_path, name, split)
    assert isinstance(images, ArrayImages)
    assert (images.images.dtype, images.labels.dtype) == (torch.uint8, torch.int64)
    assert images.images.is_contiguous()
    assert np.array_equal(images.images.numpy(), written.images)
    assert images.labels.tolist() == written.labels


@pytest.mark.parametrize("size", [0, 1, 20 * 3074 - 1])
def test_torn_cifar_records_are_refused(tmp_path, size):
    (path,) = write_cifar_binary(tmp_path)["train"].paths
    path.write_bytes((path.read_bytes() * 2)[:size])
    problem = f"torn: {size} bytes" if size else "empty"
    assert f"{path}: {problem}" in refused(tmp_path, "cifar100")


class Attack:
    """Pickles as a call of a command."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def test_only_the_published_cifar_pickle_is_loaded(tmp_path, monkeypatch):
    rows, mark, folder = pixels(2, 3072), tmp_path / "mark", tmp_path / "cifar-100-python"
    folder.mkdir()
    train = {"data": rows, "fine_labels": [3, 99]}
    content = {"train": train, "test": train, "meta": {"fine_label_names": ["a"]}}
    for name, value in content.items():
        (folder / name).write_bytes(pickle.dumps(value, protocol=2))
    md5 = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in content}
    for name in ("train", "test"):
        monkeypatch.setattr(datasets.CIFAR100, f"{name}_list", [[name, md5[name]]])
    monkeypatch.setattr(datasets.CIFAR100, "meta", {**datasets.CIFAR100.meta, "md5": md5["meta"]})
    images = open_images(tmp_path, "cifar100", "train")
    assert images.labels.tolist() == [3, 99]
    assert np.array_equal(images.images.numpy(), rows.reshape(-1, 3, 32, 32))
    assert images.images.is_contiguous()
    (folder / "train").write_bytes(pickle.dumps({"data": Attack(mark), "fine_labels": []}))
    assert refused(tmp_path, "cifar100").startswith(f"{folder}: not the published files")
    assert not mark.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:3],
        lambda whole: whole[:-1],
        lambda whole: b"\0\0\x08\x01" + whole[4:],
        lambda whole: whole[:8] + b"\xff" * 8 + whole[16:],
        gzip.compress,
    ],
)
def test_torn_or_other_idx_file_is_named(tmp_path, damage):
    images, _ = write_mnist(tmp_path)["train"].paths
    images.write_bytes(damage(images.read_bytes()))
    assert refused(tmp_path, "mnist").startswith(f"{images}: ")


def test_labels_that_are_missing_or_too_few_are_named(tmp_path):
    _, labels = write_mnist(tmp_path, train=20)["train"].paths
    labels.write_bytes(b"\0\0\x08\x01\0\0\0\x13" + bytes(19))
    assert f"{labels}: 19 labels for 20 images" in refused(tmp_path, "mnist")
    labels.unlink()
    assert f"{labels}: not readable" in refused(tmp_path, "mnist")


def test_digits_are_those_that_scikit_learn_loads():
    from sklearn.datasets import load_digits

    theirs = load_digits()
    ours = [open_images(None, "digits", split) for split in SPLITS]
    assert [each.images.shape for each in ours] == [(1437, 1, 8, 8), (360, 1, 8, 8)]
    scaled = (theirs.images.astype(int) * 255 // 16).astype(np.uint8)
    assert np.array_equal(torch.cat([each.images for each in ours])[:, 0].numpy(), scaled)
    assert torch.cat([each.labels for each in ours]).tolist() == theirs.target.tolist()
    values = ours[0].images.double() / 255
    assert IMAGE_SETS["digits"].mean == (round(values.mean().item(), 4),)
    assert IMAGE_SETS["digits"].std == (round(values.std(correction=0).item(), 4),)


def test_missing_scikit_learn_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert "pip install scikit-learn" in refused(None, "digits", kind=DataMissing)


def test_unknown_set_is_refused_with_the_valid_names(tmp_path):
    with pytest.raises(ValueError, match=r"'cifar10' is not known\..* Valid: .*cifar100"):
        find_set(tmp_path, name="cifar10")


def write_tokens(root):
    (root / "oscar").mkdir()
    (root / "oscar/train.bin").write_bytes(bytes(20))


SETS = {
    "cifar100": write_cifar_binary,
    "mnist": write_mnist,
    "food101": write_food101,
    "imagenet": write_imagenet_folders,
    "coco": lambda root: write_coco(root / "coco", part="val2017"),
    "cityscapes": lambda root: write_cityscapes(root / "cityscapes", part="val"),
    "oscar": write_tokens,
}


@pytest.mark.parametrize("name", SETS)
def test_set_is_found_under_its_root_and_nowhere_else(name, tmp_path):
    for root in (None, tmp_path):
        with pytest.raises(DataMissing, match=rf"^{name}: not found\. Looked for {root or 'a root folder'}"):
            find_set(root, name)
    SETS[name](tmp_path)
    find_set(tmp_path, name)


FOLDERS = pytest.mark.parametrize(
    ("name", "write"), [("food101", write_food101), ("imagenet", write_imagenet_folders)]
)


@FOLDERS
@pytest.mark.parametrize("split", SPLITS)
def test_files_hold_what_was_written(tmp_path, name, write, split):
    written = write(tmp_path)[split]
    images = open_images(tmp_path, name, split)
    assert_read(images, written)
    assert [images.name(index) for index in range(len(images))] == [str(path) for path in written.paths]


@FOLDERS
def test_file_that_is_missing_or_empty_is_named_when_it_is_read(tmp_path, name, write):
    paths = write(tmp_path)["train"].paths
    images = open_images(tmp_path, name, "train")
    paths[2].unlink()
    paths[3].write_bytes(b"")
    paths[4].unlink()
    paths[4].mkdir()
    assert "No such file" in unread(images, 2)
    assert "empty" in unread(images, 3)
    assert "Is a directory" in unread(images, 4)


def test_classes_are_numbered_by_the_training_folders(tmp_path):
    write_imagenet_folders(tmp_path)
    for path in (tmp_path / "imagenet/val" / SYNSETS[0]).iterdir():
        path.unlink()
    (tmp_path / "imagenet/val" / SYNSETS[0]).rmdir()
    assert set(open_images(tmp_path, "imagenet", "test").labels.tolist()) == {1, 2}


def test_other_files_and_hidden_ones_are_left_out(tmp_path):
    written = write_imagenet_folders(tmp_path)["train"]
    folder = written.paths[0].parent
    (folder / "README.txt").write_text("")
    (folder / "._0000.JPEG").write_bytes(b"left by a Mac")
    (tmp_path / "imagenet/train/.cache").mkdir()
    (tmp_path / "imagenet/train/LOC_train.csv").write_text("")
    assert_read(open_images(tmp_path, "imagenet", "train"), written)


def test_split_without_an_image_is_refused(tmp_path):
    (tmp_path / "imagenet/train/n01").mkdir(parents=True)
    for split, folder in (("train", "train"), ("test", "val")):
        text = refused(tmp_path, "imagenet", split)
        assert text.startswith(f"{tmp_path / 'imagenet' / folder}: holds no image\nValid: ")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"pizza": 1}', b"{}", b"\xff", None])
def test_wrong_list_of_food101_is_refused(tmp_path, content):
    write_food101(tmp_path)
    path = tmp_path / "food-101/meta/train.json"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    where = tmp_path / "food-101/images" if content == b"{}" else path
    assert refused(tmp_path, "food101").startswith(f"{where}: ")
