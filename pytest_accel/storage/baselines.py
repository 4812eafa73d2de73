"""Baselines on disk, `<root>/<platform>/<suite>.json`: read whole, written whole, one writer at a time."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import stat
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.stats.environment import Environment, describe, diff_identity
from pytest_accel.storage.reading import MAX_BYTES, decode
from pytest_accel.storage.schema import (
    MAX_RUNS,
    BaselineEntry,
    BaselineError,
    BaselineFile,
    parse,
    render,
)
from pytest_accel.storage.whole import replace_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_accel.stats.run import Run

__all__ = ["MAX_RUNS", "BaselineError", "BaselineStore"]

LOCK_TIMEOUT_S = 30.0  # a write takes milliseconds; thirty seconds of waiting mean that a writer is stuck
_LOCK_POLL_S = 0.02
LOCKS = Path("/proc/locks")  # where Linux lists who holds which
_LONGEST_NAME_BYTES = 200  # file systems allow 255; a temporary name adds a few dozen
_RESERVED = ("published",)  # baselines/published holds references, not baselines
_UPDATE_REMEDY = 'Replace it with fresh runs: --accel-update --accel-reason "...".'


@dataclass(frozen=True, slots=True)
class BaselineStore:
    """The folder of baselines. Reading needs no lock: a file is always one writer's whole work."""

    root: Path
    lock_timeout_s: float = LOCK_TIMEOUT_S

    def path(self, platform: str, suite: str) -> Path:
        for kind, name in (("platform", platform), ("suite", suite)):
            _check_name(kind, name, self.root)
        return self.root / platform / f"{suite}.json"

    def read(self, platform: str, suite: str) -> BaselineFile | None:
        """The stored baselines, None when there are none, BaselineError when they cannot be used."""
        path = self.path(platform, suite)
        file = read_file(path)
        if file is None:
            return None
        for place, stored, asked in (("platform", file.platform, platform), ("suite", file.suite, suite)):
            if stored != asked:
                problem = (
                    f"{stored!r} in a file that stands where {asked!r} belongs: was it copied or renamed?"
                )
                raise BaselineError(str(path), place, problem)
        return file

    def append(
        self,
        platform: str,
        suite: str,
        node_id: str,
        entry: BaselineEntry,
        environments: Iterable[Environment],
    ) -> BaselineFile:
        """Add the runs and ledger lines of `entry`, which holds only what is new, to those stored."""
        path = self.path(platform, suite)

        def change(file: BaselineFile) -> BaselineFile:
            grown = _appended(path, file, node_id, entry)
            return _with_entry(path, file, node_id, grown, environments)

        return self._rewrite(platform, suite, change)

    def replace(
        self,
        platform: str,
        suite: str,
        node_id: str,
        entry: BaselineEntry,
        environments: Iterable[Environment],
    ) -> BaselineFile:
        """Put `entry` in the place of the stored runs; the ledger grows, so that history stays."""
        path = self.path(platform, suite)
        new = tuple(environments)

        def change(file: BaselineFile) -> BaselineFile:
            stored = file.benchmarks.get(node_id)
            past = stored.ledger if stored is not None else ()
            anchor = _kept_anchor(file, stored, entry, new) if stored is not None else ()
            renewed = dataclasses.replace(entry, ledger=past + entry.ledger, anchor=anchor)
            return _with_entry(path, file, node_id, renewed, new)

        return self._rewrite(platform, suite, change)

    def change(
        self, platform: str, suite: str, change: Callable[[BaselineFile], BaselineFile]
    ) -> BaselineFile:
        """Rewrite a file as a whole, under its lock; environments that no run names go."""

        def kept(file: BaselineFile) -> BaselineFile:
            return without_unused(change(file))

        return self._rewrite(platform, suite, kept)

    def _rewrite(
        self, platform: str, suite: str, change: Callable[[BaselineFile], BaselineFile]
    ) -> BaselineFile:
        path = self.path(platform, suite)
        empty = BaselineFile(platform=platform, suite=suite, environments={}, benchmarks={})
        changed = empty

        def content() -> bytes:
            nonlocal changed
            changed = change(self.read(platform, suite) or empty)
            return _checked(changed, path)

        rewrite_locked(path, content, self.lock_timeout_s)
        return changed


def rewrite_locked(path: Path, content: Callable[[], bytes], timeout_s: float) -> None:
    """Replace a file as a whole by what `content` makes of it while nobody else can write."""
    with _write_errors(path):
        # A link to shared storage stays a link: its target is what is locked and replaced.
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent, path, timeout_s):
            data = content()
            _sweep(target)
            replace_whole(target, data)


