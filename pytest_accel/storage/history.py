"""History: every run of every session in one SQLite file, for reports, change points and exports."""

from __future__ import annotations

import json
import math
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from pytest_accel.stats.changepoints import SEASON, Trend, trend
from pytest_accel.stats.comparison import was_slowed, why_unusable
from pytest_accel.stats.environment import Environment, fingerprint
from pytest_accel.stats.gate import centre
from pytest_accel.stats.platform_shift import total_slowdown
from pytest_accel.stats.results import Result, SessionResults
from pytest_accel.stats.run import LONGEST_STEP_S, SHORTEST_STEP_S
from pytest_accel.storage.codec import decode, encode, loads
from pytest_accel.storage.files import StorageError, format_errors
from pytest_accel.storage.history_file import LOCK_TIMEOUT_S, HistoryError, compact, reading, writing
from pytest_accel.storage.results import MAX_BYTES, parse, render

_T = TypeVar("_T")
# Queries for the numbers of sessions, each from both ends: what a damaged page hides from one, another finds.
_NUMBERS = tuple(
    f"{question} {order}"
    for question in (
        "SELECT session FROM documents ORDER BY session",
        "SELECT id FROM sessions NOT INDEXED ORDER BY id",
        "SELECT id FROM sessions INDEXED BY sessions_by_time ORDER BY at_s",
    )
    for order in ("ASC", "DESC")
)


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
class HistoryBenchmark:
    """A benchmark that has a series."""

    platform: str  # the folder of its baselines
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRun:
    """The figures of one run; the document of its session holds its rounds."""

    step_time_s: float
    peak_memory_bytes: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not SHORTEST_STEP_S <= self.step_time_s <= LONGEST_STEP_S:
            raise ValueError(f"step_time_s: {self.step_time_s!r} is no step time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What one session measured of one benchmark; its runs are one point, because they are correlated."""

    session: str
    at: str
    host: str
    revision: str
    status: str
    loss: float | None  # of throughput, against the baseline of that day
    runs: tuple[HistoryRun, ...]
    work_per_step: float
    unit: str
    environment: str  # a key, see History.environment
    configuration: str  # a fingerprint: equal where the same thing was measured

    def __post_init__(self) -> None:
        if not self.work_per_step > 0:
            raise ValueError(f"work_per_step: {self.work_per_step!r} is not positive")

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the newest run."""
        return self.runs[-1].metrics

    @property
    def step_time_s(self) -> float:
        """The centre of its runs, as the gate sees them."""
        return math.exp(centre([math.log(run.step_time_s) for run in self.runs]))

    @property
    def throughput(self) -> float:
        return self.work_per_step / self.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What pruning removed, or would remove."""

    sessions: tuple[str, ...]  # the oldest first
    left: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class History:
    """The history of one file. Each call opens and closes it, so that no process holds it for long."""

    path: Path
    lock_timeout_s: float = LOCK_TIMEOUT_S

    def append(self, session: SessionResults) -> bool:
        """Store a session completely or not at all; return False where it is stored already."""
        text, checked = self._checked(session)
        content = zlib.compress(text.encode("utf-8"), 6)  # to 10 %; level 9 is slower by far for .5 % more
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"its folder cannot be made: {error.strerror}"
            raise HistoryError(str(self.path), "", problem, "Name another file (--accel-history).") from None
        with writing(self.path, self.lock_timeout_s) as connection:
            stored = _document(connection, session.session)
            if stored is None:
                insert_session(connection, checked, content)
        if stored is not None and _parsed(self.path, session.session, stored) != checked:
            problem = f"session {session.session} is here already, with other results"
            remedy = "Nothing was written. A session is appended once, when it ends."
            raise HistoryError(str(self.path), "", problem, remedy)
        return stored is None

    def sessions(self, limit: int | None = None) -> tuple[SessionFacts, ...]:
        """Return the sessions, newest first."""
        names = ", ".join(SessionFacts.__dataclass_fields__)
        with reading(self.path, self.lock_timeout_s) as connection:
            found = connection.execute(
                f"SELECT {names} FROM sessions ORDER BY at_s DESC, id DESC LIMIT ?",  # noqa: S608 - our own names
                (-1 if limit is None else limit,),
            ).fetchall()
        return tuple(self._decoded(SessionFacts, dict(row), "sessions") for row in found)

    def session(self, session: str) -> SessionResults:
        """Return a session by its id, or by a beginning that no other has."""
        with reading(self.path, self.lock_timeout_s) as connection:
            name = self._named(connection, session)
            content = _document(connection, name)
        return _parsed(self.path, name, content or b"")

    def latest(self) -> SessionResults | None:
        """The newest session; None where all were pruned."""
        newest = self.sessions(limit=1)
        return self.session(newest[0].session) if newest else None

    def salvaged(self) -> Iterator[SessionResults | None]:
        """Yield every session in the order of writing, None for a damaged one: to save what a damaged file still holds."""
        for number in self._numbers():
            try:
                with reading(self.path, self.lock_timeout_s) as connection:
                    found = connection.execute(
                        "SELECT content FROM documents WHERE session = ?", (number,)
                    ).fetchone()
                session = found and _parsed(self.path, f"number {number}", found[0])
            except HistoryError:
                yield None
            else:
                if session:  # it may have been pruned
                    yield session

    def benchmarks(self) -> tuple[HistoryBenchmark, ...]:
        """Return the benchmarks that have a series, by platform and key."""
        with reading(self.path, self.lock_timeout_s) as connection:
            found = connection.execute(
                """SELECT DISTINCT platform, key FROM results JOIN benchmarks ON benchmarks.id = results.benchmark
                WHERE in_series ORDER BY platform, key""",
            ).fetchall()
        return tuple(self._decoded(HistoryBenchmark, dict(row), "benchmarks") for row in found)

    def series(self, key: str, platform: str, limit: int | None = None) -> tuple[Point, ...]:
        """Return what the newest sessions measured of a benchmark, oldest first.

        `platform` is the folder of its baselines (`Result.disk_name`). Runs that are not valid, or were slowed on
        purpose, are stored but in no series.
        """
        with reading(self.path, self.lock_timeout_s) as connection:
            found = connection.execute(
                """WITH chosen AS (
                    SELECT * FROM results
                    WHERE benchmark = (SELECT id FROM benchmarks WHERE platform = ? AND key = ?) AND in_series
                    ORDER BY at_s DESC, id DESC LIMIT ?)
                SELECT chosen.id, sessions.session, at, host, revision, status, loss, work_per_step, unit,
                    environment, configuration, step_time_s, peak_memory_bytes, metrics
                FROM chosen JOIN sessions ON sessions.id = chosen.session JOIN runs ON result = chosen.id
                ORDER BY chosen.at_s, chosen.id, position""",
                (platform, key, -1 if limit is None else limit),
            ).fetchall()
        return tuple(self._point(list(rows)) for _, rows in groupby(found, key=lambda row: row["id"]))

    def _point(self, rows: Sequence[sqlite3.Row]) -> Point:
        with format_errors(str(self.path), HistoryError):
            metrics = [loads(row["metrics"]) if isinstance(row["metrics"], str) else None for row in rows]
        of_run = ("step_time_s", "peak_memory_bytes")
        plain: dict[str, object] = {
            name: each for name, each in dict(rows[0]).items() if name not in (*of_run, "id", "metrics")
        }
        plain["runs"] = [
            {**{name: row[name] for name in of_run}, "metrics": each}
            for row, each in zip(rows, metrics, strict=True)
        ]
        return self._decoded(Point, plain, "results")

    def _decoded(self, kind: type[_T], plain: object, place: str) -> _T:
        """Return a row as a value; the file may have come from elsewhere, with columns of any type."""
        with format_errors(str(self.path), HistoryError):
            return decode(kind, plain, place)

    def trend(self, key: str, platform: str, nights: int = SEASON) -> Trend[Point]:
        """Return the newest points of a series with its change points."""
        return trend(self.series(key, platform, nights))

    def environment(self, key: str) -> Environment | None:
        """Return the environment of a point; None where it is unknown."""
        with reading(self.path, self.lock_timeout_s) as connection:
            found = connection.execute("SELECT content FROM environments WHERE key = ?", (key,)).fetchone()
        if found is None:
            return None
        with format_errors(str(self.path), HistoryError):
            return decode(Environment, loads(decode(str, found[0], "environments")), "environments")

    def prune(
        self,
        *,
        keep_days: float | None = None,
        keep_sessions: int | None = None,
        max_bytes: int | None = None,
        now: datetime | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Remove the oldest sessions until each given bound holds; a bound on bytes keeps the newest session."""
        if keep_days is None and keep_sessions is None and max_bytes is None:
            raise ValueError("prune: give keep_days, keep_sessions or max_bytes.")
        _ = self.sessions(limit=1)  # pruning must not create a history
        oldest_s = -math.inf
        if keep_days is not None:
            oldest_s = ((now or datetime.now(UTC)) - timedelta(days=keep_days)).timestamp()
        with writing(self.path, self.lock_timeout_s, keep=not dry_run) as connection:
            pruned = _prune(connection, oldest_s, keep_sessions, max_bytes)
        if not dry_run:
            with suppress(HistoryError):  # where that fails, the next sessions use the free pages
                compact(self.path, self.lock_timeout_s)
        return pruned

    def _numbers(self) -> list[int]:
        """Return the numbers of all sessions, as far as they can be read."""
        found: set[int] = set()
        problem: HistoryError | None = None
        for question in _NUMBERS:
            try:
                with reading(self.path, self.lock_timeout_s) as connection:
                    for row in connection.execute(question):
                        found.add(row[0])
            except HistoryError as error:
                problem = error
        if problem is not None and not found:
            raise problem
        return sorted(found)

    def _checked(self, session: SessionResults) -> tuple[str, SessionResults]:
        """Return the document, and the session as it will be read back; a bad value must not reach the disk."""
        try:
            text = render(session)
            checked = parse(text, str(self.path))
        except StorageError as error:
            place, problem = error.place, error.problem
        except (ValueError, TypeError) as error:  # json: NaN or an object in a configuration
            place, problem = "", str(error)
        else:
            if len(text.encode("utf-8")) <= MAX_BYTES:
                return text, checked
            place, problem = (
                "",
                f"{len(text)} characters of results; at most {MAX_BYTES} bytes can be read back",
            )
        remedy = "Nothing was written. The measured values cannot be stored; the file itself is intact."
        raise HistoryError(str(self.path), place, problem, remedy)

    def _named(self, connection: sqlite3.Connection, session: str) -> str:
        names = [row[0] for row in connection.execute("SELECT session FROM sessions ORDER BY at_s DESC")]
        if session in names:
            return session
        found = [name for name in names if name.startswith(session)]
        if len(found) == 1:
            return str(found[0])
        problem = (
            f"{session!r} begins {len(found)} sessions: {', '.join(found[:4])}"
            if found
            else f"no session {session!r} is here"
        )
        remedy = "`pytest-accel history` lists them; write the whole id."
        raise HistoryError(str(self.path), "", problem, remedy)


# --- documents --------------------------------------------------------------------------------------


def _document(connection: sqlite3.Connection, session: str) -> bytes | None:
    found = connection.execute(
        "SELECT content FROM documents JOIN sessions ON sessions.id = documents.session WHERE sessions.session = ?",
        (session,),
    ).fetchone()
    return None if found is None else bytes(found[0])


def _parsed(path: Path, session: str, content: bytes) -> SessionResults:
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(content, MAX_BYTES + 1)  # a small document can unpack to gigabytes
        if unpacking.eof:
            return parse(unpacked.decode("utf-8"), f"{path}, session {session}")
        fault = f"it is cut off, or has more than {MAX_BYTES} bytes"
    except (zlib.error, UnicodeDecodeError) as error:
        fault = str(error)
    except StorageError as error:
        raise HistoryError(error.file, error.place, error.problem, error.remedy) from None
    problem = f"the document of session {session} is damaged ({fault})"
    remedy = "Its runs are still in the series; the other sessions are intact."
    raise HistoryError(str(path), "", problem, remedy)


# --- retention --------------------------------------------------------------------------------------


def _prune(
    connection: sqlite3.Connection, oldest_s: float, keep_sessions: int | None, max_bytes: int | None
) -> Pruned:
    before = _size_bytes(connection)
    stored = connection.execute("SELECT id, session, at_s FROM sessions ORDER BY at_s, id").fetchall()
    surplus = 0 if keep_sessions is None else len(stored) - keep_sessions
    gone = [row for position, row in enumerate(stored) if position < surplus or row[2] < oldest_s]
    _delete(connection, gone)
    if max_bytes is not None:
        for row in stored[len(gone) : -1]:
            if _size_bytes(connection) <= max_bytes:
                break
            _delete(connection, [row])
            gone.append(row)
    connection.execute("DELETE FROM benchmarks WHERE id NOT IN (SELECT benchmark FROM results)")
    connection.execute("DELETE FROM environments WHERE key NOT IN (SELECT environment FROM results)")
    return Pruned(
        sessions=tuple(row[1] for row in gone),
        left=len(stored) - len(gone),
        bytes_before=before,
        bytes_after=_size_bytes(connection),
    )


def _delete(connection: sqlite3.Connection, rows: Iterable[tuple[int, str, float]]) -> None:
    connection.executemany("DELETE FROM sessions WHERE id = ?", ((row[0],) for row in rows))


def _size_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of the file without its free pages."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


# --- rows -------------------------------------------------------------------------------------------


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
    used = {result.environment for result in measured}
    connection.executemany(
        "INSERT OR IGNORE INTO environments VALUES (?, ?)",
        ((key, json.dumps(encode(each))) for key, each in session.environments.items() if key in used),
    )
    for result in measured:
        _insert_result(connection, row, at_s, result)


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
    """Return whether its runs belong to the series: measured, valid, and not slowed on purpose."""
    return not why_unusable(result) and not any(map(was_slowed, result.runs))
