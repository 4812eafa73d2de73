"""The doctor's screen: what was found in words, with what to do under each line that needs it."""

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
_UNKNOWN = "-"  # nobody tells: neither good nor bad
_MARGIN = 2
_MARK_WIDTH = 9  # PROBLEM and two blanks


def screen(findings: Sequence[Finding], *, width: int = WIDTH, warned: str = WARNED) -> list[str]:
    """Lines by group, the verdict on the whole last: that is where the eye is when a command has ended."""
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
    """One sentence on the whole machine; `warned` is what warnings alone mean for it."""
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    warnings = [finding for finding in findings if finding.level is Level.WARNING]
    if not problems and not warnings:
        return "Nothing stands in the way of a measurement."
    told = [counted(len(problems), "problem")] if problems else []
    told += [counted(len(warnings), "warning")] if warnings else []
    names = printable(
        ", ".join(
            dict.fromkeys(f"{finding.of} {finding.subject}".strip() for finding in problems or warnings)
        )
    )
    if problems:
        return f"{', '.join(told)}. Do not measure before this is put right: {names}."
    return f"{', '.join(told)}. {warned}: {names}."


def _merged(findings: Sequence[Finding]) -> list[tuple[Finding, str]]:
    """Findings that differ only in their device, with all of their devices: eight GPUs still fit on a screen.

    Those of one subject stand together, so that the one GPU that differs is seen beside the others.
    """
    alike: dict[Finding, list[str]] = {}
    subjects = list(dict.fromkeys(finding.subject for finding in findings))
    for finding in sorted(findings, key=lambda each: subjects.index(each.subject)):
        alike.setdefault(replace(finding, of=_kind(finding.of)), []).append(finding.of)
    return [(finding, _which(finding.of, of)) for finding, of in alike.items()]


def _kind(of: str) -> str:
    """`GPU` of `GPU 3`; anything else is its own kind."""
    kind, _, number = of.rpartition(" ")
    return kind if kind and number.isdecimal() else of


def _which(kind: str, of: Sequence[str]) -> str:
    """`GPU 0-2,5` of four."""
    numbers = sorted(int(each.removeprefix(f"{kind} ")) for each in of if each != kind)
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return f"{kind} {','.join('-'.join(map(str, span)) for span in spans)}".strip() if spans else kind


def _lines(finding: Finding, which: str, column: int, width: int) -> list[str]:
    # A sensor that speaks nonsense is a warning; one that keeps silent is neither good nor bad.
    mark = _MARKS[finding.level] if finding.known or finding.level is not Level.OK else _UNKNOWN
    first = f"{' ' * _MARGIN}{mark:<{_MARK_WIDTH}}{printable(finding.subject):<{column}}"
    indent = " " * len(first)
    text = f"{which}: {finding.text}" if which else finding.text
    lines = _wrapped(printable(text), first, indent, width)
    if finding.remedy:
        lines += _wrapped(printable(finding.remedy), f"{indent}-> ", f"{indent}   ", width)
    return lines


def _wrapped(text: str, first: str, indent: str, width: int) -> list[str]:
    """Never narrower than a phrase: a terminal that is too small wraps by itself."""
    room = max(width, len(indent) + 30)
    # A path or a command stays whole, so that it can be copied.
    return textwrap.wrap(
        text,
        room,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