def read_file(path: Path) -> BaselineFile | None:
    """A file wherever it stands, None when there is none, BaselineError when it cannot be used."""
    text = read_text(path)
    return None if text is None else parse(text, str(path))


def read_text(path: Path) -> str | None:
    data = _read_bytes(path)
    return None if data is None else decode(data, str(path))


def _check_name(kind: str, name: str, root: Path) -> None:
    """A name becomes a path component; it must not lead anywhere else."""
    bad = (
        not name
        or name.startswith((".", "-"))
        or any(character in "/\\" or not character.isprintable() for character in name)
        or len(os.fsencode(name)) > _LONGEST_NAME_BYTES
        or (kind == "platform" and name in _RESERVED)
    )
    if bad:
        raise BaselineError(
            str(root),
            "",
            f"{name!r} cannot name a {kind}",
            f"A {kind} is a folder or file name: no slash, no leading dot or dash, "
            f"at most {_LONGEST_NAME_BYTES} bytes, and not {' or '.join(_RESERVED)}.",
        )


# --- what changes -----------------------------------------------------------------------------------


def _appended(path: Path, file: BaselineFile, node_id: str, entry: BaselineEntry) -> BaselineEntry:
    stored = file.benchmarks.get(node_id)
    if stored is None:
        _check_count(path, node_id, stored=0, new=len(entry.runs))
        return entry
    if stored.configuration_hash != entry.configuration_hash:
        problem = (
            f"stale: it was recorded with another configuration ({stored.configuration_hash}, "
            f"now {entry.configuration_hash}), and runs of two configurations do not mix"
        )
        raise BaselineError(str(path), _place(node_id), problem, _UPDATE_REMEDY)
    _check_count(path, node_id, stored=len(stored.runs), new=len(entry.runs))
    return dataclasses.replace(
        stored,
        tolerance=stored.tolerance if stored.tolerance is not None else entry.tolerance,
        runs=stored.runs + entry.runs,
        ledger=stored.ledger + entry.ledger,
    )


def _kept_anchor(
    file: BaselineFile, stored: BaselineEntry, entry: BaselineEntry, new: Iterable[Environment]
) -> tuple[Run, ...]:
    """The anchor beside new runs; none where it is of another configuration or machine, and could be compared with nothing."""
    known = {**file.environments, **{environment.key: environment for environment in new}}
    machines = [known[run.environment] for run in (*stored.anchor, *entry.runs) if run.environment in known]
    elsewhere = any(diff_identity(machines[0], each) for each in machines[1:])
    return () if elsewhere or stored.configuration_hash != entry.configuration_hash else stored.anchor


def _check_identity(path: Path, node_id: str, environments: list[Environment]) -> None:
    for environment in environments[1:]:
        if changes := diff_identity(environments[0], environment):
            problem = (
                f"recorded on another machine ({describe(changes)}), and runs of two machines do not mix"
            )
            raise BaselineError(str(path), _place(node_id), problem, _UPDATE_REMEDY)


def _place(node_id: str) -> str:
    return f"benchmarks[{json.dumps(node_id)}]"


def _check_count(path: Path, node_id: str, *, stored: int, new: int) -> None:
    if stored + new > MAX_RUNS:
        room = MAX_RUNS - stored
        problem = f"has {stored} runs and would get {new} more; a baseline has at most {MAX_RUNS}"
        remedy = f"Record at most {room} (--accel-record={room}), or start afresh. " if room else ""
        raise BaselineError(str(path), f"{_place(node_id)}.runs", problem, remedy + _UPDATE_REMEDY)


def _with_entry(
    path: Path, file: BaselineFile, node_id: str, entry: BaselineEntry, new: Iterable[Environment]
) -> BaselineFile:
    known = {**file.environments, **{environment.key: environment for environment in new}}
    _check_identity(path, node_id, [known[run.environment] for run in entry.runs if run.environment in known])
    benchmarks = {**file.benchmarks, node_id: entry}
    return without_unused(dataclasses.replace(file, environments=known, benchmarks=benchmarks))


def without_unused(file: BaselineFile) -> BaselineFile:
    """The file without environments that no run names."""
    used = {run.environment for each in file.benchmarks.values() for run in (*each.runs, *each.anchor)}
    environments = {key: environment for key, environment in file.environments.items() if key in used}
    return dataclasses.replace(file, environments=environments)


