"""Results of a session as values, made of its cases and of pytest's reports."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_accel.report.terminal import explain, platform_text
from pytest_accel.session.case import Case
from pytest_accel.session.repeats import PlatformShifts
from pytest_accel.session.reports import failures
from pytest_accel.session.selection import path_of, suite_of
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.results import Ending, Result, ScalingFigure, Status
from pytest_accel.stats.run import suite_of as suite_of_path
from pytest_accel.stats.verdict import THROUGHPUT, Outcome, Verdict

_DETAIL_LINES = 40  # of a traceback: its end says what happened
_GIT_TIMEOUT_S = 2.0
_REVISION_VARIABLES = ("GITHUB_SHA", "CI_COMMIT_SHA")


@dataclass(slots=True, kw_only=True)
class ItemReports:
    """pytest's reports of one item, its phases together."""

    failed: bool = False
    broken: bool = False  # failed before its teardown
    skipped: bool = False
    text: str = ""
    details: tuple[str, ...] = ()
    duration_s: float = 0.0

    def add(self, report: pytest.TestReport) -> None:
        self.duration_s += report.duration
        if report.failed:
            first = not self.failed
            self.failed, self.broken = True, self.broken or report.when != "teardown"
            if first:
                self.text, self.details = _failure_text(report)
        elif report.skipped and not self.failed:
            self.skipped = True
            self.text = _reason(report)


class SessionClock:
    """The start of a session, and how long it has lasted."""

    def __init__(self) -> None:
        self.at = datetime.now(UTC)
        self._start_s = time.monotonic()

    @property
    def lasted_s(self) -> float:
        return time.monotonic() - self._start_s


def results_of(
    cases: Mapping[str, Case],
    not_run: Sequence[pytest.Item],
    reported: Mapping[str, ItemReports],
    vanished: Iterable[str],
    shifts: PlatformShifts,
    *,
    vanished_fail: bool,
) -> tuple[Result, ...]:
    """Return the results of benchmarks this machine can run, cannot run, no longer has, and of platform shifts."""
    return (
        *(_of_case(case, reported.get(case.node_id, ItemReports())) for case in cases.values()),
        *(_of_item(item, reported[item.nodeid]) for item in not_run if item.nodeid in reported),
        *(_of_vanished(node_id, failed=vanished_fail) for node_id in vanished),
        *(_of_platform(platform, shifts) for platform in shifts.found),
    )


def environments_of(cases: Iterable[Case]) -> dict[str, Environment]:
    """Return the environments of all runs and of the baselines that they were compared with."""
    found: dict[str, Environment] = {}
    for case in cases:
        for measurement in case.measurements:
            found[measurement.environment.key] = measurement.environment
        if case.measurements and case.baseline:
            found |= {
                run.environment: case.baseline.environments[run.environment] for run in case.comparable_runs()
            }
    return found


def _of_case(case: Case, reported: ItemReports) -> Result:
    measured = bool(case.measurements)
    comparable = tuple(case.comparable_runs()) if measured else ()
    path, line, _ = case.item.location
    text, details = _explained(case, reported)
    return Result(
        benchmark=case.node_id,
        suite=case.suite,
        platform=str(case.platform),
        disk_name=case.disk_name,
        status=_status(case, reported),
        failed=reported.failed,
        text=text,
        details=details,
        key=case.key,
        file=path,
        line=(line or 0) + 1,
        duration_s=max(reported.duration_s, case.device_time_s),
        unit=case.latest.unit if measured else "",
        work_per_step=case.latest.work_per_step if measured else 0.0,
        steady=case.latest.steady if measured else True,
        tolerance=case.policy.tolerance,
        configuration=case.latest.configuration if measured else {},
        runs=tuple(case.runs),
        baseline=comparable,
        verdicts=tuple(case.verdicts),
        environment=case.latest.environment.key if measured else "",
        changes=case.changes() if measured else (),
        numerics=case.loss_change(),
        scaling=_scaling(case),
        references=case.references,
    )


