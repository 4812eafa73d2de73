"""What resampling found, as Markdown: the tables of docs/noise.md, in a block that only this module writes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.noise.promises import promises_of
from benchmarks.noise.resampling import DRAWS, SLOW_DRAWS, Cell, Figures, Tally
from benchmarks.noise.streams import Stream
from pytest_accel.stats.quantities import percent

BEGIN = "<!-- noise: written by `python -m benchmarks.noise judge --write`, and by nobody else -->"
END = "<!-- noise: end -->"
_EMPTY = "-"


def block(judged: Sequence[tuple[Stream, Figures]]) -> str:
    """All of it, with its marks."""
    sections = [overview(judged), *(section(stream, figures) for stream, figures in judged)]
    return "\n\n".join([BEGIN, *sections, END])


def replaced(page: str, new: str, where: str) -> str:
    """The page with its block replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{where} has no block to write. Put these two lines where it goes:\n{BEGIN}\n{END}")
    return before + new + after


def overview(judged: Sequence[tuple[Stream, Figures]]) -> str:
    """The figures that matter, a stream a row."""
    head = (
        "stream",
        "runs",
        "noise",
        "resolves",
        "false alarms: gate",
        "`mean:5%`",
        "`min:5%`",
        "neighbours in time: gate",
        "`mean:5%`",
        "caught at 5 %: gate",
        "`mean:5%`",
        "caught at 10 %: gate",
        "`mean:5%`",
        "processes, no slowdown",
    )
    rows = []
    for stream, figures in judged:
        quiet, five, ten = (figures.at(slowdown).scaled for slowdown in (0.0, 0.05, 0.1))
        rows.append(
            (
                stream.head.name,
                str(figures.noise.runs),
                percent(figures.noise.between, 2),
                percent(figures.noise.resolution),
                *(rate(quiet, name) for name in ("gate", "mean", "minimum")),
                *(rate(figures.quiet.consecutive, name) for name in ("gate", "mean")),
                *(rate(each, name) for each in (five, ten) for name in ("gate", "mean")),
                _processes(quiet),
            )
        )
    return table(head, rows)


def section(stream: Stream, figures: Figures) -> str:
    """One stream: what it is, and every rate."""
    parts = [f"### {stream.head.name}", _facts(stream, figures), _held(figures), _rates(figures)]
    return "\n\n".join(parts)


def _facts(stream: Stream, figures: Figures) -> str:
    head, noise = stream.head, figures.noise
    valid = [run for run in stream.runs if run.is_valid]
    software = ", ".join(
        f"{name} {head.context[name]}" for name in ("torch", "driver") if name in head.context
    )
    what = (
        f"`{head.benchmark}` on `{head.device}`{f' ({software})' if software else ''}, {stream.runs[0].at[:10]}: {noise.runs} "
        f"runs without a slowdown and {_slowed(stream)}. The command: `{' '.join(head.command)}`."
    )
    noisy = (
        f"From run to run {percent(noise.between, 2)}; a run and the next correlate by {figures.neighbours:.2f}; the second half was "
        f"{percent(abs(math.expm1(figures.drift)), 2)} {'slower' if figures.drift > 0 else 'faster'} than the first."
    )
    facts = [what, noisy]
    occasions = Counter(stream.occasions)
    if len(occasions) > 1:
        facts.append(
            f"They are of {len(occasions)} occasions, of {' and '.join(map(str, occasions.values()))} runs."
        )
    if disturbed := len(stream.runs) - len(valid):
        facts.append(f"{disturbed} disturbed runs are left out.")
    if busy := sum(1 for run in valid if any(each.startswith("other work") for each in run.problems)):
        facts.append(f"`doctor` found other work on the machine in {busy} of {len(valid)} runs.")
    if head.ahead:
        facts.append(
            f"Processes were built {head.ahead} at a time, before one after another measured: to each other they are other work when they end."
        )
    if head.trial:
        facts.append("**A trial: no evidence.**")
    return " ".join(facts)


def _slowed(stream: Stream) -> str:
    """Runs that were really slowed down, by how much."""
    kinds = [f"{len(stream.of(slowdown))} with one of {100 * slowdown:g} %" for slowdown in stream.injected]
    return f"in turns with them {', '.join(kinds)}" if kinds else "none with one"


def _held(figures: Figures) -> str:
    """What a test holds the gate to on this stream, so that no change makes it worse unnoticed."""
    found = promises_of(figures)
    lines = [f"- {'' if promise.holds else '**Broken:** '}{promise.text}" for promise in found.made]
    lines += [f"- not promised here: {text}" for text in found.not_made]
    return "\n".join(["Promised on this stream, and held by a test:", "", *lines])


def _rates(figures: Figures) -> str:
    cells = figures.cells
    head = (
        "failed, %",
        *(f"{100 * cell.slowdown:g} % slower" if cell.slowdown else "no slowdown" for cell in cells),
    )

    def row(label: str, entry: Callable[[Cell], str]) -> tuple[str, ...]:
        return (label, *map(entry, cells))

    rows = [
        row("**the gate**", lambda cell: rate(cell.scaled, "gate")),
        row("`mean:5%`", lambda cell: rate(cell.scaled, "mean")),
        row("`min:5%`", lambda cell: rate(cell.scaled, "minimum")),
        row("the gate leaves open", lambda cell: rate(cell.scaled, "undecided")),
        row("processes that the gate used", lambda cell: _processes(cell.scaled)),
        row("neighbours in time: **the gate**", lambda cell: rate(cell.consecutive, "gate")),
        row("neighbours in time: `mean:5%`", lambda cell: rate(cell.consecutive, "mean")),
        row("neighbours in time: `min:5%`", lambda cell: rate(cell.consecutive, "minimum")),
    ]
    if any(cell.injected for cell in cells):
        rows += [
            row("really injected: **the gate**", lambda cell: rate(cell.injected, "gate")),
            row("really injected: `mean:5%`", lambda cell: rate(cell.injected, "mean")),
            row("really injected: `min:5%`", lambda cell: rate(cell.injected, "minimum")),
            row("really injected: runs", lambda cell: str(cell.injected_runs or _EMPTY)),
            row(
                "really injected: loss that they show, %",
                lambda cell: _EMPTY if cell.lost is None else f"{100 * cell.lost:.1f}",
            ),
        ]
    return table(head, rows)


def how(judged: Sequence[tuple[Stream, Figures]]) -> str:
    """What the figures are, in a line for a terminal."""
    return (
        f"{len(judged)} streams; {DRAWS} draws without a slowdown, {SLOW_DRAWS} with each, seeded; tolerance 5 %, baselines of "
        "five runs of one session."
    )


def rate(tally: Tally | None, name: str) -> str:
    """In percent, without its sign."""
    return _EMPTY if tally is None else f"{100 * getattr(tally, f'{name}_rate'):.1f}"


def _processes(tally: Tally | None) -> str:
    return _EMPTY if tally is None else f"{tally.processes:.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def write(path: Path, new: str) -> None:
    path.write_text(replaced(path.read_text(encoding="utf-8"), new, str(path)), encoding="utf-8")
