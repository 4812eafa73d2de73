"""Terminal output: lines of verdicts and notes, the table after the run, the live progress line."""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from _pytest._io import TerminalWriter
from _pytest._io.wcwidth import wcswidth

from pytest_accel.report.verdicts import deciding, removal, word
from pytest_accel.stats.baseline_quality import MOST_RESOLVED, NO_GATE
from pytest_accel.stats.causes import Cause, cause_lines
from pytest_accel.stats.environment import Change, describe, describe_briefly, is_setting
from pytest_accel.stats.gate import THROUGHPUT, Estimate, Outcome, Verdict, loss
from pytest_accel.stats.metric_gates import ANCHOR, PlatformShift, less_is_better, shown_name
from pytest_accel.stats.quantities import clipped, counted, minutes, percent, printable, seconds
from pytest_accel.stats.results import Ending, ReportLine, Result, status_of
from pytest_accel.stats.run import MAX_RUNS

GAP = "  "
_NARROWEST = 12  # characters of a clipped cell

# --- lines ------------------------------------------------------------------------------------------


def line_text(label: str, line: ReportLine) -> str:
    """Return a line with the word of its status and the name of its benchmark."""
    if line.status is None:
        return note(label, line.text)
    what = label if line.of == THROUGHPUT else f"{label} {shown_name(line.of)}"
    return f"{word(line.status)}  {what}: {line.text}"


def note(label: str, text: str) -> str:
    """Return a note below a result: a sentence that changes no outcome."""
    return f"note: {label}: {text}" if label else f"note: {text}"


def line_of(verdict: Verdict) -> ReportLine:
    return ReportLine(text=explain(verdict), status=status_of(verdict), of=verdict.of)


def vanished_text(node_id: str, command: Sequence[str]) -> str:
    return f"is stored in the baseline and was not found; restore it, or see what would be removed with {removal([node_id], command)}"


def platform_line(found: PlatformShift) -> ReportLine:
    """Return what all benchmarks of a platform lost together, without its name."""
    return ReportLine(
        text=f"{found.slower} of {found.members} benchmarks slower together, by {percent(found.loss)} (at least "
        f"{percent(loss(found.at_least))}; tolerance {percent(found.tolerance)}): check the machine "
        "(pytest-accel doctor)",
        status=Outcome.REGRESSED,
    )


def platform_brief(found: PlatformShift, changes: Sequence[Change], causes: Sequence[str] = ()) -> str:
    """Return the same in the shortest form, with its causes, else with what changed in the environment."""
    lost = f"{percent(found.loss)} slower (at least {percent(loss(found.at_least))})"
    parts = [f"{lost}, {found.slower} of {found.members} benchmarks together"]
    return "; ".join(filter(None, [*parts, *(causes or [describe_briefly(changes)])]))


def frozen_text(*, chosen: float, stored: float | None, before: float | None = None) -> str:
    """Return what tolerance="auto" came to; a frozen tolerance changes only on request.

    `chosen` is what the runs that are stored now resolve, `stored` what the benchmark is judged by: None where the recording
    was not finished. `before` was in the baseline before.
    """
    if stored is None:
        return (
            "tolerance auto: not frozen, the recording was not finished; its runs resolve "
            f"{percent(chosen)} so far: record the rest with --accel-record --accel-tolerance=auto"
        )
    here = f"tolerance auto: {percent(stored)}"
    if stored != before:  # the baseline is new, or was replaced
        return f"{here}, frozen in its baseline" + ("" if before is None else f"; it was {percent(before)}")
    now = "" if chosen == before else f"; its runs resolve {percent(chosen)} by now"
    return f"{here} stays, as it was frozen{now}"


def explain(verdict: Verdict) -> str:
    text = in_words(
        verdict,
        observed=counted(verdict.runs, "run"),
        against=f" vs {counted(verdict.baseline_runs, 'baseline run')}",
        gained=": refresh the baseline with --accel-update, or the loss of this gain will go unnoticed",
        way_out=": ".join(filter(None, way_out(verdict))),
    )
    beside = f"; beside {percent(verdict.common)} that all on this platform lost" if verdict.common else ""
    return text + beside


