"""Order, loader and sources: every sample once an epoch, the same batches from any workers, no process left over."""

import os
import signal
import threading
import time
from collections import Counter
from itertools import count, islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.data.images import open_images
from pytest_accel.workloads.data.loader import (
    ArrayImages,
    HostBatches,
    PhotographReader,
    TrainingOrder,
    evaluation_order,
    spare_cpus,
)
from pytest_accel.workloads.data.pixels import CropResize, ModelInput, decode_on_host
from pytest_accel.workloads.data.sources import (
    COPIED_AHEAD,
    DecodingSource,
    LoaderSource,
    resident,
)
from tests.support.data_sets import write_food101
from tests.support.processes import children


@st.composite
def training(draw):
    """The orders of all ranks of a world."""
    groups = draw(st.none() | st.lists(st.integers(1, 9), min_size=1, max_size=8))
    world = draw(st.integers(1, 6))
    common = {
        "length": sum(groups) if groups else draw(st.integers(1, 60)),
        "groups": groups,
        "batch_size": draw(st.integers(1, 80)),
        "world": world,
        "seed": draw(st.integers(0, 2**40)),
        "shuffle": draw(st.booleans()),
    }
    return [TrainingOrder(rank=rank, **common) for rank in range(world)]


def stream(orders, steps):
    """What the whole world takes, in the order in which it is dealt."""
    return [sample for step in range(steps) for order in orders for sample in order.indices(step)]


def epochs_of(orders, count):
    length = orders[0].length
    taken = stream(orders, orders[0].steps_for_epochs(count))
    return [taken[epoch * length : (epoch + 1) * length] for epoch in range(count)]


@given(training())
def test_every_sample_comes_exactly_once_an_epoch(orders):
    for epoch in epochs_of(orders, 3):
        assert sorted(epoch) == list(range(orders[0].length))


@given(training())
def test_groups_stay_whole_and_in_order(orders):
    order = orders[0]
    groups = order.groups or (1,) * order.length
    first_of = {sum(groups[:each]): groups[each] for each in range(len(groups))}
    for epoch in epochs_of(orders, 2):
        position = 0
        while position < len(epoch):
            size = first_of[epoch[position]]
            assert epoch[position : position + size] == list(range(epoch[position], epoch[position] + size))
            position += size


def test_another_seed_or_epoch_gives_another_order():
    def way(seed, epoch, **options):
        return tuple(TrainingOrder(length=60, batch_size=60, seed=seed, **options).indices(epoch))

    assert way(3, 1) == way(3, 1)
    assert len({way(3, 1), way(4, 1), way(3, 2), way(3 + 2**32, 1)}) == 4
    assert way(3, 1, shuffle=False) == tuple(range(60))


def test_world_does_not_change_what_is_taken_at_a_step():
    one = TrainingOrder(length=37, batch_size=12, seed=5)
    four = [TrainingOrder(length=37, batch_size=3, rank=rank, world=4, seed=5) for rank in range(4)]
    for step in range(20):
        assert one.indices(step) == [sample for order in four for sample in order.indices(step)]


@given(st.integers(1, 70), st.integers(1, 80), st.integers(1, 9))
def test_evaluation_takes_every_sample_exactly_once(length, batch_size, world):
    common = {"length": length, "batch_size": batch_size, "world": world}
    shares = [[each.indices for each in evaluation_order(rank=rank, **common)] for rank in range(world)]
    taken = Counter(sample for share in shares for batch in share for sample in batch)
    assert taken == Counter(range(length))
    for share in shares:
        assert all(len(batch) == batch_size for batch in share[:-1])
        assert all(share)
    sizes = [sum(map(len, share)) for share in shares]
    assert max(sizes) - min(sizes) <= 1


WORKERS = (0, 2)


class Reporting:
    """A reader of step numbers that reports its process, or does there what a test wants."""

    def __init__(self, does=lambda wanted: None):
        self.does = does

    def __getitem__(self, wanted):
        answer = self.does(wanted)
        own = [os.getpid(), len(os.sched_getaffinity(0)), torch.get_num_threads()]
        return torch.tensor([wanted, *own]) if answer is None else answer


def opened(reader, *, workers, length=20, sampler=None, **options):
    order = TrainingOrder(length=length, batch_size=3)
    sampler = sampler or (count() if isinstance(reader, Reporting) else order.requests(augment=False))
    return HostBatches(reader, sampler, workers=workers, for_device=False, **options)


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


def photographs(batches, images, workers):
    order = TrainingOrder(length=len(images), batch_size=3, seed=5)
    sampler = order.requests(augment=True)
    return batches(PhotographReader(images=images, size=16), workers=workers, sampler=sampler)


def test_batches_and_crops_do_not_depend_on_the_number_of_workers(batches, food):
    taken = [list(islice(photographs(batches, food, workers), 7)) for workers in WORKERS]
    for others in taken[1:]:
        for (pixels, labels), (other_pixels, other_labels) in zip(taken[0], others, strict=True):
            assert torch.equal(pixels, other_pixels)
            assert torch.equal(labels, other_labels)
    assert not torch.equal(taken[0][0][0], taken[0][1][0])


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_come_in_order_from_as_many_processes_as_requested(batches, workers):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    slow = Reporting(lambda wanted: time.sleep(0.2) if wanted == 1 else None)
    reported = torch.stack(list(islice(batches(slow, workers=workers), 8)))
    assert reported[:, 0].tolist() == list(range(8))
    readers = set(reported[:, 1].tolist())
    assert len(readers) == max(1, workers)
    assert (os.getpid() in readers) == (workers == 0)
    assert set(reported[:, 3].tolist()) == {1}
    assert torch.equal(torch.rand(3), expected)  # loading does not change the global random state


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


