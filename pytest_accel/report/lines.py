"""One line per verdict: by how much, how surely, from how many runs, and what to do about it."""

from __future__ import annotations

import shlex
from typing import assert_never

from pytest_accel.core.metrics import less_is_better, shown_name
from pytest_accel.core.quantities import counted, percent
from pytest_accel.core.runs import MAX_RUNS
from pytest_accel.core.verdict import THROUGHPUT, Estimate, Outcome, Verdict

# The terminal's colours; every outcome has one, so that none looks like another by accident.
MARKUP: dict[Outcome, dict[str, bool]] = {
    Outcome.REGRESSED: {"red": True, "bold": True},
    Outcome.OK: {"green": True},
    Outcome.IMPROVED: {"cyan": True},
    Outcome.INCONCLUSIVE: {"yellow": True, "bold": True},
    Outcome.INVALID: {"purple": True, "bold": True},
    Outcome.NO_BASELINE: {"yellow": True},
    Outcome.STALE_BASELINE: {"red": True},
    Outcome.DOES_NOT_FIT: {"yellow": True, "light": True},
}


NO_GATE = 0.3  # a loss that large needs none to be noticed


def word(outcome: Outcome) -> str:
    """The outcome as the terminal shows it: what needs attention in capitals."""
    text = str(outcome.value)
    return text if outcome in {Outcome.OK, Outcome.IMPROVED} else text.upper()


def verdict_line(label: str, verdict: Verdict) -> str:
    what = label if verdict.of == THROUGHPUT else f"{label} {shown_name(verdict.of)}"
    return f"{word(verdict.outcome)}  {what}: {explain(verdict)}"


def vanished_line(node_id: str) -> str:
    return (
        f"VANISHED  {node_id}: stands in the baseline and was not found; restore it, or see what would be removed with "
        f"pytest-accel baseline prune --benchmark {shlex.quote(node_id)}"
    )


def shortfall_line(label: str, text: str) -> str:
    return f"OFF-REFERENCE  {label}: {text}"


def explain(verdict: Verdict) -> str:
    """The verdict in words, without the names of the benchmark and of what was gated."""
    found = verdict.slowdown
    if found is None:
        return verdict.reason
    tolerance = f"tolerance {percent(verdict.tolerance)}"
    change, runs = changed(found.point, verdict.of), counted(verdict.looks, "run")
    match verdict.outcome:
        case Outcome.REGRESSED:
            return (
                f"{change} (at least {percent(found.low)}; {tolerance}), {runs} vs "
                f"{counted(verdict.baseline_runs, 'baseline run')}, run-to-run noise {percent(verdict.noise or 0)}"
            )
        case Outcome.OK:
            return f"{change} ({_at_most(found, verdict.of)}; {tolerance}), {runs}"
        case Outcome.IMPROVED:
            return (
                f"{change} (at least {changed(found.high, verdict.of)}; {tolerance}), {runs}: "
                "refresh the baseline with --accel-update, or the loss of this gain will go unnoticed"
            )
        case Outcome.INCONCLUSIVE:
            return (
                f"{change} ({changed(found.low, verdict.of)} to {changed(found.high, verdict.of)}; {tolerance}), "
                f"{runs}; {_way_out(verdict)}"
            )
        case Outcome.INVALID | Outcome.NO_BASELINE | Outcome.STALE_BASELINE | Outcome.DOES_NOT_FIT:
            return verdict.reason
        case _ as never:
            assert_never(never)


def _way_out(verdict: Verdict) -> str:
    """What would decide an open question; more runs only where they can: ten resolve 3.7 times the noise."""
    if verdict.wants_another_run:
        return "one run decides nothing, and it was not measured again"
    noise, resolution = verdict.noise or 0.0, verdict.resolution or 0.0
    if 3.7 * noise <= verdict.tolerance and verdict.baseline_runs < MAX_RUNS:
        remedy = "record more baseline runs with --accel-record"
    elif resolution > NO_GATE:
        remedy = f"no gate holds on it: {_quieten(verdict.of)}"
    else:
        remedy = f"{_quieten(verdict.of)}, or tolerate {percent(resolution, 0)}"
    return f"noise {percent(noise)} resolves {percent(resolution)} here: {remedy}"


def _quieten(of: str) -> str:
    return "quieten the machine (pytest-accel doctor)" if of == THROUGHPUT else "measure it over more work"


def _at_most(found: Estimate, of: str) -> str:
    return f"at {'most' if found.high >= 0 else 'least'} {changed(found.high, of)}"


def changed(loss: float, of: str = THROUGHPUT) -> str:
    """A loss of throughput, or of a metric, in words; a negative one is a gain. Of what less is better, an increase."""
    worse, better = _worse_and_better(of)
    return f"{percent(loss)} {worse}" if loss >= 0 else f"{percent(-loss)} {better}"


def _worse_and_better(of: str) -> tuple[str, str]:
    if of == THROUGHPUT:
        return "slower", "faster"
    return ("more", "less") if less_is_better(of) else ("lower", "higher")
