"""What a session becomes in the tables of the history, and what comes back of it as values."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_accel.stats.comparison import was_slowed, why_unusable
from pytest_accel.stats.environment import fingerprint
from pytest_accel.stats.gate import centre
from pytest_accel.stats.platform_shift import total_slowdown
from pytest_accel.stats.results import Result, SessionResults

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """One line of the list of sessions."""

    session: str
    at: str
    duration_s: float
    exit_status: int
    version: str
    host: str
    revision: str
    benchmarks: int
    measured: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """A benchmark that has a series."""

    platform: str  # the folder of its baselines
    key: str
    sessions: int
    last_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is kept of one run beside the document of its session."""

    step_time_s: float
    peak_memory_bytes: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What one session measured of one benchmark: its runs together, because runs of one session are correlated."""

    session: str
    at: str
    host: str
    revision: str
    status: str
    loss: float | None  # of throughput, against the baseline of that day
    runs: tuple[Measured, ...]
    work_per_step: float
    unit: str
    environment: str  # a key, see History.environment
    configuration: str  # a fingerprint: equal where the same thing was measured
    in_series: bool = True

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the newest run."""
        return self.runs[-1].metrics

    @property
    def step_time_s(self) -> float:
        """The centre of its runs, as the gate sees them."""
        return math.exp(centre([math.log(run.step_time_s) for run in self.runs]))

    @property
    def throughput(self) -> float:
        return self.work_per_step / self.step_time_s


def insert_session(connection: sqlite3.Connection, session: SessionResults, content: bytes) -> None:
    at_s = datetime.fromisoformat(session.at).timestamp()
    row = connection.execute(
        """INSERT INTO sessions (session, at, at_s, duration_s, exit_status, version, host, revision,
            benchmarks, measured, failed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            *(session.session, session.at, at_s, session.duration_s, session.exit_status),
            *(session.version, session.host, session.revision, len(session.results)),
            *(sum(result.was_measured for result in session.results), len(session.failures)),
        ),
    ).lastrowid
    connection.execute("INSERT INTO documents VALUES (?, ?)", (row, content))
    measured = [result for result in session.results if result.runs]
    _insert_environments(connection, session, {result.environment for result in measured})
    for result in measured:
        _insert_result(connection, row, at_s, result)


def _insert_environments(connection: sqlite3.Connection, session: SessionResults, used: set[str]) -> None:
    connection.executemany(
        "INSERT OR IGNORE INTO environments VALUES (?, ?)",
        (
            (key, json.dumps({"identity": dict(each.identity), "context": dict(each.context)}))
            for key, each in session.environments.items()
            if key in used
        ),
    )


def _insert_result(connection: sqlite3.Connection, session: int | None, at_s: float, result: Result) -> None:
    names = (result.disk_name, result.key or result.benchmark)
    connection.execute("INSERT OR IGNORE INTO benchmarks (platform, key) VALUES (?, ?)", names)
    slowdown = total_slowdown(result.verdict) if result.verdict else None
    measured_thing = {"configuration": dict(result.configuration), "work_per_step": result.work_per_step}
    row = connection.execute(
        """INSERT INTO results (session, benchmark, at_s, in_series, status, loss, work_per_step, unit, environment,
            configuration)
        VALUES (?, (SELECT id FROM benchmarks WHERE platform = ? AND key = ?), ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            *(session, *names, at_s, belongs_to_series(result), result.status.value),
            *(slowdown.point if slowdown else None, result.work_per_step, result.unit, result.environment),
            fingerprint(measured_thing),
        ),
    ).lastrowid
    connection.executemany(
        "INSERT INTO runs VALUES (?, ?, ?, ?, ?)",
        (
            (row, position, run.step_time_s, run.peak_memory_bytes, json.dumps(dict(run.metrics)))
            for position, run in enumerate(result.runs)
        ),
    )


def belongs_to_series(result: Result) -> bool:
    """Whether its runs say how fast the benchmark is: measured, valid, and not slowed on purpose."""
    return not why_unusable(result) and not any(map(was_slowed, result.runs))


def point_of(rows: Sequence[sqlite3.Row]) -> Point:
    """Of the rows of its runs, in their order."""
    first = rows[0]
    return Point(
        session=first["session"],
        at=first["at"],
        host=first["host"],
        revision=first["revision"],
        status=first["status"],
        loss=first["loss"],
        runs=tuple(
            Measured(
                step_time_s=row["step_time_s"],
                peak_memory_bytes=row["peak_memory_bytes"],
                metrics=json.loads(row["metrics"]),
            )
            for row in rows
        ),
        work_per_step=first["work_per_step"],
        unit=first["unit"],
        environment=first["environment"],
        configuration=first["configuration"],
        in_series=bool(first["in_series"]),
    )