def _status(case: Case, reported: ItemReports) -> Status:
    """Return the verdict of a case; where it has none, how it ended."""
    if case.recorded:
        return Ending.RECORDED
    if case.problem or (reported.broken and not failures(case)):
        return Ending.FAILED
    if case.outcome is not None:
        return case.outcome
    return Ending.SKIPPED if reported.skipped else Ending.NOT_MEASURED


def _explained(case: Case, reported: ItemReports) -> tuple[str, tuple[str, ...]]:
    if case.recorded:
        return case.recorded, ()
    failing = failures(case)
    if case.problem or (reported.broken and not failing and not case.shortfalls):
        first, *rest = (case.problem or reported.text).splitlines() or [""]
        return first, tuple(rest) or reported.details
    # An open verdict is left out where another one decided.
    others = [
        each for each in case.verdicts if each not in failing and not (failing and each.wants_another_run)
    ]
    said = [*failing, *others]
    lines = [_line(verdict) for verdict in said]
    lines[len(failing) : len(failing)] = case.shortfalls
    lines += [f"replaced a disturbed run: {each.invalid}" for each in case.replaced]
    lines += case.notes
    if reported.failed and not reported.broken:
        lines += [f"torn down: {reported.text}", *reported.details]
    return (lines[0], tuple(lines[1:])) if lines else (reported.text, ())


def _line(verdict: Verdict) -> str:
    return explain(verdict) if verdict.of == THROUGHPUT else f"{shown_name(verdict.of)}: {explain(verdict)}"


def _scaling(case: Case) -> ScalingFigure | None:
    if case.scaling is None:
        return None
    few, scaling = case.scaling
    return ScalingFigure(
        against=str(few), speedup=scaling.speedup, efficiency=scaling.efficiency, kind=scaling.kind
    )


def _of_item(item: pytest.Item, reported: ItemReports) -> Result:
    """Return the result of an item that this machine cannot run, or that failed before a platform was chosen."""
    path, line, _ = item.location
    return Result(
        benchmark=item.nodeid,
        suite=suite_of(item),
        platform="",
        disk_name="",
        status=Ending.FAILED if reported.failed else Ending.SKIPPED,
        failed=reported.failed,
        text=reported.text,
        details=reported.details,
        key=item.nodeid,
        file=path,
        line=(line or 0) + 1,
        duration_s=reported.duration_s,
    )


def _of_vanished(node_id: str, *, failed: bool) -> Result:
    path = path_of(node_id)
    return Result(
        benchmark=node_id,
        suite=suite_of_path(str(path)),
        platform="",
        disk_name="",
        status=Outcome.VANISHED,
        failed=failed,
        text="is stored in the baseline and was not found",
        key=node_id,
        file=str(path),
    )


def _of_platform(platform: str, shifts: PlatformShifts) -> Result:
    found = shifts.found[platform]
    return Result(
        benchmark=platform,
        suite="",
        platform=platform,
        disk_name=platform,
        status=Outcome.REGRESSED,
        failed=True,
        text=platform_text(found),
        details=tuple(shifts.text(platform).splitlines()[1:]),
        tolerance=found.tolerance,
    )


def _failure_text(report: pytest.TestReport) -> tuple[str, tuple[str, ...]]:
    """Return the message of a failure, and the end of what pytest shows of it."""
    shown = report.longreprtext.splitlines()
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(crash.message) if crash is not None else "\n".join(shown)
    first = next(iter(message.splitlines()), "failed")
    return first, tuple(line for line in shown[-_DETAIL_LINES:] if line != first)


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}".rstrip(": ")
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr or "")
    return reason.removeprefix("Skipped: ")


def revision_of(rootpath: Path, environ: Mapping[str, str]) -> str:
    """Return the revision of the tested project: from CI's variables, else from git."""
    for name in _REVISION_VARIABLES:
        if environ.get(name):
            return environ[name]
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(  # fixed words
            ["git", "rev-parse", "--verify", "--quiet", "HEAD"],  # noqa: S607 - the user's own git
            cwd=rootpath,
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_TIMEOUT_S,
        )
        return found.stdout.strip()
    return ""
