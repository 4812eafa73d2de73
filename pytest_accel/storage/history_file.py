"""SQLite file of the history: connections, schema migrations, and SQLite's errors with remedies.

It has a rollback journal: the quicker write-ahead log needs all readers and writers on one machine, but homes on clusters
are on NFS, and one history serves many nodes.
"""

from __future__ import annotations

import shlex
import sqlite3
import stat
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from pytest_accel.storage.files import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APPLICATION_ID = 0x61636331  # "acc1": tells ours from any other SQLite file
_MAGIC = b"SQLite format 3\0"
LOCK_TIMEOUT_S = 30.0  # a session is written in milliseconds; thirty seconds mean that a writer is stuck

# Each step takes a file from the version of its place to the next. A step that was released never changes.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE sessions (
            id INTEGER PRIMARY KEY, session TEXT NOT NULL UNIQUE, at TEXT NOT NULL, at_s REAL NOT NULL,
            duration_s REAL NOT NULL, exit_status INTEGER NOT NULL, version TEXT NOT NULL, host TEXT NOT NULL,
            revision TEXT NOT NULL, benchmarks INTEGER NOT NULL, measured INTEGER NOT NULL, failed INTEGER NOT NULL)""",
        "CREATE INDEX sessions_by_time ON sessions (at_s)",
        # Apart from the sessions: a list of them must not read through megabytes of documents.
        """CREATE TABLE documents (
            session INTEGER PRIMARY KEY REFERENCES sessions ON DELETE CASCADE, content BLOB NOT NULL)""",
        "CREATE TABLE environments (key TEXT PRIMARY KEY, content TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE benchmarks (
            id INTEGER PRIMARY KEY, platform TEXT NOT NULL, key TEXT NOT NULL, UNIQUE (platform, key))""",
        """CREATE TABLE results (
            id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
            benchmark INTEGER NOT NULL REFERENCES benchmarks, at_s REAL NOT NULL, in_series INTEGER NOT NULL,
            status TEXT NOT NULL, loss REAL, work_per_step REAL NOT NULL, unit TEXT NOT NULL,
            environment TEXT NOT NULL, configuration TEXT NOT NULL)""",
        "CREATE INDEX results_by_series ON results (benchmark, at_s, in_series)",
        "CREATE INDEX results_by_session ON results (session)",
        """CREATE TABLE runs (
            result INTEGER NOT NULL REFERENCES results ON DELETE CASCADE, position INTEGER NOT NULL,
            step_time_s REAL NOT NULL, peak_memory_bytes INTEGER, metrics TEXT NOT NULL,
            PRIMARY KEY (result, position)) WITHOUT ROWID""",
    ),
)


class HistoryError(StorageError):
    """A history that cannot be used: the file, the problem and the remedy."""

    @staticmethod
    def default_remedy(file: str) -> str:
        name, aside = shlex.quote(file), shlex.quote(f"{file}.damaged")
        return (
            f"Move it away (mv {name} {aside}): the next session begins a new one. "
            f"What can be saved of it comes back by `pytest-accel history --import {aside}`."
        )


def is_sqlite(path: Path) -> bool:
    """Return whether a file begins as one of SQLite's."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


@contextmanager
def reading(path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[sqlite3.Connection]:
    """Open one state of the file for any number of queries; a reader changes nothing."""
    if not _require_regular(path):
        raise _missing(path)
    with explained(path):
        if _version(path, timeout_s) < len(MIGRATIONS):
            with writing(path, timeout_s):  # an older file becomes a newer one before it is read
                pass
        with closing(_connect(path, "ro", timeout_s)) as connection:
            connection.execute("BEGIN")
            yield connection


@contextmanager
def writing(
    path: Path, timeout_s: float = LOCK_TIMEOUT_S, *, keep: bool = True
) -> Iterator[sqlite3.Connection]:
    """Open one transaction: all of it is stored or nothing. Other writers wait."""
    _require_regular(path)
    with explained(path), closing(_connect(path, "rwc", timeout_s)) as connection:
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:  # else this writes, even in vain
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # what is pruned leaves the disk
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = EXTRA")  # a session that was written survives a power cut
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("BEGIN IMMEDIATE")
        try:
            _migrate(connection, path)
            yield connection
            if keep:
                connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def compact(path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Return free pages to the disk; needs no additional space."""
    with explained(path), closing(_connect(path, "rw", timeout_s)) as connection:
        connection.executescript("PRAGMA incremental_vacuum")  # `execute` frees the first page and stops


