"""Fresh processes on a host of many cores: those of a turn start together, before the first of them measures."""

from __future__ import annotations

import os
import signal

import pytest

THREE = ("test_a", "test_b", "test_c")

CONFTEST = """
import os
import pathlib
import sys
import time

import pytest

import pytest_accel.session.ranks.ahead as ahead

FRESH = "addopts=" in sys.argv
ahead.available_cores = lambda: {cores}
ahead.SLOW_IMPORTS = ("wave", "no_such_module_anywhere")
if not FRESH:
    import wave
    sys.modules["no_such_module_anywhere"] = wave


def note(text):
    with open("events", "a") as stream:
        stream.write(f"{{os.getpid()}} {{text}}\\n")


def pytest_collection_finish():
    if FRESH:
        note("here")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if FRESH:
        note("imported" if "wave" in sys.modules else "bare")
        note("measures")
"""


@pytest.fixture
def events(bench):
    """What fresh processes did, in order, each with the number of its process, from 0."""

    def events():
        lines = [line.split() for line in bench.path("events").read_text().splitlines()]
        numbers = {pid: number for number, pid in enumerate(dict.fromkeys(pid for pid, _ in lines))}
        return [(numbers[pid], event) for pid, event in lines]

    return events


def host(bench, cores):
    bench.pytester.makeconftest(CONFTEST.format(cores=cores))


def test_processes_of_a_turn_are_there_before_the_first_measures(bench, events):
    host(bench, cores=16)
    bench.benchmarks(*THREE)
    bench.run("--accel-record=2").assert_outcomes(passed=3)
    happened = [event for _, event in events()]
    turn = ["here"] * 3 + ["imported", "measures"] * 3
    assert happened == turn * 2
    measured = [number for number, event in events() if event == "measures"]
    assert len(set(measured)) == 6, "every run has a process of its own"
    assert all(len(bench.entry(name)["runs"]) == 2 for name in THREE)
    assert bench.left_behind() == []


def test_more_than_cores_allow_come_in_batches(bench, events):
    host(bench, cores=4)
    bench.benchmarks(*THREE)
    bench.run("--accel-record=1").assert_outcomes(passed=3)
    here, measured = ["here"], ["imported", "measures"]
    # The last one is alone, and imports in its turn.
    assert [event for _, event in events()] == here * 2 + measured * 2 + [*here, "bare", "measures"]


def test_second_looks_of_a_judged_session_are_started_ahead_too(bench, events):
    host(bench, cores=16)
    bench.benchmarks("test_a", "test_b")
    bench.baseline(test_a=bench.APART, test_b=bench.APART)
    bench.run("--accel-looks=2")
    assert [event for _, event in events()] == ["here"] * 2 + ["imported", "measures"] * 2


def test_one_that_is_killed_while_it_waits_is_replaced_in_its_turn(bench, events):
    host(bench, cores=16)
    bench.write(
        """
        def test_a(accel):
            measure(accel)
            for line in open("events").read().splitlines():
                pid, event = line.split()
                if event == "here" and int(pid) != os.getpid():
                    os.kill(int(pid), 9)

        def test_b(accel):
            measure(accel)
        """
    )
    bench.run("--accel-record=1").assert_outcomes(passed=2)
    first, second = [number for number, event in events() if event == "measures"]
    assert first < 2, "one of the two that came first"
    assert second == 2, "started after both were"
    assert bench.left_behind() == []


def test_what_cannot_start_is_told_once_by_the_run_whose_turn_it_is(bench):
    host(bench, cores=16)
    bench.benchmarks(*THREE)
    with bench.path("conftest.py").open("a") as conftest:
        conftest.write('\nif FRESH:\n    note("begins")\n    raise SystemExit("no licence for this")\n')
    result = bench.run("--accel-record=1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = result.stdout.str()
    assert text.count("no licence for this") >= 3
    begun = bench.path("events").read_text().count("begins")
    assert begun <= 6, "together once, then each in its turn"
    assert bench.left_behind() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_interrupted_nothing_is_left_of_those_that_wait(bench, number):
    host(bench, cores=16)
    bench.write(
        """
        def test_a(accel):
            if FRESH:
                note("hanging", os.getpid())
                time.sleep(600)
            measure(accel)

        def test_b(accel):
            measure(accel)
        """
    )
    process = bench.start("--accel-record=1")
    bench.wait_for("hanging", process)
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert bench.left_behind() == []
