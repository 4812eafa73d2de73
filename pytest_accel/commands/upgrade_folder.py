"""The folder of an upgrade: plan, results and logs of each process, complete blocks, lock.

A process is complete when its session has written its results, atomically. An interrupted block is measured again as a
whole, because its runs are compared as neighbours in time; its files move to `unfinished-TIME`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pytest_accel.stats.paired import ATTEMPTS, MAX_BLOCKS, RUNS_PER_BLOCK, FilledSlot, Slot, follow
from pytest_accel.stats.results import SessionResults
from pytest_accel.storage.codec import FormatError, decode, encode, loads, render
from pytest_accel.storage.files import relative_path, write_atomic
from pytest_accel.storage.results import ResultsError, read_results

_PLAN = "plan.json"
_PARENT = "accel-upgrade"
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
_FINISHED = (0, 1)  # pytest's exit statuses: all passed, some failed


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePlan:
    """What is compared; a later call in the same folder must say the same."""

    kind: Literal["pytest-accel upgrade plan"]
    old: str
    new: str
    blocks: int
    arguments: tuple[str, ...]  # pytest's
    # Of the full words: credentials are not written down, and two of them are two commands.
    fingerprints: Mapping[str, str]
    # What was found in each environment, so that an image replaced under its name is noticed.
    found: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeFolder:
    root: Path  # absolute

    @property
    def shown(self) -> Path:
        return relative_path(Path.cwd(), self.root)

    def name(self, slot: Slot) -> str:
        """Return the stem of its files, which sort in the order of measuring."""
        again = f"-again{slot.attempt - 1}" if slot.attempt > 1 else ""
        return f"{slot.block:02d}-{slot.place}-{slot.side}{again}"

    def results(self, slot: Slot) -> Path:
        return self.root / f"{self.name(slot)}.json"

    def log(self, slot: Slot) -> Path:
        return self.root / f"{self.name(slot)}.log"

    def write_excluded(self, slot: Slot, benchmarks: Collection[str]) -> Path:
        """Write the node ids that this process leaves out, for `commands.worker`."""
        path = self.root / f"{self.name(slot)}.excluded"
        write_atomic(path, json.dumps(sorted(benchmarks), indent=0) + "\n")
        return path

    # --- what is complete -----------------------------------------------------------------------

    def session(self, slot: Slot) -> SessionResults | None:
        """Return the results of a process that finished."""
        path = self.results(slot)
        if not path.exists():
            return None
        try:
            session = read_results(path)
        except ResultsError as error:
            remedy = f"Delete it to measure that block again, or begin in another folder with --keep. {error.remedy}"
            raise ResultsError(error.file, error.place, error.problem, remedy) from None
        return session if session.exit_status in _FINISHED else None

    def filled(self) -> list[FilledSlot]:
        """Return the processes of all complete blocks."""
        found: list[FilledSlot] = []
        while (block := self._block(len({each.slot.block for each in found}) + 1)) is not None:
            found += block
        return found

    def _block(self, block: int) -> list[FilledSlot] | None:
        found = []
        for slot in _slots(block):
            session = self.session(slot)
            if session is not None:
                found.append(FilledSlot(slot=slot, session=session))
            elif slot.attempt == 1:
                return None
        # Interrupted in a second attempt: its benchmark would never get a verdict.
        if any(progress.wants_replacement for progress in follow(found, MAX_BLOCKS).values()):
            return None
        return found

    def set_unfinished_aside(self, block: int) -> Path | None:
        """Move the files of a block that is measured again; nothing that was measured is deleted."""
        files = [
            each for slot in _slots(block) for each in (self.results(slot), self.log(slot)) if each.exists()
        ]
        if not files:
            return None
        aside = self.root / f"unfinished-{_now()}-{secrets.token_hex(2)}"
        aside.mkdir()
        for each in files:
            each.rename(aside / each.name)
        return aside

    # --- the plan -------------------------------------------------------------------------------

    def adopt(self, plan: UpgradePlan) -> UpgradePlan:
        """Return the plan with what an earlier call found; ValueError where the folder is of another upgrade."""
        path = self.root / _PLAN
        if not path.exists():
            return plan
        earlier = _read_plan(path)
        if self._block(1) is None:  # nothing was measured that another plan could be mixed with
            return plan
        for name in ("old", "new", "blocks", "arguments"):
            before, now = getattr(earlier, name), getattr(plan, name)
            if before != now or earlier.fingerprints.get(name) != plan.fingerprints.get(name):
                raise ValueError(
                    f"--keep {self.shown}: it holds an upgrade with {_shown(name, before)}, and this one has "
                    f"{_shown(name, now)}. Say the same, or name a new folder."
                )
        return replace(plan, found=earlier.found)

    def write(self, plan: UpgradePlan) -> None:
        write_atomic(self.root / _PLAN, render(encode(plan)) + "\n")

    @contextmanager
    def held(self) -> Iterator[int]:
        """Keep other upgrades out; subprocesses inherit the descriptor, so that it is held while any of them lives."""
        try:
            fd = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ValueError(
                f"--keep {self.shown}: its .lock cannot be opened: {error.strerror}. Name a new folder."
            ) from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS:  # Lustre without -o flock, some NFS: goes on unlocked
                    raise ValueError(
                        f"--keep {self.shown}: another pytest-accel upgrade, or a process of one, is at work there. "
                        "Wait for it or end it, or name a new folder."
                    ) from None
            yield fd
        finally:
            os.close(fd)


def open_folder(named: str | None, directory: Path) -> UpgradeFolder:
    """Return the folder that `--keep` names, else a new one; it is created and writable."""
    try:
        new = Path(_PARENT) / f"{_now()}-{secrets.token_hex(3)}"
        root = directory / (Path(named).expanduser() if named else new)
    except RuntimeError:  # ~unknown-user
        raise ValueError(f"--keep {named}: there is no such home. Name a new folder.") from None
    try:
        if root.is_dir() and any(root.iterdir()) and not (root / _PLAN).exists():
            raise ValueError(
                f"--keep {root}: it is not empty, and no upgrade began there. Name a new folder."
            )
        root.mkdir(parents=True, exist_ok=True)
        if not named and not (ignored := root.parent / ".gitignore").exists():
            ignored.write_text("*\n", encoding="utf-8")
        probe = root / f".{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"{root} cannot be written to: {error.strerror}. Name a folder with --keep that can."
        ) from None
    return UpgradeFolder(root=root.resolve())


def _slots(block: int) -> Iterator[Slot]:
    for place in range(1, RUNS_PER_BLOCK + 1):
        for attempt in range(1, ATTEMPTS + 1):
            yield Slot(block=block, place=place, attempt=attempt)


def _now() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _shown(name: str, value: object) -> str:
    match name:
        case "arguments" if isinstance(value, tuple):
            return f"-- {' '.join(map(str, value))}"
        case "blocks":
            return f"--blocks {value}"
        case _:
            return f"{name.upper()} {str(value)!r}"


def _read_plan(path: Path) -> UpgradePlan:
    try:
        return decode(UpgradePlan, loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, FormatError) as error:
        raise ValueError(f"{path}: {error}. Name a new folder with --keep.") from None
