"""Tar shards: images are read exactly by their offset; damage is one error with the shard and the member."""

import gzip
import os

import pytest

from pytest_accel.workloads.data import images
from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.data.images import open_images
from tests.support.data_sets import unread, write_food101, write_shards, write_tar


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def refused(root):
    with pytest.raises(DataError) as caught:
        open_images(root, "imagenet", "train")
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "folder", "split"),
    [
        ("imagenet", "imagenet/train", "train"),
        ("imagenet", "imagenet/val", "test"),
        ("food101", "food-101/test", "test"),
    ],
)
def test_shards_hold_what_was_written(tmp_path, name, folder, split):
    if name == "food101":
        write_food101(tmp_path)  # shards go before files
    written = write_shards(tmp_path / folder, images=7, per_shard=3)
    images = open_images(tmp_path, name, split)
    assert [images.read(index).numpy().tobytes() for index in range(len(images))] == written.images
    assert (images.labels.tolist(), images.groups) == (written.labels, (3, 3, 1))
    assert images.name(3) == f"{written.paths[1]}: n{written.labels[3]:02}/000003.jpg"


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
    ("members", "place", "problem"),
    [
        (PAIR | {"n1/b.jpg": b"x"}, "n1/b", "an image without .cls"),
        (PAIR | {"n1/b.cls": b"1"}, "n1/b", "a .cls without an image"),
        (PAIR | {"n1/a.cls": b"cat"}, "n1/a.cls", "'cat'"),
        ({"readme.txt": b"x"}, "", "holds no image"),
    ],
)
def test_wrong_members_are_named_with_their_shard(tmp_path, members, place, problem):
    path = one_shard(tmp_path, members)
    text = refused(tmp_path)
    assert text.startswith(f"{path}: {place}")
    assert problem in text


def test_shard_is_refused_wherever_it_is_cut(tmp_path):
    content = {"n1/a.jpg": bytes(700), "n1/a.cls": b"5", "n1/b.jpg": bytes(30), "n1/b.cls": b"6"}
    path = one_shard(tmp_path, content)
    whole = path.read_bytes()
    members = 512 * (1 + 2 + 1 + 1 + 1 + 1 + 1 + 1)  # headers and contents; after them zeros alone
    for size in [*range(0, members + 512, 256), members + 511]:
        path.write_bytes(whole[:size])
        assert refused(tmp_path).startswith(f"{path}: "), size
    path.write_bytes(whole[: members + 512])
    assert len(open_images(tmp_path, "imagenet", "train")) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:2048] + b"\xff" * 512 + whole[2560:],  # the third header
        lambda whole: whole + whole,  # two shards in one file: tarfile sees the first
        lambda whole: b"<html>" * 500,
        gzip.compress,
    ],
)
def test_damaged_shard_loses_no_image_silently(tmp_path, damage):
    path = one_shard(tmp_path, PAIR | {"n1/b.jpg": b"x", "n1/b.cls": b"1"})
    path.write_bytes(damage(path.read_bytes()))
    assert refused(tmp_path).startswith(f"{path}: ")


def test_shards_are_indexed_once_and_again_when_one_changes(tmp_path, monkeypatch):
    paths = write_shards(tmp_path / "imagenet/train").paths
    indexed, real = [], images._members
    monkeypatch.setattr(images, "_members", lambda path: indexed.append(path) or real(path))
    for _ in range(3):
        open_images(tmp_path, "imagenet", "train")
    assert indexed == [*paths]
    os.utime(paths[0], ns=(0, 0))
    open_images(tmp_path, "imagenet", "train")
    assert indexed == [*paths, *paths]


@pytest.mark.parametrize("kept", [0, 100, 300])
def test_damaged_index_is_built_again(tmp_path, kept):
    write_shards(tmp_path / "imagenet/train")
    whole = open_images(tmp_path, "imagenet", "train")
    (index,) = (tmp_path / "cache/pytest-accel").iterdir()
    index.write_bytes(index.read_bytes()[:kept])
    again = open_images(tmp_path, "imagenet", "train")
    assert again.places.tolist() == whole.places.tolist()


def test_shard_that_is_cut_or_gone_after_it_was_indexed_is_named(tmp_path):
    written = write_shards(tmp_path / "imagenet/train")
    images = open_images(tmp_path, "imagenet", "train")
    written.paths[0].write_bytes(written.paths[0].read_bytes()[:600])
    written.paths[1].unlink()
    assert "short: 88 of " in unread(images, 0)
    assert "No such file" in unread(images, 3)
    assert images.read(6).numpy().tobytes() == written.images[6]
