"""Which metrics `--accel-gate` may name beside throughput, and how it is written: `throughput,energy=8%`."""

from __future__ import annotations

from pytest_accel.stats.metrics import LESS_IS_BETTER, SHORT_NAMES
from pytest_accel.stats.quantities import parse_fraction
from pytest_accel.stats.verdict import THROUGHPUT

# Of more-is-better ones those that say something beside throughput: tflops and mfu are throughput in other units.
_MORE = frozenset({"accuracy", "loader_efficiency"})
# By all names that are taken; of a metric with a short name that comes first.
METRICS: dict[str, str] = {**SHORT_NAMES, **{name: name for name in sorted(LESS_IS_BETTER | _MORE)}}
NAMES = (THROUGHPUT, *(name for name in METRICS if name not in SHORT_NAMES.values()))  # as errors list them


def parse_gates(text: str) -> dict[str, float | None]:
    """Metrics, each with what is tolerated of it or None, in their order; ValueError in users' words.

    Throughput is gated always: it may be named, and is not among them.
    """
    found: dict[str, float | None] = {}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"names nothing. {_valid()}")
    for part in parts:
        name, given, tolerance = (each.strip() for each in part.partition("="))
        if name == THROUGHPUT:
            if given:
                raise ValueError("has a tolerance of throughput, whose place is accel_tolerance.")
            continue
        if name not in METRICS:
            raise ValueError(f"names {name!r}, which is not gated here. {_valid()}")
        if METRICS[name] in found:
            raise ValueError(f"names {name!r} twice.")
        found[METRICS[name]] = _tolerance(name, tolerance) if given else None
    return found


def _tolerance(name: str, text: str) -> float:
    try:
        tolerance = parse_fraction(text)
    except ValueError as error:
        raise ValueError(f"has {text!r} for {name}, which {error}") from None
    if not tolerance:
        raise ValueError(f"leaves no room for noise: {name}={text}. Write {name}=5%.")
    return tolerance


def _valid() -> str:
    return (
        f"Valid, separated by commas: {', '.join(NAMES)}; each with a tolerance of its own where it needs one, energy=8%. "
        "A metric of your own is gated where it is measured: gates={...} of accel.measure."
    )
