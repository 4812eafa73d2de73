"""Sets of encoded images: Food-101's lists, ImageNet's folders, and both in worker processes."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
from multiprocessing import get_context

import pytest
import torch
from torch._utils import ExceptionWrapper
from torchvision import datasets
from torchvision.io import ImageReadMode, decode_image

from pytest_accel.workloads.data.errors import DataError, DataMissing
from pytest_accel.workloads.data.images import open_images
from tests.support.data_checks import assert_read, open_under, refused, unread
from tests.support.data_sets import (
    FOODS,
    SYNSETS,
    jpeg,
    write_food101,
    write_imagenet_folders,
    write_shards,
)

SPLITS = ("train", "test")


def decoded(data):
    return decode_image(data, ImageReadMode.RGB)


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


@pytest.mark.parametrize("split", SPLITS)
def test_food101_is_read_as_torchvision_reads_it(tmp_path, split):
    write_food101(tmp_path)
    theirs = datasets.Food101(tmp_path, split, loader=lambda path: decode_image(path, ImageReadMode.RGB))
    ours = open_images(tmp_path, "food101", split)
    assert len(ours) == len(theirs)
    for index in range(len(theirs)):
        pixels, label = theirs[index]
        assert torch.equal(decoded(ours.read(index)), pixels)
        assert ours.labels[index] == label


@pytest.mark.parametrize(("split", "folder"), [("train", "train"), ("test", "val")])
def test_imagenet_is_read_as_torchvision_reads_it(tmp_path, split, folder):
    write_imagenet_folders(tmp_path)
    theirs = datasets.ImageFolder(
        tmp_path / "imagenet" / folder, loader=lambda path: decode_image(path, ImageReadMode.RGB)
    )
    ours = open_images(tmp_path, "imagenet", split)
    assert ours.labels.tolist() == theirs.targets
    assert all(torch.equal(decoded(ours.read(index)), theirs[index][0]) for index in range(len(ours)))


@pytest.mark.parametrize(("name", "folder"), [("food101", "food-101"), ("imagenet", "imagenet")])
def test_a_missing_set_names_where_was_looked(tmp_path, name, folder):
    assert str(tmp_path / folder) in refused(tmp_path, name, kind=DataMissing)


def test_the_archive_of_food101_is_told_how_to_extract(tmp_path):
    (tmp_path / "food-101.tar.gz").write_bytes(b"")
    assert f"tar -xf {tmp_path}/food-101.tar.gz" in refused(tmp_path, "food101")


@pytest.mark.parametrize(
    ("name", "write"), [("food101", write_food101), ("imagenet", write_imagenet_folders)]
)
def test_a_file_that_is_missing_or_empty_is_named_when_it_is_read(tmp_path, name, write):
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


def test_a_read_that_comes_short_is_named(tmp_path, monkeypatch):
    write_imagenet_folders(tmp_path)
    images = open_images(tmp_path, "imagenet", "train")
    real = os.fstat

    class Longer:
        def __init__(self, descriptor):
            self.real = real(descriptor)
            self.st_size = self.real.st_size + 1

        def __getattr__(self, name):
            return getattr(self.real, name)

    monkeypatch.setattr(os, "fstat", Longer)  # as of a file that was cut after it was opened
    assert "short: " in unread(images, 0)


@pytest.mark.parametrize("index", [-1, 7])
def test_an_index_beyond_the_set_is_refused(tmp_path, index):
    write_imagenet_folders(tmp_path, train=7)
    images = open_images(tmp_path, "imagenet", "train")
    with pytest.raises(IndexError, match=f"{index} is not in a set of 7"):
        images.read(index)
    with pytest.raises(IndexError):
        images.name(index)


# ImageNet's folders


def test_classes_are_numbered_by_the_training_folders(tmp_path):
    write_imagenet_folders(tmp_path)
    for path in (tmp_path / "imagenet/val" / SYNSETS[0]).iterdir():
        path.unlink()
    (tmp_path / "imagenet/val" / SYNSETS[0]).rmdir()
    assert set(open_images(tmp_path, "imagenet", "test").labels.tolist()) == {1, 2}


def test_a_class_that_training_lacks_is_refused(tmp_path):
    write_imagenet_folders(tmp_path)
    other = tmp_path / "imagenet/val/n09"
    other.mkdir()
    (other / "a.jpg").write_bytes(jpeg(8, 8))
    assert f"{other}: a class that {tmp_path / 'imagenet/train'} does not have" in refused(
        tmp_path, "imagenet", "test"
    )


def test_val_alone_is_numbered_by_itself(tmp_path):
    written = write_imagenet_folders(tmp_path)["test"]
    (tmp_path / "imagenet/train").rename(tmp_path / "elsewhere")
    assert open_images(tmp_path, "imagenet", "test").labels.tolist() == written.labels
    assert f"{tmp_path / 'imagenet/train'}: missing" in refused(tmp_path, "imagenet", "train")


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


def test_an_empty_class_is_refused(tmp_path):
    write_imagenet_folders(tmp_path)
    (tmp_path / "imagenet/train/n00").mkdir()
    assert f"{tmp_path / 'imagenet/train/n00'}: a class without a JPEG" in refused(tmp_path, "imagenet")


def test_images_without_class_folders_are_refused(tmp_path):
    (tmp_path / "imagenet/val").mkdir(parents=True)
    (tmp_path / "imagenet/val/ILSVRC2012_val_00000001.JPEG").write_bytes(jpeg(8, 8))
    assert f"{tmp_path / 'imagenet/val'}: holds neither folders" in refused(tmp_path, "imagenet", "test")


def test_more_folders_than_classes_are_refused(tmp_path):
    for number in range(1001):
        folder = tmp_path / f"imagenet/train/n{number:04}"
        folder.mkdir(parents=True)
        (folder / "a.jpg").touch()
    text = refused(tmp_path, "imagenet")
    assert f"{folder / 'a.jpg'}: the label 1000 is not one of imagenet's 1000 classes" in text


def test_names_that_are_not_utf8_and_links_are_read(tmp_path):
    folder = tmp_path / "imagenet/train/n0"
    folder.mkdir(parents=True)
    content = jpeg(8, 8)
    (tmp_path / "elsewhere").write_bytes(content)
    (folder / "a.jpg").symlink_to(tmp_path / "elsewhere")
    with open(os.fsencode(folder) + b"/\xff.jpg", "wb") as file:  # noqa: PTH123 - a name that is no text
        file.write(content)
    images = open_images(tmp_path, "imagenet", "train")
    assert [images.read(index).numpy().tobytes() for index in range(2)] == [content] * 2


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
        ("classes.txt", "", "empty, or a class stands twice"),
        ("classes.txt", "pizza\npizza\n", "empty, or a class stands twice"),
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
    assert text.startswith(f"{path}: ")
    assert problem in text


def test_a_list_of_some_classes_keeps_their_numbers(tmp_path):
    write_food101(tmp_path)
    path = tmp_path / "food-101/meta/test.json"
    path.write_text(json.dumps({FOODS[2]: [f"{FOODS[2]}/1"], FOODS[1]: [f"{FOODS[1]}/2"]}))
    assert open_images(tmp_path, "food101", "test").labels.tolist() == [2, 1]


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


@pytest.mark.parametrize("storage", ["files", "shards"])
def test_images_are_few_objects(tmp_path, storage):
    """Pickled, a set is its arrays: the number of its objects does not grow with its images."""

    def objects(count):
        root = tmp_path / str(count)
        if storage == "files":
            write_imagenet_folders(root, train=count, test=3)
        else:
            write_shards(root / "imagenet/train", images=count, per_shard=count)
        images = open_images(root, "imagenet", "train")
        return sum(1 for _ in pickletools.genops(pickle.dumps(images)))

    assert objects(90) == objects(9)


def test_the_error_survives_a_loaders_worker(tmp_path):
    write_imagenet_folders(tmp_path)
    images = open_images(tmp_path, "imagenet", "train")
    (path := tmp_path / "imagenet/train" / SYNSETS[0] / "0000.JPEG").unlink()

    try:
        images.read(0)
    except DataError:
        sent = pickle.dumps(ExceptionWrapper(where="in a worker"))  # what a DataLoader's worker sends of it
    with pytest.raises(DataError, match=f"{path}: missing"):
        pickle.loads(sent).reraise()
