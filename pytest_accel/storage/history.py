"""History: every session in one SQLite file, for reports and change points.

It has a rollback journal: the quicker write-ahead log needs all readers and writers on one machine, but homes on clusters
are on NFS, and one history serves many nodes.
"""

from __future__ import annotations

import json
import math
import shlex
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pytest_accel.stats.comparison import was_slowed, why_unusable
from pytest_accel.stats.environment import fingerprint
from pytest_accel.stats.gate import Policy, centre, slowest_loss
from pytest_accel.stats.metric_gates import total_slowdown
from pytest_accel.stats.results import Result, SessionResults
from pytest_accel.stats.run import LONGEST_STEP_S, SHORTEST_STEP_S
from pytest_accel.storage.baselines import check_work
from pytest_accel.storage.codec import decode, encode, loads
from pytest_accel.storage.files import LOCK_TIMEOUT_S, StorageError, format_errors, unstorable_refused
from pytest_accel.storage.results import parse, render

APPLICATION_ID = 0x61636331  # "acc1": tells ours from any other SQLite file
SCHEMA_VERSION = 2
_SCHEMA = (
    # The document is the last column: a list of sessions does not read it.
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY, session TEXT NOT NULL UNIQUE, at_s REAL NOT NULL, facts TEXT NOT NULL, document BLOB NOT NULL)""",
    "CREATE INDEX sessions_by_time ON sessions (at_s)",
    """CREATE TABLE points (
        session INTEGER NOT NULL, at_s REAL NOT NULL, platform TEXT NOT NULL, key TEXT NOT NULL, content TEXT NOT NULL)""",
    "CREATE INDEX points_by_series ON points (platform, key, at_s)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_REMEDY = (
    "Make room, make it and its folder writable, or wait for other writers and do it again; or name another file "
    "(--accel-history). What was stored before is intact."
)
_T = TypeVar("_T")


class HistoryError(StorageError):
    @staticmethod
    def default_remedy(file: str) -> str:
        name, aside = shlex.quote(file), shlex.quote(f"{file}.damaged")
        return (
            f"Move it away (mv {name} {aside}): the next session begins a new one. "
            f"`sqlite3 {aside} .recover | sqlite3 {name}` saves what is left of it."
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

    @classmethod
    def of(cls, session: SessionResults) -> SessionFacts:
        own = ("session", "at", "duration_s", "exit_status", "version", "host", "revision")
        return cls(
            **{name: getattr(session, name) for name in own},
            benchmarks=len(session.results),
            measured=sum(bool(result.runs) for result in session.results),
            failed=len(session.failures),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What one session measured of one benchmark; its runs are one point, because they are correlated."""

    session: str
    at: str
    host: str
    revision: str
    status: str
    loss: float | None  # of throughput, against the baseline of that day
    step_times_s: tuple[float, ...]  # of its runs
    metrics: Mapping[str, float] = field(default_factory=dict)  # of its newest run
    work_per_step: float
    unit: str
    environment: str  # its key in the session's document
    configuration: str  # a fingerprint: equal where the same thing was measured
    tolerance: float | None = None  # of that day; None: of a version that did not store it

    def __post_init__(self) -> None:
        check_work("work_per_step", self.work_per_step)
        if not all(SHORTEST_STEP_S <= each <= LONGEST_STEP_S for each in self.step_times_s or [0.0]):
            raise ValueError(f"step_times_s: {self.step_times_s!r} are no step times")

    @property
    def step_time_s(self) -> float:
        """The centre of its runs, as the gate sees them."""
        return math.exp(centre([math.log(each) for each in self.step_times_s]))

    @property
    def throughput(self) -> float:
        return self.work_per_step / self.step_time_s

    @property
    def slowest_loss(self) -> float:
        """Of its slowest run, against the baseline of that day; 0 where nothing was compared."""
        if self.loss is None or not self.step_times_s:
            return 0.0
        return slowest_loss([math.log(each) for each in self.step_times_s], self.loss)

    @property
    def is_slow(self) -> bool:
        """Whether any of its runs lost more than the tolerance, whatever its verdict."""
        return self.slowest_loss > (self.tolerance or Policy().tolerance)


