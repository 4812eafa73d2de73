"""How good a baseline is: how many runs from how many sessions, how noisy, and what loss the gate can catch with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_accel.stats.gate import (
    count_sessions,
    interval,
    loss,
    resolution_factor,
    scale_of,
    settled,
)
from pytest_accel.stats.quantities import counted, percent
from pytest_accel.stats.runs import RECORD_RUNS, Run
from pytest_accel.stats.verdict import Policy, StepTime

SESSIONS = 3  # runs of one evening resemble each other
# Of tolerance="auto": a machine that resolves less is not asked for more than anybody acts upon.
LEAST_AUTO = 0.03
NO_GATE = 0.3  # a loss that large needs none to be noticed
GRAIN = 0.005  # of a tolerance that is proposed or frozen
_RUNS_THAT_TELL = 3  # of the noise; of fewer it is said that they are few


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Of the stored runs of one benchmark."""

    runs: int
    sessions: int
    step: StepTime
    noise: float  # s of the gate: run-to-run standard deviation of ln(step time)
    resolution: float  # loss of throughput that is caught in 80 % of cases
    tolerance: float

    @property
    def provisional(self) -> str:
        """Why more should be recorded; empty where it is enough."""
        few = []
        if self.runs < RECORD_RUNS:
            few.append(f"{counted(self.runs, 'run')} of {RECORD_RUNS}")
        if self.sessions < SESSIONS:
            few.append(f"{counted(self.sessions, 'session')} of {SESSIONS}")
        return ", ".join(few)

    @property
    def too_noisy(self) -> str:
        """That the noise does not allow what the tolerance asks; empty where the gate can hold it."""
        return "too noisy for its tolerance" if self.resolution > self.tolerance else ""

    @property
    def no_gate(self) -> str:
        """That its tolerance lets everything pass but a breakdown; empty where it is one to gate by."""
        return f"no gate: {percent(self.tolerance, 0)} is tolerated" if self.tolerance > NO_GATE else ""

    @property
    def is_surely_noisy(self) -> bool:
        """Whether enough runs say so for somebody to be told unasked."""
        return bool(self.too_noisy) and self.runs >= _RUNS_THAT_TELL


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What a recording made of tolerance="auto": it is chosen once, and moves only where somebody asks for it."""

    chosen: float  # from the runs that are stored now
    stored: float | None  # by which the benchmark is judged; None where the recording was not finished
    before: float | None = None  # what stood in the baseline

    @property
    def would_widen(self) -> bool:
        return self.before is not None and self.chosen > self.before


def auto_tolerance(runs: Sequence[Run]) -> float:
    """What tolerance="auto" is with these runs: their resolution, at least 3 %, rounded up."""
    return rounded_up(max(LEAST_AUTO, standing(runs, None).resolution))


def rounded_up(loss: float) -> float:
    """The smallest tolerance that is worth writing down and holds that loss."""
    return min(round(math.ceil(round(loss / GRAIN, 6)) * GRAIN, 6), 1 - GRAIN)


def standing(runs: Sequence[Run], tolerance: float | None) -> Standing:
    asked = Policy() if tolerance is None else Policy(tolerance=tolerance)
    sessions = count_sessions(runs)
    policy, scale = settled(asked, lambda each: scale_of(runs, each))
    return Standing(
        runs=len(runs),
        sessions=sessions,
        step=interval(runs, asked),
        noise=scale.noise,
        resolution=loss(scale.noise * resolution_factor(len(runs), sessions, policy)),
        tolerance=policy.tolerance,
    )
