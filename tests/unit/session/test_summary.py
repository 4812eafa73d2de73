"""The terminal summary: lines on process groups and launchers. tests/plugin shows the others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_accel.distributed.device_check import DeviceCheck, Reading
from pytest_accel.platforms.catalogue import PlatformName
from pytest_accel.session.launcher import LAUNCHER_RANKS
from pytest_accel.session.summary import device_check_lines, idle_ranks

CPUX2 = PlatformName("cpu", 2)


def under_torchrun(world_size):
    return SimpleNamespace(
        stash={
            LAUNCHER_RANKS: SimpleNamespace(
                launched=SimpleNamespace(world_size=world_size, launcher="torchrun")
            )
        }
    )


class TestIdleRanks:
    cases = (SimpleNamespace(platform=PlatformName("cpu")), SimpleNamespace(platform=CPUX2))

    def test_idle_ranks_are_counted(self):
        assert idle_ranks(under_torchrun(3), self.cases) == (
            "1 of the 3 ranks that torchrun started had nothing to do: the largest platform here is cpux2."
        )

    @pytest.mark.parametrize("config", [under_torchrun(2), SimpleNamespace(stash={})])
    def test_no_idle_rank_is_no_line(self, config):
        assert idle_ranks(config, self.cases) == ""


def reading(rank, rate):
    return Reading(kind="copy", rate=rate, unit="B/s", rank=rank, device="CPU", host="n0")


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
