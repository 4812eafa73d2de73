"""When regressions of a suite are told, and which of them may be the platform's."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_accel.options import Settings
from pytest_accel.session import turns as session_turns
from pytest_accel.session.together import Platforms
from pytest_accel.session.turns import Turns
from pytest_accel.stats.verdict import Outcome
from tests.support.measured import make_case, measurement
from tests.support.stored import baseline, runs

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
            case.held = [report(how)]
            case.judge()
        return made

    return cases


def look_twice(made):
    platforms = Platforms()
    for case in made:
        case.take(case.latest)
        case.judge()
    platforms.look(made, made)
    return platforms


def test_a_suite_that_lost_together_is_the_platforms(cases):
    made = cases(QUIET)
    assert list(look_twice(made).found) == ["h200"]
    assert {case.outcome for case in made} == {Outcome.OK}


@pytest.mark.parametrize("xfail", ["strict", "lenient"])
def test_what_is_expected_to_fail_does_not_bring_the_platform_down_and_keeps_its_loss(cases, xfail):
    made = cases(QUIET, xfail=(xfail,) * 8)
    platforms = look_twice(made)
    assert platforms.found == {}
    assert not platforms.may_share(made)
    assert {case.outcome for case in made} == {Outcome.REGRESSED}  # an XPASS would be a failure


class TestTurns:
    @pytest.fixture
    def play(self, monkeypatch):
        """Measure what waits, the runs of each case as written down; who is told what, in order."""
        pace = SimpleNamespace(run=lambda label, left: nullcontext())
        monkeypatch.setattr(session_turns, "Pacemaker", lambda config: pace)

        def play(made, further, *, maxfail=0):
            told = []
            session = SimpleNamespace(shouldfail=False, shouldstop=False)

            class Measured(Turns):
                def release(self, case):
                    self.waiting.remove(case)
                    told.append((case.node_id[-1], case.outcome))
                    session.shouldfail = session.shouldfail or (maxfail and case.outcome is Outcome.REGRESSED)

                def start_ahead(self, coming):
                    """Nothing is started here."""

                def measure_fresh(self, case, progress):
                    case.take(measurement(run(further[case.node_id](len(case.measurements) + 1))))

            turns = Measured(
                config=SimpleNamespace(getoption=lambda name, default: maxfail),
                settings=Settings(),
                cases={case.node_id: case for case in made},
                gangs=None,
                endings=None,
                with_scaling=None,
                waiting=[case for case in made if case.undecided],
            )
            turns.measure(session)
            return turns, told

        return play

    @pytest.fixture
    def late(self, cases):
        """One that regresses at the second look, and others of which only the third says what they share."""
        own = [0.08, *(0.02 + 0.01 * number for number in range(7))]
        made = cases([0.08, *(each + 0.03 for each in own[1:])])

        def of(number):
            return lambda look: 0.08 if number == 0 else own[number] - 0.03 if look == 2 else 0.08

        return made, {key: of(number) for number, key in enumerate(KEYS)}

    def test_a_regression_waits_until_nothing_of_its_platform_is_open(self, play, late):
        turns, told = play(*late)
        assert list(turns.platforms.found) == ["h200"]
        assert ("0", Outcome.OK) in told
        assert Outcome.REGRESSED not in dict(told).values()
        assert turns.waiting == []

    def test_one_that_is_its_own_is_told_when_the_others_are_decided(self, play, late):
        made, further = late
        turns, told = play(
            made, {key: further[key] if key == KEYS[0] else (lambda look: -0.06) for key in KEYS}
        )
        assert turns.platforms.found == {}
        assert dict(told)["0"] is Outcome.REGRESSED
        assert len(made[0].measurements) == 2  # it waits, and is not measured again
        assert len(told) == 8

    def test_who_wants_the_first_failure_gets_it_at_the_end_of_its_turn(self, play, late):
        made, further = late
        _, told = play(made, further, maxfail=1)
        assert told == [("0", Outcome.REGRESSED)]
        assert max(len(case.measurements) for case in made) == 2

    def test_a_suite_may_become_one_when_a_disturbed_run_was_replaced(self, play, cases):
        made = cases([0.05 + 0.001 * number for number in range(8)])
        made[7].disturbed, made[7].measurements = [replace(made[7].latest, invalid="throttled")], []
        made[7].judge()
        turns, told = play(
            made, {key: lambda look, number=n: 0.05 + 0.001 * number for n, key in enumerate(KEYS)}
        )
        assert list(turns.platforms.found) == ["h200"]
        assert {outcome for _, outcome in told} == {Outcome.OK}
