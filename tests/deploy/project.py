"""A project with one benchmark whose step takes exactly what a file says, and the shell of a deployment run in it."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_accel.storage.history import History
from tests.support.processes import finished

CI = Path(__file__).parents[2] / "deploy" / "ci"
LONG_S = 300.0  # of waiting for a night; only a broken one takes so long

# No test hopes for a timing: steps move a clock of their own, and nothing else takes any time.
CLOCK = """
import pathlib
import types

import pytest

import pytest_accel.measure.rounds


@pytest.fixture
def advance(monkeypatch):
    now_s = 0.0
    ours = types.SimpleNamespace(perf_counter=lambda: now_s, process_time=lambda: now_s)
    monkeypatch.setattr(pytest_accel.measure.rounds, "time", ours)

    def advance(seconds):
        nonlocal now_s
        now_s += seconds

    return advance


@pytest.fixture
def step(advance):
    step_s = float(pathlib.Path("step_s").read_text())
    return lambda: advance(step_s)
"""
SUITE = """
from pytest_accel import cpu


@cpu
def test_step(accel, step):
    accel.measure(step, work=1, unit="calls")
"""

# The doctor is the real one, but whether the machine is fit is the test's to say: this one may be busy. What it says of the
# devices is asked once for all nights; its status says that it found a problem.
PYTHON = """#!/bin/sh
[ "$3 $4" != "doctor --json" ] || {{ cat {machine}; exit 1; }}
if [ "$3" = doctor ]; then
    [ ! -e {unfit} ] || {{ cat {unfit}; exit 1; }}
    {python} "$@"
    [ $? -le 1 ]
    exit
fi
exec {python} "$@"
"""
UNFIT = """devices
  ok       ECC            GPU 0: on
  PROBLEM  power limit    GPU 0: 550 W, below its default
                          of 700 W
                          -> sudo nvidia-smi -i 0 -pl 700
  WARNING  clocks         GPU 0: not locked
                          -> sudo nvidia-smi -lgc 1980
cpu
  PROBLEM  quota          2 of 64 CPUs

2 problems, 1 warning. Do not measure before this is put right.
"""


@dataclass(frozen=True, slots=True)
class Project:
    """A checkout in which nights are run."""

    root: Path
    environment: Mapping[str, str]

    def step_takes(self, seconds: float) -> None:
        (self.root / "step_s").write_text(f"{seconds}")

    def become_unfit(self) -> None:
        """From now on doctor finds problems."""
        (self.root / "unfit").write_text(UNFIT)

    def shell(
        self, *command: str, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return finished(*command, cwd=cwd or self.root, env={**self.environment, **variables})

    def night(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.shell("bash", "deploy/ci/night.sh", *arguments, **variables)


# --- what a night left ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Left:
    """The folder of one night."""

    folder: Path

    @property
    def files(self) -> set[str]:
        return {each.name for each in self.folder.iterdir()}

    @property
    def result(self) -> dict[str, Any]:
        """Of the only benchmark."""
        (result,) = json.loads((self.folder / "results.json").read_text())["results"]
        return result

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()


def sessions(history: Path) -> int:
    return len(History(history).sessions())
