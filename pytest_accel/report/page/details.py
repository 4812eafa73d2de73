"""Details of one benchmark: what its row opens to, as data for the page's script."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_accel.report.page.rows import failed_metrics, from_to, metric, times, units_per_wh
from pytest_accel.report.remedies import next_commands
from pytest_accel.report.terminal import (
    both_texts,
    further_lines,
    host_bound,
    named_text,
    own_text,
    unsteady,
)
from pytest_accel.report.verdicts import VERDICTS, deciding, shortfalls, shown_status, shown_verdicts
from pytest_accel.stats.quantities import counted, gibibytes, percent, seconds, si
from pytest_accel.stats.results import Ending, ReferenceFigure, Result, Status

Pair = tuple[str, str]
LONGEST_TEXT = 4000  # characters of a traceback's end; pytest's own output has the whole
_NOTE = ("note", "warn", "bang")  # word, colour and sign


def details(result: Result, command: Sequence[str], *, has_past: bool = False) -> dict[str, object]:
    """Return everything but the plots of rounds and of history, without what is empty."""
    own = own_text(result)
    content = {
        "numbers": from_to(result),
        "lines": _lines(result),
        "note": shortened("\n".join(line for line in further_lines(result) if line != own).strip("\n")),
        "numerics": result.numerics,
        "changes": [(change.title, change.old, change.new) for change in result.changes],
        "same": bool(result.runs and result.baseline and not result.changes),
        "published": [_reference(figure) for figure in result.references if not figure.expected],
        "expected": [_reference(figure) for figure in result.references if figure.expected],
        "failed_metrics": failed_metrics(result),
        "metrics": _metrics(result),
        "configuration": [(name, _shown(value)) for name, value in sorted(result.configuration.items())],
        "facts": _facts(result),
        "commands": next_commands(result, command, has_past=has_past),
    }
    return {name: value for name, value in content.items() if value}


def _lines(result: Result) -> list[tuple[str, str, str, str]]:
    """Return word, colour, sign and text of all that was found, its own verdict first; no text twice."""
    own = own_text(result)
    found = {own: _signs(shown_status(result))}
    for text in shortfalls(result):
        found.setdefault(text, _signs(Ending.FAILED))
    decided = deciding(result)
    for verdict in shown_verdicts(result):
        is_own = verdict is decided and verdict.outcome is shown_status(result)
        if not is_own and own not in both_texts(verdict):
            found.setdefault(named_text(verdict), _signs(verdict.outcome))
    if not result.steady:
        found[unsteady(result.runs[-1].warmup_s if result.runs else None)] = _NOTE
    if result.runs and (pace := host_bound(result.verdicts, result.runs[-1], result.baseline)):
        found[pace] = _NOTE
    return [(*signs, unbroken(shortened(text))) for text, signs in found.items()]


def _signs(status: Status) -> tuple[str, str, str]:
    row = VERDICTS[status]
    return row.word, row.tone, row.icon


def _reference(figure: ReferenceFigure) -> dict[str, object]:
    return {
        "source": figure.source,
        "platform": figure.platform,
        "figure": f"{si(figure.value)} {figure.unit}",
        "metric": figure.metric.replace("_", " "),
        "ratio": "" if figure.ratio is None else times(figure.ratio),
        "doubts": "; ".join(filter(None, (figure.differs, ", ".join(figure.flags)))),
        "gate": ("missed" if figure.shortfall else "reached") if figure.gated else "",
    }


def _metrics(result: Result) -> list[Pair]:
    if not result.runs:
        return []
    run, per_wh, scaling = result.runs[-1], units_per_wh(result), result.scaling
    pairs = [
        ("step", seconds(result.step_time_s)),
        ("first step", None if run.first_step_s is None else seconds(run.first_step_s)),
        ("warm-up", None if run.warmup_s is None else seconds(run.warmup_s)),
        ("peak memory", None if run.peak_memory_bytes is None else gibibytes(run.peak_memory_bytes)),
        ("loss", None if run.loss is None else f"{run.loss:.6g}"),
        (f"{result.unit}/Wh", None if per_wh is None else si(per_wh)),
    ]
    if scaling is not None:
        text = f"{percent(scaling.efficiency)} of {scaling.against}, {times(scaling.speedup)}"
        pairs.append((f"scaling ({scaling.kind})", text))
    known = [(name, text) for name, text in pairs if text is not None]
    return [*known, *(metric(name, value) for name, value in sorted(run.metrics.items()))]


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
        return {True: "true", False: "false", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)


def shortened(text: str) -> str:
    """Return the end of a long text, which is where a traceback says what happened."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"… {len(text) - LONGEST_TEXT:,} characters left out …\n{text[-LONGEST_TEXT:]}"


def unbroken(text: str) -> str:
    """Keep a number and its per cent sign on one line."""
    return text.replace(" %", "\u00a0%")
