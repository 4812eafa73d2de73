"""Findings of the doctor: what was checked, how important it is, and its remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # less accurate, or not comparable
    PROBLEM = "problem"  # not trustworthy, or impossible


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    group: str  # devices, software, cpu, memory, load, network, disk
    subject: str  # such as power limit
    text: str
    level: Level = Level.OK
    remedy: str = ""
    of: str = ""  # the device, if there are several: GPU 0
    known: bool = True  # False: not reported here, so that nothing was checked


@dataclass(frozen=True, slots=True)
class Sheet:
    """Constructors of findings of one group; `of` is the device that they are about, `subject` what was checked."""

    group: str
    subject: str = ""
    of: str = ""

    def __call__(self, subject: str) -> Sheet:
        return replace(self, subject=subject)

    def ok(self, text: str) -> Finding:
        return Finding(group=self.group, of=self.of, subject=self.subject, text=text)

    def warning(self, text: str, remedy: str) -> Finding:
        return replace(self.ok(text), level=Level.WARNING, remedy=remedy)

    def problem(self, text: str, remedy: str) -> Finding:
        return replace(self.ok(text), level=Level.PROBLEM, remedy=remedy)

    def unknown(self, why: str) -> Finding:
        """Return a finding that is no warning, because there is nothing to do about it here."""
        return replace(self.ok(f"not reported: {why}"), known=False)


DEVICES = Sheet("devices")


def to_plain(findings: Iterable[Finding]) -> list[dict[str, str | bool]]:
    return [{**asdict(finding), "level": finding.level.value} for finding in findings]
