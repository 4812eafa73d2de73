"""Runs in fresh processes: one after the other for every benchmark that is not decided, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from pytest_accel.options import SESSION_START_S, Settings
from pytest_accel.report.terminal import Progress
from pytest_accel.session.case import MOST_REPLACED, Case
from pytest_accel.session.endings import Endings
from pytest_accel.session.gangs import Found, Gangs
from pytest_accel.session.recording import refuse_mixture
from pytest_accel.session.terminal import Pacemaker, live_progress
from pytest_accel.session.together import Platforms
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.quantities import counted, seconds
from pytest_accel.stats.verdict import Outcome


@dataclass(slots=True, kw_only=True)
class Turns:
    """Who waits for another run, and who is let go."""

    config: pytest.Config
    settings: Settings
    cases: Mapping[str, Case]  # of the session, by node id
    gangs: Gangs
    endings: Endings
    with_scaling: Callable[[Case, Measurement], Measurement]
    waiting: list[Case] = field(default_factory=list)
    platforms: Platforms = field(default_factory=Platforms)
    after_run: Callable[[], None] = lambda: None  # told of every run, when it was judged
    out_of_time: bool = False  # for another look

    def measure(self, session: pytest.Session) -> None:
        """One more run for every open case, in turn, until all are decided or out of looks.

        In turn, because runs back to back see the same throttling. A run that was disturbed is replaced by another. In a large
        suite verdicts wait for the end of a turn: only then is known what all benchmarks share. A regression that turned out to
        be the platform's is judged on the rest by as many runs as any other, hence twice the turns.

        Where the session has so much time and no more, those that lost most come first in a turn, and no run is begun that would end
        too late, if it took as long as the longest so far.
        """
        unjudged = self.settings.record
        first, last = (1, unjudged) if unjudged else (2, self.settings.repeats)
        pace, longest_s = Pacemaker(self.config), 0.0  # of a look, with starting its process
        for look in range(first, 2 * last + MOST_REPLACED + 1):
            in_suite = not unjudged and self.platforms.may_share(self.cases.values())
            in_turn = self._open()
            if not in_turn:
                return
            for position, case in enumerate(in_turn):
                if session.shouldfail or session.shouldstop:  # -x, --maxfail
                    return
                if self._is_late(longest_s):
                    self.out_of_time = True
                    break
                left = len(in_turn) - position + len(self._open()) * max(0, last - look)
                label = f"{case.item.name}: run {len(case.measurements) + 1} of {last} in {_apart(case)}"
                begun_s = time.monotonic()
                self.start_ahead(in_turn[position:])
                with pace.run(label, left) as progress:
                    self.measure_fresh(case, progress)
                longest_s = max(longest_s, time.monotonic() - begun_s)
                if self.settings.recording:
                    refuse_mixture(case)
                if not self._wants_another_run(case) and not in_suite:
                    self.release(case)
                self.after_run()
            if not unjudged:
                self._release_decided()
            if self.out_of_time:
                return

    def start_ahead(self, coming: Sequence[Case]) -> None:
        """Processes of those whose turns come next, where they are started together: each case pays for its own."""
        first = coming[0]
        before_s = first.held_s
        with live_progress(self.config, "fresh processes") as progress, first.holding():
            served = self.gangs.start_ahead(
                [(each.item, each.platform, each.settings) for each in coming], progress
            )
        if served:
            each_s = (first.held_s - before_s) / len(served)
            first.held_s = before_s
            for number in served:
                coming[number].held_s += each_s

    def measure_fresh(self, case: Case, progress: Progress) -> None:
        """One more run; its measurement, or why there is none, is left in the case."""
        with case.holding():
            found = self.gangs.run(case.item, case.platform, case.settings, progress, fresh=True)
        if found.unfit is not None:
            case.unfit = found.unfit
            case.judge()
        elif found.outcome == "skipped":
            case.skipped = found.text
        elif found.outcome == "failed" or found.measurement is None:
            case.problem = _no_measurement(case, found)
        else:
            case.take(self.with_scaling(case, found.measurement))

    def release(self, case: Case) -> None:
        self.waiting.remove(case)
        self.endings.end(case)

    def release_all(self) -> None:
        """All that still wait, when the looks are used up or the session was interrupted."""
        for case in list(self.waiting):
            self.release(case)

    @property
    def time_line(self) -> str:
        """What is said of a session that had no time for looks which may decide something; empty where it had."""
        cases = self.cases.values() if self.out_of_time else ()
        left = sum(case.undecided and case.outcome is Outcome.INCONCLUSIVE for case in cases)
        if not left:
            return ""
        return (
            f"note: {seconds(self.settings.within_s or 0)} ({self.settings.origin('within_s')}) left none to look again at "
            f"{counted(left, 'benchmark')} that another run may decide. Give it longer, or record more baseline runs."
        )

    def _is_late(self, look_s: float) -> bool:
        """Whether another look, of so many seconds, would end too late; what is to be recorded is never late."""
        within_s = self.settings.within_s
        if within_s is None or self.settings.record:
            return False
        return time.monotonic() - self.config.stash[SESSION_START_S] + look_s > within_s

    def _open(self) -> list[Case]:
        """Those that wait for a run; a regression of a suite may only wait for the others."""
        if self.settings.record:
            return list(self.waiting)
        found = [case for case in self.waiting if case.undecided]
        if self.settings.within_s is not None:
            found.sort(key=lambda case: case.lost, reverse=True)
        return found

    def _release_decided(self) -> None:
        """At the end of a turn: look at what the benchmarks share, then let go of all that need no further run.

        Regressions that may yet be the platform's stay until nothing of it is open, unless -x or --maxfail wants them at once.
        """
        cases, at_once = self.cases.values(), bool(self.config.getoption("maxfail", default=0))
        self.platforms.look(cases, self.waiting)
        still_open = [case for case in self.waiting if self._wants_another_run(case)]
        for case in [case for case in self.waiting if case not in still_open]:
            if at_once or not self.platforms.may_take_off(case, cases, still_open):
                self.release(case)

    def _wants_another_run(self, case: Case) -> bool:
        if case.problem or case.skipped or case.unfit:
            return False
        if unjudged := self.settings.record:
            return len(case.measurements) < unjudged and case.may_be_replaced
        case.judge()
        return case.undecided


def _apart(case: Case) -> str:
    return "a fresh gang" if case.platform.devices > 1 else "a fresh process"


def _no_measurement(case: Case, found: Found) -> str:
    where = _apart(case)
    if found.measuring_off:
        return f"{case.label}: {where} gave no measurement: pytest-benchmark was switched off there (under xdist it is)"
    if not found.reports:  # the processes are gone, and these are their last words
        return f"{case.label}: {where} gave no measurement: {found.text}"
    return f"{case.label} failed in {where}: {found.cause}\n{found.text}"
