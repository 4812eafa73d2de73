"""Outputs of a session: reports, JSON, the history, CI summaries and annotations."""

from __future__ import annotations

import os
import platform as host
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_accel._version import __version__
from pytest_accel.markers import is_benchmark
from pytest_accel.options import REPORT_FORMATS, baselines_root, data_root, file_to_write, history_file
from pytest_accel.session.accel import SESSION_ID
from pytest_accel.session.results import ItemReports, SessionClock, environments_of, results_of, revision_of
from pytest_accel.session.summary import device_check_lines, idle_ranks, slowdown_line
from pytest_accel.stats.environment import safe_arguments
from pytest_accel.stats.results import SessionResults
from pytest_accel.stats.run import Scalar
from pytest_accel.storage.files import is_special_file, is_writable_folder, nearest_folder
from pytest_accel.storage.references import published_folder

if TYPE_CHECKING:
    from pytest_accel.session.session import BenchmarkSession


NOT_ENDED = "written during the session; a file that still says so is of a session that was killed"
UPDATE_SHARE = 0.05  # of a session's time at most, beyond two seconds, for writing during the session
_SHORT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLine:
    """A line for the terminal: a file that was written, or why it was not."""

    text: str
    markup: Mapping[str, bool]


class Outputs:
    """Registered under the name `accel-outputs`, where there are benchmarks or files to write."""

    def __init__(self, session: BenchmarkSession, environ: Mapping[str, str] = os.environ) -> None:
        self.session = session
        self.config = session.config
        self.settings = session.settings
        self.environ = environ
        self.clock = SessionClock()
        self.benchmarks: dict[str, pytest.Item] = {}
        self.reported: dict[str, ItemReports] = {}
        self.lines: list[OutputLine] = []
        self.findings: tuple[Mapping[str, Scalar], ...] = ()
        self.complete = True  # whether all requested files were written
        self.annotations: list[str] = []
        # /dev/stdout may be a file that another process writes to: only the end is written there.
        self.updating = bool(self.settings.json) and not self.settings.json.startswith(("/dev/", "/proc/"))
        self.update_s = 0.0
        session.repeats.after_run = self.update_json
        self.refuse_unwritable()

    def refuse_unwritable(self) -> None:
        """Refuse files that cannot be written before anything is measured."""
        pages = [file for file in self.settings.reports if _format_of(file) == "report"]
        missing = [name for name in ("plotly", "jinja2") if find_spec(name) is None]
        if pages and missing:
            raise pytest.UsageError(
                f"--accel-report={pages[0]} needs {' and '.join(missing)}: pip install 'pytest-accel[report]'."
            )
        taken: set[Path] = set()
        for option, file in self.settings.output_files:
            path = file_to_write(file, self.config)
            _refuse_unwritable(option, path)
            if path in taken:
                raise pytest.UsageError(f"--accel-report and --accel-json name one file, {path}. Name two.")
            taken.add(path)

    # --- during the session ---------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)  # after the baselines were read: a bad one ends the session
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Examine the machine before the benchmarks: afterwards the load would be their own."""
        self.benchmarks = {item.nodeid: item for item in session.items if is_benchmark(item)}
        listing = self.config.getoption("collectonly", default=False)
        if self.benchmarks and self.needs_machine_state and not listing:
            self.attempt("the machine was not examined", self.examine, yellow=True)
        if not listing:
            self.update_json()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid in self.benchmarks:
            self.reported.setdefault(report.nodeid, ItemReports()).add(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Update the JSON after each benchmark."""
        done = yield
        if item.nodeid in self.benchmarks:
            self.update_json()
        return done

    def update_json(self) -> None:
        """Write the results so far, so that a killed session leaves them."""
        if not self.updating or self.update_s > _SHORT_S + UPDATE_SHARE * self.clock.lasted_s:
            return
        start_s = time.monotonic()
        self.updating = self.attempt("the results so far were not written", self.write_so_far, yellow=True)
        self.update_s += time.monotonic() - start_s

    def write_so_far(self) -> None:
        path = file_to_write(self.settings.json, self.config)
        if is_special_file(path):  # only the end is written there
            return
        remarks = [*self.remarks(), NOT_ENDED]
        _write_json(self.results(int(pytest.ExitCode.INTERRUPTED), remarks), path)

    # --- the end --------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)  # after the session's status is known
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.config.getoption("collectonly", default=False):
            return
        complete = self.attempt("nothing was written", lambda: self.write_all(session))
        if not (complete and self.complete) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)  # below the table
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.lines:
            terminalreporter.write_line(line.text, **line.markup)
        for annotation in self.annotations:
            terminalreporter.write_line(annotation)

    def results(self, exit_status: int, remarks: Sequence[str]) -> SessionResults:
        cases = self.session.cases
        return SessionResults(
            session=self.config.stash[SESSION_ID],
            at=self.clock.at.isoformat(timespec="seconds"),
            duration_s=self.clock.lasted_s,
            exit_status=exit_status,
            version=__version__,
            host=host.node(),
            revision=self.revision,
            command=safe_arguments(list(map(str, self.config.invocation_params.args))),
            environments=environments_of(cases.values()),
            results=results_of(
                cases,
                [item for node_id, item in self.benchmarks.items() if node_id not in cases],
                self.reported,
                self.session.vanished,
                self.session.repeats.shifts,
                vanished_fail=self.settings.vanished == "fail",
            ),
            remarks=tuple(remarks),
            findings=self.findings,
        )

    @cached_property
    def revision(self) -> str:
        return revision_of(self.config.rootpath, self.environ)

    def remarks(self) -> list[str]:
        return [
            *([slowdown_line(self.settings)] if self.settings.slowdown else []),
            *(line for line, _ in device_check_lines(self.session.workers.device_checks)),
            *idle_ranks(self.config, list(self.session.cases.values())),
            *filter(None, [self.session.repeats.time_note]),
        ]

    @property
    def needs_machine_state(self) -> bool:
        settings = self.settings
        formats = {_format_of(file) for file in settings.reports}
        return bool({"report", "summary"} & formats or settings.json or self.step_summary)

    @property
    def step_summary(self) -> str:
        return self.environ.get("GITHUB_STEP_SUMMARY", "")

    def examine(self) -> None:
        """Examine the machine as `pytest-accel doctor` does."""
        from pytest_accel.doctor.doctor import Roots, examine
        from pytest_accel.doctor.findings import to_plain

        roots = Roots(
            baselines=baselines_root(self.settings, self.config.rootpath),
            data=data_root(self.settings, self.config),
        )
        self.findings = tuple(to_plain(examine(roots, self.environ)))

    def write_all(self, session: pytest.Session) -> None:
        """Write all outputs. JSON last: it has the status of a session in which another file failed."""
        results = self.results(int(session.exitstatus), self.remarks())
        self.append_to_history(results)
        self.report_to_ci(results)
        for file in self.settings.reports:
            write = self.write_report if _format_of(file) == "report" else _write_summary
            self.write("report", file, partial(write, results))
        failed = not self.complete and results.exit_status == pytest.ExitCode.OK
        final = replace(results, exit_status=int(pytest.ExitCode.TESTS_FAILED)) if failed else results
        if self.settings.json:
            self.write("json", self.settings.json, partial(_write_json, final))

    def write(self, option: str, file: str, write: Callable[[Path], None]) -> None:
        path = file_to_write(file, self.config)
        if self.attempt(f"--accel-{option}: {path}", lambda: write(path)):
            self.lines.append(OutputLine(text=f"{option}: {path}", markup={}))
        else:
            self.complete = False

    def attempt(self, failure: str, act: Callable[[], None], *, yellow: bool = False) -> bool:
        """Return whether it succeeded; results and verdicts are not lost to an error here."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - reported below the table
            markup = {"yellow": True} if yellow else {"red": True}
            self.lines.append(OutputLine(text=f"{failure}: {_why(error)}", markup=markup))
            return False
        return True

    def append_to_history(self, results: SessionResults) -> None:
        """Append to the history; a failure is reported and fails nothing."""
        path = history_file(self.settings, self.config.rootpath)
        if path is None or not any(result.runs for result in results.results):
            return
        from pytest_accel.storage.history import History

        def append() -> None:
            _make_folder(path.parent)
            History(path).append(results)

        self.attempt("the history was not written", append, yellow=True)

    def write_report(self, results: SessionResults, path: Path) -> None:
        from pytest_accel.report.page import write_page

        write_page(
            path,
            results,
            history=history_file(self.settings, self.config.rootpath),
            published=published_folder(baselines_root(self.settings, self.config.rootpath)),
        )

    def report_to_ci(self, results: SessionResults) -> None:
        if self.benchmarks:
            self.attempt("annotations", lambda: self.annotate(results), yellow=True)
            self.attempt("GITHUB_STEP_SUMMARY", lambda: self.append_step_summary(results), yellow=True)

    def annotate(self, results: SessionResults) -> None:
        from pytest_accel.report.github import annotations

        self.annotations = annotations(results, self.environ, rootdir=self.config.rootpath)

    def append_step_summary(self, results: SessionResults) -> None:
        from pytest_accel.report.github import append_step_summary
        from pytest_accel.report.markdown import render_summary

        if self.step_summary and (problem := append_step_summary(self.environ, render_summary(results))):
            self.lines.append(OutputLine(text=problem, markup={"yellow": True}))


def _format_of(file: str) -> str:
    return REPORT_FORMATS[Path(file).suffix.lower()]


def _why(error: Exception) -> str:
    """Return the text of an expected error; of any other, its place."""
    if isinstance(error, OSError | ValueError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error!r} at {Path(place.filename).name}:{place.lineno}. This is a fault of pytest-accel: please report it."


def _write_json(results: SessionResults, path: Path) -> None:
    from pytest_accel.storage.results import write_results

    write_results(path, results)


def _write_summary(results: SessionResults, path: Path) -> None:
    from pytest_accel.report.markdown import render_summary
    from pytest_accel.storage.files import write_atomic

    write_atomic(path, render_summary(results))


def _make_folder(folder: Path) -> None:
    """Create a folder; the default one is ignored by git."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if is_new and folder.name == ".accel":
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")


def _refuse_unwritable(option: str, path: Path) -> None:
    nearest = nearest_folder(path.parent)
    if path.is_dir():
        raise pytest.UsageError(f"--accel-{option}: {path} is a folder. Name a file in it.")
    if path.is_fifo():  # it would wait for a reader for ever
        raise pytest.UsageError(f"--accel-{option}: {path} is a pipe. Name a file.")
    if not is_writable_folder(nearest):
        raise pytest.UsageError(
            f"--accel-{option}: {path} cannot be written, {nearest} is no folder that can be written to. "
            "Name another file."
        )
