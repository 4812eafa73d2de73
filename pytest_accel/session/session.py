"""The session's plugin object: collects benchmarks, has workers measure them, judges and reports."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol  # as re-running plugins do; there is no public function

from pytest_accel.markers import DEVICE_FIXTURE, GROUP_FIXTURE, is_benchmark, takes
from pytest_accel.measure.locks import LockedError
from pytest_accel.options import SETTINGS, baselines_root, data_root, history_file, settings_of
from pytest_accel.report.history import SLOW_BEFORE, SLOW_OF
from pytest_accel.report.terminal import vanished_text
from pytest_accel.report.verdicts import VERDICTS, fails, is_resolved
from pytest_accel.session.accel import MEASURED_NOTHING, MEASUREMENT, SESSION_ID
from pytest_accel.session.case import Case
from pytest_accel.session.device import UNFIT, hold_devices, is_measuring_off, live_progress
from pytest_accel.session.launcher import refuse_launched
from pytest_accel.session.recording import refuse_too_many_runs, refuse_unwritable
from pytest_accel.session.references import References, with_scaling
from pytest_accel.session.repeats import Repeats
from pytest_accel.session.reports import (
    Finisher,
    does_not_fit_report,
    fail,
    failed_report,
    reports_of_workers,
    warn_again,
)
from pytest_accel.session.selection import PlatformSelection, find_vanished, platforms_of
from pytest_accel.session.summary import Line, unmet_lines, write_lines
from pytest_accel.session.worker_process import ItemResult, is_strict_xpass, without_traces
from pytest_accel.session.workers import Workers, WorkerShape, add_to_pytest_benchmark, shape_of
from pytest_accel.stats.baseline_quality import platform_prior
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.quantities import counted
from pytest_accel.stats.results import Status
from pytest_accel.stats.run import suite_of
from pytest_accel.storage.baselines import BaselineError, BaselineStore, runs_of_platform

if TYPE_CHECKING:  # SQLite is loaded only where it is needed
    from pytest_accel.storage.history import Point

_SESSIONS = SLOW_OF + SLOW_BEFORE - 1  # of the history, beside this one
_SAME_INTERRUPT_S = 5.0  # to end workers, and for pytest to format and report an interrupt
_HISTORY_WAIT_S = 0.1  # for a writer: what the history adds is not worth more


def register_session(
    config: pytest.Config, items: list[pytest.Item], selection: PlatformSelection
) -> BenchmarkSession:
    if any(map(is_benchmark, items)):
        if not config.pluginmanager.has_plugin("benchmark"):
            raise pytest.UsageError("benchmarks are timed by pytest-benchmark: leave out -p no:benchmark.")
        data_root(config.stash[SETTINGS], config)  # refuses a folder that does not exist
    config.stash[SESSION_ID] = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    session = BenchmarkSession(config, items, selection)
    config.pluginmanager.register(session, "accel-session")
    return session


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Treat SIGTERM (end of a job's time) and SIGHUP (end of a connection) as Ctrl-C: results are kept.

    A second signal soon after the first is the same one: the session is ending. Only in the main thread: Python lets no
    other one set signal handlers.
    """
    taken_s = -_SAME_INTERRUPT_S

    def interrupt(number: int, _frame: object) -> None:
        __tracebackhide__ = True  # pytest names the place that was interrupted
        nonlocal taken_s
        if time.monotonic() - taken_s >= _SAME_INTERRUPT_S:
            taken_s = time.monotonic()
            raise KeyboardInterrupt(signal.Signals(number).name)

    is_main = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ()
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: found for number in signals if (found := signal.getsignal(number)) in defaults}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class BenchmarkSession:
    """Registered under the name `accel-session`."""

    def __init__(
        self, config: pytest.Config, items: Iterable[pytest.Item], selection: PlatformSelection
    ) -> None:
        self.config = config
        self.settings = settings = config.stash[SETTINGS]
        self.selection = selection
        self.store = BaselineStore(baselines_root(settings, config.rootpath))
        self.cases: dict[str, Case] = {}
        # Before deselection, with the platforms they are marked with.
        self.collected = {item.nodeid: platforms_of(item, selection.catalogue) for item in items}
        self.vanished: list[str] = []
        self.workers = Workers(config)
        self.references = References(self.store.root, config.rootpath, settings)
        self.finisher = Finisher(
            config=config, settings=settings, store=self.store, references=self.references
        )
        self.repeats = Repeats(
            config=config,
            settings=settings,
            cases=self.cases,
            workers=self.workers,
            finisher=self.finisher,
            with_scaling=self.with_scaling,
        )
        terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
        # pytest has no hook for its last line.
        if build := getattr(terminal, "build_summary_stats_line", None):
            terminal.build_summary_stats_line = lambda: self.last_line(terminal.stats, *build())
        # They need pytest's own process: a worker has neither its terminal nor its input.
        debugging = any(config.getoption(name, default=False) for name in ("usepdb", "trace"))
        self.in_process = settings.in_process or debugging

    # --- collecting -----------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Find the cases and read their baselines: a bad file is reported before anything is measured."""
        benchmarks = list(filter(is_benchmark, session.items))
        if self.settings.record:
            refuse_unwritable("baselines", self.store.root / "platform" / "suite.json")
        if benchmarks:
            refuse_launched(self.config)
            self.references.refuse_unknown_platforms(self.selection.catalogue)
        read = cache(self.store.read)  # many benchmarks share a file
        prior = cache(lambda disk_name: platform_prior(runs_of_platform(self.store, disk_name)))
        for item in benchmarks:
            platform = self.selection.choose(item)
            if platform is None:
                continue  # its set-up will report what is missing
            disk_name, suite = self.selection.machine.disk_name(platform), suite_of(item.path.as_posix())
            try:
                baseline = read(disk_name, suite)
            except BaselineError as error:
                raise pytest.UsageError(str(error)) from None
            case = Case(
                item=item,
                platform=platform,
                disk_name=disk_name,
                suite=suite,
                settings=settings_of(item),
                baseline=baseline,
                prior=prior(disk_name),
            )
            refuse_too_many_runs(case)
            self.references.of(item, case.settings)  # refuses a link to no figure
            self.cases[item.nodeid] = case

    # --- running --------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        case, shape = self.cases.get(item.nodeid), self.shape_of(item)
        if shape is None and (case is not None or takes(item, DEVICE_FIXTURE)):
            self.workers.close()  # they would hold memory of the device
        if shape is None and case is None:
            return None
        start_s = time.monotonic()
        if shape is not None:
            reports = self.run_in_workers(item, shape, nextitem)
        else:
            reports = self.run_here(item, nextitem)
        if case is not None:
            case.device_time_s += time.monotonic() - start_s
            self.conclude(case, reports)
        if case is not None and case.undecided:
            case.pending_reports = reports
            self.repeats.wait(case)
        else:
            self.finisher.log(item, reports, case)
        return True

    def shape_of(self, item: pytest.Item) -> WorkerShape | None:
        """Return the shape of the workers that run an item; None where it runs in this process."""
        is_case = item.nodeid in self.cases
        if not is_case and not takes(item, GROUP_FIXTURE):
            return None
        platform = self.selection.choose(item)
        if platform is None:
            return None
        shape = shape_of(platform, settings_of(item))
        return shape if shape.process_group or (is_case and not self.in_process) else None

    def run_here(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        platform = self.cases[item.nodeid].platform
        try:
            with ExitStack() as held:
                with live_progress(self.config, item.name) as progress:
                    held.enter_context(hold_devices(item, settings_of(item), platform, progress))
                return runtestprotocol(item, log=False, nextitem=nextitem)
        except LockedError as error:
            return reports_of_workers(item, ItemResult.failed(str(error)), nextitem, seconds=0.0)

    def run_in_workers(
        self, item: pytest.Item, shape: WorkerShape, nextitem: pytest.Item | None
    ) -> list[pytest.TestReport]:
        """Run an item on every rank; return its reports, and keep its measurement as if it had been made here."""
        start_s = time.monotonic()
        same = nextitem if nextitem is not None and self.shape_of(nextitem) == shape else None
        with live_progress(self.config, item.name, left_s=self.left_s) as progress:
            settings = settings_of(item)
            found = self.workers.run(item, shape.platform, settings, progress, fresh=False, nextitem=same)
        warn_again(found.warnings)
        reports = reports_of_workers(item, found, nextitem, seconds=time.monotonic() - start_s)
        case = self.cases.get(item.nodeid)
        if found.unfit is not None:
            item.stash[UNFIT] = found.unfit
        if case is not None and found.measurement is not None:
            measured = item.stash[MEASUREMENT] = self.with_scaling(case, found.measurement)
            add_to_pytest_benchmark(item, case.platform, measured, found.extra_info)
        self.show_uncaptured(reports)
        return reports

    @property
    def left_s(self) -> float | None:
        """What is left of the session, without repeats; None before the first benchmark has ended."""
        ended = [case.device_time_s for case in self.cases.values() if case.device_time_s]
        return (len(self.cases) - len(ended)) * fmean(ended) if ended else None

    def with_scaling(self, case: Case, measured: Measurement) -> Measurement:
        return with_scaling(case, measured, self.store, self.selection.machine)

    def show_uncaptured(self, reports: Sequence[pytest.TestReport]) -> None:
        """Show with -s what rank 0 printed: its process had to capture it."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or self.config.getoption("capture", default="fd") != "no":
            return
        for title, text in reports[-1].sections:
            if title.startswith("Captured std"):
                reporter.ensure_newline()
                reporter.write_line(text.rstrip("\n"))

    def conclude(self, case: Case, reports: Sequence[pytest.TestReport]) -> None:
        """Judge what the reports are of; an open verdict waits for repeats, what did not fit needs none."""
        for report in reports:
            report.sections = without_traces(report.sections)
        unfit = case.item.stash.get(UNFIT, None)
        skipped = next((each for each in reports if each.skipped and each.when != "teardown"), None)
        call = next((each for each in reports if each.when == "call"), None)
        if unfit is not None and skipped is not None:
            case.unfit = unfit
            case.judge()
            does_not_fit_report(case, skipped)
        elif call is None or not (call.passed or is_strict_xpass(call)):
            return
        elif (measurement := case.item.stash.get(MEASUREMENT, None)) is not None:
            case.add(measurement)
            case.past = self.past_of(case)
            case.judge()
            if not case.undecided:
                self.finisher.apply(case, call)
        elif not is_measuring_off(self.config):
            fail(call, f"{case.label}: {MEASURED_NOTHING}", case.item)

    def past_of(self, case: Case) -> tuple[Point, ...]:
        """Return the newest sessions of a benchmark; none where the history cannot be read, which its writer reports."""
        path = history_file(self.settings, self.config.rootpath)
        if path is None or case.entry is None:
            return ()
        from pytest_accel.storage.history import History, HistoryError

        with suppress(HistoryError):
            return History(path, lock_timeout_s=_HISTORY_WAIT_S).series(case.key, case.disk_name, _SESSIONS)
        return ()

    @pytest.hookimpl(wrapper=True, trylast=True)  # repeats come before pytest ends its line of dots
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        ours = bool(self.cases) or any(self.shape_of(item) for item in session.items)
        if ours:
            signals = ExitStack()  # until the outputs are written
            signals.enter_context(signals_as_interrupts())
            self.config.add_cleanup(signals.close)
        try:
            if self.settings.record:  # not in the loop, which would tear down for their sake
                self.repeats.waiting = list(self.cases.values())
                session.items = [item for item in session.items if item.nodeid not in self.cases]
            result = yield
            self.repeats.measure(session)
        finally:
            self.workers.close()
            for case in list(self.repeats.waiting):  # no repeats are left, or the session was interrupted
                self.repeats.release(case)
            for report in self.repeats.shifts.reports():
                self.config.hook.pytest_runtest_logreport(report=report)
        self.report_vanished()
        return result

    def report_vanished(self) -> None:
        machine = self.selection.machine
        platforms = {case.platform for case in self.cases.values()} | self.selection.wanted
        satisfied = [platform for platform in platforms if machine.satisfies(platform)]
        self.vanished = find_vanished(self.config, self.store, machine, satisfied, self.collected)
        if self.settings.vanished == "fail":
            arguments = [*map(str, self.config.invocation_params.args)]
            for node_id in self.vanished:
                text = vanished_text(node_id, arguments)
                report = failed_report(node_id, node_id.partition("::")[0], Outcome.VANISHED, text)
                self.config.hook.pytest_runtest_logreport(report=report)

    # --- reporting ------------------------------------------------------------------------------

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, object] | None:
        """Show verdicts that pass without being ok with a letter and a word of their own.

        Missing hardware is one error of pytest's: its repeats are in no category, and counted below.
        """
        if self.is_repeated_error(report):
            return "", "E", ("ERROR", {"red": True})
        status = self.counted_as(report)
        if status is None or report.failed or not VERDICTS[status].letter:
            return None
        row = VERDICTS[status]
        return row.count if report.skipped else "passed", row.letter, (row.word, row.markup)

    def is_repeated_error(self, report: pytest.TestReport) -> bool:
        unmet = self.selection.unmet if self.settings.require else {}
        repeated = report.nodeid in unmet and report.nodeid != next(iter(unmet))
        return repeated and report.failed and report.when == "setup"

    def counted_as(self, report: pytest.TestReport) -> Status | None:
        """Return the verdict as which pytest's last line counts a report; None where it counts it itself."""
        properties = dict(getattr(report, "user_properties", ()))  # a module that cannot be imported has none
        verdict = properties.get("accel.verdict")
        if verdict is None or report.when == "teardown" or hasattr(report, "wasxfail"):
            return None
        # None: a test's own property.
        status = next((each for each in VERDICTS if each.value == verdict), None)
        return None if status and report.failed and not fails(status, self.settings) else status

    def last_line(
        self, stats: Mapping[str, Sequence[pytest.TestReport]], parts: Sequence[Line], color: str
    ) -> tuple[list[Line], str]:
        """Return pytest's last line with benchmarks counted by their verdicts: what was not judged did not pass."""
        found = {category: [self.counted_as(each) for each in reports] for category, reports in stats.items()}
        counted_as = Counter(status for each in found.values() for status in each if status is not None)
        repeated = sum(map(self.is_repeated_error, stats.get("", ())))
        shown: list[Line] = [
            (f"{counted_as[status]} {row.count}", row.markup)
            for status, row in VERDICTS.items()
            if status in counted_as
        ]
        for text, markup in parts:
            number, _, category = text.partition(" ")
            is_error = category in ("error", "errors")
            ours = sum(status is not None for status in found.get("error" if is_error else category, ()))
            more = repeated if is_error else 0
            if ours or more:
                if left := int(number) - ours + more:
                    shown.append((counted(left, "error") if is_error else f"{left} {category}", markup))
            elif number.isdecimal() or not counted_as:  # else "no tests ran"
                shown.append((text, markup))
        calm = color == "green" and all(map(is_resolved, counted_as))
        return shown, color if calm or color != "green" else "yellow"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.measured_nothing and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def measured_nothing(self) -> bool:
        return self.settings.require and not any(case.measurements for case in self.cases.values())

    @pytest.hookimpl(trylast=True)  # below the table of pytest-benchmark
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.measured_nothing:
            text = "--accel-require: this session measured nothing; a gate that measured nothing is not green"
            write_lines(terminalreporter, [(text, {"red": True, "bold": True})])
        measured = any(case.measurements for case in self.cases.values())
        if self.settings.require or not measured:
            markup = {"red": True} if self.settings.require else {"yellow": True}
            unmet = unmet_lines(self.selection.unmet.values(), measured=measured)
            write_lines(terminalreporter, [(line, markup) for line in unmet])
