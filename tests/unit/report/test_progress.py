"""Progress on one line: what is running, how long still, and nothing left behind."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from pytest_accel.report.progress import Progress


class Terminal:
    fullwidth = 80
    width_of_current_line = 20
    hasmarkup = True

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, msg: str, *, flush: bool = False) -> None:
        assert flush
        self.written.append(msg)

    @property
    def shown(self) -> str:
        """What the reader sees behind pytest's own line."""
        last = self.written[-1]
        assert last.startswith("\x1b7\x1b[K")
        assert last.endswith("\x1b8")
        return last.removeprefix("\x1b7\x1b[K").removesuffix("\x1b8")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def terminal():
    return Terminal()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def progress(terminal, clock):
    return Progress("test_gpt", terminal, clock=clock)


def test_phase_is_shown_at_once(progress, terminal):
    progress.phase("measuring", 5.0)
    assert terminal.shown == " test_gpt: measuring, about 5 s left"


def test_phase_of_unknown_length_counts_up(progress, terminal, clock):
    progress.phase("warming up", None)
    clock.now += 12
    progress.tick()
    assert terminal.shown == " test_gpt: warming up, 12 s so far"


def test_time_left_runs_down_and_never_below_nothing(progress, terminal, clock):
    progress.phase("measuring", 5.0)
    clock.now += 2
    progress.tick()
    assert "about 3 s left" in terminal.shown
    clock.now += 60
    progress.tick()
    assert "-" not in terminal.shown
    assert "left" in terminal.shown


def test_ticks_are_rare_however_often_they_come(progress, terminal, clock):
    progress.phase("measuring", 100.0)
    for _ in range(1000):
        clock.now += 0.01
        progress.tick()
    assert 10 / Progress.interval_s * 0.9 <= len(terminal.written) <= 10 / Progress.interval_s + 2


def test_line_is_erased_at_the_end(progress, terminal):
    progress.phase("measuring", 5.0)
    progress.close()
    assert terminal.shown == ""


@pytest.mark.parametrize("taken", [0, 60, 75, 79, 80, 200])
def test_line_never_wraps(progress, terminal, taken):
    terminal.width_of_current_line = taken
    progress.phase("measuring a benchmark with a rather long description of what it does", 5.0)
    assert taken + len(terminal.shown) < max(terminal.fullwidth, taken + 1)


def test_without_a_terminal_nothing_happens():
    progress = Progress("x", None)
    progress.phase("measuring", None)
    progress.tick()
    progress.close()


def test_writing_happens_outside_capture(terminal):
    depth, seen = [0], []

    @contextmanager
    def uncaptured():
        depth[0] += 1
        try:
            yield
        finally:
            depth[0] -= 1

    class Watched(Terminal):
        def write(self, msg, *, flush=False):
            seen.append(depth[0])

    progress = Progress("x", Watched(), uncaptured)
    progress.phase("measuring", 1.0)
    progress.close()
    assert seen == [1, 1]
