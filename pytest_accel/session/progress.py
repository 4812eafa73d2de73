"""Progress of a session: a live line on a terminal, a line for each run in a log; signals that end it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from statistics import fmean
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from pytest_accel.report.terminal import Progress
from pytest_accel.session.device import RANK_END
from pytest_accel.stats.quantities import seconds

if TYPE_CHECKING:
    from pytest_accel.distributed.worker import RankConnection


@contextmanager
def live_progress(config: pytest.Config, label: str) -> Iterator[Progress]:
    """Show progress on the terminal behind pytest's own line; silent where there is no terminal.

    A worker has none: it sends its phases to the session.
    """
    rank = config.stash.get(RANK_END, None)
    if rank is not None:
        yield _WorkerProgress(rank)
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    shown = None
    if reporter is not None and reporter.isatty and reporter.hasmarkup:
        shown = reporter._tw  # noqa: SLF001 - the writer knows how much of the line is taken
    progress = (
        Progress(label, shown, capture.global_and_fixture_disabled) if capture else Progress(label, shown)
    )
    try:
        yield progress
    finally:
        progress.close()


def write_log(config: pytest.Config, text: str) -> None:
    """Write a line at once where output is a log; on a terminal the live line shows it."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or reporter.isatty or config.getoption("verbose") < 0:
        return
    capture = config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        reporter.ensure_newline()
        reporter.write_line(text)
        reporter.flush()  # what stays in the buffer of a pipe would be captured with the item's output


def show_uncaptured(config: pytest.Config, reports: Sequence[pytest.TestReport]) -> None:
    """Show with -s what rank 0 printed: its process had to capture it."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.getoption("capture", default="fd") != "no":
        return
    for title, text in reports[-1].sections:
        if title.startswith("Captured std"):
            reporter.ensure_newline()
            reporter.write_line(text.rstrip("\n"))


class _WorkerProgress(Progress):
    """Sends phases to the session, which shows those of rank 0."""

    def __init__(self, rank: RankConnection) -> None:
        super().__init__("", None)
        self._rank = rank

    def phase(self, text: str, remaining_s: float | None) -> None:
        self._rank.say(text, remaining_s)


class RunProgress:
    """Progress of runs in fresh processes, with the remaining time estimated from earlier ones."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._durations_s: list[float] = []

    @contextmanager
    def run(self, label: str, runs_left: int) -> Iterator[Progress]:
        """Show one run; `runs_left` counts it and all that are still to come."""
        mean_s = fmean(self._durations_s) if self._durations_s else None
        write_log(self._config, label + (f", about {seconds(mean_s * runs_left)} left" if mean_s else ""))
        start_s = time.monotonic()
        with live_progress(self._config, label) as progress:
            progress.phase("measuring", mean_s * runs_left if mean_s else None)
            yield progress
        self._durations_s.append(time.monotonic() - start_s)


@contextmanager
def signals_as_interrupts(*, active: bool) -> Iterator[None]:
    """Treat SIGTERM (end of a job's time) and SIGHUP (end of a connection) as Ctrl-C: results are kept.

    Only in the main thread: Python lets no other one set signal handlers.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    active = active and threading.current_thread() is threading.main_thread()
    ours = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if active and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
