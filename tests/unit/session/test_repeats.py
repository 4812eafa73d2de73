"""Repeats: their order, time limits, and losses that a whole platform shares."""

import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_accel.options import SESSION_START_S, Settings
from pytest_accel.session import repeats
from pytest_accel.session.repeats import PlatformShifts, Repeats
from pytest_accel.session.worker_process import ItemResult
from pytest_accel.stats.gate import Outcome
from tests.support.measured import make_case, measurement
from tests.support.stored import baseline, runs


def silence(monkeypatch):
    progress = SimpleNamespace(phase=lambda text, remaining_s: None)
    monkeypatch.setattr(repeats, "live_progress", lambda config, label, left_s: nullcontext(progress))
    monkeypatch.setattr(Repeats, "begin_line", lambda self, case: None)


class Open:
    """A case that no run decides, before its third; a run takes as long as it says."""

    platform = SimpleNamespace(devices=1)
    problem = skipped = unfit = None
    may_be_replaced = True
    device_time_s = 0.0
    outcome = Outcome.INCONCLUSIVE

    def __init__(self, name, run_s, relative_loss):
        self.item = SimpleNamespace(name=name)
        self.run_s, self.relative_loss = run_s, relative_loss
        self.measurements = [1]

    @property
    def undecided(self):
        return len(self.measurements) < 3

    def judge(self):
        pass


class Apart(PlatformShifts):
    """Cases that share nothing."""

    def may_apply(self, cases):
        return False

    def judge(self, cases, waiting):
        pass


class Played(Repeats):
    """On a clock that runs alone move."""

    def measure_fresh(self, case, progress):
        case.measurements.append(1)
        repeats.time.now_s += case.run_s
        self.workers.append(case.item.name)


