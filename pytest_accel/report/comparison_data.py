"""A comparison for programs: one line of CSV a figure, or all of it as JSON; nothing is rounded."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from pytest_accel.stats.quantities import inert, printable
from pytest_accel.stats.verdict import THROUGHPUT
from pytest_accel.storage.comparison import Cell, Comparison, Judged, Row, Side, ordered

SCHEMA_VERSION = 1
_FIELDS = (
    *("benchmark", "key", "table", "metric", "unit", "set", "platform", "published", "value", "low", "high"),
    *("ratio", "ratio_to", "flags", "differs", "verdict"),
)


def as_csv(comparison: Comparison, sort: str) -> str:
    """Tidy: a figure a line, and whether it was published beside it, so that every cell is a number or a name."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _FIELDS, lineterminator="\n")
    writer.writeheader()
    for row in ordered(comparison.rows, sort):
        for cell in _cells(row, comparison):
            plain = {name: _plain(value) for name, value in cell.items()}
            writer.writerow(
                {**plain, "flags": " ".join(cell["flags"]), "published": str(cell["published"]).lower()}
            )
    return "".join(map(_quoted, out.getvalue().splitlines(keepends=True)))


def _quoted(line: str) -> str:
    """A name that a runner would take for a command goes into quotation marks, which CSV allows to any."""
    name, comma, rest = line.partition(",")
    return f'"{name}"{comma}{rest}' if inert(line) != line else line


def _plain(value: object) -> object:
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) else value


def as_json(comparison: Comparison, sort: str) -> str:
    content = {
        "schema_version": SCHEMA_VERSION,
        "sets": [
            {"label": side.label, "set": side.group, "platform": side.platform, "published": side.published}
            | {"about": side.about, "only_here": comparison.alone[side.label]}
            for side in comparison.sides
        ],
        "figures": [cell for row in ordered(comparison.rows, sort) for cell in _cells(row, comparison)],
        "judged": [_judged(each) for each in comparison.judged],
    }
    return json.dumps(content, indent=2) + "\n"  # ASCII: nothing in it moves a cursor


def _cells(row: Row, comparison: Comparison) -> Iterator[dict[str, Any]]:
    for cell, side, held_to in zip(row.cells, comparison.sides, comparison.held_to, strict=True):
        if cell.value is not None:
            yield _cell(row, cell, side, held_to) | {"verdict": _verdict(row, side, comparison)}


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


def _verdict(row: Row, side: Side, comparison: Comparison) -> str | None:
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
                "runs": verdict.looks,
                "baseline_runs": verdict.baseline_runs,
            }
            for verdict in found.verdicts
        ],
        "changes": [{"name": c.name, "old": c.old, "new": c.new} for c in found.changes],
    }
