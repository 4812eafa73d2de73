"""The table of the page: a row a benchmark, each cell as text and as a value to sort by, and the details of each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from pytest_accel.report import verdicts
from pytest_accel.report.columns import COLUMNS as RESULT_COLUMNS
from pytest_accel.report.comparison import KERNEL_HEADINGS, kernel_rows, waterfall
from pytest_accel.report.terminal import change
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.stats.gate import THROUGHPUT, Verdict
from pytest_accel.stats.quantities import ASSUMED, counted, noise_percent, percent, seconds, si
from pytest_accel.stats.results import Ending, ReferenceFigure, ReportLine, Result, status_of
from pytest_accel.stats.run import known_values

SortKey: TypeAlias = str | float | None
# Text, sort key (None is last either way), and in some a small text below.
PageCell: TypeAlias = tuple[str, SortKey] | tuple[str, SortKey, str]
NOTHING: PageCell = ("", None)
Pair: TypeAlias = tuple[str, str]
_WIDTH_IN_TOLERANCES = 3.0  # of the picture of a change, to either side
_IN_THE_ROW = frozenset({"data", "platform", "throughput", "unit"})  # not repeated among the metrics


@dataclass(frozen=True, slots=True)
class PageColumn:
    key: str
    title: str
    cell: Callable[[Result], PageCell]
    help: str = ""
    right: bool = False  # figures
    lesser: int = 0  # narrow screens drop the greater first; the details have them all


def table(results: Sequence[Result]) -> dict[str, object]:
    """Return columns and rows in the order of attention, without columns that are empty."""
    position = {id(result): index for index, result in enumerate(results)}
    cells = {column.key: [column.cell(result) for result in results] for column in COLUMNS}
    shown = [column for column in COLUMNS if any(cell[0] for cell in cells[column.key])]
    names = [name for name in PageColumn.__slots__ if name != "cell"]
    return {
        "columns": [{name: getattr(column, name) for name in names} for column in shown],
        "rows": [
            _row(index, result, [cells[column.key][index] for column in shown])
            for result in verdicts.in_order(results)
            for index in (position[id(result)],)
        ],
        "statuses": [
            {"status": status.value, "word": row.word, "tone": row.tone, "icon": row.icon}
            for status, row in VERDICTS.items()
            if any(verdicts.shown_status(result) is status for result in results)
        ],
    }


def _row(index: int, result: Result, cells: list[PageCell]) -> dict[str, object]:
    decided = _decided(result)
    return {
        "id": index,
        "status": verdicts.shown_status(result).value,
        "failed": result.failed,
        "name": result.name,
        "file": result.file or result.benchmark.partition("::")[0],
        "platform": result.platform,
        "suite": result.suite,
        "picture": picture(decided),
        "tone": VERDICTS[status_of(decided)].tone if decided else "",  # of the picture, not of the row
        "unsteady": not result.steady,
        "cells": cells,
    }


def _decided(result: Result) -> Verdict | None:
    return next(iter(verdicts.deciding(result)), None)


def picture(verdict: Verdict | None) -> list[float] | None:
    """Return a change as places from 0 (worse) to 1 (better): low, point, high, both ends of the tolerance."""
    if verdict is None or verdict.slowdown is None or verdict.tolerance <= 0:
        return None
    found, reach = verdict.slowdown, _WIDTH_IN_TOLERANCES * verdict.tolerance
    losses = (found.high, found.point, found.low, verdict.tolerance, -verdict.tolerance)
    return [round(min(1.0, max(0.0, 0.5 - 0.5 * loss / reach)), 3) for loss in losses]


# --- columns ----------------------------------------------------------------------------------------


def _figure(value: float | None, text: Callable[[float], str]) -> PageCell:
    return NOTHING if value is None else (text(value), value)


def _verdict(result: Result) -> PageCell:
    place = verdicts.rank(verdicts.shown_status(result))
    return verdicts.status_word(result), float(place - (100 if result.failed else 0))


def _change(result: Result) -> PageCell:
    verdict = _decided(result)
    if verdict is None or verdict.slowdown is None:
        return NOTHING
    below = "" if verdict.of == THROUGHPUT else _metric_from_to(result, verdict.of)
    return change(result), verdict.slowdown.point, below


def _reference(result: Result) -> PageCell:
    """Return the reference that was missed, else what the site expects, else the first that can be compared."""
    comparable = [(each, each.ratio) for each in result.references if each.ratio is not None]
    if not comparable:
        return NOTHING
    found, ratio = min(comparable, key=lambda each: (not each[0].shortfall, not each[0].expected))
    return f"{ratio:.2f} x {found.platform}", ratio, found.differs


_CHANGE = "What decided, with its bounds: the shaded middle is the tolerance, left of it is worse"
_REFERENCE = "This machine over what its site expects, or over a published figure and whose that was; above 1 is better"
COLUMNS = (
    PageColumn("verdict", "Verdict", _verdict),
    PageColumn("benchmark", "Benchmark", lambda result: (result.name, result.benchmark)),
    PageColumn("platform", "Platform", lambda result: (result.platform, result.platform)),
    PageColumn("suite", "Suite", lambda result: (result.suite, result.suite), lesser=2),
    PageColumn(
        *("throughput", "Throughput"),
        lambda result: _figure(result.throughput, lambda rate: f"{si(rate)} {result.unit}/s"),
        right=True,
    ),
    PageColumn(
        *("noise", "±"),
        lambda result: _figure(
            result.plus_minus if result.runs else None, lambda noise: noise_percent(noise, len(result.runs))
        ),
        f"95 % interval of run-to-run noise; {ASSUMED} of a single run, which shows none: it is assumed",
        right=True,
        lesser=1,
    ),
    PageColumn(
        *("baseline", "Baseline"),
        lambda result: _figure(result.baseline_throughput if result.runs else None, si),
        "Throughput of its stored runs",
        right=True,
    ),
    PageColumn("change", "Against baseline", _change, _CHANGE),
    PageColumn(
        *("mfu", "MFU", lambda result: _figure(result.metrics.get("mfu"), percent)),
        "Model FLOP/s over the device's dense peak",
        right=True,
        lesser=2,
    ),
    PageColumn("reference", "Reference", _reference, _REFERENCE, lesser=1),
)


# --- details -----------------------------------------------------------------------------------------


def from_to(result: Result) -> str:
    """Return the figures that its verdict compared, `21,305 → 6,822 products/s`; empty where nothing was."""
    verdict = _decided(result)
    if verdicts.shown_status(result) is Ending.FAILED:
        return ""  # its sentence has the figures that it failed on
    if verdict is not None and verdict.of != THROUGHPUT:
        found = _metric_from_to(result, verdict.of)
        return f"{verdict.of} {found}" if found else ""
    now, then = result.throughput, result.baseline_throughput
    return "" if now is None or then is None else f"{si(then)} → {si(now)} {result.unit}/s"


def _metric_from_to(result: Result, name: str) -> str:
    then, now = known_values(result.baseline, name), known_values(result.runs, name)
    return f"{median(then):.4g} → {median(now):.4g}" if then and now else ""


def details(
    result: Result, command: Sequence[str], session: Sequence[Result] = (), *, has_past: bool = False
) -> dict[str, object]:
    """Return everything but the plots of rounds and of history, without what is empty."""
    moved = result.kernels if result.has_lost else None
    content = {
        "numbers": from_to(result),
        "lines": list(map(_line, result.lines))
        or [_line(ReportLine(text="", status=verdicts.shown_status(result)))],
        "note": "\n".join(result.traceback).strip("\n"),
        "causes": [
            (heading, "; ".join(filter(None, (text, remedy)))) for heading, text, remedy in result.cause_lines
        ],
        "changes": [(change.title, change.old, change.new) for change in result.changes],
        "same": bool(result.runs and result.baseline and not result.changes),
        "references": list(map(_reference_details, result.references)),
        "kernels": moved
        and {"bars": waterfall(moved), "headings": KERNEL_HEADINGS, "rows": kernel_rows(moved)},
        "metrics": _metrics(result),
        "configuration": [(name, _shown(value)) for name, value in sorted(result.configuration.items())],
        "facts": _facts(result),
        "commands": verdicts.next_commands(result, command, session, has_past=has_past),
    }
    return {name: value for name, value in content.items() if value}


def _line(line: ReportLine) -> tuple[str, str, str, str, str]:
    if line.status is None:
        return "note", "warn", "bang", line.named, ""
    row = VERDICTS[line.status]
    return row.word, row.tone, row.icon, line.named, line.status.value


def _reference_details(figure: ReferenceFigure) -> dict[str, object]:
    return {
        "source": figure.source,
        "platform": figure.platform,
        "figure": f"{si(figure.value)} {figure.unit}",
        "metric": figure.metric.replace("_", " "),
        "ratio": "" if figure.ratio is None else f"{figure.ratio:.2f} x",
        "doubts": "; ".join(filter(None, (figure.differs, ", ".join(figure.flags)))),
        "gate": ("missed" if figure.shortfall else "reached") if figure.gated else "",
    }


def _metrics(result: Result) -> list[Pair]:
    """Return the columns of the terminal's table, and the metrics that have none."""
    if not result.runs:
        return []
    columns = [(column, column.cell(result)) for column in RESULT_COLUMNS if column.title not in _IN_THE_ROW]
    shown = {name for column, text in columns if text for name in column.metrics}
    loss = result.runs[-1].loss
    return [
        *((column.title, text) for column, text in columns if text),
        *([("loss", f"{loss:.6g}")] if loss is not None else []),
        *((name, f"{value:.6g}") for name, value in sorted(result.metrics.items()) if name not in shown),
    ]


def _facts(result: Result) -> list[Pair]:
    place = f"{result.file}:{result.line}" if result.file and result.line else result.file
    runs = f"{counted(len(result.runs), 'run')}, baseline {len(result.baseline)}"
    facts = [
        ("where", place),
        ("node id", result.benchmark),
        ("stored as", result.key if result.key and result.key != result.benchmark else ""),
        ("baseline folder", result.disk_name if result.disk_name != result.platform else ""),
        ("work a step", f"{si(result.work_per_step)} {result.unit}" if result.work_per_step else ""),
        ("runs", runs if result.runs else ""),
        ("tolerance", percent(result.tolerance) if result.tolerance else ""),
        ("took", seconds(result.duration_s) if result.duration_s > 0 else ""),
        ("environment", result.environment),
    ]
    return [(name, text) for name, text in facts if text]


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)
