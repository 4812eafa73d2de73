"""Real worker processes: the same batches from any number of them, one plain error, and none left behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import pytest
import torch

from pytest_accel.workloads.data import loader as module
from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.data.images import open_images
from pytest_accel.workloads.data.loader import (
    ArrayReader,
    EvaluationBatches,
    HostBatches,
    LoaderConfig,
    PhotographReader,
    TrainingBatches,
    spare_cpus,
)
from pytest_accel.workloads.data.order import EvaluationOrder, TrainingOrder
from tests.support.data_sets import write_cifar_binary, write_food101
from tests.support.processes import children

WORKERS = (0, 1, 2)


class Telling:
    """A reader that tells of the process it runs in, or does there what a test asks for."""

    def __init__(self, does=lambda wanted: None):
        self.does = does

    def __getitem__(self, wanted):
        answer = self.does(wanted)
        own = [os.getpid(), len(os.sched_getaffinity(0)), torch.get_num_threads()]
        return torch.tensor([wanted.step, *own]) if answer is None else answer


def opened(reader, *, workers, length=20, batch_size=3, sampler=None, for_device=False, **options):
    order = TrainingOrder(length=length, batch_size=batch_size)
    sampler = sampler or TrainingBatches(order, augment=False)
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
    sampler = TrainingBatches(order, augment=True)
    return batches(PhotographReader(images=food, size=16), workers=workers, sampler=sampler)


def test_batches_and_their_cuts_are_the_same_from_any_number_of_workers(batches, food):
    taken = [list(islice(photographs(batches, food, workers), 7)) for workers in WORKERS]
    for others in taken[1:]:
        for (pixels, labels), (other_pixels, other_labels) in zip(taken[0], others, strict=True):
            assert torch.equal(pixels, other_pixels)
            assert torch.equal(labels, other_labels)
    assert not torch.equal(taken[0][0][0], taken[0][1][0])


@pytest.mark.parametrize("workers", WORKERS)
def test_a_slow_batch_is_waited_for_and_comes_in_its_turn(batches, monkeypatch, workers):
    monkeypatch.setattr(module, "POLL_S", 0.02)
    slow = Telling(
        lambda wanted: time.sleep(0.2) if wanted.step == 1 else None
    )  # longer than a turn of waiting
    assert [int(batch[0]) for batch in islice(batches(slow, workers=workers), 5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("workers", WORKERS)
def test_as_many_processes_read_as_were_asked_for_in_one_thread_each(batches, workers):
    told = torch.stack(list(islice(batches(Telling(), workers=workers), 8)))
    readers = set(told[:, 1].tolist())
    assert len(readers) == max(1, workers)
    assert (os.getpid() in readers) == (workers == 0)
    assert set(told[:, 3].tolist()) == {1}


@pytest.mark.parametrize(("for_device", "threads"), [(True, 1), (False, 2)])
def test_reading_for_a_device_takes_one_thread_of_the_training_process(batches, for_device, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        taken = batches(Telling(), workers=0, for_device=for_device, pinned=False)
        assert {int(batch[3]) for batch in islice(taken, 3)} == {threads}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_workers_run_on_the_cpus_they_are_given(batches):
    mine = os.sched_getaffinity(0)
    assert int(next(batches(Telling(), workers=1, cpus=1))[2]) == 1
    assert int(next(batches(Telling(), workers=1))[2]) == len(mine)
    assert int(next(batches(Telling(), workers=1, cpus=10_000))[2]) == len(mine)
    assert os.sched_getaffinity(0) == mine


@pytest.mark.parametrize("workers", WORKERS)
def test_a_file_that_cannot_be_read_is_one_plain_error(batches, tmp_path, workers):
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
def test_an_error_in_our_own_code_is_not_taken_for_a_lost_worker(batches, workers):
    def fail(wanted):
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch") as caught:
        next(batches(Telling(fail), workers=workers))
    assert not isinstance(caught.value, DataError)


def kill(pid):
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("when", ["reading", "waiting"])
def test_a_killed_worker_is_one_error_with_the_remedy_and_no_hang(batches, workers, when):
    def die(wanted):
        if when == "reading" and wanted.step == 2:
            kill(os.getpid())

    reader = batches(Telling(die), workers=workers)
    if when == "waiting":
        kill(int(next(reader)[1]))
    with pytest.raises(DataError, match=r"^loader: a worker ended before its batch came: ") as caught:
        list(islice(reader, 10))
    text = str(caught.value)
    assert "lower workers= or prefetch=" in text
    assert "Traceback" not in text


def test_a_killed_worker_raises_where_a_batch_is_asked_for_and_nowhere_else(batches):
    reader = batches(Telling(), workers=1)
    worker = int(next(reader)[1])
    kill(worker)
    until = time.monotonic() + 30
    while worker in running(worker) and time.monotonic() < until:  # torch's own handler would raise in here
        pass
    assert worker not in running(worker)
    with pytest.raises(DataError):
        list(islice(reader, 10))


def test_a_worker_that_is_killed_while_it_asks_whether_to_end_leaves_nobody_waiting(batches):
    def die(wanted):
        if wanted.step == 1:
            frame = sys._getframe()
            while "done_event" not in frame.f_locals:  # of torch's loop in the worker
                frame = frame.f_back
            getattr(frame.f_locals["done_event"], "_cond", nullcontext()).__enter__()
            kill(os.getpid())

    with pytest.raises(DataError, match="a worker ended before its batch came"):
        list(islice(batches(Telling(die), workers=1), 10))


def running(pid):
    """The process while it is not a zombie."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return set() if state == "Z" else {pid}


