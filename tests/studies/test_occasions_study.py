"""Stored sessions, judged by their others."""

from __future__ import annotations

from pytest_accel.stats.run import Run
from pytest_accel.storage.baselines import BaselineEntry
from tests.studies.occasions import lines, occasions

QUIET = {"mon": 1.0, "tue": 1.002, "wed": 0.999, "thu": 1.001}


def entry(*step_s: float, tolerance: float | None = None) -> BaselineEntry:
    """Two runs a session."""
    runs = tuple(
        Run(session=session, rounds_s=(seconds,) * 5, steps_per_round=10)
        for session, seconds in zip(QUIET, step_s, strict=True)
        for _ in range(2)
    )
    return BaselineEntry(
        configuration={}, work_per_step=1.0, unit="steps", tolerance=tolerance, runs=runs, ledger=()
    )


def test_each_session_is_judged_by_all_others():
    runs = entry(*QUIET.values()).runs
    found = list(occasions(runs))
    assert [{run.session for run in own} for _, own in found] == [{session} for session in QUIET]
    assert all(len(others) == 6 and len(own) == 2 for others, own in found)
    assert list(occasions(runs[:2])) == [], "it has no other"


def test_where_nothing_differs_all_are_ok_at_once():
    head, at_5, stored, *_ = lines({"quiet": entry(*QUIET.values())})
    assert head == "1 benchmarks, 4 sessions of them that have others beside them"
    assert at_5 == "5 %          open after the first look:   0; after all their runs: 4 ok"
    assert stored.endswith("first look:   0; after all their runs: 4 ok")


def test_a_session_that_lost_is_found_and_a_stored_tolerance_bears_it():
    slower = entry(1.0, 1.0, 1.0, 1.15, tolerance=0.5)
    _, at_5, stored, *_ = lines({"slower": slower})
    assert "1 regressed" in at_5
    assert stored.endswith("open after the first look:   0; after all their runs: 4 ok")
