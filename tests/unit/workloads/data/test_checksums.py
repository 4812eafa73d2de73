"""Published sums hold for published sizes; a sums file holds for the files it names; both are told plainly."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess

import pytest
from torchvision import datasets

from pytest_accel.workloads.data import checksums
from pytest_accel.workloads.data.checksums import PUBLISHED, Published, read_sums, verify
from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.data.images import open_images
from tests.support.data_sets import (
    write_cifar_binary,
    write_cifar_python,
    write_food101,
    write_mnist,
    write_shards,
)

SUMS = {"MD5SUMS": "md5", "SHA256SUMS": "sha256"}


def digest(path, algorithm):
    return hashlib.new(algorithm, path.read_bytes()).hexdigest()


def refused(call, *arguments, **options):
    with pytest.raises(DataError) as caught:
        call(*arguments, **options)
    assert type(caught.value) is DataError
    return str(caught.value)


def test_the_published_sums_are_those_that_torchvision_carries():
    theirs = dict(datasets.MNIST.resources)
    theirs |= {
        f"cifar-100-python/{name}": md5
        for name, md5 in datasets.CIFAR100.train_list + datasets.CIFAR100.test_list
    }
    assert {name: known.md5 for name, known in PUBLISHED.items()} == theirs


@pytest.mark.parametrize(
    ("name", "write", "key"),
    [
        ("cifar100", write_cifar_python, "cifar-100-python/train"),
        ("mnist", lambda root: write_mnist(root, compressed=True), "train-images-idx3-ubyte.gz"),
    ],
)
def test_a_file_of_the_published_size_must_have_the_published_sum(tmp_path, monkeypatch, name, write, key):
    path = write(tmp_path)["train"].paths[0]
    size = path.stat().st_size
    right = Published(size_bytes=size, md5=digest(path, "md5"))
    monkeypatch.setitem(PUBLISHED, key, right)
    assert len(open_images(tmp_path, name, "train")) == 20
    monkeypatch.setitem(PUBLISHED, key, Published(size_bytes=size, md5="0" * 32))
    text = refused(open_images, tmp_path, name, "train")
    assert f"{path}: wrong checksum: md5 is {right.md5}, and {'0' * 32} as published" in text
    assert "Download it again" in text
    monkeypatch.setitem(PUBLISHED, key, Published(size_bytes=size + 1, md5="0" * 32))
    assert len(open_images(tmp_path, name, "train")) == 20  # of another size: a user's subset


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize(
    ("name", "write", "folder", "file"),
    [
        ("cifar100", write_cifar_binary, "cifar-100-binary", "train.bin"),
        ("cifar100", write_cifar_python, "cifar-100-python", "train"),
        ("mnist", write_mnist, "MNIST/raw", "train-labels-idx1-ubyte"),
        ("food101", write_food101, "food-101", "meta/train.json"),
        ("imagenet", lambda root: write_shards(root / "imagenet/train"), "imagenet", "train/00001.tar"),
    ],
)
def test_a_sums_file_is_honoured(tmp_path, sums, name, write, folder, file):
    write(tmp_path)
    path = tmp_path / folder / file
    right = digest(path, SUMS[sums])
    (tmp_path / folder / sums).write_text(f"{right}  {file}\n")
    open_images(tmp_path, name, "train")
    wrong = f"{int(right[0], 16) ^ 1:x}{right[1:]}"
    (tmp_path / folder / sums).write_text(f"{wrong}  {file}\n")
    os.utime(
        tmp_path / folder / sums, ns=(1, 1)
    )  # written within one tick of the clock, it could look unchanged
    text = refused(open_images, tmp_path, name, "train")
    assert (
        f"{path}: wrong checksum: {SUMS[sums]} is {right}, and {wrong} by {tmp_path / folder / sums}" in text
    )


def test_a_sums_file_beside_the_shards_is_honoured_too(tmp_path):
    (path, *_) = write_shards(tmp_path / "imagenet/train").paths
    (path.parent / "MD5SUMS").write_text(f"{'0' * 32}  {path.name}\n")
    assert f"{path}: wrong checksum" in refused(open_images, tmp_path, "imagenet", "train")


def test_sums_above_the_folder_of_the_set_are_another_matter(tmp_path):
    write_cifar_binary(tmp_path)
    (tmp_path / "MD5SUMS").write_text(f"{'0' * 32}  cifar-100-binary/train.bin\n")
    open_images(tmp_path, "cifar100", "train")


def test_files_that_no_sum_names_pass(tmp_path):
    write_cifar_binary(tmp_path)
    (tmp_path / "cifar-100-binary/MD5SUMS").write_text(f"{'0' * 32}  test.bin\n")
    open_images(tmp_path, "cifar100", "train")


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="needs coreutils")
@pytest.mark.parametrize("name", ["plain", "with space", "back\\slash", "new\nline", "*star"])
@pytest.mark.parametrize("option", ["--text", "--binary"])
def test_what_coreutils_writes_is_read(tmp_path, name, option):
    (tmp_path / name).write_text("content")
    command = ["sha256sum", option, f"./{name}"]
    written = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout
    (tmp_path / "SHA256SUMS").write_bytes(b"# by hand\n\n" + written)
    assert read_sums(tmp_path / "SHA256SUMS", "sha256") == {name: digest(tmp_path / name, "sha256")}


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "0" * 31 + "  train.bin",
        "0" * 64 + "  train.bin",
        "g" * 32 + "  train.bin",
        "0" * 32 + " train.bin",
        "0" * 32 + "  ",
        "0" * 32,
        "MD5 (train.bin) = " + "0" * 32,
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path, line):
    sums = tmp_path / "MD5SUMS"
    sums.write_text(f"# sums\n{'0' * 32}  a\n{line}\n")
    assert refused(read_sums, sums, "md5").startswith(f"{sums}:3: ")


def test_two_sums_of_one_file_are_refused(tmp_path):
    sums = tmp_path / "MD5SUMS"
    sums.write_text(f"{'a' * 32}  a\n{'A' * 32}  ./a\n{'b' * 32}  a\n")
    assert refused(read_sums, sums, "md5").startswith(f"{sums}:3: a has another sum")


def test_sums_that_are_no_text_are_refused(tmp_path):
    sums = tmp_path / "MD5SUMS"
    sums.write_bytes(b"\xff")
    assert refused(read_sums, sums, "md5").startswith(f"{sums}: not readable")


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "train.bin"
    (tmp_path / "MD5SUMS").write_text(f"{'0' * 32}  train.bin\n")
    assert refused(verify, path, folder=tmp_path).startswith(f"{path}: missing")


def test_a_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "train.bin"
    path.write_bytes(b"content")
    (tmp_path / "MD5SUMS").write_text(f"{digest(path, 'md5')}  train.bin\n")
    reads = []
    real = hashlib.file_digest
    monkeypatch.setattr(
        checksums.hashlib, "file_digest", lambda file, name: reads.append(file.name) or real(file, name)
    )
    for _ in range(3):
        verify(path, folder=tmp_path)
    assert len(reads) == 1
    path.write_bytes(b"CONTENT")  # of the same size
    os.utime(path, ns=(1, 1))
    assert f"{path}: wrong checksum" in refused(verify, path, folder=tmp_path)
    assert len(reads) == 2


def test_a_wrong_sum_stays_wrong(tmp_path):
    path = tmp_path / "train.bin"
    path.write_bytes(b"content")
    (tmp_path / "MD5SUMS").write_text(f"{'0' * 32}  train.bin\n")
    for _ in range(2):
        assert f"{path}: wrong checksum" in refused(verify, path, folder=tmp_path)
