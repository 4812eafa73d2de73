"""A calibration in words: on the terminal, in results, and where a tolerance asks more than a machine can tell."""

from __future__ import annotations

from pytest_accel.stats.calibration import FEWEST_CANDIDATES, Calibration, Conditions, FalseAlarms
from pytest_accel.stats.quantities import counted, percent, seconds
from pytest_accel.stats.runs import RECORD_RUNS
from pytest_accel.stats.standing import NO_GATE, rounded_up


def calibrated_text(found: Calibration) -> str:
    """Without the name of its benchmark."""
    return (
        f"{counted(found.runs, 'run')}, noise {percent(found.noise)}, smallest detectable loss "
        f"{percent(found.detectable_loss)}, {_alarms(found.false_alarms)}"
    )


def calibrated_line(label: str, text: str) -> str:
    return f"CALIBRATED  {label}: {text}"


def conditions_text(found: Conditions | None) -> str:
    if found is None:
        return "an unknown budget"
    return f"a budget of {seconds(found.budget_s)} and {counted(found.threads, 'thread')}"


def holds_from(loss: float) -> float:
    """The smallest tolerance to propose: that loss, rounded up."""
    return rounded_up(loss)


def way_out(loss: float, runs: int) -> str:
    """What to do where a tolerance is smaller than that loss, which was calibrated with so many runs."""
    enough = f"{100 * holds_from(loss):.3g}%"  # as options and marks take it
    again = f"quieten the machine (pytest-accel doctor), and calibrate again with --accel-calibrate={runs}."
    if loss > NO_GATE:
        return f"It would take a tolerance of {enough}, which is no gate: {again}"
    marked = f'@pytest.mark.accel(tolerance="{enough}")'
    return f"Tolerate at least {enough} (--accel-tolerance={enough}, or {marked}), or {again}"


def _alarms(found: FalseAlarms | None) -> str:
    if found is None:
        return (
            f"false alarms not counted: {RECORD_RUNS} runs for a baseline and {FEWEST_CANDIDATES} to judge are "
            f"{RECORD_RUNS + FEWEST_CANDIDATES}"
        )
    alarms = "1 false alarm" if found.gate == 1 else f"{found.gate:,} false alarms"
    return (
        f"{found.draws:,} draws: {found.ok:,} ok, {found.undecided:,} undecided, {alarms}; "
        f"pytest-benchmark's mean:5% would have failed {percent(found.mean / found.draws)}"
    )
