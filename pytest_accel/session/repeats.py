"""Runs in fresh processes: repeats of undecided benchmarks, recordings, and losses that a whole platform shares."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import pytest

from pytest_accel.options import SESSION_START_S, Settings
from pytest_accel.report.terminal import Progress, explanation, platform_brief, platform_line
from pytest_accel.session.case import MOST_REPLACED, Case
from pytest_accel.session.device import live_progress
from pytest_accel.session.recording import refuse_mixture
from pytest_accel.session.reports import Finisher, failed_report, is_expected_to_fail
from pytest_accel.session.workers import Workers
from pytest_accel.stats.causes import common_causes
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.metric_gates import FEWEST_MEMBERS, PlatformShift, ShiftMember, judge_platform_shift
from pytest_accel.stats.quantities import counted, seconds

REPEATED = "r"  # among pytest's dots, for a benchmark that is repeated after the others


class PlatformShifts:
    """Losses that nearly all benchmarks of a platform share: one failure of the platform in place of many.

    By the folder of their baselines; once found, a shift stays.
    """

    def __init__(self) -> None:
        self.found: dict[str, PlatformShift] = {}
        self.notes: dict[str, list[str]] = {}  # what may explain it
        self.briefs: dict[str, str] = {}

    def may_apply(self, cases: Iterable[Case]) -> bool:
        """Whether any platform has benchmarks enough, so that verdicts wait for those of the others."""
        return any(size >= FEWEST_MEMBERS for size in _sizes(cases).values())

    def may_explain(self, case: Case, cases: Iterable[Case], still_open: Iterable[Case]) -> bool:
        """Whether a regression may yet turn out to be the platform's: its suite is large, and others are open."""
        if case.disk_name in self.found or not (_is_member(case) and _is_regressed(case)):
            return False
        others_open = any(each.disk_name == case.disk_name for each in still_open)
        return others_open and _sizes(cases)[case.disk_name] >= FEWEST_MEMBERS

    def judge(self, cases: Iterable[Case], waiting: Sequence[Case]) -> None:
        """Judge what each platform shares; cases that wait for their verdict are then judged on the rest."""
        groups: dict[str, list[Case]] = {}
        for case in filter(_is_member, cases):
            if case.disk_name not in self.found:
                groups.setdefault(case.disk_name, []).append(case)
        for platform, group in groups.items():
            found = judge_platform_shift([_member(case) for case in group])
            if found is None or not found.regressed:
                continue
            self.found[platform] = found
            changes = group[0].changes()
            causes = common_causes(next(iter(each.causes()), None) for each in group)
            self.briefs[platform] = platform_brief(found, changes, causes)
            self.notes[platform] = [
                *(f"  {'cause':<8} {text}" for text in causes),
                *explanation((), 0.0, changes),
                "Each benchmark was judged on what it lost beside that.",
            ]
            for case in group:
                if case in waiting:
                    case.platform_loss = found.c
                    case.judge()

    def reports(self) -> Iterator[pytest.TestReport]:
        for platform, found in self.found.items():
            path, text, notes = f"baselines/{platform}", platform_line(found).text, self.notes[platform]
            short = self.briefs[platform]
            yield failed_report(platform, path, Outcome.REGRESSED, text, notes, short=short)


def _is_member(case: Case) -> bool:
    """Whether a case was judged against a baseline and its regression would fail it.

    A benchmark that is expected to fail neither counts for the platform nor passes by what all share.
    """
    was_judged = case.verdict is not None and case.verdict.slowdown is not None and bool(case.measurements)
    return was_judged and not any(map(is_expected_to_fail, case.pending_reports))


def _sizes(cases: Iterable[Case]) -> Counter[str]:
    """Count the members of each platform, with those whose first run was disturbed: a replacement may join."""
    return Counter(
        case.disk_name for case in cases if _is_member(case) or (case.undecided and not case.measurements)
    )


def _member(case: Case) -> ShiftMember:
    return ShiftMember(
        baseline=case.comparable_runs(),
        runs=case.runs,
        tolerance=case.policy.tolerance,
        regressed=_is_regressed(case),
    )


def _is_regressed(case: Case) -> bool:
    """Whether its throughput regressed: the platform's clocks say little of other metrics."""
    return case.verdict is not None and case.verdict.outcome is Outcome.REGRESSED


