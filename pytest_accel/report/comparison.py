"""Comparisons: a workload a row, a platform a column; as table, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_accel.report.markdown import prose
from pytest_accel.report.terminal import Cell as TableCell
from pytest_accel.report.terminal import Column, changed, lines_of, note, verdict_line
from pytest_accel.report.verdicts import word
from pytest_accel.stats.comparison import Value, was_slowed
from pytest_accel.stats.environment import describe
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.quantities import counted, inert, percent, printable, si
from pytest_accel.stats.verdict import THROUGHPUT, Outcome
from pytest_accel.storage.comparison import Cell, Comparison, Judged, Row, Side
from pytest_accel.storage.references import DOUBTS

FORMATS = ("table", "markdown", "csv", "json", "latex")
SCHEMA_VERSION = 1

PUBLISHED, DOUBTFUL, UNLIKE = "†", "?", "*"
TITLES = {
    "work_per_energy": "work per energy",
    "peak_memory": "peak memory",
    "step_time": "time of a step",
    "first_step_time": "time of the first step",
    "scaling_efficiency": "scaling (throughput per device)",
    "mfu": "MFU (share of the dense peak)",
    "power_mean_w": "mean power",
    "power_peak_w": "peak power",
    "tdp_share": "share of TDP",
    "sm_clock_mhz": "SM clock",
    "memory_clock_mhz": "memory clock",
    "temperature_c": "peak temperature",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One table: of one metric, or one table of a study."""

    title: str
    headings: tuple[str, ...]
    left: tuple[bool, ...]  # which columns are text
    rows: tuple[tuple[str, ...], ...]


def render(comparison: Comparison, form: str) -> str:
    """Return the whole comparison as text."""
    by_name: dict[str, Callable[[Comparison], str]] = {
        "table": _table,
        "markdown": _markdown,
        "latex": _latex,
        "csv": _csv,
        "json": _json,
    }
    return by_name[form](comparison)


# --- tables ----------------------------------------------------------------------------------


def sections(comparison: Comparison) -> list[Section]:
    """Return the tables, without empty columns."""
    grouped: dict[str, list[Row]] = {}
    for row in comparison.rows:
        title = (
            row.table if comparison.is_of_one_study else TITLES.get(row.metric, row.metric.replace("_", " "))
        )
        grouped.setdefault(title, []).append(row)
    return [_section(title, rows, comparison) for title, rows in grouped.items()]


def _section(title: str, rows: Sequence[Row], comparison: Comparison) -> Section:
    name = "workload" if all(side.published for side in comparison.sides) else "benchmark"
    metrics = len({row.metric for row in rows}) > 1  # a table of a study may have several
    columns: list[tuple[str, bool, list[str]]] = [(name, True, [row.name for row in rows])]
    if metrics:
        columns.append(("metric", True, [row.metric.replace("_", " ") for row in rows]))
    columns.append(("unit", True, [row.unit for row in rows]))
    for index, side in enumerate(comparison.sides):
        cells = [row.cells[index] for row in rows]
        if not any(cell.value for cell in cells):
            continue
        columns.append((heading(side), False, [shown(cell, side) for cell in cells]))
        if any(cell.ratio is not None for cell in cells):
            columns.append(("x", False, [ratio(cell) for cell in cells]))
    if rows[0].metric == THROUGHPUT:
        columns += _verdicts(rows, comparison)
    return Section(
        title=printable(title),
        headings=tuple(printable(heading) for heading, _, _ in columns),
        left=tuple(left for _, left, _ in columns),
        rows=tuple(zip(*(map(printable, texts) for _, _, texts in columns), strict=True)),
    )


def _verdicts(rows: Sequence[Row], comparison: Comparison) -> Iterator[tuple[str, bool, list[str]]]:
    labels = dict.fromkeys(each.side.label for each in comparison.judged)
    for label in labels:
        words = {each.key: short_verdict(each) for each in comparison.judged if each.side.label == label}
        title = "verdict" if len(labels) == 1 else f"verdict {label}"
        yield title, True, [words.get(row.key, "") for row in rows]


