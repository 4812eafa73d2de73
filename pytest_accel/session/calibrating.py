"""`--accel-calibrate`: A/A runs into the calibration, and tolerances that ask more of a machine than it can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from pytest_accel.report.calibration import calibrated_text, conditions_text, way_out
from pytest_accel.session.case import Case
from pytest_accel.stats.calibration import Conditions, calibrate, detectable_beside
from pytest_accel.stats.quantities import counted, percent
from pytest_accel.stats.runs import FEWEST_CALIBRATION_RUNS, Run
from pytest_accel.stats.verdict import Policy
from pytest_accel.storage.calibrations import CalibrationEntry, CalibrationFile, CalibrationStore
from pytest_accel.storage.schema import BaselineError, configuration_hash

_SHOWN = 5  # tolerances in one error; the others are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """A tolerance that is smaller than what the machine can tell, for one benchmark."""

    case: Case
    entry: CalibrationEntry
    tolerance: float
    origin: str  # who asked for it; empty where it is the gate's default
    loss: float  # the smallest that can be detected, with the baseline that there is if that is a better one

    @property
    def is_alike(self) -> bool:
        """Whether it was calibrated as this session measures; else it is no reason to refuse anything."""
        return self.entry.conditions == _conditions(self.case)

    @property
    def figures(self) -> str:
        return (
            f"noise {percent(self.entry.figures.noise)} resolves {percent(self.loss)} for {self.case.label}"
        )

    @property
    def calibrated(self) -> str:
        """Which calibration says so."""
        return (
            f"calibrated on {self.entry.at[:10]} for {self.case.disk_name} with "
            f"{conditions_text(self.entry.conditions)}"
        )

    @property
    def line(self) -> str:
        found = self.entry.figures
        return (
            f"{self.case.label}: a tolerance of {percent(self.tolerance)} (from {self.origin}) is less than the "
            f"smallest loss that can be detected, {percent(self.loss)} ({self.calibrated}: "
            f"{counted(found.runs, 'run')}, noise {percent(found.noise)})."
        )


class Calibrations:
    """Of the benchmarks of a session; reads each file once."""

    def __init__(self, root: Path) -> None:
        self.store = CalibrationStore(root)
        self.beyond_default: list[Beyond] = []
        self.unlike: list[Beyond] = []  # calibrated under other conditions
        self._read = cache(self._read_file)

    def of(self, case: Case) -> CalibrationEntry | None:
        """By key and folder: which configuration it is, and in which environment, is known only once it is measured."""
        file = self._read(case.disk_name, case.suite)
        return file.benchmarks.get(case.key) if file else None

    def _read_file(self, disk_name: str, suite: str) -> CalibrationFile | None:
        try:
            return self.store.read(disk_name, suite)
        except BaselineError as error:
            raise pytest.UsageError(str(error)) from None

    # --- before anything is measured ------------------------------------------------------------

    def refuse_below(self, cases: Iterable[Case]) -> None:
        """One usage error for all tolerances that were asked for and cannot hold.

        A default, and what was calibrated under other conditions, is only remembered. No tolerance is refused to a session
        that calibrates: it is the way out.
        """
        every = [beyond for case in cases if _is_measured(case) and (beyond := self.beyond(case)) is not None]
        found = [each for each in every if each.is_alike]
        self.unlike = [each for each in every if not each.is_alike]
        self.beyond_default = [each for each in found if not each.origin]
        asked = [each for each in found if each.origin]
        if not asked:
            return
        more = len(asked) - _SHOWN
        lines = [each.line for each in asked[:_SHOWN]]
        lines += [f"... and {counted(more, 'further benchmark')}."] if more > 0 else []
        worst = max(asked, key=lambda each: each.loss)
        raise pytest.UsageError("\n".join([*lines, way_out(worst.loss, worst.entry.figures.runs)]))

    def beyond(self, case: Case) -> Beyond | None:
        """Its tolerance, if that is smaller than what can be detected; None where it holds, or nobody calibrated."""
        entry = self.of(case)  # also when calibrating: a bad file must be known before anything is measured
        if entry is None or case.settings.calibrating:
            return None
        tolerance, origin = _tolerance(case)
        smallest = _smallest_loss(case, entry)
        if tolerance >= smallest:
            return None
        return Beyond(case=case, entry=entry, tolerance=tolerance, origin=origin, loss=smallest)

    @property
    def remark(self) -> str:
        """What does not hold and was not refused, each kind once for the session; empty where all holds."""
        return "\n".join(filter(None, (self._default_remark(), self._unlike_remark())))

    def _default_remark(self) -> str:
        if not self.beyond_default:
            return ""
        worst, beside = _worst(self.beyond_default)
        return (
            f"{worst.calibrated}: {worst.figures}{beside}: the default tolerance of {percent(worst.tolerance)} does not "
            f"hold here. {way_out(worst.loss, worst.entry.figures.runs)}"
        )

    def _unlike_remark(self) -> str:
        if not self.unlike:
            return ""
        worst, beside = _worst(self.unlike)
        return (
            f"{worst.calibrated}: {worst.figures}{beside}; its tolerance is {percent(worst.tolerance)}. This session has "
            f"{conditions_text(_conditions(worst.case))}, so that this may not hold for it. Calibrate again with these: "
            f"--accel-calibrate={worst.entry.figures.runs}."
        )

    # --- afterwards -----------------------------------------------------------------------------

    def write_down(
        self,
        case: Case,
        session_id: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Store what the runs of a case say of this machine; leave word of it in the case.

        An interrupted calibration counts where it has runs enough.
        """
        if not (case.measurements or case.disturbed):
            return
        if case.problem or case.skipped or case.unfit:
            why = case.problem or case.skipped or (case.unfit.text if case.unfit else "")
            case.problem = f"{why}\n{_nothing_stored(case)}"
            return
        if len(case.runs) < FEWEST_CALIBRATION_RUNS:
            case.problem = (
                f"{case.label}: the calibration was not finished, and needs at least {FEWEST_CALIBRATION_RUNS} runs\n"
                f"{_nothing_stored(case)}"
            )
            return
        latest = case.latest
        figures = calibrate(case.runs, _tolerance(case)[0])
        entry = CalibrationEntry(
            configuration_hash=configuration_hash(latest.configuration, latest.work_per_step, latest.unit),
            figures=figures,
            runs=tuple(map(_timed, case.runs)),
            at=now().isoformat(timespec="seconds"),
            session=session_id,
            conditions=_conditions(case),
        )
        try:
            environments = [measurement.environment for measurement in case.measurements]
            self.store.put(case.disk_name, case.suite, case.key, entry, environments)
        except BaselineError as error:
            case.problem = f"{error}\n{calibrated_text(figures)}"  # what was found out is not lost
            return
        case.calibrated = calibrated_text(figures)


