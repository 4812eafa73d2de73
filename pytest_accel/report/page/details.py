"""What a row opens to: the verdict in words, suspects, references, figures, and commands to copy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from pytest_accel.report.page.markup import unbroken
from pytest_accel.report.page.metrics import failed_metrics, from_to, metric
from pytest_accel.report.page.rows import times, units_per_wh
from pytest_accel.report.repeating import naming
from pytest_accel.report.terminal import explain, host_bound, unsteady
from pytest_accel.report.verdicts import (
    VERDICTS,
    can_rerun,
    deciding,
    misses_reference,
    shortfalls,
    shown_status,
    shown_verdicts,
)
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.quantities import counted, gibibytes, percent, seconds, si
from pytest_accel.stats.results import Ending, ReferenceFigure, Result, Status
from pytest_accel.stats.run import MAX_RUNS, RECORD_RUNS
from pytest_accel.stats.verdict import Outcome, Verdict

Pair = tuple[str, str]
LONGEST_TEXT = 4000  # characters of a traceback's end; the whole is in pytest's own output
_NOTE = ("note", "warn", "bang")  # word, colour and sign
_UPDATE = '--accel-update --accel-reason "why it may stay so"'


def details(result: Result, command: Sequence[str], *, has_past: bool = False) -> dict[str, object]:
    """Everything but the plots of rounds and of history; what is empty is left out."""
    content = {
        "numbers": from_to(result),
        "lines": _lines(result),
        "note": _note(result),
        "numerics": result.numerics,
        "changes": [(change.title, change.old, change.new) for change in result.changes],
        "same": _is_same(result),
        "published": [_reference(figure) for figure in result.references if not figure.expected],
        "expected": [_reference(figure) for figure in result.references if figure.expected],
        "failed_metrics": failed_metrics(result),
        "metrics": _metrics(result),
        "configuration": [(name, shown(value)) for name, value in sorted(result.configuration.items())],
        "facts": _facts(result),
        "commands": commands(result, command, has_past=has_past),
    }
    return {name: value for name, value in content.items() if value}


def _lines(result: Result) -> list[tuple[str, str, str, str]]:
    """Word, colour, sign and text: of the benchmark, then whatever else was found; no text twice."""
    own = words(result)
    found = {own: _signs(shown_status(result))}
    for text in shortfalls(result):
        found.setdefault(text, _signs(Ending.FAILED))
    decided = deciding(result)
    for verdict in shown_verdicts(result):
        is_own = verdict is decided and verdict.outcome is shown_status(result)
        if not is_own and own not in _texts(verdict):
            found.setdefault(_said(verdict), _signs(verdict.outcome))
    if not result.steady:
        found[_unsteady(result)] = _NOTE
    if result.runs and (pace := host_bound(result.verdicts, result.runs[-1], result.baseline)):
        found[pace] = _NOTE
    return [(*signs, unbroken(shortened(text))) for text, signs in found.items()]


def _signs(status: Status) -> tuple[str, str, str]:
    row = VERDICTS[status]
    return row.word, row.tone, row.icon


def words(result: Result) -> str:
    """Why it ended so: what the session says of it, unless that is of a verdict that did not decide."""
    if shown_status(result) is not result.status:  # its verdict is well, and something else failed it
        return next(iter((*shortfalls(result), *_further(result))), result.text)
    decided = deciding(result)
    others = {text for verdict in result.verdicts if verdict is not decided for text in _texts(verdict)}
    return _said(decided) if decided is not None and result.text in others else result.text


def _further(result: Result) -> list[str]:
    """The lines of its details that neither a verdict nor a reference says."""
    above = {result.text, *shortfalls(result)}
    for verdict in result.verdicts:
        above |= {*_texts(verdict)}
    return [line for line in result.details if line not in above]


def _texts(verdict: Verdict) -> tuple[str, str]:
    return explain(verdict), _said(verdict)


def _said(verdict: Verdict) -> str:
    return f"{shown_name(verdict.of)}: {explain(verdict)}"


def _unsteady(result: Result) -> str:
    return unsteady(result.runs[-1].warmup_s if result.runs else None)


def _note(result: Result) -> str:
    """What else belongs to it, such as a traceback, as one text."""
    own = words(result)
    return shortened("\n".join(line for line in _further(result) if line != own).strip("\n"))


def _is_same(result: Result) -> bool:
    """Whether its baseline was measured in this very environment, as far as anybody recorded it."""
    return bool(result.runs and result.baseline and not result.changes)


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
    run = result.runs[-1]
    pairs: list[Pair] = [("step", seconds(result.step_time_s))]
    if run.first_step_s is not None:
        pairs.append(("first step", seconds(run.first_step_s)))
    if run.warmup_s is not None:
        pairs.append(("warm-up", seconds(run.warmup_s)))
    if run.peak_memory_bytes is not None:
        pairs.append(("peak memory", gibibytes(run.peak_memory_bytes)))
    if run.loss is not None:
        pairs.append(("loss", f"{run.loss:.6g}"))
    if (per_wh := units_per_wh(result)) is not None:
        pairs.append((f"{result.unit}/Wh", si(per_wh)))
    if result.scaling is not None:
        figure = result.scaling
        pairs.append(
            (
                f"scaling ({figure.kind})",
                f"{percent(figure.efficiency)} of {figure.against}, {times(figure.speedup)}",
            )
        )
    return [*pairs, *(metric(name, value) for name, value in sorted(run.metrics.items()))]


def _facts(result: Result) -> list[Pair]:
    place = f"{result.file}:{result.line}" if result.file and result.line else result.file
    runs = counted(len(result.runs), "run")
    facts = [
        ("where", place),
        ("node id", result.benchmark),
        ("stored as", result.key if result.key and result.key != result.benchmark else ""),
        ("baseline folder", result.disk_name if result.disk_name != result.platform else ""),
        ("work a step", f"{si(result.work_per_step)} {result.unit}" if result.work_per_step else ""),
        ("runs", f"{runs}, baseline {len(result.baseline)}" if result.runs else ""),
        ("tolerance", percent(result.tolerance) if result.tolerance else ""),
        ("took", seconds(result.duration_s) if result.duration_s > 0 else ""),
        ("environment", result.environment),
    ]
    return [(name, text) for name, text in facts if text]


# --- commands to copy --------------------------------------------------------------------------------------


def commands(result: Result, command: Sequence[str], *, has_past: bool = False) -> list[Pair]:
    """What one would type next: measure it again, look for the cause, and what its end asks for."""
    asked = remedy([result], command)
    again = [("Measure it again", rerun([result], command))] if can_rerun(result) else []
    return [*again, *_causes(result, has_past=has_past), *([asked] if asked else [])]


_ASKS_WHY = {
    Outcome.REGRESSED,
    Outcome.INVALID,
    Outcome.INCONCLUSIVE,
    Outcome.IMPROVED,
}


def _causes(result: Result, *, has_past: bool) -> list[Pair]:
    if result.status not in _ASKS_WHY and result.steady and not misses_reference(result):
        return []
    named = shlex.join(["pytest-accel", "history", "changes", "-k", keyword(result.name)])
    since = [("See since when", named)] if has_past else []
    return [("Look for what is wrong with the machine", "pytest-accel doctor"), *since]


def keyword(name: str) -> str:
    """An expression for `-k` that chooses a benchmark: its grammar has no place for blanks, commas or quotes."""
    parts = [word for word in re.findall(r"[\w:+\-.\[\]/]+", name) if word not in {"and", "or", "not"}]
    return " and ".join(parts)


def remedy(results: Sequence[Result], command: Sequence[str]) -> Pair | None:
    """What the end that these came to asks for, for all of them at once; None where no command helps."""
    if any(result.is_platform for result in results):
        return None
    again = rerun(results, command)
    match results[0].status:
        case Outcome.REGRESSED | Outcome.IMPROVED | Outcome.STALE_BASELINE:
            return "Record a new baseline", f"{again} {_UPDATE}"
        case Outcome.NO_BASELINE:
            return "Record a baseline", f"{again} --accel-record"
        case Outcome.INCONCLUSIVE if more := [each for each in results if _wants_more_baseline(each)]:
            room = min(MAX_RUNS - len(each.baseline) for each in more)
            count = "" if room >= RECORD_RUNS else f"={room}"
            return "Add baseline runs", f"{rerun(more, command)} --accel-record{count}"
        case Outcome.VANISHED:
            named = [word for result in results for word in ("--benchmark", result.benchmark)]
            return "See what would go from the baseline", shlex.join(
                ["pytest-accel", "baseline", "prune", *named]
            )
        case _:
            return None


def _wants_more_baseline(result: Result) -> bool:
    """Where the verdict says that they help, and there is room for them."""
    return "--accel-record" in words(result) and len(result.baseline) < MAX_RUNS


def rerun(results: Sequence[Result], command: Sequence[str]) -> str:
    """pytest with these node ids, and with the session's own -m, which says as which platform they ran."""
    ids = list(dict.fromkeys(result.benchmark for result in results))
    return shlex.join(["pytest", *naming(ids, command), *_marker(command)])


def _marker(command: Sequence[str]) -> list[str]:
    for position, part in enumerate(command):
        if part == "-m" and position + 1 < len(command):
            return ["-m", command[position + 1]]
        if part.startswith("-m") and not part.startswith("--") and len(part) > 2:
            return ["-m", part[2:]]
    return []


def shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)


def shortened(text: str) -> str:
    """The end of a long text, which is where a traceback says what happened."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"… {len(text) - LONGEST_TEXT:,} characters left out …\n{text[-LONGEST_TEXT:]}"