def heading(side: Side) -> str:
    return side.label + (f" {PUBLISHED}" if side.published else "")


def shown(cell: Cell, side: Side) -> str:
    """Return a figure with its marks: a published one never looks like a measured one."""
    if cell.value is None:
        return ""
    marks = PUBLISHED if side.published else ""
    marks += DOUBTFUL if not DOUBTS.isdisjoint(cell.value.flags) else ""
    return number(cell.value, published=side.published) + marks + (UNLIKE if cell.differs else "")


def number(value: Value, *, published: bool) -> str:
    """Return a published figure with the digits of its study; a measured one with four."""
    if published:
        return f"{value.value:,.12g}"
    return f"{value.value:.1f}" if value.unit == "%" else si(value.value)


def ratio(cell: Cell) -> str:
    return "" if cell.ratio is None else f"{cell.ratio:.2f}"


def short_verdict(each: Judged) -> str:
    found = each.judgement
    if found.unchanged:
        return "same runs"
    if found.outcome is None:
        return "missing" if found.missing else "not judged"
    deciding = next(verdict for verdict in found.verdicts if verdict.outcome is found.outcome)
    change = changed(deciding.slowdown.point, deciding.of) if deciding.slowdown else ""
    of = "" if deciding.of == THROUGHPUT else f"{shown_name(deciding.of)} "
    return f"{word(found.outcome)} {of}{change}".rstrip()


# --- notes below -----------------------------------------------------------------------------


def notes(comparison: Comparison) -> list[str]:
    """Return what the marks mean, what differs, what one side lacks; then the verdicts in words."""
    return [
        *_sets(comparison),
        *_legend(comparison),
        *_alone(comparison),
        *_unlike(comparison),
        *verdict_notes(comparison),
    ]


def _sets(comparison: Comparison) -> Iterator[str]:
    yield from map(printable, dict.fromkeys(map(_set, comparison.sides)))
    for side in comparison.sides:
        slowed = [run for entry in side.entries.values() for run in entry.runs if was_slowed(run)]
        if slowed:
            text = f"{counted(len(slowed), 'run')} delayed on purpose by --accel-slowdown"
            yield note(printable(side.label), text)


def _set(side: Side) -> str:
    """Return the source of a column; a study is named once for all its platforms."""
    if side.published:
        return f"{side.group}: {side.about}"
    platform = "" if side.platform in side.label else f" ({side.platform})"
    return f"{side.label}{platform}: {side.about}"


def _legend(comparison: Comparison) -> Iterator[str]:
    cells = [cell for row in comparison.rows for cell in row.cells]
    if any(cell.ratio is not None for cell in cells):
        held = dict.fromkeys(printable(side.label) for side in comparison.held_to if side is not None)
        yield f"x is against {', '.join(held)}; above 1 is better."
    if any(side.published for side in comparison.sides):
        yield f"{PUBLISHED} published, and not measured by pytest-accel."
    doubts = {flag for cell in cells if cell.value for flag in cell.value.flags if flag in DOUBTS}
    if doubts:
        yield f"{DOUBTFUL} in doubt: {', '.join(sorted(doubts))} (docs/references.md)."
    if any(row.metric == "scaling_efficiency" for row in comparison.rows):
        yield "Scaling is throughput per device against the smallest platform that was recorded."


def _alone(comparison: Comparison) -> Iterator[str]:
    if len(comparison.sides) < 2 or comparison.is_of_one_study:
        return
    alone = [f"{count} only in {printable(label)}" for label, count in comparison.alone.items() if count]
    if alone:
        yield f"Rows without a counterpart: {', '.join(alone)}."
    measured = any(not side.published for side in comparison.sides)
    published = any(side.published for side in comparison.sides)
    side_by_side = any(
        {comparison.sides[i].published for i, cell in enumerate(row.cells) if cell.value} == {True, False}
        for row in comparison.rows
    )
    if measured and published and not side_by_side:
        yield (
            "No benchmark here names a figure of that study in that unit: a file of --accel-json knows the "
            "references of its benchmarks (docs/references.md), a baseline does not."
        )


