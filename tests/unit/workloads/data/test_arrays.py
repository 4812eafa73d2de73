"""Image sets in memory: CIFAR-100, MNIST and digits are read exactly; pickles are never run."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torchvision import datasets

from pytest_accel.workloads.data import arrays
from pytest_accel.workloads.data.errors import DataMissing
from pytest_accel.workloads.data.images import ArrayImages, open_images
from tests.support.data_checks import refused
from tests.support.data_sets import (
    pixels,
    python2_pickle,
    write_cifar_binary,
    write_cifar_python,
    write_mnist,
)

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
def test_cifar_equals_torchvision(tmp_path, split, monkeypatch):
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


def test_label_beyond_the_classes_is_refused(tmp_path):
    (path,) = write_cifar_binary(tmp_path)["train"].paths
    content = bytearray(path.read_bytes())
    content[3 * 3074 + 1] = 100
    path.write_bytes(content)
    text = refused(tmp_path, "cifar100")
    assert f"{path}: image 3: the label 100 is not one of cifar100's 100 classes" in text


@pytest.mark.parametrize("folder", ["cifar-100-binary", "cifar-100-python"])
def test_archive_that_was_not_extracted_is_reported_with_the_command(tmp_path, folder):
    (tmp_path / f"{folder}.tar.gz").write_bytes(b"")
    assert f"tar -xf {tmp_path / folder}.tar.gz -C {tmp_path}" in refused(tmp_path, "cifar100")


def test_half_a_cifar_is_an_error_and_not_missing(tmp_path):
    (path,) = write_cifar_binary(tmp_path)["test"].paths
    path.unlink()
    assert f"{path}: missing" in refused(tmp_path, "cifar100", "test")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist"])
@pytest.mark.parametrize("compressed", [False, True])
def test_mnist_holds_what_was_written(tmp_path, compressed, folder, split):
    written = write_mnist(tmp_path, compressed=compressed, folder=folder)
    assert_holds(open_images(tmp_path, "mnist", split), written[split])


def test_file_that_mnist_lacks_is_named(tmp_path):
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


@pytest.mark.parametrize("keep", [5, 100, -9, -4, -1])
def test_torn_gzip_is_refused(tmp_path, keep):
    images, _ = write_mnist(tmp_path, compressed=True)["train"].paths
    images.write_bytes(images.read_bytes()[:keep])
    assert f"{images}: torn" in refused(tmp_path, "mnist")


def test_gzip_with_a_wrong_crc_is_refused(tmp_path):
    images, _ = write_mnist(tmp_path, compressed=True)["train"].paths
    content = bytearray(images.read_bytes())
    content[-8] ^= 1
    images.write_bytes(content)
    assert f"{images}: damaged: CRC check failed" in refused(tmp_path, "mnist")


# Digits
def test_digits_need_no_root():
    train, test = (open_images(None, "digits", split) for split in SPLITS)
    assert (train.images.shape, test.images.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert (train.images.min(), train.images.max()) == (0, 255)
    assert set(train.labels.tolist()) == set(test.labels.tolist()) == set(range(10))


def test_digits_are_those_that_scikit_learn_loads():
    from sklearn.datasets import load_digits

    theirs = load_digits()
    ours = [open_images(None, "digits", split) for split in SPLITS]
    scaled = (theirs.images.astype(int) * 255 // 16).astype(np.uint8)
    assert np.array_equal(torch.cat([each.images for each in ours])[:, 0].numpy(), scaled)
    assert torch.cat([each.labels for each in ours]).tolist() == theirs.target.tolist()


def test_without_scikit_learn_digits_are_missing(monkeypatch):
    monkeypatch.setattr(arrays, "find_spec", lambda _: None)
    assert "pip install scikit-learn" in refused(None, "digits", kind=DataMissing)


@pytest.mark.parametrize("content", [b"", b"1,2\n", ("0," * 64 + "0\n").encode(), b"nothing\n"])
def test_damaged_digits_are_refused(tmp_path, monkeypatch, content):
    path = tmp_path / "datasets/data/digits.csv.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(content))
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(arrays, "find_spec", lambda _: found)
    assert refused(None, "digits").startswith(f"{path}: ")


# All
@pytest.mark.parametrize("name", ["cifar100", "mnist", "food101", "imagenet"])
def test_without_a_root_a_set_is_missing(name, tmp_path):
    assert f"{name}: not found" in refused(None, name, kind=DataMissing)
    assert str(tmp_path / "nowhere") in refused(tmp_path / "nowhere", name, kind=DataMissing)


def test_unknown_set_is_refused_with_the_valid_names(tmp_path):
    with pytest.raises(ValueError, match=r"'cifar10' is not known. Valid: cifar100, digits"):
        open_images(tmp_path, "cifar10", "train")


ROW = pixels(2, 3072)


LABELS = [1, 2]


def write_pickle(tmp_path, content):
    path = tmp_path / "cifar-100-python/train"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def refused_pickle(tmp_path, content):
    path = write_pickle(tmp_path, content)
    text = refused(tmp_path, "cifar100")
    assert text.startswith(f"{path}: ")
    return text


class Call:
    """Pickles as a call: what an attacker's `__reduce__` does."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", range(6))
def test_pickle_that_runs_a_command_does_not(tmp_path, protocol):
    mark = tmp_path / "mark"
    evil = {"data": Call(os.system, f"touch {mark}"), "fine_labels": LABELS}
    text = refused_pickle(tmp_path, pickle.dumps(evil, protocol=protocol))
    assert "refused: it asks for posix.system" in text
    assert not mark.exists()


