"""How good a baseline is: how many runs from how many sessions, how noisy, and what loss the gate can catch with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_accel.core.gate import (
    baseline_squares,
    count_sessions,
    interval,
    loss,
    resolution_factor,
    within_run_variance,
)
from pytest_accel.core.quantities import counted
from pytest_accel.core.runs import RECORD_RUNS, Run
from pytest_accel.core.verdict import Policy, StepTime

SESSIONS = 3  # runs of one evening resemble each other
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
    def is_surely_noisy(self) -> bool:
        """Whether enough runs say so for somebody to be told unasked."""
        return bool(self.too_noisy) and self.runs >= _RUNS_THAT_TELL


def standing(runs: Sequence[Run], tolerance: float | None) -> Standing:
    policy = Policy() if tolerance is None else Policy(tolerance=tolerance)
    sessions = count_sessions(runs)
    nu = policy.prior_degrees_of_freedom + len(runs) - 1
    squares = policy.prior_degrees_of_freedom * policy.prior_noise**2 + baseline_squares(runs, policy)
    noise = math.sqrt(max(squares / nu, within_run_variance(runs)))
    return Standing(
        runs=len(runs),
        sessions=sessions,
        step=interval(runs, policy),
        noise=noise,
        resolution=loss(noise * resolution_factor(len(runs), sessions, policy)),
        tolerance=policy.tolerance,
    )
