"""The course of a session: collect benchmarks, measure them, hold what is undecided, judge, report."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import nullcontext
from functools import cache

import pytest
from _pytest.runner import runtestprotocol  # the door that re-running plugins use; there is no public one

from pytest_accel.options import Settings, baselines_root, settings_of
from pytest_accel.platforms.names import PlatformName
from pytest_accel.report.terminal import vanished_line
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.session import items as what
from pytest_accel.session.accel import CALL_MEASURE, MEASUREMENT, MEASURING_OFF
from pytest_accel.session.binding import bound_to
from pytest_accel.session.case import Case
from pytest_accel.session.endings import Endings
from pytest_accel.session.fitting import UNFIT, Unfit
from pytest_accel.session.gangs import Found, Gangs
from pytest_accel.session.interrupts import terminated_like_interrupted
from pytest_accel.session.placement import Placement, is_xdist_worker
from pytest_accel.session.pytest_reports import is_strict_xpass, without_traces
from pytest_accel.session.recording import (
    refuse_too_many_runs,
    refuse_unwritable,
)
from pytest_accel.session.references import References
from pytest_accel.session.replay import replay
from pytest_accel.session.reports import (
    does_not_fit_report,
    fail,
    record_warnings,
    reports_of_ranks,
    vanished_report,
)
from pytest_accel.session.scaling import with_scaling
from pytest_accel.session.seating import unseated
from pytest_accel.session.shapes import Shape, shape_of
from pytest_accel.session.summary import write_gangs, write_idle_ranks, write_summary, write_unmatched
from pytest_accel.session.terminal import live_progress, show_uncaptured
from pytest_accel.session.turns import Turns
from pytest_accel.session.vanished import find_vanished
from pytest_accel.stats.baseline_quality import NoisePrior, platform_prior
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage.baselines import BaselineError, BaselineFile, BaselineStore, runs_of_platform

# Options whose output or input a worker process does not have.
DEBUGGING_OPTIONS = ("usepdb", "trace", "setupshow", "setuponly", "setupplan")
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
        self.collected = collected  # before deselection, with the platforms they are marked with
        self.vanished: list[str] = []
        self.gangs = Gangs(config)
        self.references = References(self.store.root, config.rootpath, settings)
        self.endings = Endings(
            config=config,
            settings=settings,
            store=self.store,
            references=self.references,
        )
        self.turns = Turns(
            config=config,
            settings=settings,
            cases=self.cases,
            gangs=self.gangs,
            endings=self.endings,
            with_scaling=self.with_scaling,
        )
        self.read_baseline = cache(self._read_baseline)  # many benchmarks share a file
        self.prior = cache(self._prior)

    # --- collecting -----------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Find the cases and read their baselines: a bad file must be known before anything is measured."""
        if self.config.getoption("collectonly", default=False) or is_xdist_worker(self.config):
            return
        benchmarks = list(filter(what.is_benchmark, session.items))
        what.refuse_shared_ids(benchmarks, self.config.rootpath)
        if self.settings.record:
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
                prior=self.prior(disk_name),
            )
            refuse_too_many_runs(case)
            self.references.of(item, case.settings)  # a link that leads nowhere is said now
            self.cases[item.nodeid] = case

    def _read_baseline(self, disk_name: str, suite: str) -> BaselineFile | None:
        try:
            return self.store.read(disk_name, suite)
        except BaselineError as error:
            raise pytest.UsageError(str(error)) from None

    def _prior(self, disk_name: str) -> NoisePrior:
        """The run-to-run noise to expect on a platform, from all runs that are stored of it."""
        return platform_prior(runs_of_platform(self.store, disk_name))

    # --- running --------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        case, shape = self.cases.get(item.nodeid), self.shape_of(item)
        if shape is None and case is None:
            if what.takes_device(item):
                self.gangs.close()  # a worker would hold memory of the device
            return None
        holding = case.holding() if case is not None else nullcontext()
        if shape is not None:
            with holding:
                reports = self.run_in_workers(item, shape, nextitem)
        else:
            assert case is not None
            self.gangs.close()
            with holding, bound_to(item, case.settings):
                reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if case is not None and case.undecided:
            case.held = reports
            self.turns.waiting.append(case)
        else:
            self.endings.log(item, reports, case)
        return True

    def shape_of(self, item: pytest.Item) -> Shape | None:
        """Return the shape of the workers that run an item; None where it runs in this process."""
        case = self.cases.get(item.nodeid)
        if case is not None:
            shape = shape_of(case.platform, case.settings)
            return shape if shape.process_group or not self.in_process else None
        if is_xdist_worker(self.config) or not what.takes_process_group(item):
            return None
        platform = self.placement.place(item).platform
        if platform is None:
            return None
        shape = shape_of(platform, settings_of(item))
        return shape if shape.process_group else None

    @property
    def in_process(self) -> bool:
        """Whether benchmarks of one device run in this process, for debugging."""
        return self.settings.in_process or any(
            self.config.getoption(name, default=False) for name in DEBUGGING_OPTIONS
        )

    def run_in_workers(
        self, item: pytest.Item, shape: Shape, nextitem: pytest.Item | None
    ) -> list[pytest.TestReport]:
        """Run the item on every rank; return the reports that it would have had here."""
        case = self.cases.get(item.nodeid)
        settings = case.settings if case else settings_of(item)
        begun = time.monotonic()
        if why_not := unseated(self.config):
            found = Found.failed(why_not)
        else:
            same = nextitem if nextitem is not None and self.shape_of(nextitem) == shape else None
            with live_progress(self.config, item.name) as progress:
                found = self.gangs.run(item, shape.platform, settings, progress, fresh=False, nextitem=same)
        record_warnings(item, found.warnings)
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
            measured = self.with_scaling(case, found.measurement)
            case.item.stash[MEASUREMENT] = measured
            replay(case.item, case.platform, measured, found)

    def with_scaling(self, case: Case, measured: Measurement) -> Measurement:
        return with_scaling(case, measured, self.store, self.placement.machine)

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
            self.endings.settle(case, report)

    def conclude_unfit(self, case: Case, unfit: Unfit, report: pytest.TestReport) -> None:
        """It did not fit in memory, which needs no second look."""
        case.unfit = unfit
        case.judge()
        does_not_fit_report(case, report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        ours = bool(self.cases) or any(self.shape_of(item) for item in session.items)
        with terminated_like_interrupted(active=ours):
            try:
                if self.settings.record:  # not here: the loop tears down as if they did not exist
                    self.turns.waiting = list(self.cases.values())
                    session.items = [item for item in session.items if item.nodeid not in self.cases]
                result = yield
                self.turns.measure(session)
            finally:
                self.gangs.close()
                self.turns.release_all()
                self.report_platforms()
        if not self.config.getoption("collectonly", default=False):
            self.report_vanished()
        return result

    def report_platforms(self) -> None:
        for report in self.turns.platforms.reports():
            self.config.hook.pytest_runtest_logreport(report=report)

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
        """Show verdicts that pass without being ok with a letter and a word of their own."""
        properties = dict(getattr(report, "user_properties", ()))  # a module that cannot be imported has none
        verdict = properties.get("accel.verdict")
        if verdict is None or report.failed or report.when == "teardown" or hasattr(report, "wasxfail"):
            return None
        row = VERDICTS[Outcome(verdict)]
        if not row.letter:
            return None
        category = str(verdict) if report.skipped else "passed"
        return category, row.letter, (row.word, row.markup)

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
        if self.turns.time_line:
            terminalreporter.write_line(self.turns.time_line, yellow=True)
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