def _worst(found: Sequence[Beyond]) -> tuple[Beyond, str]:
    """The one to name, and that there are others."""
    others = len(found) - 1
    beside = f" (and for {counted(others, 'further benchmark')})" if others else ""
    return max(found, key=lambda each: each.loss), beside


def _conditions(case: Case) -> Conditions:
    return Conditions(budget_s=case.settings.budget_s, threads=case.settings.threads)


def _is_measured(case: Case) -> bool:
    """Unless pytest-benchmark is told not to: then no tolerance matters."""
    config = case.item.config
    return not any(config.getoption(name, default=False) for name in ("benchmark_disable", "benchmark_skip"))


def _timed(run: Run) -> Run:
    """Of a run what noise is computed from."""
    return Run(
        session=run.session,
        rounds_s=run.rounds_s,
        steps_per_round=run.steps_per_round,
        environment=run.environment,
    )


def _nothing_stored(case: Case) -> str:
    return f"Nothing was stored of this calibration ({counted(len(case.runs), 'run')})."


def _tolerance(case: Case) -> tuple[float, str]:
    """What it is judged by, and who asked for that; nobody where it is the gate's default."""
    settings, entry = case.settings, case.entry
    if settings.fixed_tolerance is not None:
        return settings.fixed_tolerance, settings.origin("tolerance")
    if entry is not None and entry.tolerance is not None:
        return entry.tolerance, "its baseline"
    return Policy().tolerance, ""


def _smallest_loss(case: Case, entry: CalibrationEntry) -> float:
    stored = case.entry.runs if case.entry and not case.settings.update else ()
    return detectable_beside(entry.figures, stored)
