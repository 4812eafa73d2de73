"""Recording: measured runs are appended to a baseline or replace it; runs that cannot be stored are kept elsewhere."""

from __future__ import annotations

import os
import secrets
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_accel import __version__
from pytest_accel.report.terminal import frozen_text
from pytest_accel.session.case import Case
from pytest_accel.session.results import ItemReports, case_result, environments_of
from pytest_accel.stats.baseline_quality import auto_tolerance, baseline_quality
from pytest_accel.stats.gate import interval
from pytest_accel.stats.quantities import clipped, counted, noise_percent
from pytest_accel.stats.results import Ending, SessionResults
from pytest_accel.stats.run import MAX_RUNS
from pytest_accel.storage.baselines import BaselineEntry, BaselineError, BaselineStore, LedgerEntry
from pytest_accel.storage.files import nearest_folder
from pytest_accel.storage.results import render, write_results


def refuse_unwritable(option: str, path: Path) -> None:
    """Refuse before measuring where a file could not be written."""
    try:
        fits = path.is_file() or not path.exists()  # a pipe would wait for a reader for ever
        folder = nearest_folder(path.parent)
        fits = (
            fits and path.parent != Path("/dev") and folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
        )
    except OSError:  # its name is too long
        fits = False
    if not fits:
        raise pytest.UsageError(
            f"--accel-{option}: {clipped(str(path), 200)} cannot be written. Name a place that can be."
        )


def refuse_too_many_runs(case: Case) -> None:
    """Refuse before measuring where a baseline is full."""
    stored = len(case.entry.runs) if case.entry else 0
    if case.settings.update or not case.settings.record or stored + case.settings.record <= MAX_RUNS:
        return
    raise pytest.UsageError(
        f"{case.label}: its baseline has {stored} runs, {case.settings.record} more would exceed {MAX_RUNS}. "
        'Record fewer, or start anew with --accel-update --accel-reason "...".'
    )


def record(case: Case, store: BaselineStore, session_id: str) -> None:
    """Append the runs of a case to its baseline, or replace it; put the result into the case.

    An interrupted recording appends its runs; an interrupted update leaves the old baseline alone.
    """
    settings, at = case.settings, datetime.now(UTC).isoformat(timespec="seconds")
    incomplete = len(case.measurements) < settings.record
    if not case.measurements:
        return
    if case.problem or case.skipped or case.unfit or (settings.update and incomplete):
        why = case.problem or (case.unfit.text if case.unfit else "the recording was not finished")
        _keep(case, why, session_id, at)
        return
    latest, auto = case.latest, None
    if settings.tolerance == "auto":  # what all runs resolve that the baseline will have
        before = case.entry.runs if case.entry and not settings.update else ()
        auto = auto_tolerance([*before, *case.runs], case.prior)
    # Few runs resolve little: an interrupted recording stores no tolerance.
    chosen = None if incomplete else auto
    try:
        line = LedgerEntry(
            at=at,
            action="update" if settings.update else "record",
            reason=settings.reason,
            runs=len(case.runs),
            session=session_id,
        )
        entry = BaselineEntry(
            configuration=latest.configuration,
            work_per_step=latest.work_per_step,
            unit=latest.unit,
            tolerance=case.tolerance if chosen is None else chosen,
            runs=tuple(case.runs),
            ledger=(line,),
        )
        environments = [each.environment for each in case.measurements]
        file = store.record(
            case.disk_name, case.suite, case.key, entry, environments, replace=settings.update
        )
    except ValueError as error:
        # Only a BaselineError names its file; other values are refused before there is one.
        what = "" if isinstance(error, BaselineError) else f"{case.label}: cannot be stored: "
        _keep(case, f"{what}{error}", session_id, at)
        return
    precision = noise_percent(interval(case.runs, case.policy).relative_high, len(case.runs))
    case.recorded = f"recorded {counted(len(case.runs), 'run')}, ± {precision}"
    stored = file.benchmarks[case.key]
    if case.entry and case.entry.anchor and not stored.anchor:
        case.recorded += "; its anchor could be compared with nothing any more, and is gone"
    case.quality = baseline_quality(stored.runs, settings.fixed_tolerance or stored.tolerance, case.prior)
    if auto is not None:
        known = case.entry.tolerance if case.entry else None
        case.frozen = frozen_text(chosen=auto, stored=stored.tolerance, before=known)


def refuse_mixture(case: Case) -> None:
    """Say after the first run, not after the last, that it cannot be appended to what is stored."""
    if case.settings.update or not case.measurements or case.problem:
        return
    if why := case.stale():
        case.problem = f"{case.label}: {why}"


def refuse_disturbed(case: Case) -> None:
    """Refuse a baseline from a device that disturbed more runs than may be replaced."""
    stopped = case.disturbed and not case.measurements  # the session ended before another run took its place
    if case.problem or (case.may_be_replaced and not stopped):
        return
    were = f"{counted(len(case.disturbed), 'run')} {'was' if len(case.disturbed) == 1 else 'were'}"
    case.problem = (
        f"{case.label}: {were} disturbed, the last one: {case.disturbed[-1].invalid}. "
        "Look at the device with pytest-accel doctor, and measure again."
    )


def _keep(case: Case, why: str, session_id: str, at: str) -> None:
    """Keep runs that are not recorded in a file of results, which `pytest-accel baseline accept` reads, and say where.

    The screen has them where temporary files are on the file system that is full.
    """
    session = SessionResults(
        session=session_id,
        at=at,
        duration_s=case.device_time_s,
        exit_status=1,
        version=__version__,
        environments=environments_of([case]),
        results=(replace(case_result(case, ItemReports()), status=Ending.RECORDED, tolerance=None),),
    )
    try:
        path = Path(tempfile.gettempdir(), f"pytest-accel-unsaved-{secrets.token_hex(4)}.json")
        write_results(path, session)
        where = f"is kept in {path}."
        if case.settings.update and not (case.problem or case.unfit):
            where += f' To store it: pytest-accel baseline accept --replace --reason "..." {path}'
    except OSError:
        where = f"follows, since no temporary folder has room for it:\n{render(session)}"
    measured = counted(len(case.runs), "run")
    case.problem = f"{why}\nNothing was recorded; what was measured ({measured}) {where}"
