"""Images of any size in batches of a few: each once an epoch in any world, each in a bucket that holds it."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data.buckets import MANY_SCALES, ONE_SCALE, BucketOrder, Resizing

SMALL = Resizing(
    short_sides=(8, 12, 16), longest=32, buckets=((12, 20), (16, 24), (16, 32), (24, 16), (32, 16))
)
STILL = Resizing(short_sides=(16,), longest=32, buckets=((16, 24), (16, 32), (24, 16), (32, 16)))
# The dozen most frequent sizes among COCO's 5,000 validation images of 2017, and how many have them.
FREQUENT = {
    (480, 640): 1061,
    (427, 640): 606,
    (640, 480): 336,
    (375, 500): 240,
    (426, 640): 215,
    (640, 427): 171,
    (428, 640): 161,
    (425, 640): 146,
    (612, 612): 106,
    (500, 375): 94,
    (333, 500): 80,
    (640, 426): 73,
}


@st.composite
def worlds(draw, resizings=(SMALL, STILL)):
    """The orders of all ranks."""
    sides = st.integers(1, 100)
    sizes = np.array(draw(st.lists(st.tuples(sides, sides), min_size=1, max_size=40)))
    world = draw(st.integers(1, 5))
    common = {
        "sizes": sizes,
        "resizing": draw(st.sampled_from(resizings)),
        "batch_size": draw(st.integers(1, 9)),
        "world": world,
        "seed": draw(st.integers(0, 2**40)),
    }
    return [BucketOrder(rank=rank, **common) for rank in range(world)]


def together(orders, epochs):
    """The steps of some epochs, each as what all ranks take."""
    streams = [order.epochs() for order in orders]
    return [
        [list(ranks) for ranks in zip(*(next(stream) for stream in streams), strict=True)]
        for _ in range(epochs)
    ]


@given(worlds())
def test_every_image_has_come_as_often_as_epochs_are_over(orders):
    length, per_step = len(orders[0].sizes), orders[0].world * orders[0].batch_size
    came = Counter()
    for epoch, steps in enumerate(together(orders, 3), start=1):
        came.update(index for ranks in steps for share in ranks for index in share.indices)
        assert min(came[index] for index in range(length)) >= epoch
        # Beyond that only what fills the last step of each bucket.
        assert came.total() - epoch * length < per_step * len(orders[0].resizing.buckets)


@given(worlds(resizings=(STILL,)))
def test_no_image_comes_twice_in_its_epoch(orders):
    """With one scale an image has one bucket: what comes from a bucket is one permutation of its images after another."""
    came = {}
    for steps in together(orders, 3):
        for ranks in steps:
            came.setdefault(ranks[0].bucket, []).extend(index for share in ranks for index in share.indices)
    for stream in came.values():
        members = set(stream)
        for start in range(0, len(stream), len(members)):
            part = stream[start : start + len(members)]
            assert len(set(part)) == len(part)
    assert sum(len(set(stream)) for stream in came.values()) == len(orders[0].sizes)


@given(worlds())
def test_all_ranks_take_full_batches_of_one_bucket(orders):
    for ranks in together(orders, 1)[0]:
        assert len({share.bucket for share in ranks}) == 1
        assert {len(share.indices) for share in ranks} == {len(share.sizes) for share in ranks}
        assert {len(share.indices) for share in ranks} == {orders[0].batch_size}


@given(worlds())
def test_images_fit_their_bucket_keep_their_shape_and_are_given_no_larger_one(orders):
    resizing = orders[0].resizing
    for share in islice(orders[0], 10):
        for index, (height, width) in zip(share.indices, share.sizes, strict=True):
            fitting = [each for each in resizing.buckets if height <= each[0] and width <= each[1]]
            assert share.bucket in fitting
            assert share.bucket[0] * share.bucket[1] == min(one * other for one, other in fitting)
            was_high, was_wide = orders[0].sizes[index].tolist()
            assert max(height, width) <= resizing.longest
            scale = max(height, width) / max(was_high, was_wide)
            assert abs(min(height, width) - max(1, min(was_high, was_wide) * scale)) <= 1
            assert max(height, width) == resizing.longest or min(height, width) in resizing.short_sides


@given(worlds())
def test_the_same_seed_takes_the_same_way(orders):
    assert list(islice(orders[-1], 12)) == list(islice(orders[-1], 12))


def test_another_seed_or_epoch_takes_another_way():
    sizes = np.full((60, 2), 50)

    def way(seed, epoch):
        order = BucketOrder(sizes=sizes, resizing=STILL, batch_size=60, seed=seed)
        return tuple(next(islice(order, epoch, None)).indices)

    assert len({way(0, 0), way(1, 0), way(0, 1), way(2**32, 0)}) == 4


def test_every_short_side_is_drawn_and_buckets_take_turns():
    order = BucketOrder(sizes=np.array([(30, 40), (40, 30)] * 100), resizing=SMALL, batch_size=2)
    shares = list(next(order.epochs()))
    assert {min(size) for share in shares for size in share.sizes} == {8, 12, 16}
    buckets = [share.bucket for share in shares]
    changes = sum(one != other for one, other in pairwise(buckets))
    assert changes > 2 * len(set(buckets))


def test_a_set_of_one_image_fills_any_batch():
    share = next(iter(BucketOrder(sizes=np.array([(9, 13)]), resizing=SMALL, batch_size=50, world=4, rank=3)))
    assert share.indices == [0] * 50


@pytest.mark.parametrize(
    ("size", "short", "expected"),
    [
        ((480, 640), 800, (800, 1067)),
        ((640, 480), 800, (1067, 800)),
        ((427, 640), 800, (800, 1199)),
        ((360, 640), 800, (750, 1333)),  # the long side decides
        ((640, 100), 480, (1333, 208)),
        ((612, 612), 480, (480, 480)),
    ],
)
def test_sizes_are_those_of_the_studies(size, short, expected):
    assert MANY_SCALES.resized(np.array([size]), np.array([short])).tolist() == [list(expected)]


def test_little_of_cocos_frequent_sizes_is_padding():
    sizes = np.repeat(np.array(list(FREQUENT)), list(FREQUENT.values()), axis=0)
    assert ONE_SCALE.padded_share(sizes) < 0.08
    assert MANY_SCALES.padded_share(sizes) < 0.16
    two = Resizing(short_sides=MANY_SCALES.short_sides, longest=1333, buckets=((800, 1344), (1344, 800)))
    assert two.padded_share(sizes) > 0.4


def test_the_padded_share_is_what_it_says():
    resizing = Resizing(short_sides=(10,), longest=20, buckets=((10, 20), (20, 10)))
    assert resizing.padded_share(np.array([(10, 10), (10, 20)])) == pytest.approx(100 / 400)


@pytest.mark.parametrize("resizing", [ONE_SCALE, MANY_SCALES])
def test_sides_are_multiples_of_the_backbones_stride(resizing):
    assert all(side % 32 == 0 for bucket in resizing.buckets for side in bucket)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"buckets": ((800, 1344),)}, "buckets: none of"),
        ({"buckets": ((800, 1300), (1344, 800))}, "buckets: none of"),
        ({"buckets": ()}, "buckets: none of"),
        ({"short_sides": ()}, "short_sides: "),
        ({"short_sides": (0,)}, "short_sides: "),
        ({"short_sides": (1400,)}, "short_sides: "),
    ],
)
def test_impossible_resizings_are_named(wrong, named):
    right = {"short_sides": (800,), "longest": 1333, "buckets": ((800, 1344), (1344, 800))}
    with pytest.raises(ValueError, match=f"^{named}"):
        Resizing(**right | wrong)


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"world": 0}, {"rank": 2, "world": 2}, {"sizes": np.empty((0, 2))}]
)
def test_impossible_orders_are_named(wrong):
    right = {"sizes": np.array([(3, 4)]), "resizing": SMALL, "batch_size": 1}
    with pytest.raises(ValueError, match=r"^(batch_size|world|rank|length): "):
        BucketOrder(**right | wrong)
