"""What a session leaves behind: its results as files for people and for CI, and in the history."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_accel.options import REPORT_FORMATS, baselines_root, data_root, file_to_write, history_file
from pytest_accel.session import items as what
from pytest_accel.session.accel import SESSION_ID
from pytest_accel.session.results import (
    Clock,
    Told,
    environments_of,
    results_of,
    revision_of,
    session_results,
)
from pytest_accel.session.summary import gang_lines, idle_ranks, slowdown_line
from pytest_accel.stats.results import SessionResults
from pytest_accel.stats.run import Scalar
from pytest_accel.storage.files import is_special_file, is_writable_folder, nearest_folder
from pytest_accel.storage.references import published_folder

if TYPE_CHECKING:
    from pytest_accel.session.bench import Bench


NOT_ENDED = "written while the session went on; where this is still to be read, it was killed before its end"
KEEPING_UP = 0.05  # of a session's time at the most, beyond two seconds, for writing on the way
_SHORT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A line for the terminal: what was written where, or why it was not."""

    text: str
    markup: Mapping[str, bool]


class Leavings:
    """Registered beside `Bench`, under the name `accel-leavings`, where there are benchmarks."""

    def __init__(self, bench: Bench, environ: Mapping[str, str] = os.environ) -> None:
        self.bench = bench
        self.config = bench.config
        self.settings = bench.settings
        self.environ = environ
        self.clock = Clock()
        self.benchmarks: dict[str, pytest.Item] = {}
        self.told: dict[str, Told] = {}
        self.words: list[Word] = []
        self.findings: tuple[Mapping[str, Scalar], ...] = ()
        self.complete = True  # whether all files that were asked for are there
        self.annotations: list[str] = []
        # /dev/stdout may be a file, whose name we would take from whoever writes to it
        self.keeps_up = bool(self.settings.json) and not self.settings.json.startswith(("/dev/", "/proc/"))
        self.keeping_up_s = 0.0
        bench.turns.after_run = self.keep_up
        self.refuse_what_cannot_be_written()

    def refuse_what_cannot_be_written(self) -> None:
        """Said before anything is measured."""
        pages = [file for file in self.settings.reports if _format_of(file) == "report"]
        if pages and find_spec("plotly") is None:
            raise pytest.UsageError(
                f"--accel-report={pages[0]} draws with plotly, which is not installed: pip install 'pytest-accel[report]'."
            )
        taken: set[Path] = set()
        for option, file in self.settings.output_files:
            path = file_to_write(file, self.config)
            _refuse_unwritable(option, path)
            if path in taken:
                raise pytest.UsageError(f"--accel-report and --accel-json name one file, {path}. Name two.")
            taken.add(path)

    # --- hearing what became of each ------------------------------------------------------------

    @pytest.hookimpl(trylast=True)  # after the bench has read the baselines: a bad one ends it here
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Look at the machine before the benchmarks: afterwards the load would be their own."""
        self.benchmarks = {item.nodeid: item for item in session.items if what.is_benchmark(item)}
        listing = self.config.getoption("collectonly", default=False)
        if self.benchmarks and self.is_read_by_people and not listing:
            self.attempt("the machine was not examined", self.examine, yellow=True)
        if not listing:
            self.keep_up()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid in self.benchmarks:
            self.told.setdefault(report.nodeid, Told()).take(report)

    # --- on the way -----------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """After each benchmark, also one that is held back until it was looked at again."""
        done = yield
        if item.nodeid in self.benchmarks:
            self.keep_up()
        return done

    def keep_up(self) -> None:
        """Write the JSON as it is so far, for whoever looks when the session was killed; the end writes it anew."""
        if not self.keeps_up or self.keeping_up_s > _SHORT_S + KEEPING_UP * self.clock.lasted_s:
            return
        begun_s = time.monotonic()
        self.keeps_up = self.attempt("what was measured so far was not kept", self.write_so_far, yellow=True)
        self.keeping_up_s += time.monotonic() - begun_s

    def write_so_far(self) -> None:
        path = file_to_write(self.settings.json, self.config)
        if is_special_file(path):  # it is told the end alone
            return
        remarks = [*self.remarks(), NOT_ENDED]
        _write_json(self.results(int(pytest.ExitCode.INTERRUPTED), remarks), path)

    # --- the end --------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)  # after the bench has said what the session's status is
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.config.getoption("collectonly", default=False):
            return
        complete = self.attempt("nothing was written", lambda: self.leave(session))
        if not (complete and self.complete) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)  # below the table
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for word in self.words:
            terminalreporter.write_line(word.text, **word.markup)
        for line in self.annotations:
            terminalreporter.write_line(line)

    def results(self, exit_status: int, remarks: Sequence[str]) -> SessionResults:
        cases = self.bench.cases
        elsewhere = [item for node_id, item in self.benchmarks.items() if node_id not in cases]
        results = session_results(
            self.config,
            session_id=self.config.stash[SESSION_ID],
            clock=self.clock,
            exit_status=exit_status,
            results=results_of(
                cases,
                elsewhere,
                self.told,
                self.bench.vanished,
                self.bench.turns.platforms,
                vanished_fail=self.settings.vanished == "fail",
            ),
            environments=environments_of(cases.values()),
            remarks=remarks,
            revision=self.revision,
        )
        return replace(results, findings=self.findings)

    @cached_property
    def revision(self) -> str:
        return revision_of(self.config.rootpath, self.environ)

    def remarks(self) -> list[str]:
        return [
            *([slowdown_line(self.settings)] if self.settings.slowdown else []),
            *(line for line, _ in gang_lines(self.bench.gangs.looked_over)),
            *idle_ranks(self.config, list(self.bench.cases.values())),
            *filter(None, [self.bench.turns.time_line]),
        ]

    @property
    def is_read_by_people(self) -> bool:
        settings = self.settings
        formats = {_format_of(file) for file in settings.reports}
        return bool({"report", "summary"} & formats or settings.json or self.step_summary)

    @property
    def step_summary(self) -> str:
        return self.environ.get("GITHUB_STEP_SUMMARY", "")

    def examine(self) -> None:
        """The state of the machine, as `pytest-accel doctor` sees it."""
        from pytest_accel.doctor.doctor import Roots, examine
        from pytest_accel.doctor.findings import to_plain

        roots = Roots(
            baselines=baselines_root(self.settings, self.config.rootpath),
            data=data_root(self.settings, self.config),
        )
        self.findings = tuple(to_plain(examine(roots, self.environ)))

    def leave(self, session: pytest.Session) -> None:
        """Write what was asked for. JSON last: it has the status of a session in which another file could not be."""
        results = self.results(int(session.exitstatus), self.remarks())
        self.keep(results)
        self.tell_ci(results)
        for file in self.settings.reports:
            write = {"report": self.write_report, "summary": _write_summary, "metrics": _write_metrics}[
                _format_of(file)
            ]
            self.write("report", file, partial(write, results))
        failed = not self.complete and results.exit_status == pytest.ExitCode.OK
        told = replace(results, exit_status=int(pytest.ExitCode.TESTS_FAILED)) if failed else results
        if self.settings.json:
            self.write("json", self.settings.json, partial(_write_json, told))

    def write(self, option: str, file: str, write: Callable[[Path], None]) -> None:
        path = file_to_write(file, self.config)
        if self.attempt(f"--accel-{option}: {path}", lambda: write(path)):
            self.words.append(Word(text=f"{option}: {path}", markup={}))
        else:
            self.complete = False

    def attempt(self, what: str, act: Callable[[], None], *, yellow: bool = False) -> bool:
        """Whether it could be done; what was measured, and its verdicts, are not lost to a fault of ours."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - whatever it is
            markup = {"yellow": True} if yellow else {"red": True}
            self.words.append(Word(text=f"{what}: {_why(error)}", markup=markup))
            return False
        return True

    def keep(self, results: SessionResults) -> None:
        """Into the history; that this fails is said, and costs nothing else."""
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

    def tell_ci(self, results: SessionResults) -> None:
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
            self.words.append(Word(text=problem, markup={"yellow": True}))


def _format_of(file: str) -> str:
    return REPORT_FORMATS[Path(file).suffix.lower()]


def _why(error: Exception) -> str:
    """In words for users, where they were written for them; else with its place, for whoever mends it."""
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


def _write_metrics(results: SessionResults, path: Path) -> None:
    from pytest_accel.report.exports import render_metrics
    from pytest_accel.storage.files import write_atomic

    write_atomic(path, render_metrics(results))


def _make_folder(folder: Path) -> None:
    """A folder of ours says to git that it is nobody's business."""
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