@dataclass(slots=True, kw_only=True)
class Repeats:
    config: pytest.Config
    settings: Settings
    cases: Mapping[str, Case]  # of the session, by node id
    workers: Workers
    finisher: Finisher
    with_scaling: Callable[[Case, Measurement], Measurement]
    waiting: list[Case] = field(default_factory=list)
    shifts: PlatformShifts = field(default_factory=PlatformShifts)
    after_run: Callable[[], None] = lambda: None  # called after every run that was judged
    out_of_time: bool = False  # for another repeat
    _line: Path | None = None  # that pytest takes for the file of the line of repeats

    def measure(self, session: pytest.Session) -> None:
        """Run every open case once more, in turn, until all are decided or have no repeats left.

        In turn, because runs back to back see the same throttling. A disturbed run is replaced by another. In a
        large suite verdicts wait for the end of a turn: only then is known what all benchmarks share. A regression
        that turned out to be the platform's is judged on the rest by as many runs as any other: twice the turns.

        With --accel-within, cases that lost most come first, and no run begins that would end too late if it took
        as long as the longest so far.
        """
        record = self.settings.record
        last = record or self.settings.repeats
        durations_s: list[float] = []  # of runs, with the start of their processes
        for _ in range(2 * last + MOST_REPLACED):
            in_suite = not record and self.shifts.may_apply(self.cases.values())
            in_turn = self._open()
            if not in_turn:
                return
            for case in in_turn:
                if session.shouldfail or session.shouldstop:  # -x, --maxfail
                    return
                if self._is_late(max(durations_s, default=0.0)):
                    self.out_of_time = True
                    break
                left = sum(max(1, last - len(each.measurements)) for each in self._open())
                left_s = left * fmean(durations_s) if durations_s else None
                label = f"{case.item.name}, run {len(case.measurements) + 1} of {last}"
                start_s = time.monotonic()
                with live_progress(self.config, label, left_s=left_s) as progress:
                    self.measure_fresh(case, progress)
                durations_s.append(time.monotonic() - start_s)
                case.device_time_s += durations_s[-1]
                if record:
                    refuse_mixture(case)
                if not self._wants_another_run(case) and not in_suite:
                    self.release(case)
                self.after_run()
            if not record:
                self._release_decided()
            if self.out_of_time:
                return

    def measure_fresh(self, case: Case, progress: Progress) -> None:
        """Run a case once more; leave its measurement, or why there is none, in the case."""
        found = self.workers.run(
            case.item,
            case.platform,
            case.settings,
            progress,
            fresh=True,
            profile_above_s=case.profile_above_s,
        )
        if found.unfit is not None:
            case.unfit = found.unfit
            case.judge()
        elif found.outcome == "skipped":
            case.skipped = found.text
        elif found.outcome == "failed" or found.measurement is None:
            case.problem = f"{case.label} failed in a fresh process: {found.cause or 'it measured nothing'}\n{found.text}"
            if not found.reports:  # the processes died: this is their last output
                case.problem = f"{case.label}: a fresh process gave no measurement: {found.text}"
        else:
            case.add(self.with_scaling(case, found.measurement))

    def wait(self, case: Case) -> None:
        """Let a case wait for its repeats, with a letter at its place among pytest's dots."""
        self.waiting.append(case)
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        if reporter.showlongtestinfo:
            reporter.write_ensure_prefix(f"{case.node_id} ", "REPEATED BELOW", yellow=True)
        elif reporter.showfspath:
            reporter.write_fspath_result(case.node_id, REPEATED, yellow=True)
        else:
            reporter.write(REPEATED, flush=True, yellow=True)

    def release(self, case: Case) -> None:
        self.waiting.remove(case)
        if not self.settings.record:
            self.begin_line(case)
        self.finisher.finish(case)

    def begin_line(self, case: Case) -> None:
        """Let the letters of repeats follow on a line of their own, not on lines of their files."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or reporter.showlongtestinfo or not reporter.showfspath:
            return
        if reporter.currentfspath != self._line:
            reporter.ensure_newline()
            reporter.write("measured again: ", flush=True)
        reporter.currentfspath = self._line = self.config.rootpath / case.node_id.partition("::")[0]

    @property
    def time_note(self) -> str:
        """A sentence on repeats for which the session had no time; empty where it had."""
        cases = self.cases.values() if self.out_of_time else ()
        left = sum(case.undecided and case.outcome is Outcome.INCONCLUSIVE for case in cases)
        if not left:
            return ""
        return (
            f"{seconds(self.settings.within_s or 0)} ({self.settings.origin('within_s')}) left no time to repeat "
            f"{counted(left, 'benchmark')} that another run may decide. Give it longer, or record more baseline runs."
        )

    def _is_late(self, run_s: float) -> bool:
        """Whether another run of so many seconds would end too late; a recording never is late."""
        within_s = self.settings.within_s
        if within_s is None or self.settings.record:
            return False
        return time.monotonic() - self.config.stash[SESSION_START_S] + run_s > within_s

    def _open(self) -> list[Case]:
        """Return the cases that need a run; a regression in a suite may only wait for the others."""
        if self.settings.record:
            return list(self.waiting)
        found = [case for case in self.waiting if case.undecided]
        if self.settings.within_s is not None:
            found.sort(key=lambda case: case.relative_loss, reverse=True)
        return found

    def _release_decided(self) -> None:
        """At the end of a turn: find what benchmarks share, then finish all that need no further run.

        Regressions that may yet be the platform's stay until nothing of it is open, unless -x or --maxfail is set.
        """
        cases, at_once = self.cases.values(), bool(self.config.getoption("maxfail", default=0))
        self.shifts.judge(cases, self.waiting)
        still_open = [case for case in self.waiting if self._wants_another_run(case)]
        for case in [case for case in self.waiting if case not in still_open]:
            if at_once or not self.shifts.may_explain(case, cases, still_open):
                self.release(case)

    def _wants_another_run(self, case: Case) -> bool:
        if case.problem or case.skipped or case.unfit:
            return False
        if record := self.settings.record:
            return len(case.measurements) < record and case.may_be_replaced
        case.judge()
        return case.undecided
