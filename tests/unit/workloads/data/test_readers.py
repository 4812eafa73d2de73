"""What a worker does for one batch, without the worker: the samples asked for, or a problem that names the file."""

from __future__ import annotations

import pickle
from itertools import islice
from random import Random

import pytest
import torch

from pytest_accel.workloads.data.images import open_images
from pytest_accel.workloads.data.jpeg import crop_for, decode_on_host, sized_on_host
from pytest_accel.workloads.data.loader import TrainingBatches
from pytest_accel.workloads.data.order import TrainingOrder
from pytest_accel.workloads.data.readers import (
    INVENTED_IMAGES,
    ArrayReader,
    EncodedReader,
    InventedReader,
    PhotographReader,
    Problem,
    Wanted,
)
from tests.support.data_sets import write_cifar_binary, write_food101, write_shards


def wanted(*indices, chance=None):
    return Wanted(step=0, indices=indices, chance=chance)


@pytest.fixture
def food(tmp_path):
    return write_food101(tmp_path)["train"], open_images(tmp_path, "food101", "train")


def test_arrays_give_the_samples_in_the_order_asked_for(tmp_path):
    written = write_cifar_binary(tmp_path)["train"]
    pixels, labels = ArrayReader(images=open_images(tmp_path, "cifar100", "train"))[wanted(5, 0, 5)]
    assert pixels.dtype == torch.uint8
    assert pixels.numpy().tolist() == written.images[[5, 0, 5]].tolist()
    assert labels.tolist() == [written.labels[index] for index in (5, 0, 5)]


def test_photographs_are_decoded_and_their_middle_taken(food):
    written, images = food
    pixels, labels = PhotographReader(images=images, size=16)[wanted(6, 2)]
    assert (pixels.shape, pixels.dtype) == ((2, 3, 16, 16), torch.uint8)
    assert labels.tolist() == [written.labels[6], written.labels[2]]
    for found, index in zip(pixels, (6, 2), strict=True):
        whole = decode_on_host(images.read(index), "it")
        crop = crop_for(*whole.shape[1:], None)
        assert torch.equal(found, sized_on_host(whole, crop, 16))


def test_samples_are_cut_alike_however_many_batches_are_read_as_one(food):
    _, images = food
    reader = PhotographReader(images=images, size=24)
    order = TrainingOrder(length=len(images), batch_size=2, rank=1, world=2, seed=3)

    def samples(at_once):
        batches = TrainingBatches(order, augment=True, at_once=at_once)
        return torch.cat([reader[each][0] for each in islice(batches, 6 // at_once)])

    assert torch.equal(samples(1), samples(2))
    assert torch.equal(samples(1), samples(3))


def test_one_chance_cuts_a_batch_alike_and_each_image_otherwise(food):
    _, images = food
    reader = PhotographReader(images=images, size=16)
    first, again, other = (reader[wanted(0, 0, 1, chance=chance)][0] for chance in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
    whole, random = decode_on_host(images.read(0), "it"), Random(1)
    assert torch.equal(first[0], sized_on_host(whole, crop_for(*whole.shape[1:], random), 16))


def test_encoded_images_come_end_to_end_with_their_lengths(tmp_path):
    written = write_shards(tmp_path / "imagenet/train")
    images = open_images(tmp_path, "imagenet", "train")
    flat, lengths, labels, indices = EncodedReader(images=images)[wanted(4, 1, 6)]
    parts = [part.numpy().tobytes() for part in flat.split(lengths.tolist())]
    assert parts == [written.images[index] for index in (4, 1, 6)]
    assert labels.tolist() == [written.labels[index] for index in (4, 1, 6)]
    assert indices.tolist() == [4, 1, 6]


@pytest.mark.parametrize("kind", ["missing", "empty", "torn"])
def test_a_file_that_cannot_be_read_comes_back_as_a_problem_that_names_it(food, kind):
    written, images = food
    path = written.paths[3]
    match kind:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "torn":
            path.write_bytes(path.read_bytes()[:300])
    found = PhotographReader(images=images, size=16)[wanted(2, 3, 4)]
    assert isinstance(found, Problem)
    assert found.text.startswith(f"{path}: ")
    encoded = EncodedReader(images=images)[wanted(2, 3, 4)]
    if kind == "torn":  # it is not looked into before it is decoded
        assert len(encoded) == 4
    else:
        assert isinstance(encoded, Problem)
        assert encoded.text.startswith(f"{path}: ")


def test_invented_pixels_are_few_repeated_and_of_one_seed():
    make = {"channels": 3, "size": 8, "classes": 5}
    one, same, other = (InventedReader(**make, seed=seed) for seed in (1, 1, 2))
    pixels, labels = one[wanted(0, 7, INVENTED_IMAGES)]
    assert (pixels.shape, pixels.dtype) == ((3, 3, 8, 8), torch.uint8)
    assert torch.equal(pixels[0], pixels[2])
    assert not torch.equal(pixels[0], pixels[1])
    assert 0 <= labels.min() <= labels.max() < 5
    assert torch.equal(same[wanted(0, 7)][0], pixels[:2])
    assert not torch.equal(other[wanted(0, 7)][0], pixels[:2])


def test_readers_and_what_they_are_asked_can_be_sent_to_a_process(tmp_path, food):
    _, images = food
    reader = pickle.loads(pickle.dumps(PhotographReader(images=images, size=8)))
    assert torch.equal(reader[wanted(1)][0], PhotographReader(images=images, size=8)[wanted(1)][0])
    assert pickle.loads(pickle.dumps(wanted(1, chance=3))) == wanted(1, chance=3)
    assert pickle.loads(pickle.dumps(Problem("x"))) == Problem("x")
