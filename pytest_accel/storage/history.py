"""Every run of every session, in one file: what reports, change points and other tools' formats are made of."""

from __future__ import annotations

import json
import math
import zlib
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from pytest_accel.stats.changepoints import SEASON, Trend, trend
from pytest_accel.stats.environment import Environment
from pytest_accel.storage.files import StorageError
from pytest_accel.storage.history_file import LOCK_TIMEOUT_S, HistoryError, compact, reading, writing
from pytest_accel.storage.history_rows import (
    Measured,
    Point,
    SessionFacts,
    Tracked,
    belongs_to_series,
    insert_session,
    point_of,
)
from pytest_accel.storage.results import MAX_BYTES, parse, render

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pytest_accel.stats.results import SessionResults

__all__ = [
    "History",
    "HistoryError",
    "Measured",
    "Point",
    "Pruned",
    "SessionFacts",
    "Tracked",
    "belongs_to_series",
]

# Where the numbers of sessions stand, each from both ends: what a damaged page hides of one, another still has.
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
class Pruned:
    """What retention took away, or would."""

    sessions: tuple[str, ...]  # the oldest first
    left: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class History:
    """The file. Each call opens and closes it, so that nobody holds it who does not work on it."""

    path: Path
    lock_timeout_s: float = LOCK_TIMEOUT_S

    def append(self, session: SessionResults) -> bool:
        """Keep a whole session or nothing of it; False where it is here already."""
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
        """The newest first."""
        names = ", ".join(SessionFacts.__dataclass_fields__)
        with reading(self.path, self.lock_timeout_s) as connection:
            found = connection.execute(
                f"SELECT {names} FROM sessions ORDER BY at_s DESC, id DESC LIMIT ?",  # noqa: S608 - our own names
                (_limit(limit),),
            ).fetchall()
        return tuple(SessionFacts(**dict(row)) for row in found)

    def session(self, session: str) -> SessionResults:
        """All of a session, by its id or by a beginning that no other has."""
        with reading(self.path, self.lock_timeout_s) as connection:
            name = self._named(connection, session)
            content = _document(connection, name)
        return _parsed(self.path, name, content or b"")

    def latest(self) -> SessionResults | None:
        """The newest session; None where all were pruned."""
        newest = self.sessions(limit=1)
        return self.session(newest[0].session) if newest else None

    def salvaged(self) -> Iterator[SessionResults | None]:
        """Every session in the order of writing, for another history; None in the place of one that is damaged."""
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

    def benchmarks(self, *, everything: bool = False) -> tuple[Tracked, ...]:
        """Those that have a series, by platform and key; or, with `everything`, any run at all."""
        with reading(self.path, self.lock_timeout_s) as connection:
            found = connection.execute(
                """SELECT platform, key, count(*), max(at_s) FROM results
                JOIN benchmarks ON benchmarks.id = results.benchmark
                WHERE in_series >= ? GROUP BY results.benchmark ORDER BY platform, key""",
                (0 if everything else 1,),
            ).fetchall()
        return tuple(
            Tracked(
                platform=platform,
                key=key,
                sessions=sessions,
                last_at=datetime.fromtimestamp(at_s, UTC).isoformat(),
            )
            for platform, key, sessions, at_s in found
        )

    def series(
        self, key: str, platform: str, limit: int | None = None, *, everything: bool = False
    ) -> tuple[Point, ...]:
        """What the newest sessions measured of a benchmark, the oldest of them first.

        `platform` is the folder of its baselines (`Result.disk_name`). Runs that are not valid, or were slowed on
        purpose, are stored but in no series; `everything` has them too.
        """
        with reading(self.path, self.lock_timeout_s) as connection:
            found = connection.execute(
                """WITH chosen AS (
                    SELECT * FROM results
                    WHERE benchmark = (SELECT id FROM benchmarks WHERE platform = ? AND key = ?)
                    AND in_series >= ?
                    ORDER BY at_s DESC, id DESC LIMIT ?)
                SELECT chosen.id, sessions.session, at, host, revision, status, loss, work_per_step, unit,
                    environment, configuration, in_series, step_time_s, peak_memory_bytes, metrics
                FROM chosen JOIN sessions ON sessions.id = chosen.session JOIN runs ON result = chosen.id
                ORDER BY chosen.at_s, chosen.id, position""",
                (platform, key, 0 if everything else 1, _limit(limit)),
            ).fetchall()
        return tuple(point_of(list(rows)) for _, rows in groupby(found, key=lambda row: row["id"]))

    def trend(self, key: str, platform: str, nights: int = SEASON) -> Trend[Point]:
        """The newest of a series, and where it changed its level."""
        return trend(self.series(key, platform, nights))

    def environment(self, key: str) -> Environment | None:
        """Where a point was measured; None where nobody said."""
        with reading(self.path, self.lock_timeout_s) as connection:
            found = connection.execute("SELECT content FROM environments WHERE key = ?", (key,)).fetchone()
        if found is None:
            return None
        facts = json.loads(found[0])
        return Environment(identity=facts["identity"], context=facts["context"])

    def prune(
        self,
        *,
        keep_days: float | None = None,
        keep_sessions: int | None = None,
        max_bytes: int | None = None,
        now: datetime | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Take away the oldest sessions until each given bound holds; the newest survives a bound on bytes."""
        if keep_days is None and keep_sessions is None and max_bytes is None:
            raise ValueError("prune: say what is to stay: keep_days, keep_sessions or max_bytes.")
        _ = self.sessions(limit=1)  # a history that is not there must not be made by pruning it
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
        """Of all sessions, as far as they can be read."""
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
        """The document, and the session as it will be read back; a bad value must not reach the disk."""
        try:
            text = _rendered(session)
            return text, parse(text, str(self.path))
        except StorageError as error:
            place, problem = error.place, error.problem
        except (ValueError, TypeError) as error:  # json: NaN or an object in a configuration
            place, problem = "", str(error)
        remedy = "Nothing was written. What was measured cannot be stored; this is not the file's fault."
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


def _limit(limit: int | None) -> int:
    return -1 if limit is None else limit


# --- documents --------------------------------------------------------------------------------------


def _document(connection: sqlite3.Connection, session: str) -> bytes | None:
    found = connection.execute(
        "SELECT content FROM documents JOIN sessions ON sessions.id = documents.session WHERE sessions.session = ?",
        (session,),
    ).fetchone()
    return None if found is None else bytes(found[0])


def _rendered(session: SessionResults) -> str:
    text = render(session)
    if len(text.encode("utf-8")) > MAX_BYTES:
        raise ValueError(f"{len(text)} characters of results; at most {MAX_BYTES} bytes can be read back")
    return text


def _unpacked(content: bytes) -> bytes:
    """Never more than a session may have: a file can hold a thousandth of what it becomes."""
    unpacking = zlib.decompressobj()
    unpacked = unpacking.decompress(content, MAX_BYTES + 1)
    if len(unpacked) > MAX_BYTES:
        raise zlib.error(f"it has more than {MAX_BYTES} bytes")
    if not unpacking.eof:
        raise zlib.error("it is cut off")
    return unpacked


def _inflated(path: Path, session: str, content: bytes) -> str:
    try:
        return _unpacked(content).decode("utf-8")
    except (zlib.error, UnicodeDecodeError) as error:
        problem = f"the document of session {session} is damaged ({error})"
        remedy = "Its runs are still in the series; the other sessions are whole."
        raise HistoryError(str(path), "", problem, remedy) from None


def _parsed(path: Path, session: str, content: bytes) -> SessionResults:
    text = _inflated(path, session, content)
    try:
        return parse(text, f"{path}, session {session}")
    except StorageError as error:
        raise HistoryError(error.file, error.place, error.problem, error.remedy) from None


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
    """Of the file without its free pages."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)
