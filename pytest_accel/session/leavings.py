"""What a session leaves behind: its results as files for people and for CI, and in the history."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_accel.core.results import Scalar, SessionResults
from pytest_accel.options import baselines_root, data_root, file_to_write, history_file
from pytest_accel.session import items as what
from pytest_accel.session.accel import SESSION_ID
from pytest_accel.session.results import Clock, Told, environments_of, results_of, session_results
from pytest_accel.session.summary import gang_lines, idle_ranks

if TYPE_CHECKING:
    from pytest_accel.session.bench import Bench


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
        self.annotations: list[str] = []
        self.refuse_what_cannot_be_written()

    def refuse_what_cannot_be_written(self) -> None:
        """Said before anything is measured."""
        settings = self.settings
        if settings.report and find_spec("plotly") is None:
            raise pytest.UsageError(
                "--accel-report draws with plotly, which is not installed: pip install 'pytest-accel[report]'."
            )
        for option in ("report", "json", "summary", "metrics"):
            named = getattr(settings, option)
            if named:
                _refuse_unwritable(option, file_to_write(named, self.config))

    # --- hearing what became of each ------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Look at the machine before the benchmarks: afterwards the load would be their own."""
        self.benchmarks = {item.nodeid: item for item in session.items if what.is_benchmark(item)}
        listing = self.config.getoption("collectonly", default=False)
        if self.benchmarks and self.is_read_by_people and not listing:
            self.findings = self.examine()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid in self.benchmarks:
            self.told.setdefault(report.nodeid, Told()).take(report)

    # --- the end --------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)  # after the bench has said what the session's status is
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.config.getoption("collectonly", default=False) or not self.told:
            return
        results = self.results(int(session.exitstatus))
        if not self.leave(results) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)  # below the table
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for word in self.words:
            terminalreporter.write_line(word.text, **word.markup)
        for line in self.annotations:
            terminalreporter.write_line(line)

    def results(self, exit_status: int) -> SessionResults:
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
                vanished_fail=self.settings.vanished == "fail",
            ),
            environments=environments_of(cases.values()),
            remarks=self.remarks(),
            environ=self.environ,
        )
        return replace(results, findings=self.findings)

    def remarks(self) -> list[str]:
        slowed = self.settings.slowdown
        return [
            *([f"--accel-slowdown {slowed:g}: every step was delayed on purpose."] if slowed else []),
            *(line for line, _ in gang_lines(self.bench.gangs.looked_over)),
            *idle_ranks(self.config, list(self.bench.cases.values())),
        ]

    @property
    def is_read_by_people(self) -> bool:
        settings = self.settings
        return bool(settings.report or settings.json or settings.summary or self.step_summary)

    @property
    def step_summary(self) -> str:
        return self.environ.get("GITHUB_STEP_SUMMARY", "")

    def examine(self) -> tuple[Mapping[str, Scalar], ...]:
        """The state of the machine, as `pytest-accel doctor` sees it."""
        from pytest_accel.health.doctor import Roots, examine, to_plain

        roots = Roots(
            baselines=baselines_root(self.settings, self.config.rootpath),
            data=data_root(self.settings, self.config),
        )
        return tuple(to_plain(examine(roots, self.environ)))

    def leave(self, results: SessionResults) -> bool:
        """Write what was asked for; whether all of it could be."""
        self.keep(results)
        writers: dict[str, Callable[[SessionResults, Path], None]] = {
            "json": _write_json,
            "report": self.write_report,
            "summary": _write_summary,
            "metrics": _write_metrics,
        }
        complete = True
        for option, write in writers.items():
            named = getattr(self.settings, option)
            if named:
                complete &= self.attempt(option, write, results, file_to_write(named, self.config))
        self.tell_ci(results)
        return complete

    def attempt(
        self,
        option: str,
        write: Callable[[SessionResults, Path], None],
        results: SessionResults,
        path: Path,
    ) -> bool:
        try:
            write(results, path)
        except Exception as error:  # noqa: BLE001 - of a page; what was measured is not lost to a fault of ours
            self.words.append(Word(text=f"--accel-{option}: {path}: {_why(error)}", markup={"red": True}))
            return False
        self.words.append(Word(text=f"{option}: {path}", markup={}))
        return True

    def keep(self, results: SessionResults) -> None:
        """Into the history; that this fails is said, and costs nothing else."""
        path = history_file(self.settings, self.config.rootpath)
        if path is None or not any(result.runs for result in results.results):
            return
        from pytest_accel.store.history import History

        try:
            _make_folder(path.parent)
            History(path).append(results)
        except Exception as error:  # noqa: BLE001 - as above
            text = f"the history was not written: {_why(error)}"
            self.words.append(Word(text=text, markup={"yellow": True}))

    def write_report(self, results: SessionResults, path: Path) -> None:
        from pytest_accel.report.page import write_page

        write_page(
            path,
            results,
            history=history_file(self.settings, self.config.rootpath),
            published=baselines_root(self.settings, self.config.rootpath) / "published",
        )

    def tell_ci(self, results: SessionResults) -> None:
        from pytest_accel.report.annotations import annotations
        from pytest_accel.report.markdown import render_summary
        from pytest_accel.report.summary_file import append_step_summary

        self.annotations = annotations(results, self.environ, rootdir=self.config.rootpath)
        if self.step_summary and (problem := append_step_summary(self.environ, render_summary(results))):
            self.words.append(Word(text=problem, markup={"yellow": True}))


def _why(error: Exception) -> str:
    """In words for users, where they were written for them; else with its place, for whoever mends it."""
    if isinstance(error, OSError | ValueError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error!r} at {Path(place.filename).name}:{place.lineno}. This is a fault of pytest-accel: please report it."


def _write_json(results: SessionResults, path: Path) -> None:
    from pytest_accel.store.results import write_results

    write_results(path, results)


def _write_summary(results: SessionResults, path: Path) -> None:
    from pytest_accel.report.markdown import render_summary
    from pytest_accel.store.results import write_whole

    write_whole(path, render_summary(results))


def _write_metrics(results: SessionResults, path: Path) -> None:
    from pytest_accel.report.openmetrics import render_metrics
    from pytest_accel.store.results import write_whole

    write_whole(path, render_metrics(results))


def _make_folder(folder: Path) -> None:
    """A folder of ours says to git that it is nobody's business."""
    if folder.name == ".accel" and not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)


def _refuse_unwritable(option: str, path: Path) -> None:
    nearest = next(folder for folder in path.parents if folder.exists())
    if path.is_dir():
        raise pytest.UsageError(f"--accel-{option}: {path} is a folder. Name a file in it.")
    if path.is_fifo():  # it would wait for a reader for ever
        raise pytest.UsageError(f"--accel-{option}: {path} is a pipe. Name a file.")
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise pytest.UsageError(
            f"--accel-{option}: {path} cannot be written, {nearest} is no folder that can be written to. "
            "Name another file."
        )