def in_words(  # noqa: PLR0911 - one a verdict
    verdict: Verdict, *, observed: str, way_out: str, against: str = "", gained: str = ""
) -> str:
    """Return the change, its bounds and its runs.

    `way_out` is what would decide an inconclusive verdict, `gained` what follows from a gain.
    """
    found = verdict.slowdown or Estimate(point=0.0, low=0.0, high=0.0)
    tolerance, moved = f"tolerance {percent(verdict.tolerance)}", changed(found.point, verdict.of)
    match status_of(verdict) if verdict.slowdown else None:
        case Outcome.REGRESSED:
            return (
                f"{moved} (at least {percent(found.low)}; {tolerance}), {observed}{against}, "
                f"run-to-run noise {percent(verdict.noise or 0)}"
            )
        case Outcome.UNSTABLE if verdict.slow_group:
            others = changed(verdict.slow_group.others_loss, verdict.of)
            return f"{slow_runs(verdict)}, the others {others} ({tolerance}){against}"
        case Outcome.OK:
            side = "most" if found.high >= 0 else "least"
            return f"{moved} (at {side} {changed(found.high, verdict.of)}; {tolerance}), {observed}"
        case Outcome.IMPROVED:
            return f"{moved} (at least {changed(found.high, verdict.of)}; {tolerance}), {observed}{gained}"
        case Outcome.INCONCLUSIVE:
            return (
                f"{moved} ({changed(found.low, verdict.of)} to {changed(found.high, verdict.of)}; {tolerance}), "
                f"{observed}; {way_out}"
            )
        case Ending.NOT_GATED:
            text = f"{moved} ({tolerance}, which is no gate), {observed}, run-to-run noise {percent(verdict.noise or 0)}"
            quieten = f"{_quieten(verdict.of)}, and " if (verdict.resolution or 0.0) > NO_GATE else ""
            return f"{text}: {quieten}tolerate {percent(NO_GATE, 0)} or less"
    return verdict.reason


def way_out(verdict: Verdict, enough: str = "") -> tuple[str, str]:
    """Return why a verdict is inconclusive, and what would decide it; `enough` replaces the tolerance that would do.

    More runs are advised only where they can decide it: ten resolve 3.7 times the noise.
    """
    if verdict.wants_another_run:
        few = "one run decides nothing" if verdict.runs == 1 else "another run may decide it"
        return "", f"{few}, and it was not measured again"
    noise, resolution = verdict.noise or 0.0, verdict.resolution or 0.0
    if resolution <= verdict.tolerance:
        why = f"noise {percent(noise)} would resolve {percent(resolution)}, but the runs do not agree"
        return why, "measure again, and look at what differs from process to process"
    if MOST_RESOLVED * noise <= verdict.tolerance and verdict.baseline_runs < MAX_RUNS:
        remedy = "record more baseline runs with --accel-record"
    elif resolution > NO_GATE:
        remedy = f"no gate holds on it: {_quieten(verdict.of)}"
    else:
        remedy = f"{_quieten(verdict.of)}, or tolerate {enough or percent(resolution, 0)}"
    ended = ", so that further runs would hardly decide it" if verdict.undecidable else ""
    return f"noise {percent(noise)} resolves {percent(resolution)} here{ended}", remedy


def _quieten(of: str) -> str:
    is_speed = of in {THROUGHPUT, ANCHOR}
    return "quieten the machine (pytest-accel doctor)" if is_speed else "measure it over more work"


def change(result: Result) -> str:
    """Return by how much what decided has changed: `10.0 % slower, accuracy 20.0 % lower`."""
    said = []
    for verdict in deciding(result):
        if verdict.slowdown is not None:
            is_unstable = verdict.outcome is Outcome.UNSTABLE
            text = slow_runs(verdict) if is_unstable else changed(verdict.slowdown.point, verdict.of)
            named = text if verdict.of == THROUGHPUT else f"{shown_name(verdict.of)} {text}"
            said.append(f"{named} than the platform" if verdict.common else named)
        elif verdict.outcome is Outcome.REGRESSED:
            said.append("does not fit")
    return ", ".join(said)


def brief(verdict: Verdict) -> str:
    """Return a failing verdict in the shortest form: `6.7 % slower (at least 4.5 %)`."""
    status, found = status_of(verdict), verdict.slowdown
    of = "" if verdict.of == THROUGHPUT else f"{shown_name(verdict.of)} "
    if found is None:
        return f"{word(status)}: {verdict.reason}"
    if status is Outcome.REGRESSED:
        return f"{of}{changed(found.point, verdict.of)} (at least {percent(found.low)})"
    return f"{word(status)}: {of}{slow_runs(verdict) or changed(found.point, verdict.of)}"