@pytest.mark.parametrize(("when", "workers"), [("reading", 2), ("waiting", 1)])
def test_killed_worker_is_one_error_with_the_remedy_and_no_hang(batches, when, workers):
    def die(wanted):
        if when == "reading" and wanted == 2:
            kill(os.getpid())

    before = children()
    reader = batches(Reporting(die), workers=workers)
    if when == "waiting":
        kill(int(next(reader)[1]))
    with pytest.raises(DataError, match=r"^loader: a worker ended before its batch came: ") as caught:
        list(islice(reader, 10))
    text = str(caught.value)
    assert "lower workers= or prefetch=" in text
    assert "Traceback" not in text
    reader.close()  # while the error is held
    assert children() - before == set()


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


def test_crops_do_not_depend_on_batches_per_request(food):
    reader = PhotographReader(images=food, size=24)
    order = TrainingOrder(length=len(food), batch_size=2, rank=1, world=2, seed=3)

    def samples(at_once):
        batches = order.requests(augment=True, at_once=at_once)
        return torch.cat([reader[each][0] for each in islice(batches, 6 // at_once)])

    assert torch.equal(samples(1), samples(2))
    assert torch.equal(samples(1), samples(3))


CPU = torch.device("cpu")


# Of this mean and deviation: pixels come out as they are.
PLAIN = ModelInput(
    channels=3,
    size=16,
    device=CPU,
    dtype=torch.float32,
    memory_format=torch.contiguous_format,
    mean=(0.0,) * 3,
    std=(1 / 255,) * 3,
)


def numbered_images(count):
    """Images that say which they are: every pixel of the fifth is five."""
    numbers = torch.arange(count)
    images = numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(count, 1, 4, 4).contiguous()
    return ArrayImages(images=images, labels=numbers)


def loaded(order, images, workers=0):
    batches = HostBatches(images, order.requests(augment=False), workers=workers, for_device=False)
    return LoaderSource(batches, tuple, CPU)


def take(source, steps):
    return [next(source) for _ in range(steps)]


def test_resident_and_loaded_data_come_in_one_order():
    images = numbered_images(17)
    order = TrainingOrder(length=17, batch_size=4, seed=3)
    sources = [
        resident((images.images, images.labels), order, tuple, CPU),
        loaded(order, images),
        loaded(order, images, workers=2),
    ]
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


@pytest.fixture
def decoded(food):
    made = []

    def make(images=None, *, decode=on_host, workers=0, seed=None, batch_size=3, batches=None):
        images = images or food
        order = TrainingOrder(length=len(images), batch_size=batch_size, seed=1)
        sampler = order.requests(augment=False)
        batches = batches or HostBatches(images, sampler, workers=workers, for_device=False)
        made.append(DecodingSource(batches, images, CropResize(PLAIN), CPU, seed=seed, decode=decode))
        return made[-1]

    yield make
    for each in made:
        each.close()


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("accel-decode")]


def test_images_and_labels_of_a_decoded_batch_match(decoded, food):
    images = food
    order = TrainingOrder(length=len(images), batch_size=3, seed=1)
    for step, (inputs, labels) in enumerate(take(decoded(), 4)):
        indices = order.indices(step)
        assert labels.tolist() == images.labels[indices].tolist()
        for found, index in zip(inputs, indices, strict=True):
            whole = decode_on_host(images.read(index), "it").float()
            assert abs(float(found.mean() - whole.mean())) < 40  # its middle, of a smooth picture


def test_random_crops_follow_the_seed(decoded):
    first, same, other = (next(decoded(seed=seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_error_in_a_thread_is_raised_with_its_batch(decoded, tmp_path):
    path = write_food101(tmp_path)["train"].paths[0]
    path.write_bytes(path.read_bytes()[:300])
    source = decoded(open_images(tmp_path, "food101", "train"))
    with pytest.raises(DataError, match=r"does not decode") as caught:
        take(source, 4)
    assert str(caught.value).startswith(f"{path}: ")


def test_batches_keep_their_order_with_a_slow_thread(decoded, food):
    images = food
    order = TrainingOrder(length=len(images), batch_size=1, seed=1)
    slow = images.read(order.indices(0)[0])

    def first_is_slow(encoded, device, named):
        if torch.equal(encoded[0], slow):
            time.sleep(0.2)
        return on_host(encoded, device, named)

    found = [labels.item() for _, labels in take(decoded(decode=first_is_slow, batch_size=1), 10)]
    assert found == [int(images.labels[order.indices(step)[0]]) for step in range(10)]


@pytest.mark.parametrize("taken", [0, 6])
def test_closing_ends_the_threads_and_the_workers(decoded, taken):
    before = children()
    source = decoded(workers=1)
    take(source, taken)
    source.close()
    source.close()
    assert threads() == []
    assert children() - before == set()


@pytest.mark.parametrize(("length", "batch_size", "at_once"), [(1, 1, 2), (17, 4, 3), (30, 6, 5)])
def test_batches_that_cross_together_are_those_that_cross_alone(length, batch_size, at_once):
    images = numbered_images(length)
    order = TrainingOrder(length=length, batch_size=batch_size, rank=1, world=2)
    sampler = order.requests(augment=False, at_once=at_once)
    batches = HostBatches(images, sampler, workers=0, for_device=False)
    batches.buffered, batches.burst = 4, 2  # as of two workers
    source = LoaderSource(batches, tuple, CPU, at_once=at_once)
    assert (source.loads, source.buffered, source.burst) == (True, (4 + COPIED_AHEAD) * at_once, 2 * at_once)
    steps = 2 * at_once + 1
    for one, other in zip(take(source, steps), take(loaded(order, images), steps), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    source.close()
    with pytest.raises(StopIteration):
        next(source)
