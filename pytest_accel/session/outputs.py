"""Outputs of a session: terminal summary, reports, JSON, the history, CI summaries."""

from __future__ import annotations

import os
import platform as host
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pytest_accel import __version__
from pytest_accel.markers import is_benchmark
from pytest_accel.options import baselines_root, data_root, file_to_write, history_file
from pytest_accel.report.columns import columns_and_rows
from pytest_accel.report.markdown import STEP_SUMMARY, append_step_summary, render_summary
from pytest_accel.report.terminal import note, padded_rows, screen_width
from pytest_accel.session import summary
from pytest_accel.session.accel import SESSION_ID
from pytest_accel.session.recording import refuse_unwritable
from pytest_accel.session.results import (
    ItemReports,
    case_result,
    environments_of,
    item_result,
    platform_result,
    revision_of,
    vanished_result,
)
from pytest_accel.session.session import BenchmarkSession
from pytest_accel.stats.causes import common_causes, has_causes
from pytest_accel.stats.environment import safe_arguments
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.quantities import percent
from pytest_accel.stats.results import SessionResults
from pytest_accel.stats.run import Scalar
from pytest_accel.storage.results import write_results

NOT_ENDED = "written during the session; a file that still says so is of a session that was killed"
UPDATE_SHARE = 0.05  # of a session's time at most, beyond two seconds, for writing during the session
_SHORT_S = 2.0
_YELLOW, _RED = {"yellow": True}, {"red": True}
# Options of pytest-benchmark that ask for its table.
_OF_ITS_TABLE = tuple(
    f"--benchmark-{name}"
    for name in ("columns", "compare", "group-by", "histogram", "name", "sort", "time-unit")
)


