"""Sets that lie in memory: CIFAR-100, MNIST and the digits, against what was written and what torchvision reads."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from torchvision import datasets

from pytest_accel.workloads.data.errors import DataMissing
from pytest_accel.workloads.data.formats import digits
from pytest_accel.workloads.data.images import ArrayImages, open_images
from tests.support.data_checks import refused
from tests.support.data_sets import write_cifar_binary, write_cifar_python, write_mnist

SPLITS = ("train", "test")


def assert_holds(images, written):
    assert isinstance(images, ArrayImages)
    assert (images.images.dtype, images.labels.dtype) == (torch.uint8, torch.int64)
    assert images.images.is_contiguous()
    assert len(images) == len(written.labels)
    assert np.array_equal(images.images.numpy(), written.images)
    assert images.labels.tolist() == written.labels


# CIFAR-100


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("protocol", [None, 3, 4, 5])
def test_cifar_pickles_hold_what_was_written(tmp_path, protocol, split):
    written = write_cifar_python(tmp_path, protocol=protocol)
    assert_holds(open_images(tmp_path, "cifar100", split), written[split])


@pytest.mark.parametrize("split", SPLITS)
def test_cifar_binary_holds_what_was_written(tmp_path, split):
    written = write_cifar_binary(tmp_path)
    assert_holds(open_images(tmp_path, "cifar100", split), written[split])


@pytest.mark.parametrize("split", SPLITS)
def test_cifar_is_read_as_torchvision_reads_it(tmp_path, split, monkeypatch):
    write_cifar_python(tmp_path)
    monkeypatch.setattr(datasets.cifar, "check_integrity", lambda *_: True)  # its sums are of the whole set
    theirs = datasets.CIFAR100(tmp_path, train=split == "train")
    ours = open_images(tmp_path, "cifar100", split)
    assert np.array_equal(ours.images.permute(0, 2, 3, 1).numpy(), theirs.data)
    assert ours.labels.tolist() == theirs.targets


def test_binary_goes_before_pickles(tmp_path):
    write_cifar_python(tmp_path, seed=1)
    written = write_cifar_binary(tmp_path, seed=2)
    assert_holds(open_images(tmp_path, "cifar100", "train"), written["train"])


@pytest.mark.parametrize("size", [0, 1, 3073, 3075, 20 * 3074 - 1])
def test_torn_cifar_records_are_refused(tmp_path, size):
    (path,) = write_cifar_binary(tmp_path)["train"].paths
    path.write_bytes((path.read_bytes() * 2)[:size])
    assert f"{path}: torn: {size} bytes" in refused(tmp_path, "cifar100")


def test_a_label_beyond_the_classes_is_refused(tmp_path):
    (path,) = write_cifar_binary(tmp_path)["train"].paths
    content = bytearray(path.read_bytes())
    content[3 * 3074 + 1] = 100
    path.write_bytes(content)
    text = refused(tmp_path, "cifar100")
    assert f"{path}: image 3: the label 100 is not one of cifar100's 100 classes" in text


def test_missing_cifar_names_where_was_looked(tmp_path):
    text = refused(tmp_path, "cifar100", kind=DataMissing)
    assert str(tmp_path / "cifar-100-binary") in text
    assert str(tmp_path / "cifar-100-python") in text


@pytest.mark.parametrize("folder", ["cifar-100-binary", "cifar-100-python"])
def test_an_archive_is_told_how_to_extract(tmp_path, folder):
    (tmp_path / f"{folder}.tar.gz").write_bytes(b"")
    assert f"tar -xf {tmp_path / folder}.tar.gz -C {tmp_path}" in refused(tmp_path, "cifar100")


def test_half_a_cifar_is_an_error_and_not_missing(tmp_path):
    (path,) = write_cifar_binary(tmp_path)["test"].paths
    path.unlink()
    assert f"{path}: missing" in refused(tmp_path, "cifar100", "test")


# MNIST


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist"])
@pytest.mark.parametrize("compressed", [False, True])
def test_mnist_holds_what_was_written(tmp_path, compressed, folder, split):
    written = write_mnist(tmp_path, compressed=compressed, folder=folder)
    assert_holds(open_images(tmp_path, "mnist", split), written[split])


@pytest.mark.parametrize("split", SPLITS)
def test_mnist_is_read_as_torchvision_reads_it(tmp_path, split):
    write_mnist(tmp_path)
    theirs = datasets.MNIST(tmp_path, train=split == "train")
    ours = open_images(tmp_path, "mnist", split)
    assert torch.equal(ours.images[:, 0], theirs.data)
    assert torch.equal(ours.labels, theirs.targets)


def test_missing_mnist_names_where_was_looked(tmp_path):
    text = refused(tmp_path, "mnist", kind=DataMissing)
    assert str(tmp_path / "MNIST/raw") in text
    assert f"{tmp_path / 'mnist'}." in text


def test_a_file_that_mnist_lacks_is_named(tmp_path):
    _, labels = write_mnist(tmp_path)["train"].paths
    labels.unlink()
    assert f"{labels}: missing" in refused(tmp_path, "mnist")


def images_header(count, rows=28, columns=28, magic=2051):
    return struct.pack(">4I", magic, count, rows, columns)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "starts with nothing"),
        (b"\x00\x00", "starts with 00 00, not with 00 00 08 03"),
        (images_header(1, magic=2049) + bytes(784), "starts with 00 00 08 01"),
        (images_header(1, magic=0x0D03) + bytes(784), "starts with 00 00 0d 03"),
        (images_header(1)[:11], "too short for the dimensions"),
        (images_header(2) + bytes(784), "1568"),
        (images_header(1) + bytes(785), "784 bytes, and more follow"),
        (images_header(2**32 - 1, 2**32 - 1, 2**32 - 1), "too short for the dimensions"),
        (images_header(2, 14, 28) + bytes(784), "images of 14 x 28"),
    ],
)
def test_wrong_idx_files_are_refused(tmp_path, content, problem, compressed):
    images, _ = write_mnist(tmp_path, compressed=compressed)["train"].paths
    images.write_bytes(gzip.compress(content) if compressed else content)
    text = refused(tmp_path, "mnist")
    assert text.startswith(f"{images}: ")
    assert problem in text or (not compressed and "too short" in text)


def test_labels_that_are_too_few_are_refused(tmp_path):
    _, labels = write_mnist(tmp_path, train=20)["train"].paths
    labels.write_bytes(struct.pack(">2I", 2049, 19) + bytes(19))
    assert f"{labels}: 19 labels for 20 images" in refused(tmp_path, "mnist")


def test_a_label_that_is_no_digit_is_refused(tmp_path):
    _, labels = write_mnist(tmp_path, test=8)["test"].paths
    labels.write_bytes(struct.pack(">2I", 2049, 8) + bytes([0, 10, 0, 0, 0, 0, 0, 0]))
    assert f"{labels}: image 1: the label 10" in refused(tmp_path, "mnist", "test")


@pytest.mark.parametrize("keep", [5, 100, -9, -4, -1])
def test_a_torn_gzip_is_refused(tmp_path, keep):
    images, _ = write_mnist(tmp_path, compressed=True)["train"].paths
    images.write_bytes(images.read_bytes()[:keep])
    assert f"{images}: torn" in refused(tmp_path, "mnist")


def test_a_gzip_with_a_wrong_crc_is_refused(tmp_path):
    images, _ = write_mnist(tmp_path, compressed=True)["train"].paths
    content = bytearray(images.read_bytes())
    content[-8] ^= 1
    images.write_bytes(content)
    assert f"{images}: damaged: CRC check failed" in refused(tmp_path, "mnist")


def test_damage_within_a_gzip_is_refused(tmp_path):
    images, _ = write_mnist(tmp_path, compressed=True)["train"].paths
    content = bytearray(images.read_bytes())
    content[10] = 0xFF  # no such kind of deflate block
    images.write_bytes(content)
    assert f"{images}: damaged: " in refused(tmp_path, "mnist")


def test_what_is_no_gzip_is_refused(tmp_path):
    images, _ = write_mnist(tmp_path, compressed=True)["train"].paths
    images.write_bytes(b"<html>not found</html>")
    assert f"{images}: damaged: Not a gzipped file" in refused(tmp_path, "mnist")


# Digits


def test_digits_need_no_root_and_are_whole():
    train, test = (open_images(None, "digits", split) for split in SPLITS)
    assert (train.images.shape, test.images.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert (train.images.min(), train.images.max()) == (0, 255)
    assert set(train.labels.tolist()) == set(test.labels.tolist()) == set(range(10))


def test_digits_do_not_import_scikit_learn():
    program = "import sys; from pytest_accel.workloads.data.formats.digits import read_digits; read_digits('train'); "
    program += "sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_digits_are_those_that_scikit_learn_loads():
    from sklearn.datasets import load_digits

    theirs = load_digits()
    ours = [open_images(None, "digits", split) for split in SPLITS]
    scaled = (theirs.images.astype(int) * 255 // 16).astype(np.uint8)
    assert np.array_equal(torch.cat([each.images for each in ours])[:, 0].numpy(), scaled)
    assert torch.cat([each.labels for each in ours]).tolist() == theirs.target.tolist()


def test_without_scikit_learn_digits_are_missing(monkeypatch):
    monkeypatch.setattr(digits, "find_spec", lambda _: None)
    assert "pip install scikit-learn" in refused(None, "digits", kind=DataMissing)


@pytest.mark.parametrize("content", [b"", b"1,2\n", ("0," * 64 + "0\n").encode(), b"nothing\n"])
def test_damaged_digits_are_refused(tmp_path, monkeypatch, content):
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(gzip.compress(content))
    monkeypatch.setattr(digits, "_file", lambda: path)
    assert refused(None, "digits").startswith(f"{path}: ")


# All


@pytest.mark.parametrize("name", ["cifar100", "mnist", "food101", "imagenet"])
def test_without_a_root_a_set_is_missing(name, tmp_path):
    assert f"{name}: not found" in refused(None, name, kind=DataMissing)
    assert str(tmp_path / "nowhere") in refused(tmp_path / "nowhere", name, kind=DataMissing)


def test_unknown_names_are_told_the_valid_ones(tmp_path):
    with pytest.raises(ValueError, match=r"'cifar10' is not known. Valid: cifar100, digits"):
        open_images(tmp_path, "cifar10", "train")
    with pytest.raises(ValueError, match=r"'val' is not known. Valid: train, test"):
        open_images(tmp_path, "mnist", "val")
