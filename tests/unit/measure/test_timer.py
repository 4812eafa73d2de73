"""The clock of a round."""

from __future__ import annotations

from pytest_accel.measure.timer import SynchronisingTimer


def test_waits_for_the_device_before_it_reads_the_clock(monkeypatch):
    events = []
    timer = SynchronisingTimer()
    timer.synchronize = lambda: events.append("synchronize")
    monkeypatch.setattr("pytest_accel.measure.timer.time.perf_counter", lambda: events.append("clock") or 1.0)
    assert timer() == 1.0
    assert events == ["synchronize", "clock"]


def test_between_rounds_runs_before_a_round_and_never_inside():
    events = []
    timer = SynchronisingTimer()
    timer.synchronize = lambda: events.append("synchronize")
    timer.between_rounds = lambda: events.append("between")
    for _ in range(4):  # two rounds
        timer()
    assert events == ["between", "synchronize", "synchronize"] * 2


def test_is_monotonic_and_works_unbound():
    timer = SynchronisingTimer()
    assert timer() <= timer()


def test_has_a_name_for_the_json_of_pytest_benchmark():
    assert SynchronisingTimer().__name__