def slow_runs(verdict: Verdict) -> str:
    """Return the slow ones of two groups of runs: `3 of 5 runs 37.5 % slower`; empty without groups."""
    group = verdict.slow_group
    return f"{group.runs} of {verdict.runs} runs {changed(group.loss, verdict.of)}" if group else ""


def changed(lost: float, of: str = THROUGHPUT) -> str:
    """Return a loss in words; a negative one is a gain."""
    if of in {THROUGHPUT, ANCHOR}:
        words = ("slower", "faster")
    else:
        words = ("more", "less") if less_is_better(of) else ("lower", "higher")
    return f"{percent(abs(lost))} {words[lost < 0]}"


def explanation(causes: Sequence[Cause], loss: float, changes: Sequence[Change]) -> list[str]:
    """Return the lines below a failure: its causes, what changed in the environment beside them, and what is left."""
    named = any(each.kind == "environment" for each in causes)
    rest = describe(each for each in changes if not (named and is_setting(each.name)))
    if not causes:
        none = "nothing in the recorded environment changed since the baseline; your own code and other packages are not recorded"
        return [f"changed since the baseline: {rest}" if rest else none]
    lines = []
    for heading, text, remedy in cause_lines(causes, loss):
        lines.append(f"  {heading:<8} {text}")
        lines += [f"  {'':<8} {remedy}"] if remedy else []
    return [*lines, *([f"  {'changed':<8} {rest}"] if rest else [])]


def unsteady(warmup_s: float | None) -> str:
    lasted = f"a warm-up of {seconds(warmup_s)}" if warmup_s else "their warm-up"
    return (
        f"steps still drifted after {lasted}. Look for who else uses the machine; where that was all of accel_warmup, "
        "give it longer"
    )


# --- the table after the run -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    text: str
    markup: Mapping[str, bool] = field(default_factory=dict)


def screen_width() -> int | None:
    """Return the columns of the terminal, or those that COLUMNS names; None where output is a file."""
    return shutil.get_terminal_size(fallback=(0, 0)).columns or None