def global_call(module, name, *arguments, protocol=2):
    """A call of a global by its name, which need not exist here; protocol 4 also takes dotted names."""
    tail = pickle.dumps(arguments, protocol=2)[2:-1] + b"R."
    if protocol == 2:
        return b"\x80\x02c" + f"{module}\n{name}\n".encode() + tail

    def text(word):
        return b"\x8c" + bytes([len(word)]) + word.encode()

    return b"\x80\x04" + text(module) + text(name) + b"\x93" + tail


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("numpy.testing._private.utils", "runstring"),
        ("numpy", "load"),
        ("numpy", "ndarray.tofile"),
        ("numpy", "dtype.__class__"),
        ("numpy", "os.system"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy.core.multiarray", "_reconstruct.__globals__"),
        ("builtins", "eval"),
        ("__builtin__", "eval"),
        ("copyreg", "_reconstructor"),
    ],
)
def test_pickle_with_other_numpy_names_is_refused(tmp_path, module, name, protocol):
    mark = tmp_path / "mark"
    command = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    text = refused_pickle(tmp_path, global_call(module, name, command, {}, protocol=protocol))
    assert f"refused: it asks for {module}.{name}" in text
    assert not mark.exists()


@pytest.mark.parametrize(("module", "name"), sorted(arrays._RestrictedUnpickler.KNOWN))
def test_known_names_make_nothing_and_cannot_be_changed(tmp_path, module, name):
    mark = tmp_path / "mark"
    assert "not a pickled dictionary" in refused_pickle(tmp_path, global_call(module, name, str(mark)))
    state = pickle.dumps({"__call__": 1}, protocol=2)[2:-1]
    text = refused_pickle(tmp_path, b"\x80\x02c" + f"{module}\n{name}\n".encode() + state + b"b.")
    assert f"sets attributes of {name}" in text
    assert not mark.exists()


def test_array_of_objects_is_refused(tmp_path):
    # An array of objects, whose state is a list: numpy would take it.
    made = {b"data": np.array([{}, []], dtype=object), b"fine_labels": LABELS}
    assert "'data' is not an array" in refused_pickle(tmp_path, pickle.dumps(made, protocol=4))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([1], "not a pickled dictionary"),
        ({}, "'data' is not an array"),
        ({b"data": ROW}, "'fine_labels' is not a list"),
        ({b"data": [1], b"fine_labels": LABELS}, "'data' is not an array"),
        ({b"data": ROW.astype(np.float32), b"fine_labels": LABELS}, "not an array of unsigned bytes"),
        ({b"data": ROW.astype(np.int8), b"fine_labels": LABELS}, "not an array of unsigned bytes"),
        ({b"data": ROW[:, :3071].copy(), b"fine_labels": LABELS}, "not rows of 3072"),
        ({b"data": ROW.reshape(-1).copy(), b"fine_labels": LABELS}, "not rows of 3072"),
        ({b"data": ROW[:0].copy(), b"fine_labels": []}, "not rows of 3072"),
        ({b"data": ROW, b"fine_labels": ["1", "2"]}, "not a list of numbers"),
        ({b"data": ROW, b"fine_labels": [1, 2**70]}, "not a list of numbers"),
        ({b"data": ROW, b"fine_labels": [True, False]}, "not a list of numbers"),
        ({b"data": ROW, b"fine_labels": 7}, "not a list of numbers"),
    ],
)
@pytest.mark.parametrize("protocol", [4, 5])
def test_pickles_of_something_else_are_refused(tmp_path, content, problem, protocol):
    assert problem in refused_pickle(tmp_path, pickle.dumps(content, protocol=protocol))


def test_arrays_in_fortrans_order_are_read_as_written(tmp_path):
    for protocol in (4, 5):
        content = {"data": np.asfortranarray(ROW), "fine_labels": LABELS}
        write_pickle(tmp_path, pickle.dumps(content, protocol=protocol))
        found = open_images(tmp_path, "cifar100", "train").images
        assert np.array_equal(found.numpy().reshape(-1, 3072), ROW)


@pytest.mark.parametrize("keep", [0, 1, 2, 30, 60, 3000, 6300, -1])
def test_torn_pickles_are_refused(tmp_path, keep):
    whole = python2_pickle(ROW, LABELS)
    assert len(whole) > 6300
    assert "not a whole pickle" in refused_pickle(tmp_path, whole[:keep])


@pytest.mark.parametrize(
    ("name", "write", "key"),
    [
        ("cifar100", write_cifar_python, "cifar-100-python/train"),
        ("mnist", lambda root: write_mnist(root, compressed=True), "train-images-idx3-ubyte.gz"),
    ],
)
def test_file_of_the_published_size_must_have_the_published_checksum(tmp_path, monkeypatch, name, write, key):
    path = write(tmp_path)["train"].paths[0]
    size, md5 = path.stat().st_size, hashlib.md5(path.read_bytes()).hexdigest()
    for published in ((size, md5), (size + 1, "0" * 32)):  # of another size: a user's subset
        monkeypatch.setitem(arrays.PUBLISHED, key, published)
        assert len(open_images(tmp_path, name, "train")) == 20
    monkeypatch.setitem(arrays.PUBLISHED, key, (size, "0" * 32))
    said = f"{path}: wrong checksum: md5 is {md5}, and {'0' * 32} as published\nDownload it again"
    assert refused(tmp_path, name).startswith(said)


def test_published_checksums_are_those_of_torchvision():
    theirs = dict(datasets.MNIST.resources)
    listed = datasets.CIFAR100.train_list + datasets.CIFAR100.test_list
    theirs |= {f"cifar-100-python/{name}": md5 for name, md5 in listed}
    assert {name: md5 for name, (_, md5) in arrays.PUBLISHED.items()} == theirs
