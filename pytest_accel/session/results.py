"""Results of a session as values, made of its cases and of pytest's reports."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from pytest_accel.measure.rounds import PILOT_STEPS
from pytest_accel.report import terminal
from pytest_accel.report.columns import METRICS_IN_COLUMNS
from pytest_accel.report.history import recurring
from pytest_accel.report.verdicts import REPLACE_RUNS, fails, word
from pytest_accel.session.case import Case
from pytest_accel.session.worker_process import cause_of, text_of
from pytest_accel.stats.causes import disagreement
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.gate import LOSSES, Outcome, Verdict, interval
from pytest_accel.stats.metric_gates import PlatformShift
from pytest_accel.stats.quantities import counted, percent
from pytest_accel.stats.results import Ending, ReportLine, Result, Status, describe_loss_change, status_of
from pytest_accel.stats.run import suite_of

_TRACEBACK_LINES = 40  # its end says what happened
_GIT_TIMEOUT_S = 2.0
_REVISION_VARIABLES = ("GITHUB_SHA", "CI_COMMIT_SHA")


@dataclass(slots=True, kw_only=True)
class ItemReports:
    failed: bool = False
    skipped: bool = False
    text: str = ""
    traceback: tuple[str, ...] = ()
    duration_s: float = 0.0

    def add(self, report: pytest.TestReport) -> None:
        self.duration_s += report.duration
        if report.failed:
            if not self.failed:
                self.text = cause_of(report)
                shown = report.longreprtext.splitlines()[-_TRACEBACK_LINES:]
                self.traceback = tuple(line for line in shown if line != self.text)
            self.failed = True
        elif report.skipped and not self.failed:
            expected: str | None = getattr(report, "wasxfail", None)
            self.skipped = True
            self.text = text_of(report) if expected is None else f"expected to fail: {expected}".rstrip(": ")


# --- what there is to say of a case -----------------------------------------------------------------


def failures(case: Case) -> list[Verdict]:
    """Return the verdicts that fail a test: of its throughput and metrics, and of gated metrics without a baseline."""
    named = case.settings.gate
    unjudged = [each for each in case.metric_verdicts if each.of in named and not each.was_judged]
    return [verdict for verdict in (*case.verdicts, *unjudged) if fails(status_of(verdict), case.settings)]


def lines_of(case: Case) -> list[ReportLine]:
    """Return what there is to say of a case: what decided first, notes last."""
    failing, verdicts = failures(case), [case.verdict, *case.metric_verdicts] if case.verdict else []
    # An open verdict is left out where another one decided.
    others = [each for each in verdicts if each not in failing and not (failing and each.wants_another_run)]
    return [
        *([ReportLine(text=case.recorded, status=Ending.RECORDED)] if case.recorded else []),
        *map(terminal.line_of, failing),
        *(ReportLine(text=text, status=Ending.FAILED) for text in case.unmet),
        *map(terminal.line_of, others),
        *(ReportLine(text=text) for text in dict.fromkeys(_notes(case))),
    ]


def _notes(case: Case) -> Iterator[str]:
    """Yield sentences on how a case was measured, judged and recorded; they change no outcome."""
    yield from (f"a disturbed run was replaced: {each.invalid}" for each in case.replaced)
    if not case.measurements:
        return
    now = case.latest
    for name in now.gates:
        if name not in METRICS_IN_COLUMNS and name in now.run.metrics:
            yield f"{name} {now.run.metrics[name]:.6g}"
    if change := describe_loss_change([run.loss for run in case.comparable_runs()], now.run.loss):
        yield f"numerics changed: loss after {PILOT_STEPS} seeded steps {change}"
    if not now.steady:
        yield terminal.unsteady(now.run.warmup_s)
    if case.outcome not in LOSSES and case.verdict and case.verdict.slow_group:
        yield (
            f"{terminal.slow_runs(case.verdict)}, which the others do not confirm: a throttled process, or a rare slow mode. "
            "The history counts it."
        )
    if often := recurring(case.slow_sessions):
        yield often
    if case.scaling and case.scaling.superlinear:
        yield f"faster per device than {case.scaling.against}: is the baseline of {case.scaling.against} an older one?"
    yield from (note for each in case.measurements for note in each.notes)
    if case.entry and case.entry.anchor and not case.anchor_runs():
        yield "its anchor is of another machine and was not compared; `pytest-accel baseline edit --anchor set --reason` sets one of this machine"
    if (moved := case.moved_kernels()) and (reason := disagreement(moved)):
        yield reason
    if case.verdict and case.settings.tolerance == "auto" and case.entry and case.entry.tolerance is None:
        yield (
            f"tolerance auto: no tolerance is stored, so that {percent(case.policy.tolerance)} was tolerated. "
            "Store one with --accel-record --accel-tolerance=auto."
        )
    yield from _recording_notes(case)


def _recording_notes(case: Case) -> Iterator[str]:
    """Yield whether the recorded runs are enough, and what a gate cannot resolve with them."""
    quality = case.quality
    if quality is None:
        return
    wanted, measured = case.settings.record, len(case.runs)
    if measured < wanted:  # interrupted, or out of time
        yield f"{measured} of {counted(wanted, 'run')}: record the rest with --accel-record={wanted - measured}"
    if quality.provisional and not quality.is_surely_noisy:
        yield f"provisional ({quality.provisional}): record again on other days, runs of one session resemble each other"
    if case.frozen:
        yield case.frozen
    if quality.no_gate:
        yield f"{quality.no_gate}, so that every verdict on it will be {word(Ending.NOT_GATED)}"
    if quality.is_surely_noisy:
        yield (
            f"run-to-run noise {percent(quality.noise)} resolves a loss of {percent(quality.resolution)} here, and "
            f"its tolerance is {percent(quality.tolerance)}: quieten the machine (pytest-accel doctor), and {REPLACE_RUNS}"
        )


# --- results ----------------------------------------------------------------------------------------


def environments_of(cases: Iterable[Case]) -> dict[str, Environment]:
    """Return the environments of all runs and of the baselines that they were compared with."""
    found: dict[str, Environment] = {}
    for case in cases:
        found |= {each.environment.key: each.environment for each in case.measurements}
        if case.measurements and case.baseline:
            stored = case.baseline.environments
            found |= {run.environment: stored[run.environment] for run in case.comparable_runs()}
    return found


def place_of(item: pytest.Item) -> tuple[str, int]:
    path, line, _ = item.location
    return path, (line or 0) + 1


def case_result(case: Case, reported: ItemReports) -> Result:
    path, line = place_of(case.item)
    lines, traceback = _explained(case, reported)
    known = Result(
        benchmark=case.node_id,
        suite=case.suite,
        platform=str(case.platform),
        disk_name=case.disk_name,
        status=_status(case, reported),
        failed=reported.failed,
        lines=tuple(lines),
        traceback=traceback,
        key=case.key,
        file=path,
        line=line,
        duration_s=max(reported.duration_s, case.device_time_s),
        tolerance=case.policy.tolerance,
        verdicts=tuple(case.verdicts),
        references=case.references,
    )
    if not case.measurements:
        return known
    now, stored = case.latest, case.comparable_runs()
    if not any(run.kernels for run in case.runs):  # nothing to compare them with
        stored = [replace(run, kernels=None) for run in stored]
    return replace(
        known,
        unit=now.unit,
        work_per_step=now.work_per_step,
        noise=interval(case.runs, case.policy).relative_high,
        steady=now.steady,
        configuration=now.configuration,
        runs=tuple(case.runs),
        baseline=tuple(stored),
        environment=now.environment.key,
        changes=case.changes(),
        causes=case.causes(),
        scaling=case.scaling,
    )


def _status(case: Case, reported: ItemReports) -> Status:
    """Return the verdict of a case; where it has none, how it ended."""
    if case.recorded:
        return Ending.RECORDED
    if case.problem or (reported.failed and not failures(case)):
        return Ending.FAILED
    if case.status is not None:
        return case.status
    return Ending.SKIPPED if reported.skipped else Ending.NOT_MEASURED


def _explained(case: Case, reported: ItemReports) -> tuple[list[ReportLine], tuple[str, ...]]:
    """Return the lines of a case, and the traceback of a failure that is no verdict."""
    if case.problem or (reported.failed and not (failures(case) or case.unmet)):
        first, *rest = (case.problem or reported.text).splitlines() or [""]
        return [ReportLine(text=first, status=Ending.FAILED)], tuple(rest) or reported.traceback
    lines = lines_of(case)
    if not lines and reported.text:
        lines = [ReportLine(text=reported.text, status=_status(case, reported))]
    return lines, ()


def item_result(item: pytest.Item, reported: ItemReports) -> Result:
    """Return the result of an item that this machine cannot run, or that failed before a platform was chosen."""
    path, line = place_of(item)
    status = Ending.FAILED if reported.failed else Ending.SKIPPED
    return Result(
        benchmark=item.nodeid,
        suite=suite_of(item.path.as_posix()),
        status=status,
        failed=reported.failed,
        lines=(ReportLine(text=reported.text, status=status),),
        traceback=reported.traceback,
        file=path,
        line=line,
        duration_s=reported.duration_s,
    )


def vanished_result(node_id: str, command: Sequence[str], *, failed: bool) -> Result:
    path, vanished = node_id.partition("::")[0], Outcome.VANISHED
    lines = (ReportLine(text=terminal.vanished_text(node_id, command), status=vanished),)
    suite = suite_of(path)
    return Result(benchmark=node_id, suite=suite, status=vanished, failed=failed, lines=lines, file=path)


def platform_result(platform: str, found: PlatformShift, notes: Iterable[str]) -> Result:
    """Return the slowdown that all benchmarks of a platform share."""
    return Result(
        benchmark=platform,
        platform=platform,
        disk_name=platform,
        status=Outcome.REGRESSED,
        failed=True,
        lines=(terminal.platform_line(found), *(ReportLine(text=note) for note in notes)),
        tolerance=found.tolerance,
    )


@cache
def revision_of(rootpath: Path) -> str:
    """Return the revision of the tested project: from CI's variables, else from git."""
    for name in _REVISION_VARIABLES:
        if found := os.environ.get(name):
            return found
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(  # fixed words
            ["git", "rev-parse", "--verify", "--quiet", "HEAD"],  # noqa: S607 - the user's own git
            cwd=rootpath,
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_TIMEOUT_S,
        )
        return done.stdout.strip()
    return ""
