"""Who pays for processes that are started together, and who has a turn where time is short."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from pytest_accel.options import SESSION_START_S, Settings
from pytest_accel.session import turns as session_turns
from pytest_accel.session.together import Platforms
from pytest_accel.session.turns import Turns
from pytest_accel.stats.verdict import Outcome

START_S = 12.0


class Waiting:
    """What `start_ahead` needs of a case; it takes twelve seconds to start."""

    item = platform = settings = None

    def __init__(self):
        self.held_s = 1.0

    @contextmanager
    def holding(self):
        yield
        self.held_s += START_S


@pytest.mark.parametrize(
    ("served", "held_s"),
    [
        ([0, 1, 2], [5.0, 5.0, 5.0]),
        ([0, 2], [7.0, 1.0, 7.0]),
        ([1, 2], [1.0, 7.0, 7.0]),  # the first is a gang's
        ([], [13.0, 1.0, 1.0]),  # that it came to nothing was its time all the same
    ],
)
def test_each_pays_for_its_own(monkeypatch, served, held_s):
    monkeypatch.setattr(session_turns, "live_progress", lambda config, label: nullcontext())
    turns = Turns(
        config=None,
        settings=Settings(),
        cases={},
        gangs=SimpleNamespace(start_ahead=lambda coming, progress: served),
        endings=None,
        with_scaling=None,
    )
    coming = [Waiting() for _ in range(3)]
    turns.start_ahead(coming)
    assert [each.held_s for each in coming] == held_s


class Open:
    """A case that no run decides, before its third; a run takes as long as it says."""

    platform = SimpleNamespace(devices=1)
    problem = skipped = unfit = None
    may_be_replaced = True
    outcome = Outcome.INCONCLUSIVE

    def __init__(self, name, run_s, lost):
        self.item = SimpleNamespace(name=name)
        self.run_s, self.lost = run_s, lost
        self.measurements = [1]

    @property
    def undecided(self):
        return len(self.measurements) < 3

    def judge(self):
        pass


class Apart(Platforms):
    """Cases that share nothing."""

    def may_share(self, cases):
        return False

    def look(self, cases, waiting):
        pass


class Played(Turns):
    """On a clock that runs alone move."""

    def start_ahead(self, coming):
        pass

    def measure_fresh(self, case, progress):
        case.measurements.append(1)
        session_turns.time.now_s += case.run_s
        self.gangs.append(case.item.name)


@pytest.fixture
def played(monkeypatch):
    def play(within_s, *cases, repeats=5, record=0):
        monkeypatch.setattr(session_turns, "time", clock := SimpleNamespace(now_s=100.0))
        clock.monotonic = lambda: clock.now_s
        pace = SimpleNamespace(run=lambda label, left: nullcontext())
        monkeypatch.setattr(session_turns, "Pacemaker", lambda config: pace)
        monkeypatch.setattr(session_turns, "refuse_mixture", lambda case: None)
        found = Played(
            config=SimpleNamespace(stash={SESSION_START_S: 40.0}, getoption=lambda *_, **__: 0),
            settings=Settings(within_s=within_s, repeats=repeats, record=record),
            cases={case.item.name: case for case in cases},
            gangs=[],
            platforms=Apart(),
            endings=SimpleNamespace(end=lambda case: None),
            with_scaling=None,
            waiting=list(cases),
        )
        found.measure(SimpleNamespace(shouldfail=False, shouldstop=False))
        return found

    return play


def open_cases():
    return Open("quick", 10.0, 0.2), Open("long", 50.0, 0.5), Open("bad", 20.0, 3.0)


@pytest.mark.parametrize(
    ("within_s", "runs", "left"),
    [
        (None, "quick long bad quick long bad", 0),
        (1000.0, "bad long quick bad long quick", 0),
        (60.0 - 1.0, "", 3),
        (60.0 + 1.0, "bad", 3),  # how long it takes is not known before; one is not enough for it
        (60.0 + 39.0, "bad", 3),
        (60.0 + 40.0, "bad long", 3),  # another 20 s, as it seemed
        (60.0 + 129.0, "bad long quick", 3),
        (60.0 + 130.0, "bad long quick bad", 2),
        (60.0 + 150.0, "bad long quick bad long", 1),
    ],
)
def test_no_run_is_begun_that_would_end_too_late_and_the_worst_come_first(played, within_s, runs, left):
    turns = played(within_s, *open_cases())
    assert turns.gangs == runs.split()
    assert (f" {left} benchmark" in turns.time_line) is bool(left)
    assert bool(turns.time_line) is bool(left)


def test_what_is_as_good_as_before_is_not_counted_where_only_its_gain_is_open(played):
    faster = Open("faster", 10.0, -0.5)
    faster.outcome = Outcome.OK
    assert played(1.0, faster).time_line == ""


def test_what_is_recorded_is_never_late(played):
    turns = played(1.0, *open_cases(), record=3)
    assert turns.gangs == 2 * ["quick", "long", "bad"]
    assert not turns.time_line
