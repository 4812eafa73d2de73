"""What a long session shows while it works: a live line on a terminal, a line a run in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from pytest_accel.report.terminal import Progress
from pytest_accel.session.placement import RANK_END
from pytest_accel.stats.quantities import seconds

if TYPE_CHECKING:
    from pytest_accel.distributed.worker import RankConnection


@contextmanager
def live_progress(config: pytest.Config, label: str) -> Iterator[Progress]:
    """Progress on the terminal behind pytest's own line; silent where there is no terminal.

    A rank has none: what it says is shown by the session that started it.
    """
    rank = config.stash.get(RANK_END, None)
    if rank is not None:
        yield _RankProgress(rank)
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


def say_in_log(config: pytest.Config, text: str) -> None:
    """A line for those who read no terminal but a log, now; on a terminal the live line says it."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or reporter.isatty or config.getoption("verbose") < 0:
        return
    capture = config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        reporter.ensure_newline()
        reporter.write_line(text)
        reporter.flush()  # what stays in the buffer of a pipe is captured with the item's own


def show_uncaptured(config: pytest.Config, reports: Sequence[pytest.TestReport]) -> None:
    """With -s, what rank 0 printed: its process had to capture it."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.getoption("capture", default="fd") != "no":
        return
    for title, text in reports[-1].sections:
        if title.startswith("Captured std"):
            reporter.ensure_newline()
            reporter.write_line(text.rstrip("\n"))


class _RankProgress(Progress):
    """Tells the session what this rank is about; of the others' it shows rank 0's."""

    def __init__(self, rank: RankConnection) -> None:
        super().__init__("", None)
        self._rank = rank

    def phase(self, text: str, remaining_s: float | None) -> None:
        self._rank.say(text, remaining_s)


class Pacemaker:
    """Says of each run in a fresh process how long the rest will take, from those before it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._durations_s: list[float] = []

    @contextmanager
    def run(self, label: str, runs_left: int) -> Iterator[Progress]:
        """Around one run; `runs_left` counts it and all that are still to come."""
        mean_s = fmean(self._durations_s) if self._durations_s else None
        say_in_log(self._config, label + (f", about {seconds(mean_s * runs_left)} left" if mean_s else ""))
        begun = time.monotonic()
        with live_progress(self._config, label) as progress:
            progress.phase("measuring", mean_s * runs_left if mean_s else None)
            yield progress
        self._durations_s.append(time.monotonic() - begun)
