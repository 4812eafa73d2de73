"""Kernel tables: seconds a step by operation and kernel, and the difference of two of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

MOST_ROWS, MOST_OF_OPERATION = 20, 3  # of a table, which has about 5 KB in a baseline
OTHER, IDLE, LOADER, LAYOUT = "other operations", "idle", "data loader", "convolution layout"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "reduce")
_SMALL = 0.001  # of all rows: not worth a row
_COUNT_DIFFERS = 0.01
_LONGEST_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One kernel of one operation, a step; on the CPU an operator."""

    operation: str  # "attention backward": stays where a kernel gets another name
    kernel: str = ""  # empty: several small ones together
    count: float
    seconds: float  # while nothing else ran, and its share where other kernels did
    overlapped_s: float = 0.0  # beside: of collectives and copies, while a kernel computed

    def __post_init__(self) -> None:
        for name in ("count", "seconds", "overlapped_s"):
            if not 0 <= getattr(self, name) <= _LONGEST_S:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not between 0 and {_LONGEST_S:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """What a step of one run spent its time on, the most first. Rows and idle time sum to its step time."""

    step_s: float  # of the run's rounds, without the profiler
    idle_s: float  # nothing ran on the device; on the CPU no operator: Python and waiting
    rows: tuple[KernelRow, ...]

    def __post_init__(self) -> None:
        if not (0 < self.step_s <= _LONGEST_S and 0 <= self.idle_s <= _LONGEST_S):
            raise ValueError(f"step_s {self.step_s!r} and idle_s {self.idle_s!r} are no times of a step")

    @classmethod
    def of(cls, rows: Iterable[KernelRow], *, step_s: float, idle_s: float | None = None) -> KernelTable:
        """Make a table that sums to `step_s`, of rows and idle time that were measured together.

        Without `idle_s`, of a device, the profiler did not change the rows: idle time is what they leave.
        """
        shown = _fold(sorted(rows, key=lambda row: row.seconds, reverse=True))
        busy_s = math.fsum(row.seconds for row in shown)
        whole_s = max(busy_s, step_s) if idle_s is None else busy_s + idle_s
        scale = step_s / whole_s if whole_s else 1.0
        return cls(
            step_s=step_s,
            idle_s=max(0.0, step_s - busy_s * scale),
            rows=tuple(
                replace(row, seconds=row.seconds * scale, overlapped_s=row.overlapped_s * scale)
                for row in shown
            ),
        )


def _fold(rows: Sequence[KernelRow]) -> list[KernelRow]:
    """Fold small rows into one of their operation, and small operations into one."""
    kept: list[KernelRow] = []
    folded: dict[str, list[KernelRow]] = {}
    least_s = _SMALL * math.fsum(row.seconds for row in rows)
    for row in rows:
        siblings = sum(each.operation == row.operation for each in kept)
        if len(kept) < MOST_ROWS and siblings < MOST_OF_OPERATION and row.seconds >= least_s:
            kept.append(row)
        else:
            folded.setdefault(row.operation if siblings else OTHER, []).append(row)
    return [
        *kept,
        *(
            KernelRow(
                operation=operation,
                count=math.fsum(row.count for row in found),
                seconds=math.fsum(row.seconds for row in found),
                overlapped_s=math.fsum(row.overlapped_s for row in found),
            )
            for operation, found in folded.items()
            if any(row.seconds for row in found)
        ),
    ]


# --- the difference of two tables --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChange:
    """One operation in two tables, a step."""

    operation: str
    before_s: float
    after_s: float
    calls: tuple[float, float] = (0.0, 0.0)  # of that kernel; zeros where a table has it among its small ones
    kernel: str = ""  # the one that changed most, or which one took the place of which

    @property
    def change_s(self) -> float:
        return self.after_s - self.before_s

    @property
    def is_collective(self) -> bool:
        return self.operation.startswith(COLLECTIVES)

    @property
    def calls_text(self) -> str:
        """Return how often it ran a step: `6`, or `6 -> 12`; empty where nothing is counted."""
        old, new = self.calls
        if not max(old, new):
            return ""
        return f"{old:.4g} -> {new:.4g}" if self.calls_differ else f"{new:.4g}"

    @property
    def calls_differ(self) -> bool:
        old, new = self.calls
        return abs(new - old) > _COUNT_DIFFERS * max(old, new)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDifference:
    """What changed between two tables, operation by operation, the largest change first.

    The changes of the rows, of the idle time and what is unexplained sum to the measured loss.
    """

    before_s: float  # step time of all runs, as the gate sees it
    after_s: float
    rows: tuple[KernelChange, ...]
    idle: KernelChange

    @property
    def loss_s(self) -> float:
        return self.after_s - self.before_s

    @property
    def unexplained_s(self) -> float:
        """The measured loss less that of the two profiled runs."""
        return math.fsum(
            (self.after_s, -self.before_s, *(-each.change_s for each in (*self.rows, self.idle)))
        )


def compare(old: KernelTable, new: KernelTable, *, before_s: float, after_s: float) -> KernelDifference:
    """Align two tables by operation, beside the step times that were measured."""
    changes = [
        _change(
            operation, *([row for row in table.rows if row.operation == operation] for table in (old, new))
        )
        for operation in dict.fromkeys(row.operation for row in (*old.rows, *new.rows))
    ]
    return KernelDifference(
        before_s=before_s,
        after_s=after_s,
        rows=tuple(sorted(changes, key=lambda each: (-abs(each.change_s), each.operation))),
        idle=KernelChange(operation=IDLE, before_s=old.idle_s, after_s=new.idle_s),
    )


def _change(operation: str, old: Sequence[KernelRow], new: Sequence[KernelRow]) -> KernelChange:
    before, after = ({row.kernel: row for row in side if row.kernel} for side in (old, new))
    absent = KernelRow(operation=operation, count=0.0, seconds=0.0)
    changes = {
        name: abs(after.get(name, absent).seconds - before.get(name, absent).seconds)
        for name in {**before, **after}
    }
    shown = max(changes, key=lambda name: changes[name], default="")
    then, now = before.get(shown, absent), after.get(shown, absent)
    gone, came = before.keys() - after.keys(), after.keys() - before.keys()
    if shown in gone | came and gone and came:  # whose calls are not those of one kernel
        old_name, new_name = (max(names, key=lambda name: changes[name]) for names in (gone, came))
        shown, then, now = f"{old_name} -> {new_name} (other kernel)", absent, absent
    is_counted = now.count and (then.count or not old)
    return KernelChange(
        operation=operation,
        before_s=math.fsum(row.seconds for row in old),
        after_s=math.fsum(row.seconds for row in new),
        calls=(then.count, now.count) if is_counted else (0.0, 0.0),
        kernel=shown,
    )