def _checked(file: BaselineFile, path: Path) -> bytes:
    """The text of a file that can be read back; a bad value must not reach the disk."""
    remedy = "Nothing was written. What was measured cannot be stored; this is not the file's fault."
    try:
        text = render(file)
        parse(text, str(path))
    except BaselineError as error:
        raise BaselineError(error.file, error.place, error.problem, remedy) from None
    except (ValueError, TypeError) as error:  # json: NaN or an object in a configuration
        raise BaselineError(str(path), "", str(error), remedy) from None
    data = text.encode("utf-8")
    if len(data) > MAX_BYTES:
        problem = f"would grow to {len(data)} bytes; at most {MAX_BYTES} can be read back"
        raise BaselineError(str(path), "", problem, "Nothing was written. Split the suite.")
    return data


# --- the disk ---------------------------------------------------------------------------------------


def _read_bytes(path: Path) -> bytes | None:
    try:
        # Before opening: a FIFO that stands here would wait for ever, a huge file fill the memory.
        facts = path.stat()
        if stat.S_ISREG(facts.st_mode) and facts.st_size <= MAX_BYTES:
            return path.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise BaselineError(str(path), "", f"links to {path.readlink()}, which does not exist") from None
        return None
    except OSError as error:
        raise _read_error(path, error) from None
    if not stat.S_ISREG(facts.st_mode):
        problem = "is a folder" if stat.S_ISDIR(facts.st_mode) else "is not a regular file"
        raise BaselineError(str(path), "", problem, "Move it away; a baseline is a JSON file.")
    problem = f"{facts.st_size} bytes; a baseline has at most {MAX_BYTES}"
    raise BaselineError(str(path), "", problem)


def _read_error(path: Path, error: OSError) -> BaselineError:
    remedy = {
        errno.EACCES: f"Make it readable for {_user()}.",
        errno.EPERM: f"Make it readable for {_user()}.",
        errno.ELOOP: "Replace the link, which leads back to itself, by the file.",
        errno.ENOTDIR: f"{path.parent} must be a folder.",
    }
    return BaselineError(str(path), "", f"cannot be read: {error.strerror}", remedy.get(error.errno or 0, ""))


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = {
            errno.ENOSPC: "Make room on the disk",
            errno.EDQUOT: "Make room in the quota",
            errno.ENOLCK: "Choose a folder of baselines on a file system with locks",
            errno.ENOSYS: "Choose a folder of baselines on a file system with locks",
            errno.EFBIG: "Raise the limit on file sizes (ulimit -f)",
            errno.EROFS: "Mount it for writing, or choose another folder of baselines",
            errno.EACCES: f"Make {path.parent} writable for {_user()}",
            errno.EPERM: f"Make {path.parent} writable for {_user()}",
            errno.ENOTDIR: f"{path.parent} must be a folder",
            errno.EEXIST: f"{path.parent} must be a folder",
        }.get(error.errno or 0, "Remove the cause")
        problem = f"cannot be written: {error.strerror or error}"
        kept = "what was stored before is intact"
        raise BaselineError(str(path), "", problem, f"{remedy}, and record again; {kept}.") from None


def _user() -> str:
    return f"user {os.geteuid()}"


def _sweep(target: Path) -> None:
    """Temporary files of writers that were killed: under the lock none of them has a living owner."""
    prefix = f".{target.name}."
    for entry in os.scandir(target.parent):
        if entry.name.startswith(prefix) and entry.name.endswith(".tmp"):
            with suppress(OSError):
                Path(entry.path).unlink()


# --- one writer at a time ---------------------------------------------------------------------------


@contextmanager
def _locked(folder: Path, path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the folder. The kernel lets go when a writer dies, so that nothing stale is left behind."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            _wait_for(fd, path, timeout_s)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EISDIR, errno.EINVAL, errno.EOPNOTSUPP):
                raise
            # NFS maps flock to record locks, which need a descriptor open for writing: a folder has
            # none. A lock file does; it stays, because removing it would race with the next writer.
            os.close(fd)
            fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _wait_for(fd, path, timeout_s)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # at once, even where a forked child shares the descriptor
        os.close(fd)


def _wait_for(fd: int, path: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                problem = f"{_holder(fd)} has been writing here for more than {timeout_s:g} s"
                remedy = "Wait for it or end it, and record again; nothing was written."
                raise BaselineError(str(path), "", problem, remedy) from None
            time.sleep(_LOCK_POLL_S)
        else:
            return


def _holder(fd: int) -> str:
    """Who holds the lock, where /proc tells (not from other machines or containers)."""
    inode = os.fstat(fd).st_ino
    with suppress(OSError, ValueError, IndexError):
        for line in LOCKS.read_text(encoding="utf-8").splitlines():
            fields = line.split()  # 1: FLOCK ADVISORY WRITE 4242 08:01:131 0 EOF
            if "->" not in fields and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                pid = int(fields[4])
                name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
                return f"another writer, process {pid} ({name}),"
    return "another writer"
