"""Batch sources: every sample once an epoch, in order, errors raised where a batch is requested."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.data.images import ArrayImages, open_images
from pytest_accel.workloads.data.loader import (
    EncodedReader,
    HostBatches,
    LoaderConfig,
    TrainingOrder,
)
from pytest_accel.workloads.data.pixels import (
    CropResize,
    ModelInput,
    PixelTransform,
    decode_on_host,
)
from pytest_accel.workloads.data.sources import (
    COPIED_AHEAD,
    DecodingSource,
    LoaderSource,
    RotatingSource,
    SplitSource,
    resident,
)
from tests.support.data_sets import write_food101
from tests.support.processes import children

CPU = torch.device("cpu")


def wanted_for(size, channels=3):
    """Of this mean and deviation: pixels come out as they are."""
    plain = {"device": CPU, "dtype": torch.float32, "memory_format": torch.contiguous_format}
    return ModelInput(
        channels=channels, size=size, mean=(0.0,) * channels, std=(1 / 255,) * channels, **plain
    )


def finish_for(size, channels=3, *, augment=False):
    return PixelTransform(wanted_for(size, channels), augment=augment)


def with_labels(transform):
    return lambda batch: (transform(batch[0]), batch[1])


def numbered_images(count):
    """Images that say which they are: every pixel of the fifth is five."""
    numbers = torch.arange(count)
    images = numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(count, 1, 4, 4).contiguous()
    return ArrayImages(images=images, labels=numbers)


def on_device(order, images):
    return resident((images.images, images.labels), order, with_labels(finish_for(4, 1)), CPU)


def loaded(order, images, workers=0):
    loading = LoaderConfig(workers=workers)
    sampler = order.requests(augment=False)
    batches = HostBatches(images, sampler, loading, for_device=False)
    return LoaderSource(batches, with_labels(finish_for(4, 1)), CPU, loading=loading)


def take(source, steps):
    return [next(source) for _ in range(steps)]


# RotatingSource.
def test_rotating_source_gives_its_batches_in_turn():
    source = RotatingSource(["a", "b", "c"])
    assert take(source, 7) == list("abcabca")
    assert (source.loads, source.buffered, source.burst) == (False, 0, 1)
    source.close()
    with pytest.raises(StopIteration):
        next(source)


def test_resident_and_loaded_data_come_in_one_order():
    images = numbered_images(17)
    order = TrainingOrder(length=17, batch_size=4, seed=3)
    sources = [on_device(order, images), loaded(order, images), loaded(order, images, workers=2)]
    first, *others = [take(source, 9) for source in sources]
    for batches in others:
        for (inputs, labels), (other_inputs, other_labels) in zip(first, batches, strict=True):
            assert torch.equal(inputs, other_inputs)
            assert torch.equal(labels, other_labels)
    for source in sources:
        source.close()


# DecodingSource: its threads, and a decoder on the host in the place of the device's.
def on_host(encoded, device, named):
    return [decode_on_host(each, named(place)) for place, each in enumerate(encoded)]


@pytest.fixture(scope="module")
def food(tmp_path_factory):
    root = tmp_path_factory.mktemp("food")
    return write_food101(root)["train"], open_images(root, "food101", "train")


@pytest.fixture
def decoded(food):
    made = []

    def make(images=None, *, decode=on_host, workers=0, seed=None, batch_size=3, batches=None):
        images = images or food[1]
        order = TrainingOrder(length=len(images), batch_size=batch_size, seed=1)
        loading = LoaderConfig(workers=workers)
        sampler = order.requests(augment=False)
        batches = batches or HostBatches(EncodedReader(images=images), sampler, loading, for_device=False)
        options = {"loading": loading, "seed": seed, "decode": decode}
        made.append(DecodingSource(batches, images, CropResize(wanted_for(16)), CPU, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("accel-decode")]


def test_images_and_labels_of_a_decoded_batch_match(decoded, food):
    _, images = food
    order = TrainingOrder(length=len(images), batch_size=3, seed=1)
    for step, (inputs, labels) in enumerate(take(decoded(), 4)):
        indices = order.indices(step)
        assert labels.tolist() == images.labels[indices].tolist()
        for found, index in zip(inputs, indices, strict=True):
            whole = decode_on_host(images.read(index), "it").float()
            assert abs(float(found.mean() - whole.mean())) < 40  # its middle, of a smooth picture


def test_crops_follow_the_seed(decoded):
    first, same, other = (take(decoded(seed=seed), 3) for seed in (1, 1, 2))
    assert all(torch.equal(one[0], two[0]) for one, two in zip(first, same, strict=True))
    assert not any(torch.equal(one[0], two[0]) for one, two in zip(first, other, strict=True))


def test_error_in_a_thread_is_raised_with_its_batch(decoded, tmp_path):
    path = write_food101(tmp_path)["train"].paths[0]
    path.write_bytes(path.read_bytes()[:300])
    source = decoded(open_images(tmp_path, "food101", "train"))
    with pytest.raises(DataError, match=r"does not decode") as caught:
        take(source, 4)
    assert str(caught.value).startswith(f"{path}: ")


def test_decoder_that_hangs_is_an_error_and_closing_does_not_wait(decoded, monkeypatch):
    monkeypatch.setattr("pytest_accel.workloads.data.sources.TIMEOUT_S", 0.1)
    never = threading.Event()
    source = decoded(decode=lambda *_: never.wait(60))
    with pytest.raises(DataError, match="not decoded within 0 s"):
        next(source)
    source.close()  # and this line ends
    never.set()


def test_batches_keep_their_order_with_a_slow_thread(decoded, food):
    _, images = food
    order = TrainingOrder(length=len(images), batch_size=1, seed=1)
    slow = images.read(order.indices(0)[0])

    def first_is_slow(encoded, device, named):
        if torch.equal(encoded[0], slow):
            time.sleep(0.2)
        return on_host(encoded, device, named)

    found = [labels.item() for _, labels in take(decoded(decode=first_is_slow, batch_size=1), 10)]
    assert found == [int(images.labels[order.indices(step)[0]]) for step in range(10)]


@pytest.mark.parametrize("taken", [0, 1, 6])
def test_closing_ends_the_threads_and_the_workers(decoded, taken):
    before = children()
    source = decoded(workers=1)
    take(source, taken)
    source.close()
    source.close()
    assert threads() == []
    assert children() - before == set()


# SplitSource.
@pytest.mark.parametrize(("length", "batch_size", "at_once"), [(1, 1, 2), (17, 4, 3), (30, 6, 5)])
def test_batches_split_from_larger_ones_are_the_same(length, batch_size, at_once):
    images = numbered_images(length)
    order = TrainingOrder(length=length, batch_size=batch_size, rank=1, world=2)
    sampler = order.requests(augment=False, at_once=at_once)
    batches = HostBatches(images, sampler, LoaderConfig(workers=0), for_device=False)
    large = LoaderSource(batches, with_labels(finish_for(4, 1)), CPU, loading=LoaderConfig(workers=2))
    split = SplitSource(large, batch_size=batch_size, batches=at_once)
    assert (split.loads, split.buffered, split.burst) == (True, (4 + COPIED_AHEAD) * at_once, 2 * at_once)
    steps = 2 * at_once + 1
    for one, other in zip(take(split, steps), take(loaded(order, images), steps), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    split.close()
    with pytest.raises(StopIteration):
        next(split)