def _connect(path: Path, mode: str, timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=timeout_s
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA trusted_schema = OFF")  # the file may have come from elsewhere
    return connection


def _version(path: Path, timeout_s: float) -> int:
    """Return the schema version of the file; a killed writer's transaction is rolled back first, which needs writing."""
    try:
        with closing(_connect(path, "ro", timeout_s)) as connection:
            return _checked_version(connection, path, new=False)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
    with closing(_connect(path, "rw", timeout_s)) as connection:
        return _checked_version(connection, path, new=False)


def _checked_version(connection: sqlite3.Connection, path: Path, *, new: bool) -> int:
    """Return how many migrations the file has, or raise HistoryError where it is not ours."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not (application or version or objects):
        if new:
            return 0
        raise _missing(path)
    if application != APPLICATION_ID:
        problem = "is an SQLite file, but no history of pytest-accel's"
        raise HistoryError(
            str(path), "", problem, "Name another file for the history; this one is untouched."
        )
    if version > len(MIGRATIONS):
        problem = f"its schema {version} is newer than this pytest-accel knows ({len(MIGRATIONS)})"
        remedy = "Upgrade pytest-accel (pip install --upgrade pytest-accel), or name another file (--accel-history)."
        raise HistoryError(str(path), "", problem, remedy)
    return int(version)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate inside the caller's transaction: a step that fails leaves the file as it was."""
    version = _checked_version(connection, path, new=True)
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    if version < len(MIGRATIONS):
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


# --- faults -----------------------------------------------------------------------------------------


def _require_regular(path: Path) -> bool:
    """Return whether the file exists; refuse a FIFO before SQLite opens it and blocks."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        remedy = "Make its folder readable, or name another file (--accel-history)."
        raise HistoryError(str(path), "", f"cannot be read: {error.strerror}", remedy) from None
    if not stat.S_ISREG(mode):
        problem = "is a folder" if stat.S_ISDIR(mode) else "is not a regular file"
        raise HistoryError(str(path), "", problem, "Name a file for the history (--accel-history).")
    return True


def _missing(path: Path) -> HistoryError:
    remedy = "A session that measures begins one (--accel-history says where); results are added with `pytest-accel history --import`."
    return HistoryError(str(path), "", "there is no history here yet", remedy)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as HistoryError."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a bug of ours
    except sqlite3.DatabaseError as error:
        problem, remedy = _words(path, error)
        raise HistoryError(str(path), "", problem, remedy) from None


def _words(path: Path, error: sqlite3.DatabaseError) -> tuple[str, str]:
    """Return the problem and the remedy."""
    code = getattr(error, "sqlite_errorcode", 0)
    kept = "what was stored before is intact"
    if code == sqlite3.SQLITE_READONLY_ROLLBACK:
        problem = "a writer was killed here, and what it left is still to be undone, which needs writing"
        return problem, f"Make it and {path.parent} writable, and ask again; {kept}."
    no_access = (
        f"cannot be opened or written ({error})",
        f"Make it and {path.parent} readable and writable, or name another file (--accel-history); {kept}.",
    )
    busy = (
        "other processes have been writing here all the time that we waited",
        f"Wait for them or end them, and do it again; {kept}.",
    )
    damaged = (f"is damaged, or no history at all ({error})", HistoryError.default_remedy(str(path)))
    look = "Look at its disk, its quota, ulimit -f, and whether it has locks"
    known = {
        sqlite3.SQLITE_BUSY: busy,
        sqlite3.SQLITE_LOCKED: busy,
        sqlite3.SQLITE_FULL: (
            "cannot be written: the disk is full",
            f"Make room, or name another file (--accel-history); {kept}.",
        ),
        sqlite3.SQLITE_READONLY: no_access,
        sqlite3.SQLITE_CANTOPEN: no_access,
        sqlite3.SQLITE_PERM: no_access,
        sqlite3.SQLITE_IOERR: (
            f"the file system failed ({error}, {getattr(error, 'sqlite_errorname', '')})",
            f"{look}, or name another file (--accel-history); {kept}.",
        ),
        sqlite3.SQLITE_NOTADB: damaged,
        sqlite3.SQLITE_CORRUPT: damaged,
        sqlite3.SQLITE_ERROR: damaged,  # no such table
    }
    # The lowest byte; the rest of the code says more than a person can use.
    fallback = (f"cannot be used ({error})", "Look at the file, or name another (--accel-history).")
    return known.get(code & 0xFF, fallback)