def _unlike(comparison: Comparison) -> Iterator[str]:
    found: dict[str, str] = {}
    for row in comparison.rows:
        for cell, side in zip(row.cells, comparison.sides, strict=True):
            if cell.differs:
                found.setdefault(f"{printable(row.name)}, {printable(side.label)}", printable(cell.differs))
    yield from (f"{UNLIKE} {what}: {why}" for what, why in found.items())


def verdict_notes(comparison: Comparison) -> Iterator[str]:
    """Yield every verdict that is not ok, with what changed; then what could not be judged, and why."""
    for each in comparison.judged:
        found = each.judgement
        shown_below = [verdict for verdict in found.verdicts if verdict.outcome is not Outcome.OK]
        for verdict in shown_below:
            yield printable(verdict_line(f"{each.name} ({each.side.label})", verdict))
        if shown_below and found.outcome is Outcome.REGRESSED:
            changes = printable(describe(found.changes))
            yield (
                f"    changed since {printable(each.baseline.label)}: {changes}"
                if changes
                else ("    nothing in the recorded environment changed")
            )
    reasons: dict[tuple[str, str], list[str]] = {}
    several = len({each.side.label for each in comparison.judged}) > 1
    for each in comparison.unjudged:
        where = f" ({printable(each.side.label)})" if several else ""
        reasons.setdefault((where, each.judgement.why_not), []).append(printable(each.name))
    for (where, why), names in reasons.items():
        yield note(f"{_few(names)}{where}", f"not judged: {printable(why)}")
    judged = [each for each in comparison.judged if each.judgement.outcome is not None]
    if judged:
        common = dict.fromkeys(printable(describe(each.judgement.changes)) for each in judged)
        yield f"Judged {counted(len(judged), 'benchmark')} by the gate, {_tolerances(judged)}."
        if len(common) == 1 and (change := next(iter(common))):
            yield f"Changed in the environment: {change}"


def _tolerances(judged: Iterable[Judged]) -> str:
    found = dict.fromkeys(percent(each.judgement.verdicts[0].tolerance) for each in judged)
    return f"tolerance {', '.join(found)}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


# --- formats -------------------------------------------------------------------------


def _table(comparison: Comparison) -> str:
    lines: list[str] = []
    for section in sections(comparison):
        columns = [
            Column(title=title, right=not left)
            for title, left in zip(section.headings, section.left, strict=True)
        ]
        rows = [[TableCell(text=text) for text in row] for row in section.rows]
        lines += [section.title, *lines_of(columns, rows), ""]
    return "".join(f"{inert(line)}\n" for line in [*lines, *notes(comparison)])


def _markdown(comparison: Comparison) -> str:
    lines: list[str] = []
    for section in sections(comparison):
        lines += [f"### {prose(section.title)}", ""]
        lines += [_piped(map(prose, section.headings))]
        lines += [_piped("---" if left else "---:" for left in section.left)]
        lines += [_piped(map(prose, row)) for row in section.rows]
        lines.append("")
    lines += [f"- {prose(line)}" for line in notes(comparison)]
    return "\n".join(lines) + "\n"


