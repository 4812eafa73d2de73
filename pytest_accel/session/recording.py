"""Writing measured runs into the baseline, so that nothing measured is lost."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_accel.core.gate import interval
from pytest_accel.core.quantities import percent
from pytest_accel.core.runs import Run
from pytest_accel.session.cases import Case
from pytest_accel.store.baselines import BaselineStore
from pytest_accel.store.schema import MAX_RUNS, BaselineEntry, BaselineError, LedgerEntry


def refuse_too_many_runs(case: Case) -> None:
    """Say before measuring that a baseline is full."""
    stored = len(case.entry.runs) if case.entry else 0
    if case.settings.update or not case.settings.recording or stored + case.settings.record <= MAX_RUNS:
        return
    room = MAX_RUNS - stored
    remedy = f"Record {room} more with --accel-record={room}, or start" if room else "Start"
    raise pytest.UsageError(
        f"{case.label}: its baseline has {stored} runs, {case.settings.record} more would exceed {MAX_RUNS}. "
        f'{remedy} anew with --accel-update --accel-reason "...".'
    )


def write_down(
    case: Case,
    store: BaselineStore,
    session_id: str,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Append the runs of a case to its baseline, or replace it; leave word of it in the case.

    An interrupted recording appends what it has; an interrupted update leaves the old baseline alone,
    because fewer runs than were asked for are no reason to give up more.
    """
    settings = case.settings
    incomplete = len(case.measurements) < settings.record
    if case.problem or case.skipped or not case.measurements or (settings.update and incomplete):
        return
    latest = case.latest
    line = LedgerEntry(
        at=now().isoformat(timespec="seconds"),
        action="update" if settings.update else "record",
        reason=settings.reason,
        runs=len(case.runs),
        session=session_id,
    )
    entry = BaselineEntry(
        configuration=latest.configuration,
        work_per_step=latest.work_per_step,
        unit=latest.unit,
        tolerance=settings.tolerance,
        runs=tuple(case.runs),
        ledger=(line,),
    )
    write = store.replace if settings.update else store.append
    try:
        write(case.disk_name, case.suite, case.node_id, entry, [m.environment for m in case.measurements])
    except BaselineError as error:
        kept = _keep(case)
        case.problem = f"{error}\nThe {len(case.runs)} runs just measured are kept in {kept}."
        return
    case.recorded = f"recorded {_count(case.runs)}, {_precision(case)}"


def _precision(case: Case) -> str:
    return f"± {percent(interval(case.runs, case.policy).relative_high)}"


def _count(runs: list[Run]) -> str:
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'}"


def _keep(case: Case) -> Path:
    """Somewhere else than where writing just failed."""
    plain = {"node_id": case.node_id, "measurements": [m.to_plain() for m in case.measurements]}
    with tempfile.NamedTemporaryFile(
        "w", prefix="pytest-accel-unsaved-", suffix=".json", delete=False
    ) as file:
        json.dump(plain, file)
    return Path(file.name)
