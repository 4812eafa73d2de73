"""Results of a session of comparisons: JSON, and the tables that are printed. No torch here."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.comparison.catalogue import Comparison
from benchmarks.comparison.implementations import title
from benchmarks.comparison.ratios import Times, rate, ratio_of
from pytest_accel.stats.quantities import counted, si
from pytest_accel.storage.codec import decode, encode, loads, render
from pytest_accel.storage.files import write_atomic

Log = Callable[[str], None]
LIBRARIES = (
    *("torch", "torchvision", "timm", "transformers", "segmentation-models-pytorch"),
    *("triton", "pytest-accel"),
)
HEADER = ("comparison", "against", "unit", "ours", "peer", "ratio", "95 %", "goal", "reached")
LEGEND = (
    "ratio: our rate over the peer's. reached: the lower bound of the 95 % interval is at the goal or above."
)
SMALL = "CPU: tiny models, eager on both sides. This checks that everything works; the ratios mean nothing."


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    against: str  # the peer in words
    times: Times
    our_steps: int  # of a block
    peer_steps: int
    work: int  # of a step
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One comparison with its times, or the error that ended it."""

    name: str
    row: str  # of bench_suites
    model: str
    task: str
    batch_size: int
    precision: str
    goal: float | None = None
    measured: Measured | None = None
    error: str = ""

    @classmethod
    def of(cls, comparison: Comparison, *, measured: Measured | None = None, error: str = "") -> Entry:
        return cls(
            name=comparison.name,
            row=comparison.row,
            model=comparison.model,
            task=comparison.task,
            batch_size=comparison.batch_size,
            precision=comparison.precision,
            goal=comparison.goal,
            measured=measured,
            error=error,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """All comparisons of one invocation, and what they ran on."""

    date: str  # ISO 8601, UTC
    device: str  # cuda, cpu
    device_name: str
    groups: int
    block_seconds: float
    versions: Mapping[str, str]
    entries: tuple[Entry, ...] = ()


def read(path: Path) -> Session:
    return decode(Session, loads(path.read_text(encoding="utf-8")))


def write(path: Path, session: Session) -> None:
    write_atomic(path, render(encode(session)))


def installed_versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def listing(comparisons: Sequence[Comparison]) -> str:
    """Return the table of `--list`."""
    header = ("comparison", "model", "task", "batch", "precision", "against", "goal", "our row")
    rows = [
        (
            each.name,
            each.model,
            each.task,
            str(each.batch_size),
            each.precision,
            title(each),
            _goal(each.goal),
            each.row,
        )
        for each in comparisons
    ]
    return _aligned([header, *rows], left=len(header))


def table(session: Session) -> str:
    """Return the table of results, how to read it, and the comparisons that failed."""
    rows = [_row(entry, entry.measured) for entry in session.entries if entry.measured is not None]
    blocks = f"{counted(session.groups, 'group')} of two blocks of each side, {session.block_seconds:g} s per block"
    lines = [_aligned([HEADER, *rows], left=3), LEGEND] if rows else ["Nothing was measured."]
    lines.append(f"{session.device_name}, {session.date}; {blocks}.")
    for entry in session.entries:
        if entry.measured is None:
            lines.append(f"FAILED {entry.name}: {entry.error}")
        elif entry.measured.times.cut_off:
            lines.append(f"{entry.name} was interrupted after {entry.measured.times.groups} groups.")
    lines.append(", ".join(f"{name} {each}" for name, each in session.versions.items()))
    return "\n".join([*lines, SMALL] if session.device == "cpu" else lines)


def _row(entry: Entry, measured: Measured) -> tuple[str, ...]:
    ratio = ratio_of(measured.times)
    return (
        entry.name,
        measured.against,
        f"{measured.unit}/s",
        si(rate(measured.work, measured.times.ours_s)),
        si(rate(measured.work, measured.times.peer_s)),
        f"{ratio.value:.3f}",
        f"{ratio.low:.3f} to {ratio.high:.3f}",
        _goal(entry.goal),
        {True: "yes", False: "no", None: ""}[ratio.reaches(entry.goal)],
    )


def _goal(goal: float | None) -> str:
    return "" if goal is None else f"{goal:.1f}"


def _aligned(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Return rows as columns: the first ones left-aligned, figures right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
