"""Results and history in the formats of other tools.

- OpenMetrics for GitLab's metrics report. GitLab reads a line as a shell would and compares values as text
  (`lib/gitlab/ci/parsers/metrics/generic.rb`): names and order are the same in every session, nothing is a time, and
  figures are rounded. It cuts a line at `#` even inside quotes, so that labels are percent-encoded.
- github-action-benchmark reads a JSON array of name, unit, value, range, extra (its extract.ts, customBiggerIsBetter).
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pytest_accel.report.verdicts import VERDICTS, in_order
from pytest_accel.stats.gate import interval
from pytest_accel.stats.quantities import si
from pytest_accel.stats.results import Result, SessionResults
from pytest_accel.stats.verdict import Policy

if TYPE_CHECKING:
    from pytest_accel.report.history import Track
    from pytest_accel.storage.history import HistoryRun, Point

_PEAK_MEMORY = "peak_memory_bytes"
_FACTS = (
    *("platform", "benchmark", "at", "session", "host", "revision", "status", "loss"),
    *("work_per_step", "unit", "environment", "configuration"),
)
_DIGITS = 5  # significant ones: more show noise as a change
_RATIO_DECIMALS = 4
_LARGEST, _SMALLEST = 1e15, 1e-6  # beyond, a number without an exponent is a row of zeros
Labels = tuple[tuple[str, str], ...]

# --- the history: JSON lines and CSV ----------------------------------------------------------------


def json_lines(tracks: Iterable[Track]) -> Iterator[str]:
    """Yield a line a benchmark and session, with all its runs."""
    for track in tracks:
        for point in track.points:
            yield json.dumps(
                {
                    **_facts(track, point),
                    "step_time_s": point.step_time_s,
                    "throughput": point.throughput,
                    "runs": [{"step_time_s": run.step_time_s, **_metrics(run)} for run in point.runs],
                }
            )


def csv_text(tracks: Sequence[Track]) -> str:
    """Return a row a run."""
    runs = [
        (track, point, position, run)
        for track in tracks
        for point in track.points
        for position, run in enumerate(point.runs)
    ]
    names = sorted({name for *_, run in runs for name in _metrics(run)})
    rows = (
        {
            **_facts(track, point),
            "run": position,
            "step_time_s": run.step_time_s,
            "throughput": point.work_per_step / run.step_time_s,
            **{f"metrics.{name}": value for name, value in _metrics(run).items()},
        }
        for track, point, position, run in runs
    )
    return _csv([*_FACTS, "run", "step_time_s", "throughput", *(f"metrics.{name}" for name in names)], rows)


def _facts(track: Track, point: Point) -> dict[str, Any]:
    named = {"platform": track.platform, "benchmark": track.key}
    return {name: named[name] if name in named else getattr(point, name) for name in _FACTS}


def _metrics(run: HistoryRun) -> dict[str, float]:
    own = {} if run.peak_memory_bytes is None else {_PEAK_MEMORY: run.peak_memory_bytes}
    return {**run.metrics, **own}


def _csv(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# --- github-action-benchmark ----------------------------------------------------------------------


def github_action_benchmark(session: SessionResults) -> str:
    """Return the file of its tool `customBiggerIsBetter`: throughput with half its 95 % interval."""
    entries = []
    for result in _valid(session):
        found = interval(result.runs, Policy())
        throughput = result.work_per_step / found.point_s
        entries.append(
            {
                "name": f"{result.key or result.benchmark} ({result.disk_name})",
                "unit": f"{result.unit}/s",
                "value": throughput,
                "range": f"± {si(throughput * math.expm1(math.log(found.high_s / found.point_s)))}",
                "extra": f"{result.status.value}: {result.text}" if result.text else result.status.value,
            }
        )
    return json.dumps(entries, indent=2) + "\n"


def _valid(session: SessionResults) -> list[Result]:
    from pytest_accel.storage.history import belongs_to_series  # SQLite is loaded only where it is needed

    return [result for result in session.results if belongs_to_series(result)]


# --- OpenMetrics -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    name: str
    help: str
    kind: str = "gauge"
    unit: str = ""  # the format wants it at the end of the name

    def head(self) -> list[str]:
        unit = [f"# UNIT {self.name} {self.unit}"] if self.unit else []
        return [f"# TYPE {self.name} {self.kind}", *unit, f"# HELP {self.name} {self.help}"]

    def line(self, labels: Labels, value: float) -> str:
        suffix = "_info" if self.kind == "info" else ""
        shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels if text)
        number = _rounded(value) if self.unit == "ratio" else _number(value)
        return f"{self.name}{suffix}{{{shown}}} {number}"


BENCHMARKS = _Family(name="accel_benchmarks", help="Benchmarks of the session with this status.")
FAILED = _Family(name="accel_failed", help="1 where the benchmark fails the session.")
STATUS = _Family(name="accel_status", kind="info", help="The status of the benchmark.")
RATE = _Family(name="accel_throughput", help="Work a second, in the unit of the label.")
SLOWDOWN = _Family(
    name="accel_slowdown_ratio",
    unit="ratio",
    help="Loss of throughput, or of a gated metric, against the baseline; its increase where less is better. Below 0 is a gain.",
)
MEMORY = _Family(name="accel_peak_memory_bytes", unit="bytes", help="Peak memory of the device.")
METRIC = _Family(name="accel_metric", help="A further figure of the newest run. Its name carries its unit.")
SCALING = _Family(
    name="accel_scaling_efficiency_ratio",
    unit="ratio",
    help="Throughput per device over a smaller platform's.",
)
REFERENCE = _Family(
    name="accel_reference_ratio",
    unit="ratio",
    help="This machine over a published figure. Above 1 is better.",
)
FAMILIES = (BENCHMARKS, FAILED, STATUS, RATE, SLOWDOWN, MEMORY, METRIC, SCALING, REFERENCE)

Sample = tuple[_Family, Labels, float]


def render_metrics(session: SessionResults) -> str:
    """Return OpenMetrics text: a line a benchmark, platform and figure."""
    samples: dict[_Family, dict[Labels, float]] = {family: {} for family in FAMILIES}
    for family, labels, value in _samples(session):
        samples[family].setdefault(labels, value)  # a second of one name is not allowed; failures come first
    lines: list[str] = []
    for family, found in samples.items():
        if found:
            lines += family.head()
            lines += [family.line(labels, found[labels]) for labels in sorted(found)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _samples(session: SessionResults) -> Iterator[Sample]:
    counts = Counter(result.status for result in session.results)
    for status in VERDICTS:  # all of them: a 0 that becomes a 1 is a change
        yield BENCHMARKS, (("status", status.value),), counts[status]
    for result in in_order(session.results):
        yield from _of(result)


def _of(result: Result) -> Iterator[Sample]:
    whose: Labels = (("benchmark", result.benchmark), ("platform", result.platform))
    yield FAILED, whose, float(result.failed)
    yield STATUS, (*whose, ("status", result.status.value)), 1.0
    if result.throughput is not None:
        yield RATE, (*whose, ("unit", f"{result.unit}/s")), result.throughput
    for verdict in result.verdicts:
        if verdict.slowdown:
            yield SLOWDOWN, (*whose, ("of", verdict.of)), verdict.slowdown.point
    if result.runs and result.runs[-1].peak_memory_bytes:
        yield MEMORY, whose, result.runs[-1].peak_memory_bytes
    for name, value in result.metrics.items():
        yield METRIC, (*whose, ("metric", name)), value
    if result.scaling:
        yield SCALING, (*whose, ("against", result.scaling.against)), result.scaling.efficiency
    for reference in result.references:
        if reference.ratio is not None:
            yield REFERENCE, (*whose, ("reference", reference.id)), reference.ratio


def _escaped(text: str) -> str:
    """Return a label's value: percent-encoded what GitLab or a terminal cannot take, then escaped."""
    safe = "".join(
        each if each.isprintable() and each not in "%#" else _percent_encoded(each) for each in text
    )
    return safe.replace("\\", "\\\\").replace('"', '\\"')


def _percent_encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _rounded(value: float) -> str:
    return (
        f"{round(value, _RATIO_DECIMALS) + 0.0:.{_RATIO_DECIMALS}f}"
        if math.isfinite(value)
        else _number(value)
    )


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "0"
    shown = f"{value:.{_DIGITS}g}"
    return f"{Decimal(shown):f}" if _SMALLEST <= abs(value) < _LARGEST else shown
