"""A session as OpenMetrics text: for GitLab's metrics report, which shows a merge request's figures beside its target's.

GitLab reads each line as a shell would and compares values as text (`lib/gitlab/ci/parsers/metrics/generic.rb`). So names
and order are the same in every session, nothing in here is a time or a duration, and figures are rounded. It cuts a line
at `#`, even inside quotes: what it would trip over is percent-encoded in labels, which stay distinct that way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from pytest_accel.report.verdicts import in_order
from pytest_accel.stats.results import Ending, Result, SessionResults, Status
from pytest_accel.stats.verdict import Outcome

_DIGITS = 5  # significant ones: more only show noise as a change
_RATIO_DECIMALS = 4
_LARGEST, _SMALLEST = 1e15, 1e-6  # beyond, a number without an exponent is a row of zeros
_STATUSES: tuple[Status, ...] = (*Outcome, *Ending)
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    name: str
    help: str
    kind: str = "gauge"
    unit: str = ""  # where there is one, the name ends with it: so the format wants it

    def head(self) -> list[str]:
        unit = [f"# UNIT {self.name} {self.unit}"] if self.unit else []
        return [f"# TYPE {self.name} {self.kind}", *unit, f"# HELP {self.name} {self.help}"]

    def line(self, labels: Labels, value: float) -> str:
        suffix = "_info" if self.kind == "info" else ""
        shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels if text)
        number = _rounded(value) if self.unit == "ratio" else _number(value)
        return f"{self.name}{suffix}{{{shown}}} {number}"


BENCHMARKS = _Family(name="accel_benchmarks", help="Benchmarks of the session that came to this end.")
FAILED = _Family(name="accel_failed", help="1 where the benchmark fails the session.")
STATUS = _Family(name="accel_status", kind="info", help="The verdict on the benchmark, or how it ended.")
THROUGHPUT = _Family(name="accel_throughput", help="Work a second, in the unit of the label.")
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
FAMILIES = (BENCHMARKS, FAILED, STATUS, THROUGHPUT, SLOWDOWN, MEMORY, METRIC, SCALING, REFERENCE)

Sample = tuple[_Family, Labels, float]


def render_metrics(session: SessionResults) -> str:
    """One line for each benchmark, platform and figure."""
    samples: dict[_Family, dict[Labels, float]] = {family: {} for family in FAMILIES}
    for family, labels, value in _samples(session):
        samples[family].setdefault(
            labels, value
        )  # the gravest comes first; a second of one name is not allowed
    lines: list[str] = []
    for family, found in samples.items():
        if found:
            lines += family.head()
            lines += [family.line(labels, found[labels]) for labels in sorted(found)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _samples(session: SessionResults) -> Iterator[Sample]:
    counts = Counter(result.status for result in session.results)
    for status in _STATUSES:  # those that nothing came to as well: a 0 that becomes a 1 is a change
        yield BENCHMARKS, (("status", status.value),), counts[status]
    for result in in_order(session.results):
        yield from _of(result)


def _of(result: Result) -> Iterator[Sample]:
    whose: Labels = (("benchmark", result.benchmark), ("platform", result.platform))
    yield FAILED, whose, float(result.failed)
    yield STATUS, (*whose, ("status", result.status.value)), 1.0
    if result.throughput is not None:
        yield THROUGHPUT, (*whose, ("unit", f"{result.unit}/s")), result.throughput
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
    """A label's value: OpenMetrics' own escapes, after what GitLab or a terminal cannot take is percent-encoded."""
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
