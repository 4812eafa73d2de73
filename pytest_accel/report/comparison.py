"""A comparison as the studies print theirs: a workload a row, a platform a column; for the terminal, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_accel.report import comparison_data as data
from pytest_accel.report.escaping import prose
from pytest_accel.report.terminal import Cell as TableCell
from pytest_accel.report.terminal import Column, changed, lines_of, verdict_line
from pytest_accel.report.verdicts import word
from pytest_accel.stats.comparison import Value, was_slowed
from pytest_accel.stats.environment import describe
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.quantities import counted, inert, percent, printable, si
from pytest_accel.stats.verdict import THROUGHPUT, Outcome
from pytest_accel.storage.comparison import Cell, Comparison, Judged, Row, Side, ordered
from pytest_accel.storage.reference_values import DOUBTS

Sort = Literal["", "name", "ratio", "throughput"]
FORMATS = ("table", "markdown", "csv", "json", "latex")

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
    """One table: of one metric, or, of a study alone, one of its own tables."""

    title: str
    headings: tuple[str, ...]
    left: tuple[bool, ...]  # which columns are text
    rows: tuple[tuple[str, ...], ...]


def render(comparison: Comparison, form: str, sort: Sort = "") -> str:
    """The whole answer, ending in a line break."""
    by_name: dict[str, Callable[[Comparison, Sort], str]] = {
        "table": _table,
        "markdown": _markdown,
        "latex": _latex,
        "csv": data.as_csv,
        "json": data.as_json,
    }
    return by_name[form](comparison, sort)


# --- what is shown ----------------------------------------------------------------------------------


def sections(comparison: Comparison, sort: Sort = "") -> list[Section]:
    """The rows in their tables, each column that has something to say."""
    grouped: dict[str, list[Row]] = {}
    for row in comparison.rows:
        title = (
            row.table if comparison.is_of_one_study else TITLES.get(row.metric, row.metric.replace("_", " "))
        )
        grouped.setdefault(title, []).append(row)
    return [_section(title, ordered(rows, sort), comparison) for title, rows in grouped.items()]


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
    """A figure with its marks: a published one never looks like a measured one."""
    if cell.value is None:
        return ""
    marks = PUBLISHED if side.published else ""
    marks += DOUBTFUL if not DOUBTS.isdisjoint(cell.value.flags) else ""
    return number(cell.value, published=side.published) + marks + (UNLIKE if cell.differs else "")


def number(value: Value, *, published: bool) -> str:
    """A published figure with the digits of its study; a measured one with four."""
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
        return "MISSING" if found.missing else "not judged"
    deciding = next(verdict for verdict in found.verdicts if verdict.outcome is found.outcome)
    change = changed(deciding.slowdown.point, deciding.of) if deciding.slowdown else ""
    of = "" if deciding.of == THROUGHPUT else f"{shown_name(deciding.of)} "
    return f"{word(found.outcome)} {of}{change}".rstrip()


# --- what is said below -----------------------------------------------------------------------------


def notes(comparison: Comparison) -> list[str]:
    """What the marks mean, what is not alike, what stands on one side only; then the verdicts in words."""
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
            count = counted(len(slowed), "run")
            yield f"SLOWED  {printable(side.label)}: {count} delayed on purpose by --accel-slowdown"


def _set(side: Side) -> str:
    """What a column is of; a study is named once for all its platforms."""
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
    told = [f"{count} only in {printable(label)}" for label, count in comparison.alone.items() if count]
    if told:
        yield f"Rows that nothing stands beside: {', '.join(told)}."
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
    told: dict[str, str] = {}
    for row in comparison.rows:
        for cell, side in zip(row.cells, comparison.sides, strict=True):
            if cell.differs:
                told.setdefault(f"{printable(row.name)}, {printable(side.label)}", printable(cell.differs))
    yield from (f"{UNLIKE} {what}: {why}" for what, why in told.items())


def verdict_notes(comparison: Comparison) -> Iterator[str]:
    """Every verdict that is not ok, with what changed in the environment; then what could not be judged, and why."""
    for each in comparison.judged:
        found = each.judgement
        told = [v for v in found.verdicts if v.outcome is not Outcome.OK]
        for verdict in told:
            yield printable(verdict_line(f"{each.name} ({each.side.label})", verdict))
        if told and each.judgement.outcome is Outcome.REGRESSED:
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
        yield f"NOT JUDGED  {_few(names)}{where}: {printable(why)}"
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


# --- three ways to write it -------------------------------------------------------------------------


def _table(comparison: Comparison, sort: Sort) -> str:
    lines: list[str] = []
    for section in sections(comparison, sort):
        columns = [
            Column(title=title, right=not left)
            for title, left in zip(section.headings, section.left, strict=True)
        ]
        rows = [[TableCell(text=text) for text in row] for row in section.rows]
        lines += [section.title, *lines_of(columns, rows), ""]
    return "".join(f"{inert(line)}\n" for line in [*lines, *notes(comparison)])


def _markdown(comparison: Comparison, sort: Sort) -> str:
    lines: list[str] = []
    for section in sections(comparison, sort):
        lines += [f"### {prose(section.title)}", ""]
        lines += [_piped(map(prose, section.headings))]
        lines += [_piped("---" if left else "---:" for left in section.left)]
        lines += [_piped(map(prose, row)) for row in section.rows]
        lines.append("")
    lines += [f"- {prose(line)}" for line in notes(comparison)]
    return "\n".join(lines) + "\n"


def _piped(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _latex(comparison: Comparison, sort: Sort) -> str:
    """Tables that need no package."""
    parts = []
    for section in sections(comparison, sort):
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
