"""One line per verdict: by how much, how surely, from how many runs, and what to do about it."""

from __future__ import annotations

from typing import assert_never

from pytest_accel.core.quantities import percent
from pytest_accel.core.verdict import Estimate, Outcome, Verdict

# The terminal's colours; every outcome has one, so that none looks like another by accident.
MARKUP: dict[Outcome, dict[str, bool]] = {
    Outcome.REGRESSED: {"red": True, "bold": True},
    Outcome.OK: {"green": True},
    Outcome.IMPROVED: {"cyan": True},
    Outcome.INCONCLUSIVE: {"yellow": True, "bold": True},
    Outcome.INVALID: {"purple": True, "bold": True},
    Outcome.NO_BASELINE: {"yellow": True},
    Outcome.STALE_BASELINE: {"red": True},
}


def word(outcome: Outcome) -> str:
    """The outcome as the terminal shows it: what needs attention in capitals."""
    text = str(outcome.value)
    return text if outcome in {Outcome.OK, Outcome.IMPROVED} else text.upper()


def verdict_line(label: str, verdict: Verdict) -> str:
    return f"{word(verdict.outcome)}  {label}: {explain(verdict)}"


def explain(verdict: Verdict) -> str:
    """The verdict in words, without the benchmark's name."""
    found = verdict.slowdown
    if found is None:
        return verdict.reason
    tolerance = f"tolerance {percent(verdict.tolerance)}"
    runs = _runs(verdict.looks)
    match verdict.outcome:
        case Outcome.REGRESSED:
            return (
                f"{_change(found)} (at least {percent(found.low)}; {tolerance}), {runs} vs "
                f"{_runs(verdict.baseline_runs, 'baseline ')}, run-to-run noise {percent(verdict.noise or 0)}"
            )
        case Outcome.OK:
            return f"{_change(found)} ({_at_most(found)}; {tolerance}), {runs}"
        case Outcome.IMPROVED:
            return (
                f"{_change(found)} (at least {percent(_gain(found.high))} faster; {tolerance}), {runs}: "
                "refresh the baseline with --accel-update, or the loss of this gain will go unnoticed"
            )
        case Outcome.INCONCLUSIVE:
            return (
                f"{_change(found)} ({_signed(found.low)} to {_signed(found.high)}; {tolerance}), {runs}; "
                f"{_way_out(verdict)}"
            )
        case Outcome.INVALID | Outcome.NO_BASELINE | Outcome.STALE_BASELINE:
            return verdict.reason
        case _ as never:
            assert_never(never)


def _way_out(verdict: Verdict) -> str:
    """What would decide an open question; more runs only where they can: ten resolve 3.7 times the noise."""
    if verdict.wants_another_run:
        return "the session ended before it was measured again"
    noise, resolution = verdict.noise or 0.0, verdict.resolution or 0.0
    remedy = (
        "record more baseline runs with --accel-record"
        if 3.7 * noise <= verdict.tolerance
        else f"quieten the machine, or tolerate {percent(resolution, 0)}"
    )
    return f"noise {percent(noise)} resolves {percent(resolution)} here: {remedy}"


def _change(found: Estimate) -> str:
    return f"{percent(found.point)} slower" if found.point >= 0 else f"{percent(_gain(found.point))} faster"


def _at_most(found: Estimate) -> str:
    if found.high >= 0:
        return f"at most {percent(found.high)} slower"
    return f"at least {percent(_gain(found.high))} faster"


def _signed(loss: float) -> str:
    return f"{percent(loss)} slower" if loss >= 0 else f"{percent(_gain(loss))} faster"


def _gain(loss: float) -> float:
    """A negative loss of throughput is a gain of it."""
    return -loss


def _runs(count: int, kind: str = "") -> str:
    return f"{count} {kind}run{'' if count == 1 else 's'}"
