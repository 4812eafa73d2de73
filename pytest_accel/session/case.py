"""One benchmark on its way to a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from pytest_accel.options import Settings
from pytest_accel.platforms.catalogue import PlatformName
from pytest_accel.session.device import Unfit
from pytest_accel.stats import metric_gates
from pytest_accel.stats.baseline_quality import DEFAULT_PRIOR, BaselineQuality, NoisePrior
from pytest_accel.stats.causes import Cause, causes_of, disturbance, kernel_causes
from pytest_accel.stats.comparison import configuration_changes
from pytest_accel.stats.environment import Change, Environment, describe, diff, diff_identity
from pytest_accel.stats.gate import LOSSES, Outcome, Policy, Verdict, interval, slowest_loss, summaries
from pytest_accel.stats.kernels import KernelDifference
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.quantities import gibibytes
from pytest_accel.stats.results import ReferenceFigure, ScalingFigure, Status, kernel_difference, worst_status
from pytest_accel.stats.run import Run, baseline_key, both_keys, is_real
from pytest_accel.storage.baselines import BaselineEntry, BaselineFile, configuration_hash

if TYPE_CHECKING:  # SQLite is loaded only where it is needed
    from pytest_accel.storage.history import Point

MOST_REPLACED = 2  # disturbed runs of one benchmark that are replaced; more make it INVALID
DOUBTED_SESSIONS = 6  # since a slow run
NEW_ENVIRONMENT = 3  # sessions; an environment that has more in the history is no longer new


@dataclass(slots=True, kw_only=True, eq=False)
class Case:
    """One selected benchmark: its baseline, its measurements, its verdict."""

    item: pytest.Item
    platform: PlatformName
    disk_name: str  # folder of the platform's baselines
    suite: str
    settings: Settings
    baseline: BaselineFile | None = None  # the file; it may not hold this benchmark
    prior: NoisePrior = DEFAULT_PRIOR  # run-to-run noise to expect on this platform
    past: tuple[Point, ...] = ()  # of its series in the history, the oldest first
    measurements: list[Measurement] = field(default_factory=list)
    disturbed: list[Measurement] = field(default_factory=list)  # invalid: replaced, and not judged
    device_time_s: float = 0.0  # with the start of its processes, and the wait for other sessions
    scaling: ScalingFigure | None = None  # against the baseline of a smaller platform
    platform_loss: float = 0.0  # of ln(step time), shared by the platform: it is judged on the rest
    verdict: Verdict | None = None  # of its throughput
    metric_verdicts: tuple[Verdict, ...] = ()  # of gated metrics and of the anchor
    pending_reports: list[pytest.TestReport] = field(default_factory=list)  # until the verdict is final
    problem: str = ""  # why a fresh process gave no measurement
    skipped: str = ""
    unfit: Unfit | None = None  # it did not fit in memory
    recorded: str = ""  # in words, when recording
    quality: BaselineQuality | None = None  # of its baseline, after recording
    frozen: str = ""  # the tolerance that "auto" stored, in words
    references: tuple[ReferenceFigure, ...] = ()  # published, or expected by the site

    @property
    def node_id(self) -> str:
        return self.item.nodeid

    @property
    def label(self) -> str:
        return f"{self.item.name} ({self.platform})"

    # --- its baseline ---------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The key of its baseline; before the step is built, derived from the session's data option."""
        unbuilt = self.unfit.configuration if self.unfit else None
        built = self.latest.configuration if self.measurements else unbuilt
        if built is not None:
            return baseline_key(self.node_id, built)
        synthetic, real = both_keys(self.node_id)
        return synthetic if self.settings.data is None else real

    @property
    def entry(self) -> BaselineEntry | None:
        return self.baseline.benchmarks.get(self.key) if self.baseline else None

    def comparable_runs(self) -> list[Run]:
        """Return the stored runs whose identity is that of this machine."""
        return self._of_this_machine(self.entry.runs if self.entry else ())

    def anchor_runs(self) -> list[Run]:
        return self._of_this_machine(self.entry.anchor if self.entry else ())

    def _of_this_machine(self, stored: Iterable[Run]) -> list[Run]:
        identity = self.environment.identity
        return [run for run in stored if self._environment_of(run).identity == identity]

    def _environment_of(self, run: Run) -> Environment:
        assert self.baseline is not None  # a stored run has a file
        return self.baseline.environments[run.environment]

    # --- measurements ---------------------------------------------------------------------------

    def add(self, measurement: Measurement) -> None:
        """Keep a run for judging, or apart where it was disturbed."""
        (self.disturbed if measurement.invalid else self.measurements).append(measurement)

    @property
    def may_be_replaced(self) -> bool:
        return len(self.disturbed) <= MOST_REPLACED

    @property
    def profile_above_s(self) -> float | None:
        """The step time above which its next fresh run is profiled: the last one of a recording, the first slow repeat."""
        if any(run.kernels for run in self.runs):
            return None
        if self.settings.record:
            return 0.0 if len(self.measurements) + 1 >= self.settings.record else None
        stored = self.comparable_runs() if self.measurements else ()
        if not stored:
            return None
        return interval(stored, self.policy).point_s * (1 + self.policy.tolerance / 2)

    @property
    def replaced(self) -> list[Measurement]:
        return [] if self.outcome is Outcome.INVALID else self.disturbed

    @property
    def latest(self) -> Measurement:
        return self.measurements[-1]

    @property
    def runs(self) -> list[Run]:
        return [measurement.run for measurement in self.measurements]

    @property
    def throughput(self) -> float:
        return self.latest.work_per_step / interval(self.runs, self.policy).point_s

    @property
    def unmet(self) -> list[str]:
        """References that it falls short of, and gated metrics that were not measured: they fail it beside its verdicts."""
        shortfalls = [reference.shortfall for reference in self.references if reference.shortfall]
        return [*shortfalls, *(self.latest.missed if self.measurements else ())]

    @property
    def environment(self) -> Environment:
        return self.unfit.environment if self.unfit else self.latest.environment

    # --- the verdict ----------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        stored = self.comparable_runs() if self.measurements or self.unfit else ()
        found = self.prior.applied(self.plain_policy, stored)
        return replace(found, least_runs=2) if self.is_doubted else found

    @property
    def is_doubted(self) -> bool:
        """Whether one fast run is not enough: of a mode of half of the processes every other one is fast.

        The history shows a slow run that no throttling explains, or the environment is new and not that of the baseline.
        """
        if not (self.past and self.measurements):
            return False
        if any(point.slowest_loss > Policy().deepest_throttle for point in self.past[-DOUBTED_SESSIONS:]):
            return True
        known = sum(point.environment == self.environment.key for point in self.past)
        return known < NEW_ENVIRONMENT and bool(self.changes())

    @property
    def slow_sessions(self) -> list[bool]:
        """Whether each session had a slow run, the oldest first, this one last."""
        found = [point.is_slow for point in self.past]
        verdict = self.verdict
        lost = metric_gates.total_slowdown(verdict) if verdict and self.measurements else None
        if verdict is None or lost is None:
            return found
        return [*found, slowest_loss(summaries(self.runs), lost.point) > verdict.tolerance]

    @property
    def tolerance(self) -> float | None:
        """The tolerance of an option, else its baseline's; None without either."""
        fixed = self.settings.fixed_tolerance
        return self.entry.tolerance if fixed is None and self.entry else fixed

    @property
    def plain_policy(self) -> Policy:
        """The policy with the default prior: a platform's step times say nothing of other metrics' noise."""
        policy = Policy(max_repeats=self.settings.repeats)
        return policy if self.tolerance is None else replace(policy, tolerance=self.tolerance)

    @property
    def gates(self) -> dict[str, float]:
        """Its gated metrics beside throughput, with the tolerance of each.

        A metric without one has the tolerance of throughput, but not less than the default unless an option says
        so: a small stored tolerance says how quiet step times are, and nothing of other metrics.
        """
        asked = self.settings.fixed_tolerance
        widest = max(self.plain_policy.tolerance, Policy().tolerance) if asked is None else asked
        return {name: widest if each is None else each for name, each in self.latest.gates.items()}

    def judge(self) -> None:
        """Compare what was measured with what is stored."""
        self.verdict, self.metric_verdicts = self._verdict_without_statistics(), ()
        if self.verdict is None:
            stored, runs, policy = self.comparable_runs(), self.runs, self.policy
            self.verdict = metric_gates.judge_rest(stored, runs, self.platform_loss, policy)
            self.metric_verdicts = metric_gates.judge_metrics(stored, runs, self.gates, self.plain_policy)
            if anchor := self.anchor_runs():
                self.metric_verdicts += (metric_gates.judge_anchor(anchor, runs, self.platform_loss, policy),)
            if self.undecided and not self.may_be_replaced:  # the deciding runs were disturbed
                self.verdict, self.metric_verdicts = self._invalid(), ()
            elif self.verdict.outcome in LOSSES and (
                why := disturbance(self.verdict, stored, runs, policy.delta)
            ):
                self.verdict, self.metric_verdicts = self._verdict(Outcome.INVALID, why), ()

    @property
    def undecided(self) -> bool:
        return self.verdict is not None and metric_gates.want_another_run(self.verdict, self.metric_verdicts)

    @property
    def outcome(self) -> Outcome | None:
        """The worst outcome of its throughput and its metrics."""
        return metric_gates.worst(self.verdict, self.metric_verdicts) if self.verdict else None

    @property
    def status(self) -> Status | None:
        """Its outcome, or that its tolerance is no gate."""
        return worst_status(self.verdict, self.metric_verdicts) if self.verdict else None

    @property
    def relative_loss(self) -> float:
        """The largest loss as a multiple of its tolerance; 0 where nothing was compared."""
        found = [(each.slowdown, each.tolerance) for each in self.verdicts]
        return max((slowdown.point / tolerance for slowdown, tolerance in found if slowdown), default=0.0)

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict of its throughput first, then of the metrics that could be judged."""
        metrics = [verdict for verdict in self.metric_verdicts if verdict.was_judged]
        return [self.verdict, *metrics] if self.verdict else []

    def _verdict_without_statistics(self) -> Verdict | None:
        """Return a verdict that needs no statistics; None where runs are to be compared."""
        if self.unfit is not None:
            return self._does_not_fit(self.unfit)
        if not self.measurements:
            return self._invalid()
        if self.entry is None:
            nothing = f"baselines of {self.disk_name} hold no {self.item.name}"
            missing = self._stored_with_other_data() or nothing
            return self._verdict(Outcome.NO_BASELINE, f"{missing}; record it with --accel-record")
        why = self.stale()
        return self._verdict(Outcome.STALE_BASELINE, why) if why else None

    def _invalid(self) -> Verdict:
        """Return the verdict of disturbed runs; up to a limit another run is wanted."""
        found, count = self.disturbed[-1].invalid, len(self.disturbed)
        reason = f"{found}; {count} runs were disturbed" if count > 1 else found
        return replace(self._verdict(Outcome.INVALID, reason), wants_another_run=self.may_be_replaced)

    def _stored_with_other_data(self) -> str:
        others = set(both_keys(self.node_id)) - {self.key}
        if self.entry or not self.baseline or not others & self.baseline.benchmarks.keys():
            return ""
        real = is_real(self.latest.configuration)
        known, now = ("synthetic", "real") if real else ("real", "synthetic")
        stored = f"baselines of {self.disk_name} hold {self.item.name} with {known} data"
        return f"{stored}, and not with {now} data"

    def _does_not_fit(self, unfit: Unfit) -> Verdict:
        """Return REGRESSED where this configuration used to fit, else DOES-NOT-FIT; an unbuilt step counts as stored."""
        known = self.entry and self.entry.configuration
        is_stored = unfit.configuration is None or dict(known or {}) == dict(unfit.configuration)
        fitted = [*(self.comparable_runs() if is_stored else ()), *self.runs]
        if not fitted:
            return self._verdict(Outcome.DOES_NOT_FIT, unfit.text)
        peak = max((run.peak_memory_bytes or 0 for run in fitted), default=0)
        before = f"its baseline peaked at {gibibytes(peak)}" if peak else "its baseline did"
        return self._verdict(Outcome.REGRESSED, f"does not fit any more: {unfit.text}; {before}")

    def _verdict(self, outcome: Outcome, reason: str) -> Verdict:
        tolerance, runs = self.policy.tolerance, len(self.measurements)
        return Verdict(outcome=outcome, tolerance=tolerance, runs=runs, reason=reason)

    def stale(self) -> str:
        """Return why the stored runs cannot be compared with the measured ones; empty where they can."""
        entry, now = self.entry, self.latest
        if entry is None:
            return ""
        if entry.configuration_hash != configuration_hash(now.configuration, now.work_per_step, now.unit):
            changed = ", ".join(configuration_changes(entry, now))
            return (
                f"the benchmark changed since its baseline ({changed}); "
                'record it anew with --accel-update --accel-reason "..."'
            )
        if not self.comparable_runs():
            elsewhere = self._environment_of(entry.runs[-1])
            return (
                f"the stored runs are of another machine ({describe(diff_identity(elsewhere, now.environment))}) "
                "and are never compared; set it as it was, or record anew with "
                '--accel-update --accel-reason "..."'
            )
        return ""

    # --- possible explanations ------------------------------------------------------------------

    def changes(self) -> tuple[Change, ...]:
        """Return changes of the environment since the newest comparable run of the baseline."""
        comparable = self.comparable_runs()
        return diff(self._environment_of(comparable[-1]), self.environment) if comparable else ()

    def causes(self) -> tuple[Cause, ...]:
        if not self.measurements or self.verdict is None:
            return ()
        stored = self.comparable_runs()
        moved = self.moved_kernels()
        where = kernel_causes(moved) if moved else ()
        return causes_of(self.verdict, stored, self.runs, self.changes(), where)

    def moved_kernels(self) -> KernelDifference | None:
        is_lost = self.verdict is not None and self.verdict.outcome is Outcome.REGRESSED
        return kernel_difference(self.comparable_runs(), self.runs) if is_lost else None
