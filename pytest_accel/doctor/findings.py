"""Findings of the doctor: level, text, remedy; and the call of a check with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Level(StrEnum):
    """Importance for a measurement."""

    OK = "ok"
    WARNING = "warning"  # less accurate, or not comparable
    PROBLEM = "problem"  # not trustworthy, or impossible


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One checked subject, and the remedy if it needs one."""

    group: str  # devices, software, cpu, memory, load, network, disk
    subject: str  # such as power limit
    text: str
    level: Level = Level.OK
    remedy: str = ""  # of every warning and problem, and of nothing else
    of: str = ""  # the device, if there are several: GPU 0
    known: bool = True  # False: not reported here, so that nothing was checked

    def __post_init__(self) -> None:
        if (self.level is Level.OK) != (not self.remedy):
            needs = "needs no" if self.level is Level.OK else "needs a"
            raise ValueError(f"the finding on {self.subject!r} is {self.level.value}: it {needs} remedy.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Constructors of findings of one group; `of` is the device that they are about."""

    group: str
    of: str = ""

    def ok(self, subject: str, text: str) -> Finding:
        return Finding(group=self.group, of=self.of, subject=subject, text=text)

    def warning(self, subject: str, text: str, remedy: str) -> Finding:
        level = Level.WARNING
        return Finding(group=self.group, of=self.of, subject=subject, text=text, level=level, remedy=remedy)

    def problem(self, subject: str, text: str, remedy: str) -> Finding:
        level = Level.PROBLEM
        return Finding(group=self.group, of=self.of, subject=subject, text=text, level=level, remedy=remedy)

    def unknown(self, subject: str, why: str) -> Finding:
        """Return a finding that is no warning, because there is nothing to do about it here."""
        text = f"not reported: {why}"
        return Finding(group=self.group, of=self.of, subject=subject, text=text, known=False)


def worst(findings: Iterable[Finding]) -> Level:
    levels = {finding.level for finding in findings}
    return next((level for level in (Level.PROBLEM, Level.WARNING) if level in levels), Level.OK)


def to_plain(findings: Iterable[Finding]) -> list[dict[str, str | bool]]:
    """Return findings as JSON values, every field included."""
    return [{**asdict(finding), "level": finding.level.value} for finding in findings]


@dataclass(slots=True)
class Pending(Generic[T]):
    """A call in a daemon thread: a lost GPU or a dead file server may block it forever."""

    started_s: float = field(default_factory=time.monotonic)
    results: list[T] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def wait(self, limit_s: float) -> T | None:
        """Return the result, or raise the call's error; None if it takes longer than that since its start."""
        self.done.wait(max(0.0, self.started_s + limit_s - time.monotonic()))
        if self.errors:
            raise self.errors[0]
        return self.results[0] if self.results else None


def begin(call: Callable[[], T]) -> Pending[T]:
    """Start a call; `wait` gives its result."""
    pending: Pending[T] = Pending()

    def run() -> None:
        try:
            pending.results.append(call())
        except Exception as error:  # noqa: BLE001 -- raised in `wait`
            pending.errors.append(error)
        finally:
            pending.done.set()

    threading.Thread(target=run, daemon=True).start()
    return pending
