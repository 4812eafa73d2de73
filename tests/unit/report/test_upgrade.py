"""An upgrade as results: the new environment's runs against the old one's."""

from dataclasses import replace

import pytest

from pytest_accel.report.comparison import explanation, screen, upgrade_results
from pytest_accel.report.markdown import render_summary
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.paired import PairedBenchmark, Sessions, Slot, follow, judge_pairs
from pytest_accel.stats.results import Ending, ReportLine, Result, SessionResults
from pytest_accel.stats.run import Run
from pytest_accel.storage.results import parse, render
from tests.support.results import NOW, THEN, make_result, make_session

SLOWER = {"test_same": 1.0, "test_slow": 1.2, "test_fast": 0.8, "test_slower": 1.4}


def measured(name: str, step_s: float, slot: Slot, **more: object) -> Result:
    environment = THEN if slot.side == "old" else NOW
    run = Run(session="s", rounds_s=(step_s,) * 6, steps_per_round=10, environment=environment.key)
    made = make_result(Outcome.NO_BASELINE, name=name)
    own = {"runs": (run,), "environment": environment.key, "baseline": (), "verdicts": (), "changes": ()}
    return replace(made, **own, work_per_step=128.0, unit="images", **more)


def sessions(slower: dict[str, float], **of_new: object) -> Sessions:
    slots = [Slot(block=block, place=place) for block in (1, 2) for place in (1, 2, 3, 4)]
    return {
        slot: make_session(
            [
                measured(
                    name,
                    0.04 * (times if slot.side == "new" else 1.0),
                    slot,
                    **(of_new if slot.side == "new" else {}),
                )
                for name, times in slower.items()
            ]
        )
        for slot in slots
    }


def upgraded(slower: dict[str, float], **of_new: object) -> SessionResults:
    return upgrade_results(sessions(slower, **of_new), 5)


def test_results_have_both_sides_the_verdict_and_what_differs():
    found = {each.name: each for each in upgraded(SLOWER).results}
    slow = found["test_slow"]
    assert (slow.status, slow.failed) == (Outcome.REGRESSED, True)
    assert slow.verdict.slowdown.point == pytest.approx(1 - 1 / 1.2)
    assert (len(slow.runs), len(slow.baseline)) == (4, 4)
    assert slow.throughput == pytest.approx(128 / 0.048)
    assert "torch" in {change.name for change in slow.changes}
    assert found["test_fast"].status is Outcome.IMPROVED


def test_results_are_stored_and_read_back_as_those_of_a_session():
    found = upgraded(SLOWER)
    assert parse(render(found), "upgrade.json") == found


def test_screen_and_page_have_the_gravest_first_and_a_line_for_each_verdict():
    found = upgraded(SLOWER)
    lines = screen(found)
    names = [line.split()[0] for line in lines[1:5]]
    assert names == ["test_slower", "test_slow", "test_fast", "test_same"]
    text = "\n".join(lines)
    assert "REGRESSED  test_slow: 16.7 % slower (at least " in text
    assert "driver 570.124.06 -> 580.159.04, cuDNN 9.10.2 -> 9.19.0" in text
    assert render_summary(found).count("| **REGRESSED** |") == 2


def test_failure_of_the_new_environment_alone_is_shown_beside_ok():
    found = upgraded({"test_a": 1.0}, failed=True, lines=(ReportLine(text="off"),))
    assert [each.failed for each in found.results] == [True]
    assert "FAILED  test_a: off" in "\n".join(screen(found))


def test_tolerance_that_is_no_gate_is_not_called_ok():
    both = {
        slot: make_session([replace(each, tolerance=0.6) for each in session.results])
        for slot, session in sessions({"test_a": 1.1}).items()
    }
    for strict in (False, True):
        (result,) = upgrade_results(both, 5, strict=strict).results
        assert (result.status, result.failed) == (Ending.NOT_GATED, strict)
    assert [each.shown_status for each in follow(both, 5).values()] == [Ending.NOT_GATED]  # of the progress


def test_open_question_says_what_would_decide_it():
    old, new = ([Run(session="s", rounds_s=(each,) * 6, steps_per_round=10)] * 4 for each in (0.04, 0.0416))
    verdict = replace(judge_pairs(old, new), wants_another_run=False, outcome=Outcome.INCONCLUSIVE)
    row = PairedBenchmark(benchmark="test_a", status=Outcome.INCONCLUSIVE, why="", verdict=verdict)
    assert "here: take more blocks (--blocks 10), quieten the machine" in explanation(row, 5)
