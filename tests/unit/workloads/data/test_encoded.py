"""Encoded images: files in folders and tar shards are read exactly; damage is one error with the file."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data import encoded as module
from pytest_accel.workloads.data.encoded import NotPlain, plain_members
from pytest_accel.workloads.data.images import open_images
from tests.support.data_checks import assert_read, open_under, refused, unread
from tests.support.data_sets import (
    SYNSETS,
    jpeg,
    write_food101,
    write_imagenet_folders,
    write_shards,
    write_tar,
)

SPLITS = ("train", "test")


# Folders
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(
    ("name", "write"), [("food101", write_food101), ("imagenet", write_imagenet_folders)]
)
def test_files_hold_what_was_written(tmp_path, name, write, split):
    written = write(tmp_path)[split]
    images = open_images(tmp_path, name, split)
    assert_read(images, written)
    assert (images.storage, images.groups) == ("files", (len(images),))
    assert [images.name(index) for index in range(len(images))] == [str(path) for path in written.paths]


@pytest.mark.parametrize(
    ("name", "write"), [("food101", write_food101), ("imagenet", write_imagenet_folders)]
)
def test_file_that_is_missing_or_empty_is_named_when_it_is_read(tmp_path, name, write):
    paths = write(tmp_path)["train"].paths
    images = open_images(tmp_path, name, "train")
    paths[2].unlink()
    paths[3].write_bytes(b"")
    paths[4].unlink()
    paths[4].mkdir()
    assert "missing" in unread(images, 2)
    assert "empty" in unread(images, 3)
    assert "Is a directory" in unread(images, 4)
    assert str(paths[2]) == images.name(2)


# ImageNet's folders
def test_classes_are_numbered_by_the_training_folders(tmp_path):
    write_imagenet_folders(tmp_path)
    for path in (tmp_path / "imagenet/val" / SYNSETS[0]).iterdir():
        path.unlink()
    (tmp_path / "imagenet/val" / SYNSETS[0]).rmdir()
    assert set(open_images(tmp_path, "imagenet", "test").labels.tolist()) == {1, 2}


def test_class_that_training_lacks_is_refused(tmp_path):
    write_imagenet_folders(tmp_path)
    other = tmp_path / "imagenet/val/n09"
    other.mkdir()
    (other / "a.jpg").write_bytes(jpeg(8, 8))
    assert f"{other}: a class that {tmp_path / 'imagenet/train'} does not have" in refused(
        tmp_path, "imagenet", "test"
    )


def test_other_files_are_left_out_and_other_images_refused(tmp_path):
    written = write_imagenet_folders(tmp_path)["train"]
    folder = written.paths[0].parent
    (folder / "README.txt").write_text("")
    (folder / "._0000.JPEG").write_bytes(b"left by a Mac")
    (tmp_path / "imagenet/train/.cache").mkdir()
    (tmp_path / "imagenet/train/LOC_train.csv").write_text("")
    assert_read(open_images(tmp_path, "imagenet", "train"), written)
    (folder / "b.png").write_bytes(b"")
    assert f"{folder / 'b.png'}: not a JPEG" in refused(tmp_path, "imagenet")


def test_empty_class_is_refused(tmp_path):
    write_imagenet_folders(tmp_path)
    (tmp_path / "imagenet/train/n00").mkdir()
    assert f"{tmp_path / 'imagenet/train/n00'}: a class without a JPEG" in refused(tmp_path, "imagenet")


# Food-101's lists
@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("train.json", "{", "not JSON"),
        ("train.json", "[" * 100_000, "not JSON"),
        ("train.json", "[]", "not an object"),
        ("train.json", '{"pizza": 1}', "not an object"),
        ("train.json", "{}", "lists no image"),
        ("train.json", '{"pizza": []}', "lists no image"),
        ("train.json", '{"soup": ["soup/1"]}', "'soup' is not in meta/classes.txt"),
        ("train.json", '{"pizza": ["waffles/1"]}', "'waffles/1' is not an image of the class 'pizza'"),
        ("train.json", '{"pizza": ["pizza/../../../etc/passwd"]}', "is not an image"),
        ("train.json", '{"pizza": ["pizza/.."]}', "is not an image"),
        ("train.json", '{"pizza": ["/etc/passwd"]}', "is not an image"),
        ("train.json", '{"pizza": [7]}', "7 is not an image"),
        ("train.json", b"\xff", "not UTF-8"),
        ("classes.txt", "", "empty, or a class is listed twice"),
        ("classes.txt", "pizza\npizza\n", "empty, or a class is listed twice"),
        ("classes.txt", None, "missing"),
        ("train.json", None, "missing"),
    ],
)
def test_wrong_lists_are_refused(tmp_path, file, content, problem):
    write_food101(tmp_path)
    path = tmp_path / "food-101/meta" / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    text = refused(tmp_path, "food101")
    assert text.startswith(f"{path}:")
    assert problem in text


# Workers
def read_all(images, folder, answers):
    inherited = open_under(folder)
    answers.put(([images.read(index).numpy().tobytes() for index in range(len(images))], inherited))


@pytest.mark.parametrize(
    ("storage", "method"),
    [
        ("files", "fork"),
        ("shards", "fork"),
        ("shards", "spawn"),
        pytest.param("files", "spawn", marks=pytest.mark.rehearsal),
    ],
)
def test_workers_read_the_same_bytes_with_files_of_their_own(tmp_path, storage, method):
    if storage == "files":
        written = write_imagenet_folders(tmp_path)["train"]
    else:
        written = write_shards(tmp_path / "imagenet/train")
    images = open_images(tmp_path, "imagenet", "train")
    images.read(0)
    assert len(open_under(tmp_path)) == (storage == "shards")  # opened before the worker began
    context = get_context(method)
    answers = context.Queue()
    worker = context.Process(target=read_all, args=(images, tmp_path, answers))
    worker.start()
    assert answers.get(timeout=120) == (written.images, [])
    worker.join()
    assert images.read(1).numpy().tobytes() == written.images[1]


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


def test_shard_is_refused_wherever_it_is_cut(tmp_path):
    content = {"n1/a.jpg": bytes(700), "n1/a.cls": b"5", "n1/b.jpg": bytes(30), "n1/b.cls": b"6"}
    path = one_shard(tmp_path, content)
    whole = path.read_bytes()
    members = 512 * (1 + 2 + 1 + 1 + 1 + 1 + 1 + 1)  # headers and contents; after them zeros alone
    for size in [*range(0, members + 512, 256), members + 511]:
        path.write_bytes(whole[:size])
        assert refused(tmp_path, "imagenet").startswith(f"{path}: "), size
    path.write_bytes(whole[: members + 512])
    assert len(open_images(tmp_path, "imagenet", "train")) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:2048] + b"\xff" * 512 + whole[2560:],  # the third header
        lambda whole: whole + whole,  # two shards in one file: tarfile sees the first
        lambda whole: b"<html>" * 500,
    ],
)
def test_damaged_shard_loses_no_image_silently(tmp_path, damage):
    path = one_shard(tmp_path, PAIR | {"n1/b.jpg": b"x", "n1/b.cls": b"1"})
    path.write_bytes(damage(path.read_bytes()))
    assert refused(tmp_path, "imagenet").startswith(f"{path}: ")


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_compressed_shard_is_refused_with_a_command_that_works(tmp_path, ending):
    whole = one_shard(tmp_path, PAIR)
    content = whole.read_bytes()
    compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[ending]
    whole.unlink()
    Path(f"{whole}{ending}").write_bytes(compress(content))
    text = refused(tmp_path, "imagenet")
    assert text.startswith(f"{whole}{ending}: compressed")
    command = text.partition("Run: ")[2]
    if not shutil.which(command.split()[0]):
        pytest.skip("the tool is not installed here")
    subprocess.run(command, shell=True, check=True)
    assert whole.read_bytes() == content


def test_shards_are_indexed_once(tmp_path, monkeypatch):
    write_shards(tmp_path / "imagenet/train")
    opened = []
    real = module.plain_members
    monkeypatch.setattr(module, "plain_members", lambda file: opened.append(1) or real(file))
    for _ in range(3):
        open_images(tmp_path, "imagenet", "train")
    assert len(opened) == 3  # of three shards
    path = tmp_path / "imagenet/train/00000.tar"
    os.utime(path, ns=(0, 0))
    open_images(tmp_path, "imagenet", "train")
    assert len(opened) == 4


def test_shard_that_is_cut_or_gone_after_it_was_indexed_is_named(tmp_path):
    written = write_shards(tmp_path / "imagenet/train")
    images = open_images(tmp_path, "imagenet", "train")
    written.paths[0].write_bytes(written.paths[0].read_bytes()[:600])
    written.paths[1].unlink()
    assert "short: 88 of " in unread(images, 0)
    assert "missing" in unread(images, 3)
    assert images.read(6).numpy().tobytes() == written.images[6]


def test_empty_image_in_a_shard_is_named(tmp_path):
    one_shard(tmp_path, PAIR | {"n1/a.jpg": b""})
    assert "empty" in unread(open_images(tmp_path, "imagenet", "train"), 0)


def test_few_shards_are_open_at_once(tmp_path):
    written = write_shards(tmp_path / "imagenet/train", images=40, per_shard=1)
    images = open_images(tmp_path, "imagenet", "train")
    assert_read(images, written)
    assert 1 <= len(open_under(tmp_path)) <= module._OPEN_SHARDS


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def archive(members, kind="ustar"):
    """Bytes of a tar file of TarInfo (or names) with contents."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[kind]) as tar:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def plain_of(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    path.write_bytes(content)
    with path.open("rb") as file:
        return plain_members(file.fileno())


