"""Findings of the doctor on the terminal, each with its remedy."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_accel.doctor.findings import Finding, Level
from pytest_accel.stats.quantities import counted, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 100
WARNED = "Measuring works; figures may be noisier, or of another kind"
_MARKS = {Level.OK: "ok", Level.WARNING: "WARNING", Level.PROBLEM: "PROBLEM"}
_UNKNOWN = "-"  # unknown: neither good nor bad
_MARGIN = 2
_MARK_WIDTH = 9  # PROBLEM and two blanks


def screen(findings: Sequence[Finding], *, width: int = WIDTH, warned: str = WARNED) -> list[str]:
    """Return lines by group, and the conclusion last."""
    lines: list[str] = []
    groups = dict.fromkeys(finding.group for finding in findings)
    shown = {group: _merged([each for each in findings if each.group == group]) for group in groups}
    column = max((len(printable(finding.subject)) for finding in findings), default=0) + 2
    for group, entries in shown.items():
        lines += [printable(group)]
        for finding, which in entries:
            lines += _lines(finding, which, column, width)
    return [*lines, "", *_wrapped(verdict(findings, warned=warned), "", "", width)]


def verdict(findings: Sequence[Finding], *, warned: str = WARNED) -> str:
    """Return one sentence on the machine; `warned` is what warnings alone mean."""
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    warnings = [finding for finding in findings if finding.level is Level.WARNING]
    if not problems and not warnings:
        return "Nothing stands in the way of a measurement."
    counts = [counted(len(problems), "problem")] if problems else []
    counts += [counted(len(warnings), "warning")] if warnings else []
    names = printable(
        ", ".join(
            dict.fromkeys(f"{finding.of} {finding.subject}".strip() for finding in problems or warnings)
        )
    )
    if problems:
        return f"{', '.join(counts)}. Do not measure before this is put right: {names}."
    return f"{', '.join(counts)}. {warned}: {names}."


def _merged(findings: Sequence[Finding]) -> list[tuple[Finding, str]]:
    """Merge findings that differ only in their device, and sort them by subject."""
    alike: dict[Finding, list[str]] = {}
    subjects = list(dict.fromkeys(finding.subject for finding in findings))
    for finding in sorted(findings, key=lambda each: subjects.index(each.subject)):
        alike.setdefault(replace(finding, of=_kind(finding.of)), []).append(finding.of)
    return [(finding, _which(finding.of, of)) for finding, of in alike.items()]


def _kind(of: str) -> str:
    """Return `GPU` of `GPU 3`; anything else as it is."""
    kind, _, number = of.rpartition(" ")
    return kind if kind and number.isdecimal() else of


def _which(kind: str, of: Sequence[str]) -> str:
    """Return `GPU 0-2,5` of four devices."""
    numbers = sorted(int(each.removeprefix(f"{kind} ")) for each in of if each != kind)
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return f"{kind} {','.join('-'.join(map(str, span)) for span in spans)}".strip() if spans else kind


def _lines(finding: Finding, which: str, column: int, width: int) -> list[str]:
    mark = _MARKS[finding.level] if finding.known or finding.level is not Level.OK else _UNKNOWN
    first = f"{' ' * _MARGIN}{mark:<{_MARK_WIDTH}}{printable(finding.subject):<{column}}"
    indent = " " * len(first)
    text = f"{which}: {finding.text}" if which else finding.text
    lines = _wrapped(printable(text), first, indent, width)
    if finding.remedy:
        lines += _wrapped(printable(finding.remedy), f"{indent}-> ", f"{indent}   ", width)
    return lines


def _wrapped(text: str, first: str, indent: str, width: int) -> list[str]:
    """Wrap a text, with room for at least a phrase; paths and commands stay whole, so that they can be copied."""
    room = max(width, len(indent) + 30)
    return textwrap.wrap(
        text,
        room,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
