"""What a row opens to: the verdict in words, suspects, references, figures, and commands to copy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from pytest_accel.core.quantities import counted, gibibytes, percent, seconds, si
from pytest_accel.core.results import Ending, ReferenceFigure, Result
from pytest_accel.core.verdict import THROUGHPUT, Outcome
from pytest_accel.report.attention import plain_word, shortfalls, status_word
from pytest_accel.report.lines import explain
from pytest_accel.report.page.markup import unbroken
from pytest_accel.report.page.rows import times, units_per_wh
from pytest_accel.report.page.statuses import LOOKS, shown_status

Pair = tuple[str, str]
LONGEST_TEXT = 4000  # characters of a traceback's end; the whole is in pytest's own output
_PERCENTAGES = re.compile(r"(^|_)(mfu|accuracy|share|efficiency|felt)$")
_UPDATE = '--accel-update --accel-reason "why it may stay so"'
_FIGURES = {"mfu": "MFU", "tflops": "TFLOP/s"}


def details(result: Result, command: Sequence[str]) -> dict[str, object]:
    """Everything but the plots; what is empty is left out."""
    content = {
        "lines": _lines(result),
        "notes": [shortened(text) for text in result.details if text.strip()],
        "numerics": result.numerics,
        "changes": [(change.title, change.old, change.new) for change in result.changes],
        "references": [_reference(figure) for figure in result.references],
        "metrics": _metrics(result),
        "configuration": [(name, shown(value)) for name, value in sorted(result.configuration.items())],
        "facts": _facts(result),
        "commands": commands(result, command),
    }
    return {name: value for name, value in content.items() if value}


def _lines(result: Result) -> list[tuple[str, str, str, str]]:
    """Word, colour, sign and text: of the benchmark, then of every metric that has a verdict of its own."""
    look = LOOKS[shown_status(result)]
    lines = [(status_word(result), look.tone, look.icon, text) for text in words(result)]
    for verdict in result.verdicts:
        said = explain(verdict)
        if verdict.of == THROUGHPUT and (verdict.outcome is result.status or said in result.text):
            continue  # the benchmark's own line says it
        look = LOOKS[verdict.outcome]
        lines.append((plain_word(verdict.outcome), look.tone, look.icon, f"{verdict.of}: {said}"))
    return [(word, tone, icon, unbroken(shortened(text))) for word, tone, icon, text in lines]


def words(result: Result) -> list[str]:
    """What it fails on where that is a reference, then its verdict."""
    return [each for each in (*shortfalls(result), result.text) if each] or [""]


def _reference(figure: ReferenceFigure) -> dict[str, object]:
    return {
        "source": figure.source,
        "platform": figure.platform,
        "figure": f"{si(figure.value)} {figure.unit}",
        "metric": figure.metric.replace("_", " "),
        "ratio": "" if figure.ratio is None else times(figure.ratio),
        "flags": ", ".join(figure.flags),
        "shortfall": figure.shortfall,
        "gated": figure.gated,
        "id": figure.id,
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


def metric(name: str, value: float) -> Pair:
    """A metric by its name, which carries its unit."""
    if _PERCENTAGES.search(name):
        return _FIGURES.get(name, name.replace("_", " ")), percent(value)
    for suffix, unit in (("_j", "J"), ("_w", "W"), ("_mhz", "MHz")):
        if name.endswith(suffix):
            return name.removesuffix(suffix).replace("_", " "), f"{si(value)} {unit}"
    if name.endswith(("_s", "_s_per_step")) and value > 0:
        return re.sub(r"_s(_per_step)?$", r"\1", name).replace("_", " "), seconds(value)
    return _FIGURES.get(name, name.replace("_", " ")), f"{value:.6g}"


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
        ("steady", "" if result.steady else "no: steps drifted, or the warm-up was too short to tell"),
        ("took", seconds(result.duration_s) if result.duration_s > 0 else ""),
        ("environment", result.environment),
    ]
    return [(name, text) for name, text in facts if text]


# --- commands to copy --------------------------------------------------------------------------------------


def commands(result: Result, command: Sequence[str]) -> list[Pair]:
    """What one would type next: measure it again, and what its end asks for."""
    asked = remedy([result], command)
    again = [] if result.status is Ending.VANISHED else [("Measure it again", rerun([result], command))]
    return [*again, *([asked] if asked else [])]


def remedy(results: Sequence[Result], command: Sequence[str]) -> Pair | None:
    """What the end that these came to asks for, for all of them at once; None where no command helps."""
    again = rerun(results, command)
    match results[0].status:
        case Outcome.REGRESSED:
            return "Accept it as the new baseline", f"{again} {_UPDATE}"
        case Outcome.IMPROVED | Outcome.STALE_BASELINE:
            return "Replace the baseline", f"{again} {_UPDATE}"
        case Outcome.NO_BASELINE:
            return "Record a baseline", f"{again} --accel-record"
        case Outcome.INCONCLUSIVE if more := [
            result for result in results if "--accel-record" in result.text
        ]:
            return (
                "Add baseline runs",
                f"{rerun(more, command)} --accel-record",
            )  # where the verdict says that helps
        case Ending.VANISHED:
            named = [word for result in results for word in ("--benchmark", result.key or result.benchmark)]
            return "Take it out of the baseline", shlex.join(
                ["pytest-accel", "baseline", "prune", *named, "--yes"]
            )
        case _:
            return None


def rerun(results: Sequence[Result], command: Sequence[str]) -> str:
    """pytest with these node ids, and with the session's own -m, which says as which platform they ran."""
    names = dict.fromkeys(result.benchmark for result in results)
    return shlex.join(["pytest", *names, *_marker(command)])


def _marker(command: Sequence[str]) -> list[str]:
    for position, word in enumerate(command):
        if word == "-m" and position + 1 < len(command):
            return ["-m", command[position + 1]]
        if word.startswith("-m") and not word.startswith("--") and len(word) > 2:
            return ["-m", word[2:]]
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
