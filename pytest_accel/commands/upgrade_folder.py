"""The folder of one upgrade: what is compared, what each phase left, and which of them are complete.

A phase is complete when its session has written its results, which happens whole or not at all. So whatever ends an
upgrade (Ctrl-C, a job's time limit, a power cut), the same folder goes on where it stopped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from pytest_accel.stats.results import SessionResults
from pytest_accel.stats.upgrade import was_recorded
from pytest_accel.storage.reading import BaselineError, Node, decode, load
from pytest_accel.storage.results import ResultsError, read_results
from pytest_accel.storage.schema import rendered
from pytest_accel.storage.whole import seen_from, write_whole

PhaseName = Literal["old", "new", "old-again"]
_ORDER: tuple[PhaseName, ...] = ("old", "new", "old-again")
_PLAN = "plan.json"
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
FINISHED = (0, 1)  # of pytest: all passed, some failed. Others ended before they had come to an end


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is compared, in words that a later call must repeat."""

    old: str
    new: str
    runs: int
    arguments: tuple[str, ...]  # pytest's
    marks: Mapping[
        str, str
    ]  # of the words of both, in full: what looks like a credential is not written down
    # What was found in each, so that an image which was replaced under its name is not mixed with what was measured.
    found: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    what: ClassVar[str] = "upgrade"  # the command that it belongs to
    a_what: ClassVar[str] = "an upgrade"
    runs_option: ClassVar[str] = "runs"  # by which it is told how much to measure

    root: Path  # absolute: the phases are told of it

    @property
    def kind(self) -> str:
        """Of its plan."""
        return f"pytest-accel {self.what} plan"

    @property
    def shown(self) -> Path:
        return seen_from(Path.cwd(), self.root)

    @property
    def baselines(self) -> Path:
        return self.root / "baselines"

    @property
    def history(self) -> Path:
        return self.root / "history.sqlite"

    def results(self, phase: PhaseName) -> Path:
        return self.root / f"{phase}.json"

    def log(self, name: str) -> Path:
        return self.root / f"{name}.log"

    # --- what is complete -----------------------------------------------------------------------

    def complete(self, phase: PhaseName) -> SessionResults | None:
        """What a phase that came to its end has found out; None where it has not, or found nothing to go on with."""
        path = self.results(phase)
        if not path.exists():
            return None
        try:
            session = read_results(path)
        except ResultsError as error:
            remedy = f"Delete it to measure that phase again, or begin in another folder with --keep. {error.remedy}"
            raise ResultsError(error.file, error.place, error.problem, remedy) from None
        if session.exit_status not in FINISHED:
            return None
        return session if phase != "old" or any(map(was_recorded, session.results)) else None

    def set_aside(self) -> Path | None:
        """What an unfinished recording left makes room for the next; nothing that was measured is deleted."""
        if not self.baselines.exists():
            return None
        aside = self.root / f"unfinished-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        self.baselines.rename(aside)
        return aside

    # --- the plan -------------------------------------------------------------------------------

    def take(self, plan: Plan) -> Plan:
        """The plan with what an earlier call knew; ValueError where the folder is of another upgrade."""
        path = self.root / _PLAN
        if not path.exists():
            return plan
        earlier = _read(path, self.kind)
        bound = self.bound()
        for name, is_bound in bound.items():
            before, now = getattr(earlier, name), getattr(plan, name)
            same = before == now and earlier.marks.get(name) == plan.marks.get(name)
            if is_bound and not same:
                raise ValueError(
                    f"--keep {self.shown}: it holds {self.a_what} with {self._said(name, before)}, and this one has "
                    f"{self._said(name, now)}. Say the same, name a new folder, or delete the results of that phase there: "
                    "it is then measured anew."
                )
        found = {side: facts for side, facts in earlier.found.items() if bound.get(side)}
        return replace(plan, found=found)

    def bound(self) -> Mapping[str, bool]:
        """What results stand for, so that it may not change any more."""
        old, new = self.complete("old") is not None, self.complete("new") is not None
        return {"old": old, "new": new, "runs": old, "arguments": old}

    def _said(self, name: str, value: object) -> str:
        if name == "arguments" and isinstance(value, tuple):
            return f"-- {' '.join(map(str, value))}"
        return f"--{self.runs_option if name == 'runs' else name} {str(value)!r}"

    def write(self, plan: Plan) -> None:
        write_whole(
            self.root / _PLAN,
            rendered({"kind": self.kind, **asdict(plan), "arguments": list(plan.arguments)}, "") + "\n",
        )

    def forget(self, phase: PhaseName) -> None:
        """What a phase left that is measured anew, and what came after it: the old one is looked at again at the end."""
        for each in _ORDER[_ORDER.index(phase) :]:
            self.results(each).unlink(missing_ok=True)

    @contextmanager
    def held(self) -> Iterator[int]:
        """Keep others out; the descriptor is given to the phases, so that the folder is held while any of them lives."""
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
                if (
                    error.errno in _NO_LOCKS
                ):  # Lustre without -o flock, some NFS: nobody can be kept out there
                    yield fd
                    return
                raise ValueError(
                    f"--keep {self.shown}: another pytest-accel {self.what}, or a phase of one, is at work there. "
                    "Wait for it or end it, or name a new folder."
                ) from None
            yield fd
        finally:
            os.close(fd)


AFolder = TypeVar("AFolder", bound=Folder)


def prepared(named: str | None, directory: Path) -> Folder:
    """The folder that `--keep` names, else a new one; it is there then."""
    return prepared_as(Folder, named, directory)


def prepared_as(kind: type[AFolder], named: str | None, directory: Path) -> AFolder:
    """The same, of another command."""
    try:
        root = directory / (Path(named).expanduser() if named else _new_folder(kind.what))
    except RuntimeError:  # ~nobody
        raise ValueError(f"--keep {named}: there is no such home. Name a new folder.") from None
    try:
        if root.is_dir() and any(root.iterdir()) and not (root / _PLAN).exists():
            raise ValueError(
                f"--keep {root}: it is not empty, and no {kind.what} began there. Name a new folder."
            )
        root.mkdir(parents=True, exist_ok=True)
        if not named and not (ignored := root.parent / ".gitignore").exists():
            ignored.write_text("*\n", encoding="utf-8")  # git's business no more than `.accel` is
        probe = root / f".{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"{root} cannot be written to: {error.strerror}. Name a folder with --keep that can."
        ) from None
    return kind(root=root.resolve())


def _new_folder(what: str) -> Path:
    """Sortable by time, unique among those who begin at once."""
    return Path(f"accel-{what}") / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def _read(path: Path, kind: str) -> Plan:
    where = str(path)
    try:
        top = Node(load(decode(path.read_bytes(), where), where), where)
        if "kind" not in top or top["kind"].value != kind:
            top.fail(f"this is no {kind}")
        top.check_keys(required=("kind", "old", "new", "runs", "arguments", "marks", "found"))
        return Plan(
            old=top["old"].text(),
            new=top["new"].text(),
            runs=top["runs"].integer(least=1),
            arguments=tuple(each.text() for each in top["arguments"].items()),
            marks={side: mark.text() for side, mark in top["marks"].members()},
            found={
                side: {name: fact.text() for name, fact in facts.members()}
                for side, facts in top["found"].members()
            },
        )
    except OSError as error:
        raise ValueError(
            f"{where} cannot be read: {error.strerror}. Name a new folder with --keep."
        ) from None
    except BaselineError as error:
        remedy = "Name a new folder with --keep."
        raise BaselineError(error.file, error.place, error.problem, remedy) from None