def _piped(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _latex(comparison: Comparison) -> str:
    """Return tables that need no package."""
    parts = []
    for section in sections(comparison):
        lines = [f"% {section.title}", r"\begin{tabular}{" + _alignment(section) + "}", r"\hline"]
        lines += [_latex_row(section.headings), r"\hline"]
        lines += [_latex_row(row) for row in section.rows]
        lines += [r"\hline", r"\end{tabular}", ""]
        parts.append("\n".join(lines))
    legend = [inert(_escaped_latex(line.strip()), mark="{}") + r" \\" for line in notes(comparison)]
    below = [r"\begin{flushleft}\footnotesize", *legend, r"\end{flushleft}", ""]
    return "\n".join([*parts, *below])


def _alignment(section: Section) -> str:
    return "".join("l" if left else "r" for left in section.left)


def _latex_row(texts: Iterable[str]) -> str:
    return inert(" & ".join(map(_escaped_latex, texts)), mark="{}") + r" \\"


_LATEX = str.maketrans(
    {
        **{c: f"\\{c}" for c in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        PUBLISHED: r"$^{\dagger}$",
    }
)


def _escaped_latex(text: str) -> str:
    return printable(text).translate(_LATEX)


_FIELDS = (
    *("benchmark", "key", "table", "metric", "unit", "set", "platform", "published", "value", "low", "high"),
    *("ratio", "ratio_to", "flags", "differs", "verdict"),
)


def _csv(comparison: Comparison) -> str:
    """Return a figure a line, unrounded, with whether it was published."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _FIELDS, lineterminator="\n")
    writer.writeheader()
    for row in comparison.rows:
        for cell in _cells(row, comparison):
            plain = {name: _plain(value) for name, value in cell.items()}
            writer.writerow(
                {**plain, "flags": " ".join(cell["flags"]), "published": str(cell["published"]).lower()}
            )
    return "".join(map(_quoted, out.getvalue().splitlines(keepends=True)))


def _quoted(line: str) -> str:
    """Quote a name that a runner would take for a command."""
    name, comma, rest = line.partition(",")
    return f'"{name}"{comma}{rest}' if inert(line) != line else line


def _plain(value: object) -> object:
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) else value


def _json(comparison: Comparison) -> str:
    content = {
        "schema_version": SCHEMA_VERSION,
        "sets": [
            {"label": side.label, "set": side.group, "platform": side.platform, "published": side.published}
            | {"about": side.about, "only_here": comparison.alone[side.label]}
            for side in comparison.sides
        ],
        "figures": [cell for row in comparison.rows for cell in _cells(row, comparison)],
        "judged": [_judged(each) for each in comparison.judged],
    }
    return json.dumps(content, indent=2) + "\n"


def _cells(row: Row, comparison: Comparison) -> Iterator[dict[str, Any]]:
    for cell, side, held_to in zip(row.cells, comparison.sides, comparison.held_to, strict=True):
        if cell.value is not None:
            yield _cell(row, cell, side, held_to) | {"verdict": _verdict_value(row, side, comparison)}


def _cell(row: Row, cell: Cell, side: Side, held_to: Side | None) -> dict[str, Any]:
    assert cell.value is not None
    return {
        "benchmark": row.name,
        "key": row.key,
        "table": row.table or None,
        "metric": row.metric,
        "unit": row.unit,
        "set": side.label,
        "platform": side.platform,
        "published": side.published,
        "value": cell.value.value,
        "low": cell.value.low,
        "high": cell.value.high,
        "ratio": cell.ratio,
        "ratio_to": held_to.label if held_to and cell.ratio is not None else None,
        "flags": list(cell.value.flags),
        "differs": cell.differs or None,
    }


def _verdict_value(row: Row, side: Side, comparison: Comparison) -> str | None:
    if row.metric != THROUGHPUT:
        return None
    found = (each for each in comparison.judged if each.key == row.key and each.side is side)
    return next((_outcome(each) for each in found), None)


def _outcome(each: Judged) -> str:
    found = each.judgement
    if found.outcome is not None:
        return found.outcome.value
    return "same-runs" if found.unchanged else "missing" if found.missing else "not-judged"


def _judged(each: Judged) -> dict[str, Any]:
    found = each.judgement
    return {
        "benchmark": each.name,
        "key": each.key,
        "set": each.side.label,
        "baseline": each.baseline.label,
        "outcome": _outcome(each),
        "why_not": found.why_not or None,
        "verdicts": [
            {
                "of": verdict.of,
                "outcome": verdict.outcome.value,
                "tolerance": verdict.tolerance,
                "loss": verdict.slowdown.point if verdict.slowdown else None,
                "loss_low": verdict.slowdown.low if verdict.slowdown else None,
                "loss_high": verdict.slowdown.high if verdict.slowdown else None,
                "noise": verdict.noise,
                "resolution": verdict.resolution,
                "runs": verdict.runs,
                "baseline_runs": verdict.baseline_runs,
            }
            for verdict in found.verdicts
        ],
        "changes": [{"name": c.name, "old": c.old, "new": c.new} for c in found.changes],
    }
