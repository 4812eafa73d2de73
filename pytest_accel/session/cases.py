"""One benchmark on its way to a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from pytest_accel.core.environment import Environment, describe, diff, diff_identity
from pytest_accel.core.gate import judge
from pytest_accel.core.grammar import PlatformName
from pytest_accel.core.runs import Run
from pytest_accel.core.scaling import Scaling
from pytest_accel.core.verdict import Outcome, Policy, Verdict
from pytest_accel.measure.measurement import Measurement, Scalar
from pytest_accel.measure.steps import PILOT_STEPS
from pytest_accel.options import Settings
from pytest_accel.store.schema import BaselineEntry, BaselineFile, configuration_hash

# Seeded steps repeat to the last bit on one machine on the CPU; GPU kernels that add atomically differ
# in the last digits of fp32 and the third of bf16.
LOSS_TOLERANCE = 0.01


@dataclass(slots=True, kw_only=True)
class Case:
    """What is known of one selected benchmark so far."""

    item: pytest.Item
    platform: PlatformName
    disk_name: str  # of the platform: the directory of its baselines
    suite: str
    settings: Settings
    baseline: BaselineFile | None = None  # the file, whatever it holds of this benchmark
    measurements: list[Measurement] = field(default_factory=list)
    scaling: tuple[PlatformName, Scaling] | None = None  # against the baseline of this smaller platform
    verdict: Verdict | None = None
    held: list[pytest.TestReport] = field(default_factory=list)  # reports that wait for the verdict
    problem: str = ""  # why a fresh process gave no measurement
    skipped: str = ""
    recorded: str = ""  # what was written down, when recording

    @property
    def node_id(self) -> str:
        return self.item.nodeid

    @property
    def label(self) -> str:
        return f"{self.item.name} ({self.platform})"

    @property
    def entry(self) -> BaselineEntry | None:
        return self.baseline.benchmarks.get(self.node_id) if self.baseline else None

    @property
    def latest(self) -> Measurement:
        return self.measurements[-1]

    @property
    def runs(self) -> list[Run]:
        return [measurement.run for measurement in self.measurements]

    @property
    def undecided(self) -> bool:
        return self.verdict is not None and self.verdict.wants_another_run

    @property
    def policy(self) -> Policy:
        stored = self.entry.tolerance if self.entry else None
        tolerance = self.settings.tolerance if self.settings.tolerance is not None else stored
        default = Policy(max_looks=self.settings.looks)
        return default if tolerance is None else Policy(max_looks=self.settings.looks, tolerance=tolerance)

    def judge(self) -> Verdict:
        """Compare what was measured with what is stored."""
        self.verdict = self._verdict()
        return self.verdict

    def _verdict(self) -> Verdict:
        entry = self.entry
        if entry is None:
            where = f"baselines of {self.disk_name} hold no {self.item.name}"
            return self._unjudged(Outcome.NO_BASELINE, f"{where}; record it with --accel-record")
        if why := self.stale():
            return self._unjudged(Outcome.STALE_BASELINE, why)
        return judge(self.comparable_runs(entry), self.runs, self.policy)

    def stale(self) -> str:
        """Why the stored runs cannot be compared with what was just measured; empty where they can."""
        entry, now = self.entry, self.latest
        if entry is None:
            return ""
        if entry.configuration_hash != configuration_hash(now.configuration, now.work_per_step, now.unit):
            return (
                f"the benchmark changed since its baseline ({_differences(entry, now)}); "
                'record it anew with --accel-update --accel-reason "..."'
            )
        if not self.comparable_runs(entry):
            elsewhere = self._environment_of(entry.runs[-1])
            return (
                f"the stored runs are of another machine ({describe(diff_identity(elsewhere, now.environment))}) "
                "and are never compared; set it as it was, or record anew with "
                '--accel-update --accel-reason "..."'
            )
        return ""

    def _unjudged(self, outcome: Outcome, reason: str) -> Verdict:
        return Verdict(
            outcome=outcome, tolerance=self.policy.tolerance, looks=len(self.measurements), reason=reason
        )

    def comparable_runs(self, entry: BaselineEntry) -> list[Run]:
        """The stored runs whose identity is that of this machine."""
        identity = self.latest.environment.identity
        return [run for run in entry.runs if self._environment_of(run).identity == identity]

    def environment_changes(self) -> str:
        """What changed in the environment since the newest comparable run of the baseline."""
        comparable = self.comparable_runs(self.entry) if self.entry else []
        if not comparable:
            return ""
        return describe(diff(self._environment_of(comparable[-1]), self.latest.environment))

    def loss_change(self) -> str:
        """News of numerics: the loss after the same seeded steps is another one than in the baseline."""
        comparable = self.comparable_runs(self.entry) if self.entry else []
        before = next((run.loss for run in reversed(comparable) if run.loss is not None), None)
        after = self.latest.run.loss
        if before is None or after is None or math.isclose(before, after, rel_tol=LOSS_TOLERANCE):
            return ""
        return f"loss after {PILOT_STEPS} seeded steps {before:.6g} -> {after:.6g}"

    def _environment_of(self, run: Run) -> Environment:
        assert self.baseline is not None  # a stored run has a file
        return self.baseline.environments[run.environment]


def _differences(entry: BaselineEntry, now: Measurement) -> str:
    """Which parts of the configuration differ, old -> new."""
    old = {**entry.configuration, "work per step": entry.work_per_step, "unit": entry.unit}
    new = {**now.configuration, "work per step": now.work_per_step, "unit": now.unit}
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return ", ".join(f"{name} {_shown(old.get(name))} -> {_shown(new.get(name))}" for name in names)


def _shown(value: Scalar) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
