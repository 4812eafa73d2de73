"""The course of a session: collect benchmarks, measure them, hold what is undecided, judge, report."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import nullcontext
from functools import cache

import pytest
from _pytest.runner import runtestprotocol  # the door that re-running plugins use; there is no public one

from pytest_accel.core.grammar import PlatformName
from pytest_accel.core.verdict import Outcome
from pytest_accel.options import baselines_root, history_file, settings_of
from pytest_accel.report.lines import MARKUP, vanished_line, word
from pytest_accel.report.progress import Progress
from pytest_accel.session.interrupts import terminated_like_interrupted
from pytest_accel.session.judging.calibrating import Calibrations
from pytest_accel.session.judging.cases import MOST_REPLACED, Case
from pytest_accel.session.judging.recording import (
    refuse_disturbed,
    refuse_mixture,
    refuse_too_many_runs,
    refuse_unwritable,
    write_down,
)
from pytest_accel.session.judging.references import References
from pytest_accel.session.judging.reports import (
    apply_verdict,
    built_reports,
    does_not_fit_report,
    fail,
    note_verdict,
    properties,
    reports_of_ranks,
    vanished_report,
)
from pytest_accel.session.judging.scales import Scales
from pytest_accel.session.judging.scaling import with_scaling
from pytest_accel.session.judging.together import Platforms
from pytest_accel.session.judging.vanished import find_vanished
from pytest_accel.session.measuring.accel import CALL_MEASURE, MEASUREMENT, MEASURING_OFF, SESSION_ID
from pytest_accel.session.measuring.fitting import UNFIT, Unfit
from pytest_accel.session.measuring.terminal import Pacemaker, live_progress, show_uncaptured
from pytest_accel.session.placing import items as what
from pytest_accel.session.placing.binding import bound_to
from pytest_accel.session.placing.placement import Placement, is_xdist_worker
from pytest_accel.session.placing.seating import unseated
from pytest_accel.session.ranks.gangs import Found, Gangs, needs_gang
from pytest_accel.session.ranks.pytest_reports import is_strict_xpass, without_traces
from pytest_accel.session.ranks.replay import replay
from pytest_accel.session.telling.summary import write_gangs, write_idle_ranks, write_summary, write_unmatched
from pytest_accel.settings import Settings
from pytest_accel.store.baselines import BaselineStore
from pytest_accel.store.schema import BaselineError, BaselineFile

NOTHING_MEASURED = "--accel-require: this session measured nothing; a gate that measured nothing is not green"


class Bench:
    """The plugin object of a session that measures; registered under the name `accel-bench`."""

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        placement: Placement,
        collected: Mapping[str, list[PlatformName]],
    ) -> None:
        self.config = config
        self.settings = settings
        self.placement = placement
        self.store = BaselineStore(baselines_root(settings, config.rootpath))
        self.cases: dict[str, Case] = {}
        self.waiting: list[Case] = []  # for a fresh process
        self.collected = collected  # before deselection, with the platforms they are marked with
        self.vanished: list[str] = []
        self.platforms = Platforms()
        learned = settings.scale == "learned" and not settings.unjudged_runs
        self.scales = Scales(history_file(settings, config.rootpath)) if learned else None
        self.gangs = Gangs(config)
        self.calibrations = Calibrations(self.store.root)
        self.references = References(self.store.root, config.rootpath, settings)
        self.read_baseline = cache(self._read_baseline)  # many benchmarks share a file

    # --- collecting -----------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Find the cases and read their baselines: a bad file must be known before anything is measured."""
        if self.config.getoption("collectonly", default=False) or is_xdist_worker(self.config):
            return
        benchmarks = list(filter(what.is_benchmark, session.items))
        what.refuse_shared_ids(benchmarks, self.config.rootpath)
        if self.settings.unjudged_runs:
            refuse_unwritable(self.store.root)
        if benchmarks:
            self.references.refuse_unknown_platforms(self.placement.catalogue)
        for item in benchmarks:
            platform = self.placement.place(item).platform
            if platform is None:
                continue  # its set-up will say what is missing
            disk_name, suite = self.placement.machine.disk_name(platform), what.suite_of(item)
            case = Case(
                item=item,
                platform=platform,
                disk_name=disk_name,
                suite=suite,
                settings=settings_of(item),
                baseline=self.read_baseline(disk_name, suite),
                scales=self.scales,
            )
            refuse_too_many_runs(case)
            self.references.of(item, case.settings)  # a link that leads nowhere is said now
            self.cases[item.nodeid] = case
        self.calibrations.refuse_below(self.cases.values())

    def _read_baseline(self, disk_name: str, suite: str) -> BaselineFile | None:
        try:
            return self.store.read(disk_name, suite)
        except BaselineError as error:
            raise pytest.UsageError(str(error)) from None

    # --- running --------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        case = self.cases.get(item.nodeid)
        in_gang = self.in_gang(item)
        holding = case.holding() if case is not None else nullcontext()
        if in_gang is not None:
            with holding:
                reports = self.run_in_gang(item, in_gang, nextitem)
        elif case is not None:
            self.gangs.close()  # its ranks would hold the devices' memory
            with holding, bound_to(item, case.settings):
                reports = runtestprotocol(item, log=False, nextitem=nextitem)
        else:
            if what.takes_device(item):
                self.gangs.close()
            return None
        if case is not None and case.undecided:
            case.held = reports
            self.waiting.append(case)
        else:
            self.log(item, reports)
        return True

    def in_gang(self, item: pytest.Item) -> PlatformName | None:
        """The platform of an item that runs on several ranks."""
        case = self.cases.get(item.nodeid)
        if case is not None:
            return case.platform if needs_gang(case.platform, case.settings) else None
        if is_xdist_worker(self.config) or not what.takes_process_group(item):
            return None
        platform = self.placement.place(item).platform
        return platform if platform is not None and needs_gang(platform, settings_of(item)) else None

    def run_in_gang(
        self, item: pytest.Item, platform: PlatformName, nextitem: pytest.Item | None
    ) -> list[pytest.TestReport]:
        """The item on every rank, as the reports that it would have had here."""
        case = self.cases.get(item.nodeid)
        settings = case.settings if case else settings_of(item)
        begun = time.monotonic()
        if why_not := unseated(self.config):
            found = Found.failed(why_not)
        else:
            with live_progress(self.config, item.name) as progress:
                found = self.gangs.run(item, platform, settings, progress, fresh=False)
        reports = reports_of_ranks(item, found, nextitem, seconds=time.monotonic() - begun)
        call = next((report for report in reports if report.when == "call"), None)
        skipped = next((report for report in reports if report.skipped), None)
        if case is not None and found.unfit is not None and skipped is not None:
            self.conclude_unfit(case, found.unfit, skipped)
        elif case is not None and call is not None:
            self.take(case, found)
            if call.passed or is_strict_xpass(call):
                self.conclude(case, call)
        show_uncaptured(self.config, reports)
        return reports

    def take(self, case: Case, found: Found) -> None:
        """Keep what ranks measured as if it had been measured here."""
        if found.measuring_off:
            case.item.stash[MEASURING_OFF] = True
        if found.measurement is not None:
            measured = with_scaling(case, found.measurement, self.store, self.placement.machine)
            case.item.stash[MEASUREMENT] = measured
            replay(case.item, case.platform, measured, found)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # last word, after pytest's own treatment of xfail
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        case, unfit = self.cases.get(item.nodeid), item.stash.get(UNFIT, None)
        if case is not None:
            report.sections = without_traces(report.sections)
        if case is not None and report.when == "call" and (report.passed or is_strict_xpass(report)):
            self.conclude(case, report)
        elif case is not None and unfit is not None and report.skipped and report.when != "teardown":
            self.conclude_unfit(case, unfit, report)
        return report

    def conclude(self, case: Case, report: pytest.TestReport) -> None:
        """Judge what the call measured; an undecided verdict is left for later."""
        measurement = case.item.stash.get(MEASUREMENT, None)
        if measurement is None:
            if not case.item.stash.get(MEASURING_OFF, False):
                fail(
                    report,
                    f"{case.label} takes `accel` but measured nothing: {CALL_MEASURE}, "
                    "or take accel_device where only the device is needed",
                    case.item,
                )
            return
        case.take(measurement)
        case.judge()
        if not case.undecided:
            self.settle(case, report)

    def conclude_unfit(self, case: Case, unfit: Unfit, report: pytest.TestReport) -> None:
        """It did not fit in memory, which needs no second look."""
        case.unfit = unfit
        case.judge()
        does_not_fit_report(case, report)

    def settle(self, case: Case, report: pytest.TestReport) -> None:
        """The verdict is final: it becomes the report, and is noted in pytest-benchmark's JSON."""
        self.references.look_up(case)
        apply_verdict(case, report)
        note_verdict(case)

    def log(self, item: pytest.Item, reports: list[pytest.TestReport]) -> None:
        case = self.cases.get(item.nodeid)
        if case is not None:
            reports[-1].user_properties.extend(properties(case))  # JUnit reads those of the teardown
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    # --- fresh processes ------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        ours = bool(self.cases) or any(self.in_gang(item) for item in session.items)
        with terminated_like_interrupted(active=ours):
            try:
                if self.settings.unjudged_runs:  # not here: the loop tears down as if they did not exist
                    self.waiting = list(self.cases.values())
                    session.items = [item for item in session.items if item.nodeid not in self.cases]
                result = yield
                self.measure_waiting(session)
            finally:
                self.gangs.close()
                self.release_waiting()
                self.report_platforms()
        if not self.config.getoption("collectonly", default=False):
            self.report_vanished()
        return result

    def measure_waiting(self, session: pytest.Session) -> None:
        """One more run for every open case, in turn, until all are decided or out of looks.

        In turn, because runs back to back see the same throttling. A run that was disturbed is replaced by another. In a large
        suite verdicts wait for the end of a turn: only then is known what all benchmarks share. A regression that turned out to
        be the platform's is judged on the rest by as many runs as any other, hence twice the turns.
        """
        unjudged = self.settings.unjudged_runs
        first, last = (1, unjudged) if unjudged else (2, self.settings.looks)
        pace = Pacemaker(self.config)
        for look in range(first, 2 * last + MOST_REPLACED + 1):
            in_suite = not unjudged and self.platforms.may_share(self.cases.values())
            in_turn = self.open_cases()
            if not in_turn:
                return
            for position, case in enumerate(in_turn):
                if session.shouldfail or session.shouldstop:  # -x, --maxfail
                    return
                left = len(in_turn) - position + len(self.open_cases()) * max(0, last - look)
                label = f"{case.item.name}: run {len(case.measurements) + 1} of {last} in {_apart(case)}"
                with pace.run(label, left) as progress:
                    self.measure_fresh(case, progress)
                if self.settings.recording:
                    refuse_mixture(case)
                if not self.wants_another_run(case) and not in_suite:
                    self.release(case)
            if not unjudged:
                self.release_decided()

    def open_cases(self) -> list[Case]:
        """Those that wait for a run; a regression of a suite may only wait for the others."""
        return [case for case in self.waiting if self.settings.unjudged_runs or case.undecided]

    def release_decided(self) -> None:
        """At the end of a turn: look at what the benchmarks share, then let go of all that need no further run.

        Regressions that may yet be the platform's stay until nothing of it is open, unless -x or --maxfail wants them at once.
        """
        cases, at_once = self.cases.values(), bool(self.config.getoption("maxfail", default=0))
        self.platforms.look(cases, self.waiting)
        still_open = [case for case in self.waiting if self.wants_another_run(case)]
        for case in [case for case in self.waiting if case not in still_open]:
            if at_once or not self.platforms.may_take_off(case, cases, still_open):
                self.release(case)

    def report_platforms(self) -> None:
        for report in self.platforms.reports():
            self.config.hook.pytest_runtest_logreport(report=report)

    def wants_another_run(self, case: Case) -> bool:
        if case.problem or case.skipped or case.unfit:
            return False
        if unjudged := self.settings.unjudged_runs:
            return len(case.measurements) < unjudged and case.may_be_replaced
        case.judge()
        return case.undecided

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
            case.take(with_scaling(case, found.measurement, self.store, self.placement.machine))

    def release(self, case: Case) -> None:
        """Let go of a case: write it down if recording or calibrating, and log its reports."""
        self.waiting.remove(case)
        reached = case.measurements or case.disturbed or case.problem or case.skipped or case.unfit
        if self.settings.unjudged_runs:
            if reached:  # else there is nothing to tell
                self.write_down(case)
                self.log(case.item, built_reports(case))
            return
        call = next(report for report in case.held if report.when == "call")
        if case.skipped:
            case.problem = f"{case.label} was skipped when it was measured again: {case.skipped}"
        if case.problem:
            fail(call, case.problem, case.item)
        else:
            self.settle(case, call)
        self.log(case.item, case.held)

    def write_down(self, case: Case) -> None:
        """What a recording or a calibration found out, if the device was fair to it."""
        refuse_disturbed(case)
        if self.settings.calibrating:
            self.calibrations.write_down(case, self.config.stash[SESSION_ID])
            return
        self.references.look_up(case)
        write_down(case, self.store, self.config.stash[SESSION_ID])

    def release_waiting(self) -> None:
        """All that is still held, when the looks are used up or the session was interrupted."""
        for case in list(self.waiting):
            self.release(case)

    def report_vanished(self) -> None:
        machine = self.placement.machine
        platforms = {case.platform for case in self.cases.values()} | self.placement.wanted
        satisfied = [platform for platform in platforms if machine.satisfies(platform)]
        self.vanished = find_vanished(self.config, self.store, machine, satisfied, self.collected)
        if self.settings.vanished == "fail":
            for node_id in self.vanished:
                report = vanished_report(node_id, vanished_line(node_id))
                self.config.hook.pytest_runtest_logreport(report=report)

    # --- reporting ------------------------------------------------------------------------------

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, object] | None:
        """Verdicts that pass without being ok are not shown as a plain dot, and what does not fit as no plain skip."""
        properties = dict(
            getattr(report, "user_properties", ())
        )  # of a module that cannot be imported there are none
        verdict = properties.get("accel.verdict") if report.when != "teardown" else None
        if report.skipped and verdict == Outcome.DOES_NOT_FIT.value:
            return str(verdict), "o", (word(Outcome.DOES_NOT_FIT), MARKUP[Outcome.DOES_NOT_FIT])
        if report.outcome != "passed" or verdict in (None, "ok", "improved"):
            return None
        letter = {"no-baseline": "n", "inconclusive": "?", "stale-baseline": "~"}[str(verdict)]
        return "passed", letter, (str(verdict).upper(), {"yellow": True})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.measured_nothing and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def measured_nothing(self) -> bool:
        off = self.config.getoption("collectonly", default=False)
        return (
            self.settings.require and not off and not any(case.measurements for case in self.cases.values())
        )

    @pytest.hookimpl(trylast=True)  # below the table of pytest-benchmark
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        cases = list(self.cases.values())
        write_summary(terminalreporter, self.config, self.settings, cases, self.vanished)
        if cases:
            write_unmatched(terminalreporter, self.references.unmatched(self.collected))
        write_gangs(terminalreporter, self.gangs.looked_over)
        write_idle_ranks(terminalreporter, self.config, cases)
        if remark := self.calibrations.remark:
            terminalreporter.write_line(remark, yellow=True)
        for line in self.scales.lines if self.scales and cases else ():
            terminalreporter.write_line(line)
        if self.measured_nothing:
            terminalreporter.write_line(NOTHING_MEASURED, red=True, bold=True)

    @pytest.hookimpl(optionalhook=True)  # pytest-benchmark may be switched off
    def pytest_benchmark_update_json(self, output_json: dict[str, object]) -> None:
        """Name the hardware; not in machine_info, which is compared before there are any cases."""
        if self.cases:
            output_json["accel"] = {
                "platforms": sorted({case.disk_name for case in self.cases.values()}),
                "devices": [device.name for device in self.placement.machine.devices],
            }


def _apart(case: Case) -> str:
    return "a fresh gang" if case.platform.devices > 1 else "a fresh process"


def _no_measurement(case: Case, found: Found) -> str:
    where = _apart(case)
    if found.measuring_off:
        return f"{case.label}: {where} gave no measurement: pytest-benchmark was switched off there (under xdist it is)"
    if not found.reports:  # the processes are gone, and these are their last words
        return f"{case.label}: {where} gave no measurement: {found.text}"
    return f"{case.label} failed in {where}: {found.cause}\n{found.text}"
