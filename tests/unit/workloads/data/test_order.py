"""Sample order: every sample once an epoch for any world size; seeds."""

from __future__ import annotations

from collections import Counter
from copy import copy

from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data.order import EvaluationOrder, TrainingOrder


@st.composite
def training(draw):
    """The orders of all ranks of a world."""
    groups = draw(st.none() | st.lists(st.integers(1, 9), min_size=1, max_size=8))
    length = sum(groups) if groups else draw(st.integers(1, 60))
    world = draw(st.integers(1, 6))
    common = {
        "length": length,
        "batch_size": draw(st.integers(1, 80)),
        "world": world,
        "seed": draw(st.integers(0, 2**40)),
        "shuffle": draw(st.booleans()),
        "groups": groups,
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


@given(training(), st.integers(1, 5))
def test_steps_for_epochs_are_just_enough(orders, epochs):
    order = orders[0]
    steps = order.steps_for_epochs(epochs)
    per_step = order.world * order.batch_size
    assert (steps - 1) * per_step < epochs * order.length <= steps * per_step


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


@given(training())
def test_same_seed_gives_the_same_order_from_any_step(orders):
    for order in orders:
        again = copy(order)
        again._kept = {}
        assert [again.indices(step) for step in (7, 2, 3)] == [order.indices(step) for step in (7, 2, 3)]


@given(seed=st.integers(0, 2**40), epoch=st.integers(0, 10))
def test_another_seed_or_epoch_gives_another_order(seed, epoch):
    # By chance two permutations of 60 are equal once in 10^81.
    def way(seed, epoch, **options):
        return tuple(TrainingOrder(length=60, batch_size=60, seed=seed, **options).indices(epoch))

    ways = {way(seed, epoch), way(seed + 1, epoch), way(seed, epoch + 1), way(seed + 2**32, epoch)}
    assert len(ways) == 4
    assert way(seed, epoch, shuffle=False) == tuple(range(60))
    assert len({way(seed + each, epoch, groups=[1] * 60) for each in range(3)}) == 3


def test_world_does_not_change_what_is_taken_at_a_step():
    one = TrainingOrder(length=37, batch_size=12, seed=5)
    four = [TrainingOrder(length=37, batch_size=3, rank=rank, world=4, seed=5) for rank in range(4)]
    for step in range(20):
        assert one.indices(step) == [sample for order in four for sample in order.indices(step)]


@given(st.integers(1, 70), st.integers(1, 80), st.integers(1, 9))
def test_evaluation_takes_every_sample_exactly_once(length, batch_size, world):
    orders = [
        EvaluationOrder(length=length, batch_size=batch_size, rank=rank, world=world) for rank in range(world)
    ]
    shares = [[request.indices for request in order.requests()] for order in orders]
    assert Counter(sample for share in shares for batch in share for sample in batch) == Counter(
        range(length)
    )
    for share in shares:
        assert all(len(batch) == batch_size for batch in share[:-1])
        assert all(share)
    sizes = [sum(map(len, share)) for share in shares]
    assert max(sizes) - min(sizes) <= 1
