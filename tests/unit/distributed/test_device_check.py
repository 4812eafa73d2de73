"""Stragglers and bandwidth; tests/distributed checks a group of two with one slow rank."""

from types import SimpleNamespace

import pytest

from pytest_accel.distributed import device_check
from pytest_accel.distributed.device_check import Reading, bus_bandwidth, find_stragglers


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_is_that_of_a_ring(ranks, factor):
    assert bus_bandwidth(1000, 2.0, ranks) == 500 * factor


# --- stragglers -------------------------------------------------------------------------------------


def readings(rates, kind="matrix product"):
    return [
        Reading(kind=kind, rate=rate, rank=rank, device=f"NVIDIA A100, GPU-{rank}", host="n1")
        for rank, rate in enumerate(rates)
    ]


def named(rates):
    return [straggler.reading.rank for straggler in find_stragglers(readings(rates))]


def test_the_slow_device_is_named_in_one_line():
    (straggler,) = find_stragglers(readings([100.0, 100.0, 91.9, 100.0]))
    assert straggler.line() == (
        "rank 2 (NVIDIA A100, GPU-2, node n1): matrix product 8.1 % under the median of 4 devices"
    )


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([], []),
        ([100.0], []),
        ([100.0, 95.1, 100.0], []),
        ([100.0, 94.9, 100.0], [1]),
        ([100.0, 0.0, 100.0], [1]),
        ([0.0, 0.0, 0.0], []),
        ([50.0, 100.0, 50.0, 100.0], [0, 2]),  # the median of an even number lies between
        # Of two the median is their mean: 9.5 % must be missing to the faster one.
        ([100.0, 91.0], []),
        ([100.0, 90.0], [1]),
    ],
)
def test_more_than_five_percent_under_the_median_is_named(rates, expected):
    assert named(rates) == expected


def test_each_kind_of_work_has_its_own_median():
    both = [*readings([100.0, 100.0, 100.0]), *readings([3.0, 3.0, 2.0], kind="copy")]
    assert [(each.reading.kind, each.reading.rank) for each in find_stragglers(both)] == [("copy", 2)]


@pytest.mark.parametrize(("slow_rate", "checks"), [(100.0, 1), (80.0, device_check.CPU.repeats)])
def test_slow_device_is_checked_so_often_before_it_is_named(monkeypatch, slow_rate, checks):
    torch = pytest.importorskip("torch")
    made, reduced = [], set()
    monkeypatch.setattr(device_check, "_rates", lambda *_: made.append(1) or {"copy": 100.0})
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda buffer: reduced.add(buffer.nbytes))
    other = ("CPU", "n1", {"copy": slow_rate})
    ranks = SimpleNamespace(
        rank=0,
        size=2,
        gather=lambda mine: [mine, "n1" if isinstance(mine, str) else other],
        barrier=lambda: None,
        slowest=lambda duration_s: duration_s,
    )
    found = device_check.check(ranks, torch.device("cpu"), label="CPU", host="n0")
    assert len(made) == checks
    assert [straggler.reading.rank for straggler in find_stragglers(found.readings)] == [1] * (checks > 1)
    assert reduced == {device_check.SMALL_BYTES, device_check.CPU.all_reduce_bytes}
