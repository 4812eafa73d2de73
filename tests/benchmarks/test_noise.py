"""Smoke test of the gate's study: a broken gate is noticed, a tuned one is judged by `make study`."""

import pytest

from benchmarks.noise import study
from benchmarks.noise.judge import rates, scattered, slowed
from benchmarks.noise.streams import STREAMS, plan, read_stream
from benchmarks.noise.study import NO_THROTTLE, POPULATIONS, THROTTLED, Task, nights, prior_line, run_task
from pytest_accel.stats.gate import LOSSES, Outcome, Policy


@pytest.mark.parametrize(("effect", "at_least", "at_most"), [(0.0, 0.0, 0.02), (1.5, 0.95, 1.0)])
def test_gate_separates_no_change_from_a_slowdown_on_simulated_streams(effect, at_least, at_most):
    found = run_task(
        Task(between_run_sd=0.01, baseline_runs=5, effect=effect, change="shift", trials=200, seed=20)
    )
    assert at_least <= found.failed.mean() <= at_most
    assert not found.failed.any() or found.runs_used[found.failed].min() >= 2


def test_gate_catches_ten_percent_on_the_quiet_real_stream_and_raises_no_false_alarm():
    quiet = read_stream(STREAMS / "h200-compute.jsonl").with_slowdown(0.0)
    assert len(quiet) == 30
    for slowdown, expected in ((0.0, 0.0), (0.1, 1.0)):
        draws = scattered(len(quiet), draws=50)
        assert rates(quiet, slowed(quiet, slowdown), draws, Policy()).gate == expected


def test_mode_of_half_of_the_processes_is_caught_in_most_nights():
    found = nights(NO_THROTTLE, 100, seed=31, mode=True, least_runs=2)
    caught = [[verdict.outcome in LOSSES for verdict in verdicts] for verdicts in found]
    assert sum(first for first, *_ in caught) >= 50
    assert sum(map(any, caught)) >= 95


@pytest.mark.parametrize("model", [NO_THROTTLE, THROTTLED])
def test_streams_without_a_mode_are_not_unstable(model):
    found = [verdict for verdicts in nights(model, 100, seed=32, mode=False) for verdict in verdicts]
    assert sum(verdict.outcome is Outcome.UNSTABLE for verdict in found) <= 1
    assert sum(verdict.outcome in LOSSES for verdict in found) <= 2


def test_prior_of_the_platform_makes_a_tolerance_of_two_percent_hold():
    (population,) = (each for each in POPULATIONS if each.name == "model, .4 %")
    failed = {
        lost: float(prior_line(population, lost, 12, seed=34).partition("platform ")[2].partition(" %")[0])
        for lost in (0.0, 0.02, 0.03)
    }
    assert failed[0.0] <= 0.5
    assert failed[0.02] >= 75
    assert failed[0.03] >= 98


def test_prior_of_a_quiet_platform_is_simulated(monkeypatch):
    monkeypatch.setattr(study, "BENCHMARKS", 5)
    assert "platform 0.00 % (" in prior_line(POPULATIONS[0], 0.0, platforms=1, seed=1)


def test_slowed_runs_are_spread_evenly_among_quiet_ones():
    assert plan(4, [0.1], 2) == [0.0, 0.1, 0.0, 0.0, 0.1, 0.0]