def padded_rows(
    titles: Sequence[str], rows: Sequence[Sequence[Cell]], width: int | None = None
) -> tuple[list[list[Cell]], list[str]]:
    """Return a header and the rows, padded, and lines that name the columns that `width` has no room for.

    A title that ends in `>` is of figures. Columns without a value are left out. The most important columns come first: the
    last ones are left out until the others fit. The first column's texts lose their middle where two are too wide.
    """
    names = [title.removesuffix(">") for title in titles]
    shown = [index for index in range(len(names)) if any(row[index].text for row in rows)]
    widths = {i: max(wcswidth(text) for text in (names[i], *(row[i].text for row in rows))) for i in shown}
    left_out: list[str] = []
    enough = _table_width(shown, widths)
    if width is not None:
        wanted = dict(widths)
        if shown and _table_width(shown[:2], widths) > width:
            widths[shown[0]] = min(widths[shown[0]], max(_NARROWEST, width // 2))
        while len(shown) > 2 and _table_width(shown, widths) > width:
            left_out.insert(0, names[shown.pop()])
        for index in shown:
            room = widths[index] + width - _table_width(shown, widths)
            widths[index] = min(wanted[index], max(room, _NARROWEST))
    header = [Cell(text=name, markup={"bold": True}) for name in names]

    def padded(index: int, cell: Cell) -> Cell:
        text = clipped(cell.text, widths[index])
        blanks = " " * (widths[index] - wcswidth(text))
        text = blanks + text if titles[index].endswith(">") else text + blanks
        return replace(cell, text=text.rstrip() if index == shown[-1] else text + GAP)

    hint = f"No room for: {', '.join(left_out)} (COLUMNS={enough} shows them)."
    lines = wrapped(hint, width) if left_out else []
    return [[padded(index, row[index]) for index in shown] for row in (header, *rows)], lines


def _table_width(shown: Sequence[int], widths: Mapping[int, int]) -> int:
    return sum(widths[index] for index in shown) + len(GAP) * (len(shown) - 1)


def text_table(titles: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return a table as wide as the terminal; a title that ends in `>` is of figures."""
    cells = [[Cell(text=printable(cell)) for cell in row] for row in rows]
    padded, left_out = padded_rows(list(map(printable, titles)), cells, screen_width())
    return [*("".join(cell.text for cell in row).rstrip() for row in padded), *left_out]


def wrapped(text: str, width: int | None, *, first: str = "", indent: str = "    ") -> list[str]:
    """Return a text in lines of at most `width`; words stay whole, such as paths to copy."""
    if width is None or wcswidth(first + text) <= width:
        return [f"{first}{text}".rstrip()]
    found = textwrap.wrap(
        text.replace(" %", "\xa0%"),
        max(width, len(indent) + 30),
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\xa0%", " %") for line in found]


def fitted(lines: Iterable[str]) -> list[str]:
    """Return lines of text that fit the terminal; indented ones stay indented."""
    width = screen_width()
    found = []
    for line in lines:
        text = line.lstrip()
        own = " " * (len(line) - len(text))
        found += wrapped(text, width, first=own, indent=f"{own}    ")
    return found


# --- the live progress line ------------------------------------------------------------------------


class Progress:
    """The phase of a benchmark: below pytest's line on a terminal, erased again; in a log a line every 30 s.

    It ticks from the last phase it was given, while a worker process compiles or measures.
    """

    interval_s = 0.25
    log_interval_s = 30.0

    def __init__(
        self,
        label: str,
        terminal: TerminalWriter | None,
        uncaptured: Callable[[], AbstractContextManager[None]] = nullcontext,
        clock: Callable[[], float] = time.monotonic,
        *,
        log: Callable[[str], None] | None = None,
        left_s: float | None = None,
        logged_s: float | None = None,
    ) -> None:
        """`left_s` is what is left of the session, once that is known; `logged_s` when its log had its last line."""
        self._label = label
        self._terminal = terminal
        self._uncaptured = uncaptured
        self._clock = clock
        self._log = log
        self._phase = ""
        self._until: float | None = None
        self._began = self._shown = clock()
        self.logged_s = self._began if logged_s is None else logged_s
        self._ends = None if left_s is None else self._began + left_s

    def phase(self, text: str, remaining_s: float | None) -> None:
        now = self._clock()
        self._phase, self._began = text, now
        self._until = None if remaining_s is None else now + remaining_s
        self._show(now)

    def tick(self) -> None:
        now = self._clock()
        if now - self._shown >= self.interval_s:
            self._show(now)

    def close(self) -> None:
        self._write("")

    def text(self, now: float, width: int | None = None) -> str:
        """Return `test_gpt: compiling, 2:41; about 12:05 left of the session`; in little room without what matters less."""
        phase, passed_s = f": {self._phase}", now - self._began
        if self._until is not None:
            phase += f", {minutes(self._until - now)} left"
        elif passed_s >= 1:  # a process that compiles here cannot count
            phase += f", {minutes(passed_s)}"
        left = ""
        if self._ends is not None and self._ends > now:  # an estimate that proved too short says nothing
            left = f"; about {minutes(self._ends - now)} left of the session"
        if width is None or wcswidth(self._label + phase + left) <= width:
            return f"{self._label}{phase}{left}"
        return clipped(self._label, max(_NARROWEST, width - wcswidth(phase))) + phase

    def _show(self, now: float) -> None:
        self._shown = now
        if self._terminal is not None:
            self._write(f" {self.text(now, self._terminal.fullwidth - 2)}")
        if self._log is not None and now - self.logged_s >= self.log_interval_s:
            self.logged_s = now
            self._log(self.text(now))

    def _write(self, text: str) -> None:
        if self._terminal is None:
            return
        with self._uncaptured():
            taken = self._terminal.width_of_current_line
            line = self._terminal._current_line  # noqa: SLF001 - pytest fills its line by it; this text is no part of it
            while wcswidth(text) >= self._terminal.fullwidth:
                text = text[:-1]
            # The line below may scroll, which a saved position does not: up again, and to the right.
            column = (taken - 1) % self._terminal.fullwidth + 1  # of a line that may have wrapped
            right = f"\x1b[{column}C" if taken else ""
            self._terminal.write(f"\n\x1b[K{text}\r\x1b[A{right}", flush=True)
            self._terminal._current_line = line  # noqa: SLF001
