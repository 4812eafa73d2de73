"""Kernel differences as rows of a table and as bars of a waterfall."""

from __future__ import annotations

import math

from pytest_accel.stats.kernels import KernelChange, KernelDifference
from pytest_accel.stats.quantities import counted, percent, seconds

# As `text_table` takes them: the most important first, `>` ends those of figures.
HEADINGS = ("a step", "change>", "of the loss>", "baseline>", "now>", "calls", "kernel")
_SMALL = 0.01  # of the loss: such changes share a row
_NONE_S = 1e-9
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
    """Return a change with its sign; less than a nanosecond is none."""
    return f"{'-' if value_s < 0 else '+'}{seconds(abs(value_s))}" if abs(value_s) >= _NONE_S else seconds(0)


def waterfall(found: KernelDifference) -> list[tuple[str, float]]:
    """Return names and milliseconds: the baseline's step time, changes with small ones together, that of this session."""
    bars = [(each.operation, each.change_s) for each in (*found.rows[:_BARS], found.idle)]
    bars.append(("unexplained", found.unexplained_s))
    large = [(name, change_s) for name, change_s in bars if abs(change_s) >= _SMALL * abs(found.loss_s)]
    rest_s = found.loss_s - math.fsum(change_s for _, change_s in large)
    rest = [("other changes", rest_s)] if abs(rest_s) >= _NONE_S else []
    whole = [("baseline", found.before_s), *large, *rest, ("now", found.after_s)]
    return [(name, 1e3 * value_s) for name, value_s in whole]
