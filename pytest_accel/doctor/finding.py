"""What was found about a machine, as values: the screen, the JSON and the report's page show the same ones.

They live here, not in `health`, which finds them: `report` shows them and may not look into `health`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Level(StrEnum):
    """How much it matters to a measurement."""

    OK = "ok"
    WARNING = "warning"  # it may cost accuracy, or make figures of another kind
    PROBLEM = "problem"  # what is measured now cannot be trusted, or nothing can be measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at, and what to do about it."""

    group: str  # devices, software, cpu, memory, load, network, disk
    subject: str  # what was looked at: power limit
    text: str
    level: Level = Level.OK
    remedy: str = ""  # of every warning and every problem, and of nothing else
    of: str = ""  # which one, where there are several: GPU 0
    known: bool = True  # False: nobody tells here, so that nothing was checked

    def __post_init__(self) -> None:
        if (self.level is Level.OK) != (not self.remedy):
            needs = "needs no" if self.level is Level.OK else "needs a"
            raise ValueError(f"the finding on {self.subject!r} is {self.level.value}: it {needs} remedy.")


def worst(findings: Iterable[Finding]) -> Level:
    """The level of all of them together; ok for none."""
    levels = {finding.level for finding in findings}
    return next((level for level in (Level.PROBLEM, Level.WARNING) if level in levels), Level.OK)


def to_plain(findings: Iterable[Finding]) -> list[dict[str, str | bool]]:
    """For JSON."""
    return [{**asdict(finding), "level": finding.level.value} for finding in findings]


def from_plain(content: object) -> tuple[Finding, ...]:
    """What `to_plain` gave; a ValueError that names the place for anything else."""
    if not isinstance(content, list):
        # ValueErrors: it is the content of a file that is wrong, not a caller.
        raise ValueError(f"findings: {_shown(content)} is not a list.")  # noqa: TRY004 -- see above
    return tuple(_finding(entry, f"findings[{index}]") for index, entry in enumerate(content))


def _finding(entry: object, place: str) -> Finding:
    if not isinstance(entry, dict):
        raise ValueError(f"{place}: {_shown(entry)} is not an object.")  # noqa: TRY004 -- see above
    types = {field.name: bool if field.name == "known" else str for field in fields(Finding)}
    if unknown := sorted(str(key) for key in entry if key not in types):
        raise ValueError(f"{place}: {_shown(unknown[0])} is not known. Valid are {', '.join(types)}.")
    if missing := [name for name in ("group", "subject", "text", "level") if name not in entry]:
        raise ValueError(f"{place}: {missing[0]} is missing.")
    for name, value in entry.items():
        if not isinstance(value, types[name]):
            kind = types[name].__name__
            raise ValueError(f"{place}.{name}: {_shown(value)} is not of type {kind}.")  # noqa: TRY004 -- see above
    levels = [level.value for level in Level]
    if entry["level"] not in levels:
        raise ValueError(f"{place}.level: {_shown(entry['level'])} is not one of {', '.join(levels)}.")
    try:
        return Finding(**{**entry, "level": Level(entry["level"])})
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
