"""What the terminal says of gangs below the table."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_accel.platforms.names import PlatformName
from pytest_accel.session.seating import SEATS
from pytest_accel.session.summary import write_gangs, write_idle_ranks

CPUX2 = PlatformName("cpu", 2)


@pytest.fixture
def terminal():
    written = []
    return SimpleNamespace(written=written, write_line=lambda line, **markup: written.append(line))


def under_torchrun(world_size):
    return SimpleNamespace(
        stash={SEATS: SimpleNamespace(launched=SimpleNamespace(world_size=world_size, launcher="torchrun"))}
    )


class TestIdleRanks:
    cases = (SimpleNamespace(platform=PlatformName("cpu")), SimpleNamespace(platform=CPUX2))

    def test_are_counted(self, terminal):
        write_idle_ranks(terminal, under_torchrun(3), self.cases)
        assert terminal.written == [
            "note: 1 of the 3 ranks that torchrun started had nothing to do: the largest platform here is cpux2."
        ]

    @pytest.mark.parametrize("config", [under_torchrun(2), SimpleNamespace(stash={})])
    def test_of_none_nothing_is_said(self, terminal, config):
        write_idle_ranks(terminal, config, self.cases)
        assert terminal.written == []


def reading(rank, rate):
    return {"kind": "copy", "rate": rate, "unit": "B/s", "rank": rank, "device": "CPU", "host": "n0"}


class TestGangs:
    def test_a_straggler_that_several_gangs_found_is_named_once(self, terminal):
        found = [
            {"readings": [reading(0, 1.0), reading(1, rate)], "lines": [line]}
            for rate, line in ((0.86, "all-reduce then"), (0.8467, "all-reduce now"))
        ]
        write_gangs(terminal, {(CPUX2, "first"): found[0], (CPUX2, "second"): found[1]})
        assert terminal.written == [
            "cpux2: all-reduce now",
            "note: rank 1 (CPU, node n0): copy 8.3 % under the median of 2 devices",
        ]
