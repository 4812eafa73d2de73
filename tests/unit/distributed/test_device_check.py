"""Device check of one rank; tests/distributed has a group of two with one slow rank."""

import pytest

from pytest_accel.distributed.device_check import (
    CPU,
    CUDA,
    MIB,
    AllReduce,
    DeviceCheck,
    Reading,
    bus_bandwidth,
    check,
)
from pytest_accel.measure.ranks import Alone
from tests.support.one_thread import one_thread  # noqa: F401 - a fixture of all tests here


def test_single_rank_has_no_sweep_and_no_stragglers():
    import torch

    report = check(Alone(), torch.device("cpu"), label="CPU", host="n1").plain()
    assert [each["unit"] for each in report["readings"]] == ["FLOP/s", "B/s"]
    assert all(each["rate"] > 0 for each in report["readings"])
    assert (report["sweep"], report["stragglers"], report["lines"]) == ([], [], [])


def test_sweep_ends_at_64_mib_on_gpus_and_at_1_mib_on_the_host():
    assert (CUDA.all_reduce_bytes[0], CUDA.all_reduce_bytes[-1]) == (4096, 64 * MIB)
    assert (CPU.all_reduce_bytes[0], CPU.all_reduce_bytes[-1]) == (4096, MIB)


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_is_that_of_a_ring(ranks, factor):
    assert bus_bandwidth(1000, 2.0, ranks) == 500 * factor


def test_sweep_is_reported_in_one_line():
    sweep = (
        AllReduce(size_bytes=4096, latency_s=21e-6, bus_bytes_per_s=3e8),
        AllReduce(size_bytes=64 * MIB, latency_s=5e-4, bus_bytes_per_s=231e9),
    )
    readings = tuple(
        Reading(kind="copy", rate=1.0, unit="B/s", rank=rank, device="", host="") for rank in range(4)
    )
    report = DeviceCheck(readings=readings, sweep=sweep, stragglers=())
    assert report.lines() == ["all-reduce of 4 ranks: 4 KiB in 21 us, 64 MiB at 231.0 GB/s"]
