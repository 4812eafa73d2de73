"""Kernel differences as rows of a table and as bars of a waterfall."""

from __future__ import annotations

import math

from pytest_accel.stats.kernels import KernelChange, KernelDifference
from pytest_accel.stats.quantities import counted, percent, seconds

# As `text_table` takes them: the most important first, `>` ends those of figures.
HEADINGS = ("a step", "change>", "of the loss>", "baseline>", "now>", "calls", "kernel")
_SMALL = 0.01  # of the loss: such changes share a row
_BARS = 8  # of operations in a waterfall


def kernel_rows(found: KernelDifference) -> list[tuple[str, ...]]:
    """Return the changes of operations, of idle time, what is unexplained and the measured step time; they sum up."""
    least_s = _SMALL * abs(found.loss_s)
    shown = [each for each in found.rows if abs(each.change_s) >= least_s]
    small = [each for each in found.rows if abs(each.change_s) < least_s]
    if small:
        sums = (math.fsum(each.before_s for each in small), math.fsum(each.after_s for each in small))
        name = f"{counted(len(small), 'operation')} nearly as before"
        shown.append(KernelChange(operation=name, before_s=sums[0], after_s=sums[1]))
    measured = KernelChange(operation="measured", before_s=found.before_s, after_s=found.after_s)
    rows = [_row(found, each) for each in (*shown, found.idle)]
    rows.append(("unexplained", signed(found.unexplained_s), _share(found, found.unexplained_s), *[""] * 4))
    return [*rows, _row(found, measured)]


def _row(found: KernelDifference, each: KernelChange) -> tuple[str, ...]:
    times = (seconds(each.before_s), seconds(each.after_s))
    share = _share(found, each.change_s)
    return each.operation, signed(each.change_s), share, *times, each.calls_text, each.kernel


def _share(found: KernelDifference, change_s: float) -> str:
    return percent(change_s / found.loss_s, 0) if found.loss_s else ""


def signed(value_s: float) -> str:
    return f"{'-' if value_s < 0 else '+'}{seconds(abs(value_s))}"


def waterfall(found: KernelDifference) -> list[tuple[str, float]]:
    """Return names and milliseconds from the baseline's step time, over changes, to that of this session."""
    large, small = found.rows[:_BARS], found.rows[_BARS:]
    bars = [(each.operation, each.change_s) for each in large]
    bars += [
        ("idle", found.idle.change_s),
        ("other operations", math.fsum(each.change_s for each in small)),
        ("unexplained", found.unexplained_s),
    ]
    return [
        (name, 1e3 * value_s)
        for name, value_s in [("baseline", found.before_s), *bars, ("now", found.after_s)]
    ]