class Outputs:
    """Registered under the name `accel-outputs`."""

    def __init__(self, session: BenchmarkSession) -> None:
        self.session = session
        self.config = session.config
        self.settings = session.settings
        self.at, self.start_s = datetime.now(UTC), time.monotonic()
        self.benchmarks: dict[str, pytest.Item] = {}
        self.reported: dict[str, ItemReports] = {}
        self.final: SessionResults | None = None  # once the session has ended
        self.lines: list[summary.Line] = []  # files that were written, or why they were not
        self.findings: tuple[Mapping[str, Scalar], ...] = ()
        self.complete = True  # whether all requested files were written
        self.updating = bool(self.settings.json)
        self.update_s = 0.0
        session.repeats.after_run = self.update_json
        self.refuse_unwritable()

    def refuse_unwritable(self) -> None:
        pages = [file for file in self.settings.reports if file.lower().endswith(".html")]
        for name in ("plotly", "jinja2") if pages else ():
            if find_spec(name) is None:
                raise pytest.UsageError(f"--accel-report={pages[0]} needs {name}: pip install {name}.")
        for option, file in self.settings.output_files:
            refuse_unwritable(option, file_to_write(file, self.config))

    # --- during the session ---------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)  # after the baselines were read: a bad one ends the session
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Examine the machine before the benchmarks: afterwards the load would be their own."""
        self.benchmarks = {item.nodeid: item for item in session.items if is_benchmark(item)}
        wanted = self.settings.output_files or os.environ.get(STEP_SUMMARY)
        if self.benchmarks and wanted:
            self.attempt("the machine was not examined", self.examine, _YELLOW)
        self.update_json()

    def examine(self) -> None:
        from pytest_accel.doctor.doctor import examine
        from pytest_accel.doctor.findings import to_plain

        baselines = baselines_root(self.settings, self.config.rootpath)
        data = data_root(self.settings, self.config)
        self.findings = tuple(to_plain(examine(data=data, baselines=baselines)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid in self.benchmarks:
            self.reported.setdefault(report.nodeid, ItemReports()).add(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        done = yield
        if item.nodeid in self.benchmarks:
            self.update_json()
        return done

    def update_json(self) -> None:
        """Write the results so far, so that a killed session leaves them."""
        start_s = time.monotonic()
        if self.updating and self.update_s <= _SHORT_S + UPDATE_SHARE * (start_s - self.start_s):
            self.updating = self.attempt("the results so far were not written", self.write_so_far, _YELLOW)
            self.update_s += time.monotonic() - start_s

    def write_so_far(self) -> None:
        results = self.results(int(pytest.ExitCode.INTERRUPTED))
        path = file_to_write(self.settings.json, self.config)
        write_results(path, replace(results, remarks=(*results.remarks, NOT_ENDED)))

    # --- results --------------------------------------------------------------------------------

    def results(self, exit_status: int) -> SessionResults:
        cases, shifts = self.session.cases, self.session.repeats.shifts
        command = safe_arguments(list(map(str, self.config.invocation_params.args)))
        results = [case_result(case, self.reported.get(name, ItemReports())) for name, case in cases.items()]
        others = {name: reports for name, reports in self.reported.items() if name not in cases}
        results += [item_result(self.benchmarks[name], reports) for name, reports in others.items()]
        fails = self.settings.vanished == "fail"
        results += [vanished_result(name, command, failed=fails) for name in self.session.vanished]
        results += [platform_result(name, found, shifts.notes[name]) for name, found in shifts.found.items()]
        return SessionResults(
            session=self.config.stash[SESSION_ID],
            at=self.at.isoformat(timespec="seconds"),
            duration_s=time.monotonic() - self.start_s,
            exit_status=exit_status,
            version=__version__,
            host=host.node(),
            revision=revision_of(self.config.rootpath),
            command=command,
            environments=environments_of(cases.values()),
            results=tuple(results),
            remarks=tuple(text for text, _ in self.session_lines()),
            findings=self.findings,
        )

    def session_lines(self) -> list[summary.Line]:
        session = self.session
        unmatched = session.references.unmatched(session.collected) if session.cases else ()
        slowed = f"--accel-slowdown {percent(self.settings.slowdown)}: every step was delayed on purpose."
        losing = [case.causes() for case in session.cases.values() if has_causes(case.verdict)]
        notes = [
            *common_causes(next(iter(causes), None) for causes in losing),
            *(
                f"pyproject.toml expects something of {each!r}, and no benchmark here has that id"
                for each in unmatched
            ),
            session.repeats.time_note,
            *summary.other_roots(session.cases.values(), self.settings, self.config.rootpath),
        ]
        return [
            *([(slowed, _YELLOW)] if self.settings.slowdown else []),
            *summary.device_check_lines(session.workers.device_checks),
            *((note("", text), _YELLOW) for text in notes if text),
        ]

    # --- the end --------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)  # after the session's status is known
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        noisy = any(case.outcome is Outcome.INCONCLUSIVE for case in self.session.cases.values())
        if noisy and not self.findings and session.exitstatus != pytest.ExitCode.INTERRUPTED:
            self.attempt("the machine was not examined", self.examine, _YELLOW)
        complete = self.attempt("nothing was written", lambda: self.write_all(session))
        if not (complete and self.complete) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def write_all(self, session: pytest.Session) -> None:
        results = self.final = self.results(int(session.exitstatus))
        self.attempt("the history was not written", lambda: self.append_to_history(results), _YELLOW)
        if self.benchmarks and os.environ.get(STEP_SUMMARY):
            failure = f"{STEP_SUMMARY} was not written (--accel-report writes elsewhere)"
            self.attempt(failure, lambda: append_step_summary(os.environ, render_summary(results)), _YELLOW)
        for file in self.settings.reports:
            self.write("report", file, partial(self.write_report, results))
        if self.settings.json:
            self.write("json", self.settings.json, lambda path: write_results(path, results))

    def write(self, option: str, file: str, write: Callable[[Path], None]) -> None:
        path = file_to_write(file, self.config)
        if self.attempt(f"--accel-{option}: {path}", lambda: write(path)):
            self.lines.append((f"{option}: {path}", {}))
        else:
            self.complete = False

    def attempt(self, failure: str, act: Callable[[], None], markup: Mapping[str, bool] = _RED) -> bool:
        """Return whether it succeeded; results and verdicts are not lost to an error here."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - reported below the table
            self.lines.append((f"{failure}: {_why(error)}", markup))
            return False
        return True

    def append_to_history(self, results: SessionResults) -> None:
        path = history_file(self.settings, self.config.rootpath)
        if path is None or not any(result.runs for result in results.results):
            return
        from pytest_accel.storage.history import History

        with suppress(OSError):  # the history's own error has a remedy
            _make_folder(path.parent)
        History(path).append(results)

    def write_report(self, results: SessionResults, path: Path) -> None:
        from pytest_accel.report.page import write_report

        write_report(path, results, history=history_file(self.settings, self.config.rootpath))

    @pytest.hookimpl(wrapper=True)
    def pytest_benchmark_group_stats(self, config: pytest.Config) -> Generator[None, Any, Any]:
        """Leave our benchmarks out of pytest-benchmark's table unless the command line asks for it: ours shows more of them."""
        groups = yield
        asked = any(str(argument).startswith(_OF_ITS_TABLE) for argument in config.invocation_params.args)
        if asked or config.getoption("verbose", default=0) > 1:
            return groups
        others = (
            (name, [each for each in group if "accel" not in each["extra_info"]]) for name, group in groups
        )
        return [(name, group) for name, group in others if group]

    @pytest.hookimpl(trylast=True)  # below the table of pytest-benchmark
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self.attempt("the summary is incomplete", lambda: self.write_terminal(terminalreporter))
        summary.write_lines(terminalreporter, self.lines)

    def write_terminal(self, terminal: pytest.TerminalReporter) -> None:
        if self.final is None:
            return
        results = self.final.results
        if shown := [result for result in results if result.runs or result.verdicts]:
            terminal.write_sep("-", "accelerator benchmarks", blue=True)
            rows, left_out = padded_rows(*columns_and_rows(shown), screen_width())
            for row in rows:
                for cell in row:
                    terminal.write(cell.text, **cell.markup)
                terminal.write("\n")
            for text in left_out:
                terminal.write_line(text)
        shown_lines = summary.summary_lines(self.config, self.settings, results, self.findings)
        summary.write_lines(terminal, [*shown_lines, *self.session_lines()])


def _why(error: Exception) -> str:
    """Return the text of an expected error; of any other, its place."""
    if isinstance(error, OSError | ValueError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error!r} at {Path(place.filename).name}:{place.lineno}. This is a fault of pytest-accel: please report it."


def _make_folder(folder: Path) -> None:
    """Create a folder; the default one is ignored by git."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if is_new and folder.name == ".accel":
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