@dataclass(frozen=True, slots=True)
class History:
    """The history of one file. Each call opens and closes it, so that no process holds it for long."""

    path: Path
    lock_timeout_s: float = LOCK_TIMEOUT_S

    def append(self, session: SessionResults) -> bool:
        """Store a session completely or not at all; return False where it is stored already."""
        with unstorable_refused(str(self.path), HistoryError):
            text = render(session)
            checked = parse(text, str(self.path))  # as it will be read back
        at_s = datetime.fromisoformat(session.at).timestamp()
        document = zlib.compress(text.encode("utf-8"), 6)  # to 10 %; level 9 is slower by far for .5 % more
        with suppress(OSError):  # SQLite's error says that it cannot be opened
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._opened(write=True) as connection:
            row = connection.execute(
                "INSERT OR IGNORE INTO sessions (session, at_s, facts, document) VALUES (?, ?, ?, ?)",
                (session.session, at_s, json.dumps(encode(SessionFacts.of(checked))), document),
            )
            if row.rowcount:
                points = [
                    (row.lastrowid, at_s, each.disk_name, each.stored_as, _point(checked, each))
                    for each in checked.results
                    if not why_unusable(each.measured_as, each.runs) and not any(map(was_slowed, each.runs))
                ]
                connection.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", points)
        return bool(row.rowcount)

    def sessions(self, limit: int | None = None) -> tuple[SessionFacts, ...]:
        """Return the sessions, newest first."""
        with self._opened() as connection:
            query = "SELECT facts FROM sessions ORDER BY at_s DESC, id DESC LIMIT ?"
            found = connection.execute(query, (-1 if limit is None else limit,)).fetchall()
        return tuple(self._decoded(SessionFacts, row[0], "sessions") for row in found)

    def session(self, session: str) -> SessionResults:
        """Return a session by its id, or by a beginning that no other has."""
        with self._opened() as connection:
            found = connection.execute(
                "SELECT session, document FROM sessions WHERE substr(session, 1, length(?1)) = ?1 "
                "ORDER BY session != ?1, at_s DESC LIMIT 4",
                (session,),
            ).fetchall()
        names = [name for name, _ in found]
        if len(names) != 1 and session not in names:
            several = f"{session!r} begins several sessions: {', '.join(names)}"
            raise self._error(
                several if names else f"no session {session!r} is here",
                "`pytest-accel history` lists them; write an id, or so much of its beginning that no other has.",
            )
        return self._parsed(*found[0])

    def latest(self) -> SessionResults:
        return self.session(next((each.session for each in self.sessions(limit=1)), ""))

    def benchmarks(self) -> tuple[tuple[str, str], ...]:
        """Return platform (the folder of baselines) and key of each benchmark that has a series."""
        with self._opened() as connection, format_errors(str(self.path), HistoryError):
            found = connection.execute("SELECT DISTINCT platform, key FROM points ORDER BY platform, key")
            return tuple(
                (decode(str, platform, "points"), decode(str, key, "points")) for platform, key in found
            )

    def series(self, key: str, platform: str, limit: int | None = None) -> tuple[Point, ...]:
        """Return what the newest sessions measured of a benchmark, oldest first.

        Runs that are not valid, or were slowed on purpose, are in the documents but in no series.
        """
        with self._opened() as connection:
            found = connection.execute(
                "SELECT content FROM points WHERE platform = ? AND key = ? ORDER BY at_s DESC, session DESC LIMIT ?",
                (platform, key, -1 if limit is None else limit),
            ).fetchall()
        return tuple(self._decoded(Point, row[0], "points") for row in reversed(found))

    # --- values -------------------------------------------------------------------------------------

    def _parsed(self, session: str, document: bytes) -> SessionResults:
        try:
            return parse(zlib.decompress(document).decode("utf-8"), f"{self.path}, session {session}")
        except (zlib.error, TypeError) as error:
            problem = f"the document of session {session} is damaged ({error})"
            remedy = "Its runs are still in the series; the other sessions are intact."
            raise self._error(problem, remedy) from None

    def _decoded(self, kind: type[_T], content: object, place: str) -> _T:
        with format_errors(str(self.path), HistoryError):
            return decode(kind, loads(decode(str, content, place)), place)

    # --- the file -----------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """Open one transaction: all of it is stored or nothing. Other writers wait; a reader changes nothing."""
        missing = self._error(
            "there is no history here yet",
            "A session that measures begins one (--accel-history says where); results are added with "
            "`pytest-accel history --import`.",
        )
        with suppress(OSError):  # a name that is too long, or no permission: SQLite says so
            if not write and not self.path.exists():
                raise missing
        try:
            with closing(self._connect("rwc" if write else "rw")) as connection:
                if write:
                    connection.execute("PRAGMA journal_mode = DELETE")
                    connection.execute("PRAGMA synchronous = EXTRA")  # what was written survives a power cut
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                if self._is_new(connection):
                    if not write:
                        raise missing
                    for statement in _SCHEMA:
                        connection.execute(statement)
                yield connection
                connection.execute("COMMIT")  # an error closes the connection before, which undoes everything
        except sqlite3.DatabaseError as error:
            # The lowest byte; the rest of the code says more than a person can use.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            is_damaged = code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
            problem = "is damaged, or no history at all" if is_damaged else "cannot be read or written"
            raise self._error(f"{problem}: {error}", "" if is_damaged else _REMEDY) from None

    def _connect(self, mode: str) -> sqlite3.Connection:
        # With "rw" a reader undoes what a killed writer left; a file that may only be read is only read.
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=self.lock_timeout_s)

    def _is_new(self, connection: sqlite3.Connection) -> bool:
        """Return whether the file is empty, or raise HistoryError where it is not ours."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if not (application or version or objects):
            return True
        if (application, version) != (APPLICATION_ID, SCHEMA_VERSION):
            raise self._error(
                f"is no history of the schema that this pytest-accel reads ({SCHEMA_VERSION}), and is untouched",
                "Upgrade pytest-accel where it is newer; else name another file, and add the files of --accel-json with "
                "`pytest-accel history --import`.",
            )
        return False

    def _error(self, problem: str, remedy: str) -> HistoryError:
        return HistoryError(str(self.path), "", problem, remedy)


def _point(session: SessionResults, result: Result) -> str:
    slowdown = total_slowdown(result.verdict) if result.verdict else None
    newest = result.runs[-1]
    memory = {} if newest.peak_memory_bytes is None else {"peak_memory_bytes": newest.peak_memory_bytes}
    measured_thing = {"configuration": dict(result.configuration), "work_per_step": result.work_per_step}
    point = Point(
        session=session.session,
        at=session.at,
        host=session.host,
        revision=session.revision,
        status=result.status.value,
        loss=slowdown.point if slowdown else None,
        step_times_s=tuple(run.step_time_s for run in result.runs),
        metrics={**newest.metrics, **memory},
        work_per_step=result.work_per_step,
        unit=result.unit,
        environment=result.environment,
        configuration=fingerprint(measured_thing),
        tolerance=result.tolerance,
    )
    return json.dumps(encode(point))
