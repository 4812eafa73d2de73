"""The terminal summary: lines on process groups and launchers. tests/plugin shows the others."""

from __future__ import annotations

from pytest_accel.distributed.device_check import DeviceCheck, Reading
from pytest_accel.platforms.catalogue import PlatformName
from pytest_accel.session.summary import device_check_lines

CPUX2 = PlatformName("cpu", 2)


def reading(rank, rate):
    return Reading(kind="copy", rate=rate, rank=rank, device="CPU", host="n0")


def test_straggler_of_several_process_groups_is_named_once():
    found = [
        DeviceCheck(readings=(reading(0, 1.0), reading(1, rate)), all_reduces=line)
        for rate, line in ((0.86, "all-reduce then"), (0.8467, "all-reduce now"))
    ]
    lines = device_check_lines({(CPUX2, "first"): found[0], (CPUX2, "second"): found[1]})
    assert [line for line, _ in lines] == [
        "cpux2: all-reduce now",
        "note: rank 1 (CPU, node n0): copy 8.3 % under the median of 2 devices",
    ]
