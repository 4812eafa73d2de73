"""Tar shards: what was written comes back, and what is wrong with a shard or a member is named."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import subprocess
import tarfile

import pytest

from pytest_accel.workloads.data.formats import shards as shards_module
from pytest_accel.workloads.data.images import open_images
from tests.support.data_checks import assert_read, open_under, refused, unread
from tests.support.data_sets import (
    write_food101,
    write_shards,
    write_tar,
)


@pytest.mark.parametrize(
    ("name", "folder", "split"),
    [
        ("imagenet", "imagenet/train", "train"),
        ("imagenet", "imagenet/val", "test"),
        ("food101", "food-101/train", "train"),
        ("food101", "food-101/test", "test"),
    ],
)
def test_shards_hold_what_was_written(tmp_path, name, folder, split):
    written = write_shards(tmp_path / folder, images=7, per_shard=3)
    images = open_images(tmp_path, name, split)
    assert_read(images, written)
    assert (images.storage, images.groups) == ("shards", (3, 3, 1))
    assert images.name(3) == f"{written.paths[1]}: n{written.labels[3]:02}/000003.jpg"


def test_shards_go_before_files(tmp_path):
    write_food101(tmp_path)
    write_shards(tmp_path / "food-101/train")
    assert open_images(tmp_path, "food101", "train").storage == "shards"
    assert open_images(tmp_path, "food101", "test").storage == "files"


def one_shard(tmp_path, members):
    folder = tmp_path / "imagenet/train"
    folder.mkdir(parents=True)
    return write_tar(folder / "a.tar", members)


PAIR = {"n1/a.jpg": b"image", "n1/a.cls": b"5"}


def test_members_may_come_in_any_order_and_spelling(tmp_path):
    long = "n" * 150 + "/a"  # longer than a header holds
    one_shard(
        tmp_path,
        {
            "b.cls": b" 999\n",
            "./a.JPEG": b"1",
            "b.jpeg": b"2",
            "./a.cls": b"0",
            "notes.txt": b"",
            ".x.jpg": b"!",
        }
        | {f"{long}.JPG": b"3", f"{long}.cls": b"7", "a.b.jpg": b"no key of a pair has this extension"},
    )
    images = open_images(tmp_path, "imagenet", "train")
    assert [images.read(index).numpy().tobytes() for index in range(3)] == [b"1", b"2", b"3"]
    assert images.labels.tolist() == [0, 999, 7]


@pytest.mark.parametrize(
    ("members", "key", "problem"),
    [
        (PAIR | {"n1/b.jpg": b"x"}, "n1/b", "an image without .cls"),
        (PAIR | {"n1/b.cls": b"1"}, "n1/b", "a .cls without an image"),
        (PAIR | {"n1/a.jpeg": b"x"}, "n1/a", "a second .jpeg"),
        (PAIR | {"n1/a.CLS": b"x"}, "n1/a", "a second .cls"),
        (PAIR | {"n1/a.cls": b""}, "n1/a", "not the number of a class"),
        (PAIR | {"n1/a.cls": b"cat"}, "n1/a", "b'cat', not the number of a class"),
        (PAIR | {"n1/a.cls": "٣".encode()}, "n1/a", "not the number of a class"),
        (PAIR | {"n1/a.cls": b"1" * 100}, "n1/a", "not the number of a class"),
        (PAIR | {"n1/a.cls": b"-1"}, "n1/a.jpg", "the label -1 is not one of imagenet's 1000"),
        (PAIR | {"n1/a.cls": b"1000"}, "n1/a.jpg", "the label 1000 is not one of imagenet's 1000"),
        ({"readme.txt": b"x"}, "", "holds no image"),
        ({}, "", "holds no image"),
    ],
)
def test_wrong_members_are_named_with_their_shard(tmp_path, members, key, problem):
    path = one_shard(tmp_path, members)
    text = refused(tmp_path, "imagenet")
    assert text.startswith(f"{path}: {key}")
    assert problem in text


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_only_regular_members_are_read(tmp_path, kind):
    path = one_shard(tmp_path, PAIR)
    with tarfile.open(path, "a") as tar:
        folder = tarfile.TarInfo("n2")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    assert len(open_images(tmp_path, "imagenet", "train")) == 1
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo("n2/b.jpg")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    assert f"{path}: n2/b.jpg: not a regular file" in refused(tmp_path, "imagenet")


def test_a_shard_is_refused_wherever_it_is_cut(tmp_path):
    content = {"n1/a.jpg": bytes(700), "n1/a.cls": b"5", "n1/b.jpg": bytes(30), "n1/b.cls": b"6"}
    path = one_shard(tmp_path, content)
    whole = path.read_bytes()
    members = 512 * (1 + 2 + 1 + 1 + 1 + 1 + 1 + 1)  # headers and contents; after them zeros alone
    for size in [*range(0, members + 512, 256), members + 511]:
        path.write_bytes(whole[:size])
        assert refused(tmp_path, "imagenet").startswith(f"{path}: "), size
    path.write_bytes(whole[: members + 512])
    assert len(open_images(tmp_path, "imagenet", "train")) == 2


def test_a_member_beyond_the_end_is_named(tmp_path):
    path = one_shard(tmp_path, PAIR | {"n1/z.jpg": bytes(5000)})
    path.write_bytes(path.read_bytes()[:4096])
    assert f"{path}: n1/z: torn: n1/z.jpg reaches beyond the end" in refused(tmp_path, "imagenet")


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:2048] + b"\xff" * 512 + whole[2560:],  # the third header
        lambda whole: whole + whole,  # two shards in one file: tarfile sees the first
        lambda whole: b"<html>" * 500,
    ],
)
def test_a_damaged_shard_loses_no_image_silently(tmp_path, damage):
    path = one_shard(tmp_path, PAIR | {"n1/b.jpg": b"x", "n1/b.cls": b"1"})
    path.write_bytes(damage(path.read_bytes()))
    assert refused(tmp_path, "imagenet").startswith(f"{path}: ")


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_compressed_shard_is_refused_with_a_remedy_that_works(tmp_path, mode):
    whole = one_shard(tmp_path, PAIR)
    content = whole.read_bytes()
    compress = {"w:gz": gzip.compress, "w:bz2": bz2.compress, "w:xz": lzma.compress}[mode]
    whole.write_bytes(compress(content))
    text = refused(tmp_path, "imagenet")
    assert f"{whole}: compressed" in text
    command = text.partition("Run: ")[2]
    if not shutil.which(command.partition("&& ")[2].split()[0]):
        pytest.skip("the tool is not installed here")
    subprocess.run(command, shell=True, check=True)
    assert whole.read_bytes() == content


def test_a_compressed_shard_beside_others_is_not_passed_over(tmp_path):
    other = one_shard(tmp_path, PAIR).with_name("b.tar.gz")
    other.write_bytes(b"")
    assert f"Run: gunzip {other}" in refused(tmp_path, "imagenet")


def test_shards_are_indexed_once(tmp_path, monkeypatch):
    write_shards(tmp_path / "imagenet/train")
    opened = []
    real = shards_module.plain_members
    monkeypatch.setattr(shards_module, "plain_members", lambda file: opened.append(1) or real(file))
    for _ in range(3):
        open_images(tmp_path, "imagenet", "train")
    assert len(opened) == 3  # of three shards
    path = tmp_path / "imagenet/train/00000.tar"
    os.utime(path, ns=(0, 0))
    open_images(tmp_path, "imagenet", "train")
    assert len(opened) == 4


def test_a_shard_that_is_cut_or_gone_after_it_was_indexed_is_named(tmp_path):
    written = write_shards(tmp_path / "imagenet/train")
    images = open_images(tmp_path, "imagenet", "train")
    written.paths[0].write_bytes(written.paths[0].read_bytes()[:600])
    written.paths[1].unlink()
    assert "short: 88 of " in unread(images, 0)
    assert "missing" in unread(images, 3)
    assert images.read(6).numpy().tobytes() == written.images[6]


def test_an_empty_image_in_a_shard_is_named(tmp_path):
    one_shard(tmp_path, PAIR | {"n1/a.jpg": b""})
    assert "empty" in unread(open_images(tmp_path, "imagenet", "train"), 0)


def test_few_shards_are_open_at_once(tmp_path):
    written = write_shards(tmp_path / "imagenet/train", images=40, per_shard=1)
    images = open_images(tmp_path, "imagenet", "train")
    assert_read(images, written)
    assert 1 <= len(open_under(tmp_path)) <= shards_module._OPEN_SHARDS
