"""One line per verdict: by how much, how surely, from how many runs, and what to do about it."""

from __future__ import annotations

from typing import assert_never

from pytest_accel.core.quantities import counted, percent
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


def vanished_line(node_id: str) -> str:
    return f"VANISHED  {node_id}: stands in the baseline and was not found"


def explain(verdict: Verdict) -> str:
    """The verdict in words, without the benchmark's name."""
    found = verdict.slowdown
    if found is None:
        return verdict.reason
    tolerance = f"tolerance {percent(verdict.tolerance)}"
    change, runs = signed(found.point), counted(verdict.looks, "run")
    match verdict.outcome:
        case Outcome.REGRESSED:
            return (
                f"{change} (at least {percent(found.low)}; {tolerance}), {runs} vs "
                f"{counted(verdict.baseline_runs, 'baseline run')}, run-to-run noise {percent(verdict.noise or 0)}"
            )
        case Outcome.OK:
            return f"{change} ({_at_most(found)}; {tolerance}), {runs}"
        case Outcome.IMPROVED:
            return (
                f"{change} (at least {signed(found.high)}; {tolerance}), {runs}: "
                "refresh the baseline with --accel-update, or the loss of this gain will go unnoticed"
            )
        case Outcome.INCONCLUSIVE:
            return (
                f"{change} ({signed(found.low)} to {signed(found.high)}; {tolerance}), {runs}; "
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


def _at_most(found: Estimate) -> str:
    return f"at {'most' if found.high >= 0 else 'least'} {signed(found.high)}"


def signed(loss: float) -> str:
    """A loss of throughput in words; a negative one is a gain."""
    return f"{percent(loss)} slower" if loss >= 0 else f"{percent(-loss)} faster"
