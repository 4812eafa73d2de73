"""Loader: the same batches from any number of workers, clear errors, no process left over."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import nullcontext
from itertools import count, islice

import pytest
import torch

from pytest_accel.workloads.data import loader as module
from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.data.images import open_images
from pytest_accel.workloads.data.loader import (
    ArrayReader,
    EncodedReader,
    HostBatches,
    LoaderConfig,
    PhotographReader,
    spare_cpus,
)
from pytest_accel.workloads.data.order import BatchRequest, EvaluationOrder, TrainingOrder
from pytest_accel.workloads.data.pixels import crop_for, crop_on_host, decode_on_host
from tests.support.data_sets import write_cifar_binary, write_food101, write_shards
from tests.support.processes import children

WORKERS = (0, 1, 2)


class Reporting:
    """A reader of step numbers that reports its process, or does there what a test wants."""

    def __init__(self, does=lambda wanted: None):
        self.does = does

    def __getitem__(self, wanted):
        answer = self.does(wanted)
        own = [os.getpid(), len(os.sched_getaffinity(0)), torch.get_num_threads()]
        return torch.tensor([wanted, *own]) if answer is None else answer


def opened(reader, *, workers, length=20, batch_size=3, sampler=None, for_device=False, **options):
    order = TrainingOrder(length=length, batch_size=batch_size)
    sampler = sampler or (count() if isinstance(reader, Reporting) else order.requests(augment=False))
    return HostBatches(reader, sampler, LoaderConfig(workers=workers, **options), for_device=for_device)


@pytest.fixture
def batches():
    """Opens loaders, and closes them at the end of the test, whatever happened."""
    made = []

    def make(*arguments, **options):
        made.append(opened(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def food(tmp_path_factory):
    root = tmp_path_factory.mktemp("food")
    write_food101(root)
    return open_images(root, "food101", "train")


def photographs(batches, food, workers):
    order = TrainingOrder(length=len(food), batch_size=3, seed=5)
    sampler = order.requests(augment=True)
    return batches(PhotographReader(images=food, size=16), workers=workers, sampler=sampler)


def test_batches_and_crops_do_not_depend_on_the_number_of_workers(batches, food):
    taken = [list(islice(photographs(batches, food, workers), 7)) for workers in WORKERS]
    for others in taken[1:]:
        for (pixels, labels), (other_pixels, other_labels) in zip(taken[0], others, strict=True):
            assert torch.equal(pixels, other_pixels)
            assert torch.equal(labels, other_labels)
    assert not torch.equal(taken[0][0][0], taken[0][1][0])


@pytest.mark.parametrize("workers", WORKERS)
def test_slow_batch_keeps_its_place(batches, monkeypatch, workers):
    monkeypatch.setattr(module, "POLL_S", 0.02)
    slow = Reporting(lambda wanted: time.sleep(0.2) if wanted == 1 else None)  # longer than a turn of waiting
    assert [int(batch[0]) for batch in islice(batches(slow, workers=workers), 5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("workers", WORKERS)
def test_number_of_worker_processes_is_that_of_the_option(batches, workers):
    reported = torch.stack(list(islice(batches(Reporting(), workers=workers), 8)))
    readers = set(reported[:, 1].tolist())
    assert len(readers) == max(1, workers)
    assert (os.getpid() in readers) == (workers == 0)
    assert set(reported[:, 3].tolist()) == {1}


def test_workers_run_on_the_cpus_they_are_given(batches):
    mine = os.sched_getaffinity(0)
    assert int(next(batches(Reporting(), workers=1, cpus=1))[2]) == 1
    assert int(next(batches(Reporting(), workers=1))[2]) == len(mine)
    assert int(next(batches(Reporting(), workers=1, cpus=10_000))[2]) == len(mine)
    assert os.sched_getaffinity(0) == mine


@pytest.mark.parametrize("workers", WORKERS)
def test_file_that_cannot_be_read_is_one_plain_error(batches, tmp_path, workers):
    path = write_food101(tmp_path)["train"].paths[4]
    path.write_bytes(path.read_bytes()[:300])
    images = open_images(tmp_path, "food101", "train")
    reader = batches(PhotographReader(images=images, size=16), workers=workers, length=len(images))
    with pytest.raises(DataError) as caught:
        list(islice(reader, 3))
    text = str(caught.value)
    assert text.startswith(f"{path}: does not decode: ")
    assert "Traceback" not in text
    assert "worker" not in text
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("workers", WORKERS)
def test_error_in_a_reader_is_raised_unchanged(batches, workers):
    def fail(wanted):
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch") as caught:
        next(batches(Reporting(fail), workers=workers))
    assert not isinstance(caught.value, DataError)


def kill(pid):
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("when", ["reading", "waiting"])
def test_killed_worker_is_one_error_with_the_remedy_and_no_hang(batches, workers, when):
    def die(wanted):
        if when == "reading" and wanted == 2:
            kill(os.getpid())

    reader = batches(Reporting(die), workers=workers)
    if when == "waiting":
        kill(int(next(reader)[1]))
    with pytest.raises(DataError, match=r"^loader: a worker ended before its batch came: ") as caught:
        list(islice(reader, 10))
    text = str(caught.value)
    assert "lower workers= or prefetch=" in text
    assert "Traceback" not in text


def test_worker_killed_while_it_reads_the_stop_event_does_not_hang_the_loader(batches):
    def die(wanted):
        if wanted == 1:
            frame = sys._getframe()
            while "done_event" not in frame.f_locals:  # of torch's loop in the worker
                frame = frame.f_back
            getattr(frame.f_locals["done_event"], "_cond", nullcontext()).__enter__()
            kill(os.getpid())

    with pytest.raises(DataError, match="a worker ended before its batch came"):
        list(islice(batches(Reporting(die), workers=1), 10))


def test_worker_that_never_answers_is_one_error(batches, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    reader = batches(Reporting(lambda wanted: time.sleep(600)), workers=1)
    worker = next(iter(children_of(reader)))
    with pytest.raises(DataError, match=r"loader: no batch came within 0.5 s\.\n.*waits for its file system"):
        next(reader)
    kill(worker)  # it would be waited for, for seconds


def children_of(reader):
    return {worker.pid for worker in reader._batches._workers}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("taken", [0, 3])
def test_closing_leaves_no_process_behind(batches, workers, taken):
    before = children()
    reader = batches(Reporting(), workers=workers)
    assert len(children() - before) == workers
    list(islice(reader, taken))
    reader.close()
    reader.close()  # twice does no harm
    assert children() - before == set()
    assert list(reader) == []


def test_closing_leaves_no_process_behind_while_its_error_is_held(batches):
    before = children()

    def die(wanted):
        if wanted == 1:
            kill(os.getpid())

    reader = batches(Reporting(die), workers=2)
    with pytest.raises(DataError) as caught:
        list(islice(reader, 10))
    reader.close()
    assert children() - before == set()
    assert caught.value is not None


@pytest.mark.parametrize("workers", WORKERS)
def test_loading_does_not_change_the_global_random_state(batches, workers):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    next(batches(Reporting(), workers=workers))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("workers", WORKERS)
def test_evaluation_reads_every_sample_once(batches, tmp_path, workers):
    written = write_cifar_binary(tmp_path, test=8)["test"]
    images = open_images(tmp_path, "cifar100", "test")
    sampler = EvaluationOrder(length=8, batch_size=3).requests()
    found = list(batches(ArrayReader(images=images), workers=workers, sampler=sampler))
    assert [len(labels) for _, labels in found] == [3, 3, 2]
    assert torch.cat([labels for _, labels in found]).tolist() == written.labels


def test_ranks_and_steps_have_different_crop_seeds():
    chances = set()
    for seed in (0, 1):
        for rank in (0, 1):
            order = TrainingOrder(length=10, batch_size=2, rank=rank, world=2, seed=seed)
            chances |= {wanted.seed for wanted in islice(order.requests(augment=True), 4)}
    assert len(chances) == 16
    plain = islice(order.requests(augment=False), 4)
    assert {wanted.seed for wanted in plain} == {None}


@pytest.mark.parametrize(("cpus", "workers"), [(1, 1), (2, 1), (6, 5), (17, 16), (64, 16)])
def test_default_workers_leave_a_cpu_to_training(monkeypatch, cpus, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)))
    assert spare_cpus() == workers


def wanted(*indices, seed=None):
    return BatchRequest(indices=indices, seed=seed)


@pytest.fixture
def food_set(tmp_path):
    return write_food101(tmp_path)["train"], open_images(tmp_path, "food101", "train")


def test_photographs_are_decoded_and_center_cropped(food_set):
    written, images = food_set
    pixels, labels = PhotographReader(images=images, size=16)[wanted(6, 2)]
    assert (pixels.shape, pixels.dtype) == ((2, 3, 16, 16), torch.uint8)
    assert labels.tolist() == [written.labels[6], written.labels[2]]
    for found, index in zip(pixels, (6, 2), strict=True):
        whole = decode_on_host(images.read(index), "it")
        crop = crop_for(*whole.shape[1:], None)
        assert torch.equal(found, crop_on_host(whole, crop, 16))


def test_crops_do_not_depend_on_batches_per_request(food_set):
    _, images = food_set
    reader = PhotographReader(images=images, size=24)
    order = TrainingOrder(length=len(images), batch_size=2, rank=1, world=2, seed=3)

    def samples(at_once):
        batches = order.requests(augment=True, at_once=at_once)
        return torch.cat([reader[each][0] for each in islice(batches, 6 // at_once)])

    assert torch.equal(samples(1), samples(2))
    assert torch.equal(samples(1), samples(3))


def test_encoded_images_are_concatenated_with_their_lengths(tmp_path):
    written = write_shards(tmp_path / "imagenet/train")
    images = open_images(tmp_path, "imagenet", "train")
    flat, lengths, labels, indices = EncodedReader(images=images)[wanted(4, 1, 6)]
    parts = [part.numpy().tobytes() for part in flat.split(lengths.tolist())]
    assert parts == [written.images[index] for index in (4, 1, 6)]
    assert labels.tolist() == [written.labels[index] for index in (4, 1, 6)]
    assert indices.tolist() == [4, 1, 6]