def of_tarfile(content):
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        found = [(each.name, each.offset_data, each.size) for each in tar if each.isreg()]
        return found, tar.offset


NAMES = st.text(st.sampled_from("abc./ äé\udcff0"), min_size=1, max_size=40)


@given(
    st.lists(st.tuples(NAMES, st.binary(max_size=1200)), max_size=6),
    st.sampled_from(list(FORMATS)),
)
def test_plain_archives_are_read_as_tarfile_reads_them(tmp_path_factory, members, kind):
    content = archive(members, kind)
    try:
        found = plain_of(content, tmp_path_factory)
    except NotPlain:
        odd = any(not name.isascii() or name.endswith("/") for name, _ in members)
        assert odd, "left to tarfile without need"
    else:
        assert found == of_tarfile(content)


@pytest.mark.parametrize("byte", range(0, 512, 37))
@pytest.mark.parametrize("at_once", [1, 2, 4096])
def test_header_with_one_wrong_byte_is_refused(tmp_path_factory, monkeypatch, byte, at_once):
    monkeypatch.setattr(module, "_CHECKED_AT_ONCE", at_once)
    content = bytearray(archive([("a.jpg", b"x"), ("b.jpg", b""), ("c.jpg", b"")]))
    assert len(plain_of(content, tmp_path_factory)[0]) == 3
    content[1024 + byte] ^= 1  # of the second header
    with pytest.raises(NotPlain):
        plain_of(content, tmp_path_factory)
