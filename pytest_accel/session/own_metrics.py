"""Metrics that a benchmark measures itself, and which metrics are gated: checked, and named when they cannot be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from pytest_accel.measure.question import QuestionError
from pytest_accel.settings import Settings
from pytest_accel.stats.facets import is_gateable
from pytest_accel.stats.metrics import DESCRIPTIVE, MEASURED, OF_ANY_STEP, shown_name
from pytest_accel.stats.verdict import THROUGHPUT, Policy

# What `accel.measure` and the session measure themselves.
OURS = frozenset({THROUGHPUT, *OF_ANY_STEP})
_LONGEST_NAME = 40  # characters: it stands in a line of the terminal


def checked_gates(gates: object) -> dict[str, float | None]:
    """Metric names and the relative loss that is tolerated of each (increase, where less is better; None: as of throughput), or QuestionError."""
    if gates is None:
        return {}
    found = {
        _name("gates", name): None if value is None else checked_tolerance(name, value)
        for name, value in _pairs("gates", gates)
    }
    if THROUGHPUT in found:
        raise QuestionError(
            'gates: the throughput is gated always. Set its tolerance by @pytest.mark.accel(tolerance="5%").'
        )
    if wrong := sorted(DESCRIPTIVE & found.keys()):
        known = ", ".join(sorted(MEASURED.keys() - DESCRIPTIVE))
        raise QuestionError(
            f"gates: {wrong[0]!r} says how it was measured, and neither more nor less of it is better. Gate a metric of "
            f"your own, or one of: {known}."
        )
    return found


def checked_metrics(metrics: object) -> dict[str, float]:
    """What a benchmark says it measured as plain finite numbers, or QuestionError."""
    found: dict[str, float] = {}
    for name, value in _pairs("metrics", metrics):
        if _name("metrics", name) in OURS:
            raise QuestionError(f"metrics: {name!r} is measured by pytest-accel. Choose another name.")
        number = _number(value)
        if not math.isfinite(number):
            raise QuestionError(f"metrics[{name!r}]: {value!r} is not a finite number.")
        found[name] = number
    return found


def check_gated(gates: Iterable[str], metrics: Mapping[str, float]) -> None:
    """Raise QuestionError where a gated metric cannot be judged."""
    for name in gates:
        if name not in metrics:
            known = ", ".join(sorted(metrics))
            raise QuestionError(
                f"gates: {name!r} was not measured. Return it from metrics=, or gate one of: {known}."
            )
        if not is_gateable(metrics[name]):
            raise QuestionError(
                f"gates: {name!r} is {metrics[name]:g}, and a gated metric is positive: a change is a share of it. "
                "Gate another figure, or check this one in the test itself."
            )


def gates_asked(
    settings: Settings,
    metrics: Mapping[str, float],
    own_gates: Mapping[str, float | None],
    why: Mapping[str, str] | None = None,
) -> tuple[dict[str, float | None], list[str]]:
    """What is gated of what was measured; then a text for everything that should be and cannot be: each fails the test.

    `own_gates` are those of the benchmark (`gates=`). A tolerance that the session names goes before theirs. `why` says by
    metric why it was not measured, where somebody knows. A metric that any step may have, such as energy, is missed
    wherever it is not: a gate that judges nothing must not be green. One that belongs to some benchmarks alone,
    such as a latency, is missed only where the benchmark's own mark asks for it.
    """
    gates, missed = dict(own_gates), []
    for name, tolerance in settings.gate.items():
        if is_gateable(metrics.get(name, 0.0)):
            default = gates.get(name, settings.fixed_tolerance or Policy().tolerance)
            gates[name] = default if tolerance is None else tolerance
        elif name in metrics or name in OF_ANY_STEP or settings.origin("gate").startswith("@"):
            missed.append(_missed(name, settings, metrics, (why or {}).get(name, "")))
    return gates, missed


def _missed(name: str, settings: Settings, metrics: Mapping[str, float], why: str) -> str:
    what = f"is {metrics[name]:g}, which cannot be" if name in metrics else "was not measured"
    return (
        f"{shown_name(name)} is gated (from {settings.origin('gate')}) and {what}{f': {why}' if why else ''}. Take it out of "
        'there, or leave this benchmark out of it: @pytest.mark.accel(gate="throughput").'
    )


def _pairs(argument: str, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, Mapping):
        raise QuestionError(f"{argument}: {value!r} is not a mapping of names to numbers.")
    return list(value.items())


def _name(argument: str, name: object) -> str:
    if isinstance(name, str) and name.isidentifier() and len(name) <= _LONGEST_NAME:
        return name
    raise QuestionError(
        f"{argument}: the name {name!r} is not an identifier of at most {_LONGEST_NAME} characters, such as "
        "'accuracy'."
    )


def checked_tolerance(name: object, value: object) -> float:
    """A relative loss, or QuestionError."""
    tolerance = _number(value)
    if 0 < tolerance < 1:
        return tolerance
    raise QuestionError(f"gates[{name!r}]: {value!r} is not a fraction between 0 and 1. Write 0.05.")


def _number(value: object) -> float:
    """A Python, NumPy or torch number; NaN for what is none."""
    if isinstance(value, str | bytes | bool):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last of torch: a tensor of several
        return math.nan