def test_a_worker_that_never_answers_is_one_error(batches, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    reader = batches(Telling(lambda wanted: time.sleep(600)), workers=1)
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
    reader = batches(Telling(), workers=workers)
    assert len(children() - before) == workers
    list(islice(reader, taken))
    reader.close()
    reader.close()  # twice does no harm
    assert children() - before == set()
    assert list(reader) == []


def test_closing_leaves_no_process_behind_while_its_error_is_held(batches):
    before = children()

    def die(wanted):
        if wanted.step == 1:
            kill(os.getpid())

    reader = batches(Telling(die), workers=2)
    with pytest.raises(DataError) as caught:
        list(islice(reader, 10))
    reader.close()
    assert children() - before == set()
    assert caught.value is not None


@pytest.mark.parametrize("workers", WORKERS)
def test_loading_draws_no_number_that_a_model_would_draw(batches, workers):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    next(batches(Telling(), workers=workers))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_evaluation_ends_after_every_sample_has_come_once(batches, tmp_path, workers):
    written = write_cifar_binary(tmp_path, test=8)["test"]
    images = open_images(tmp_path, "cifar100", "test")
    sampler = EvaluationBatches(EvaluationOrder(length=8, batch_size=3))
    found = list(batches(ArrayReader(images=images), workers=workers, sampler=sampler))
    assert [len(labels) for _, labels in found] == [3, 3, 2]
    assert torch.cat([labels for _, labels in found]).tolist() == written.labels


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_read_together_are_those_that_would_be_read_one_by_one(batches, tmp_path, workers):
    write_cifar_binary(tmp_path, train=20)
    reader = ArrayReader(images=open_images(tmp_path, "cifar100", "train"))
    order = TrainingOrder(length=20, batch_size=3, rank=1, world=2)
    one, three = (TrainingBatches(order, augment=False, at_once=at_once) for at_once in (1, 3))
    singly = torch.cat([labels for _, labels in islice(batches(reader, workers=workers, sampler=one), 12)])
    together = [labels for _, labels in islice(batches(reader, workers=workers, sampler=three), 4)]
    assert [len(labels) for labels in together] == [9] * 4
    assert torch.equal(torch.cat(together), singly)


def test_ranks_and_steps_are_cut_by_different_chances():
    chances = set()
    for seed in (0, 1):
        for rank in (0, 1):
            order = TrainingOrder(length=10, batch_size=2, rank=rank, world=2, seed=seed)
            chances |= {wanted.chance for wanted in islice(TrainingBatches(order, augment=True), 4)}
    assert len(chances) == 16
    plain = islice(TrainingBatches(order, augment=False), 4)
    assert {wanted.chance for wanted in plain} == {None}


@pytest.mark.parametrize(("cpus", "workers"), [(1, 1), (2, 1), (6, 5), (17, 16), (64, 16)])
def test_workers_started_unasked_leave_a_cpu_to_the_training(monkeypatch, cpus, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)))
    assert spare_cpus() == workers


def test_what_may_lie_ready_is_every_workers_share():
    assert (LoaderConfig(workers=3, prefetch=4).buffered, LoaderConfig(workers=0).buffered) == (12, 0)
    assert (LoaderConfig(workers=3, prefetch=4).burst, LoaderConfig(workers=0).burst) == (3, 1)