@pytest.fixture
def played(monkeypatch):
    def play(within_s, *cases, count=5, record=0):
        monkeypatch.setattr(repeats, "time", clock := SimpleNamespace(now_s=100.0))
        clock.monotonic = lambda: clock.now_s
        silence(monkeypatch)
        monkeypatch.setattr(repeats, "refuse_mixture", lambda case: None)
        found = Played(
            config=SimpleNamespace(stash={SESSION_START_S: 40.0}, getoption=lambda *_, **__: 0),
            settings=Settings(within_s=within_s, repeats=count, record=record),
            cases={case.item.name: case for case in cases},
            workers=[],
            shifts=Apart(),
            finisher=SimpleNamespace(finish=lambda case: None),
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
def test_no_run_begins_that_would_end_too_late_and_largest_losses_come_first(played, within_s, runs, left):
    turns = played(within_s, *open_cases())
    assert turns.workers == runs.split()
    assert (f" {left} benchmark" in turns.time_note) is bool(left)
    assert bool(turns.time_note) is bool(left)


@pytest.mark.parametrize(
    ("found", "problem", "measured"),
    [
        (ItemResult(outcome="passed", measurement=measurement(runs(1)[0])), "", 2),
        (ItemResult.failed("boom", measurement=measurement(runs(1)[0])), "gave no measurement: boom", 1),
        (ItemResult(outcome="passed", reports=({},)), "failed in a fresh process: it measured nothing", 1),
        (ItemResult(outcome="failed", cause="boom", reports=({},)), "failed in a fresh process: boom", 1),
    ],
)
def test_repeat_that_fails_or_measures_nothing_is_a_problem(tmp_path, found, problem, measured):
    case = make_case(tmp_path, runs=runs(1))
    parts = {"workers": SimpleNamespace(run=lambda *_, **__: found), "with_scaling": lambda _, made: made}
    Repeats(config=None, settings=None, cases={}, finisher=None, **parts).measure_fresh(case, None)
    assert problem in case.problem
    assert bool(case.problem) is bool(problem)
    assert len(case.measurements) == measured


def test_open_gain_is_not_counted_as_undecided(played):
    faster = Open("faster", 10.0, -0.5)
    faster.outcome = Outcome.OK
    assert played(1.0, faster).time_note == ""


def test_recording_is_never_late(played):
    turns = played(1.0, *open_cases(), record=3)
    assert turns.workers == 2 * ["quick", "long", "bad"]
    assert not turns.time_note


KEYS = tuple(f"bench_suites/test_cnn.py::test_{number}" for number in range(8))
QUIET = [math.log(1.1) + 0.0005 * number for number in range(8)]


def run(log_s):
    (made,) = runs(1, noise=0.0)
    return replace(made, rounds_s=(0.01 * math.exp(log_s),) * 8)


def report(xfail=""):
    """Of a call that waits for its verdict, as pytest leaves it under `xfail`."""
    made = pytest.TestReport("id", ("f", 0, "n"), {}, "passed", None, "call")
    if xfail == "strict":
        made.outcome, made.longrepr = "failed", "[XPASS(strict)] known"
    elif xfail:
        made.wasxfail = "known"
    return made


@pytest.fixture
def cases(tmp_path):
    """Of a platform, each with its first run of these, ln(step time) against the baseline."""
    for key in KEYS:
        baseline(tmp_path, key, stored=runs(noise=0.001))

    def cases(first, xfail=("",) * 8):
        made = [make_case(tmp_path, key, runs=[run(d)]) for key, d in zip(KEYS, first, strict=True)]
        for case, how in zip(made, xfail, strict=True):
            case.pending_reports = [report(how)]
            case.judge()
        return made

    return cases


def measure_twice(made):
    platforms = PlatformShifts()
    for case in made:
        case.add(case.latest)
        case.judge()
    platforms.judge(made, made)
    return platforms


def test_loss_of_a_whole_suite_is_the_platforms(cases):
    made = cases(QUIET)
    assert list(measure_twice(made).found) == ["h200"]
    assert {case.outcome for case in made} == {Outcome.OK}


@pytest.mark.parametrize("xfail", ["strict", "lenient"])
def test_expected_failures_make_no_platform_shift(cases, xfail):
    made = cases(QUIET, xfail=(xfail,) * 8)
    platforms = measure_twice(made)
    assert platforms.found == {}
    assert not platforms.may_apply(made)
    assert {case.outcome for case in made} == {Outcome.REGRESSED}  # an XPASS would be a failure


class TestTurns:
    @pytest.fixture
    def play(self, monkeypatch):
        """Measure what waits, the runs of each case as written down; who is finished what, in order."""
        silence(monkeypatch)

        def play(made, further, *, maxfail=0):
            finished = []
            session = SimpleNamespace(shouldfail=False, shouldstop=False)

            class Measured(Repeats):
                def release(self, case):
                    self.waiting.remove(case)
                    finished.append((case.node_id[-1], case.outcome))
                    session.shouldfail = session.shouldfail or (maxfail and case.outcome is Outcome.REGRESSED)

                def measure_fresh(self, case, progress):
                    case.add(measurement(run(further[case.node_id](len(case.measurements) + 1))))

            turns = Measured(
                config=SimpleNamespace(getoption=lambda name, default: maxfail),
                settings=Settings(),
                cases={case.node_id: case for case in made},
                workers=None,
                finisher=None,
                with_scaling=None,
                waiting=[case for case in made if case.undecided],
            )
            turns.measure(session)
            return turns, finished

        return play

    @pytest.fixture
    def late(self, cases):
        """One that regresses at the second look, and others of which only the third says what they share."""
        own = [0.08, *(0.02 + 0.01 * number for number in range(7))]
        made = cases([0.08, *(each + 0.03 for each in own[1:])])

        def of(number):
            return lambda look: 0.08 if number == 0 else own[number] - 0.03 if look == 2 else 0.08

        return made, {key: of(number) for number, key in enumerate(KEYS)}

    def test_regression_waits_until_nothing_of_its_platform_is_open(self, play, late):
        turns, finished = play(*late)
        assert list(turns.shifts.found) == ["h200"]
        assert ("0", Outcome.OK) in finished
        assert Outcome.REGRESSED not in dict(finished).values()
        assert turns.waiting == []

    def test_regression_of_one_benchmark_is_reported_when_the_others_are_decided(self, play, late):
        made, further = late
        turns, finished = play(
            made, {key: further[key] if key == KEYS[0] else (lambda look: -0.06) for key in KEYS}
        )
        assert turns.shifts.found == {}
        assert dict(finished)["0"] is Outcome.REGRESSED
        assert len(made[0].measurements) == 2  # it waits, and is not measured again
        assert len(finished) == 8

    def test_maxfail_reports_a_regression_at_the_end_of_its_turn(self, play, late):
        made, further = late
        _, finished = play(made, further, maxfail=1)
        assert finished == [("0", Outcome.REGRESSED)]
        assert max(len(case.measurements) for case in made) == 2

    def test_replaced_run_may_complete_a_suite(self, play, cases):
        made = cases([0.05 + 0.001 * number for number in range(8)])
        made[7].disturbed, made[7].measurements = [replace(made[7].latest, invalid="throttled")], []
        made[7].judge()
        turns, finished = play(
            made, {key: lambda look, number=n: 0.05 + 0.001 * number for n, key in enumerate(KEYS)}
        )
        assert list(turns.shifts.found) == ["h200"]
        assert {outcome for _, outcome in finished} == {Outcome.OK}
