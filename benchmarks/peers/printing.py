"""What a run prints: the list of contests, a line for each, the table, and what failed."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.contests import Contest
from benchmarks.peers.ratios import rate
from benchmarks.peers.results import Entry, Session
from benchmarks.peers.ways import title
from pytest_accel.stats.quantities import counted, si

REACHED = {True: "yes", False: "no", None: ""}
HEADER = ("contest", "against", "unit", "ours", "peer", "ratio", "95 %", "goal", "reached")
LEFT = 3  # columns of words
MEANING = (
    "ratio: ours over the peer's rate. reached: the lower end of its 95 % interval is at the goal or above."
)
SMALL = "small: tiny models, eager on both sides. This shows that everything works; the ratios mean nothing."


def listing(contests: Sequence[Contest]) -> str:
    """Return what there is to play."""
    header = ("contest", "model", "task", "batch", "precision", "against", "goal", "ours is")
    rows = [
        (
            contest.name,
            contest.model,
            contest.task,
            str(contest.batch_size),
            contest.precision,
            title(contest),
            _goal(contest),
            contest.row,
        )
        for contest in contests
    ]
    return aligned([header, *rows], left=len(header))


def table(session: Session, entries: Sequence[Entry]) -> str:
    """Return the table of what was measured, and below it how to read it."""
    rows = [_row(entry) for entry in entries if entry.played is not None]
    if not rows:
        return "Nothing was measured."
    how = (
        f"{counted(session.groups, 'group')} of two blocks of each side, {session.block_seconds:g} s a block"
    )
    lines = [
        aligned([HEADER, *rows], left=LEFT),
        MEANING,
        f"{session.device_name}, {session.date}; {how}.",
        *(f"{entry.contest.name} was {told}." for entry in entries if (told := _cut_off(entry))),
        ", ".join(f"{name} {each}" for name, each in session.versions.items()),
    ]
    return "\n".join([*lines, SMALL] if session.small else lines)


def _row(entry: Entry) -> tuple[str, ...]:
    played, ratio = entry.played, entry.ratio
    assert played is not None
    assert ratio is not None
    return (
        entry.contest.name,
        played.against,
        f"{played.unit}/s",
        si(rate(played.work, played.times.ours_s)),
        si(rate(played.work, played.times.peer_s)),
        f"{ratio.value:.3f}",
        f"{ratio.low:.3f} to {ratio.high:.3f}",
        _goal(entry.contest),
        REACHED[ratio.reaches(entry.contest.goal)],
    )


def _cut_off(entry: Entry) -> str:
    """Return that it was, and when; nothing where it was not."""
    if entry.played is None or not entry.cut_off:
        return ""
    return f"cut off after {counted(entry.played.times.groups, 'group')}"


def _goal(contest: Contest) -> str:
    return "" if contest.goal is None else f"{contest.goal:.1f}"


def in_one_line(entry: Entry) -> str:
    """Return what is said as soon as a contest is over."""
    played, ratio = entry.played, entry.ratio
    if played is None or ratio is None:
        return f"FAILED: {entry.error.splitlines()[0] if entry.error else 'no reason was given'}"
    ours, peer = (si(rate(played.work, each)) for each in (played.times.ours_s, played.times.peer_s))
    line = (
        f"ours {ours} {played.unit}/s, {played.against} {peer}, "
        f"ratio {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    )
    return ", ".join(filter(None, (line, _cut_off(entry))))


def failures(entries: Sequence[Entry]) -> str:
    """Return the contests without figures, each with its reason; nothing where there are none."""
    return "\n".join(
        f"FAILED {entry.contest.name}: {entry.error}" for entry in entries if entry.played is None
    )


def aligned(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Return rows as columns, the first so many to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
