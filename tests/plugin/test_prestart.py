"""Workers on a host of many cores: those of a turn start together, before the first of them measures."""

from __future__ import annotations

import os
import signal
import sys
import types

import pytest

from pytest_accel.session import workers

TWO = ("test_a", "test_b")

# What fresh processes do is noted, in order.
RANKS = """
import os
import sys

import pytest

FRESH = "addopts=" in sys.argv


def note(text):
    with open("events", "a") as stream:
        stream.write(f"{os.getpid()} {text}\\n")


def pytest_collection_finish():
    if FRESH:
        note("here")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if FRESH:
        note("imported" if "slow_to_import" in sys.modules else "bare")
        note("measures")
"""

# In a session that is a process of its own.
MANY_CORES = """
import pytest_accel.session.workers

pytest_accel.session.workers.available_cores = lambda: 16
"""


class Host:
    """A project on a host with so many cores, and what its fresh processes did."""

    def __init__(self, bench, monkeypatch):
        self.bench = bench
        self._monkeypatch = monkeypatch
        bench.pytester.makeconftest(RANKS)
        self.temporary = bench.pytester.mkdir("temporary")
        monkeypatch.setenv("TMPDIR", str(self.temporary))
        monkeypatch.setattr("tempfile.tempdir", None)

    def cores(self, number):
        self._monkeypatch.setattr(workers, "available_cores", lambda: number)

    def with_device(self, module):
        """As if the benchmarks ran on a device: this session has imported a module, which `module` is the text of."""
        self._monkeypatch.setattr(workers, "_modules", lambda platform: ("slow_to_import",))
        self._monkeypatch.setitem(sys.modules, "slow_to_import", types.ModuleType("slow_to_import"))
        self.bench.pytester.makepyfile(slow_to_import=module)
        self._monkeypatch.setenv("PYTHONPATH", str(self.bench.pytester.path), prepend=os.pathsep)

    @property
    def events(self):
        """Each with the number of its process, from 0 in the order in which they came."""
        lines = [line.split() for line in self.bench.path("events").read_text().splitlines()]
        numbers = {pid: number for number, pid in enumerate(dict.fromkeys(pid for pid, _ in lines))}
        return [(numbers[pid], event) for pid, event in lines]

    @property
    def happened(self):
        return [event for _, event in self.events]

    @property
    def left(self):
        """Processes, and folders of processes."""
        return self.bench.left_behind() + [path.name for path in self.temporary.glob("pytest-accel-*")]


@pytest.fixture
def host(bench, monkeypatch):
    monkeypatch.setattr(workers, "prestart_limit", workers.prestart_limit.__wrapped__)  # asked anew
    made = Host(bench, monkeypatch)
    made.cores(16)
    return made


def test_workers_of_a_turn_have_imported_everything_before_the_first_measures(bench, host):
    host.with_device("")
    bench.benchmarks(*TWO)
    bench.run("--accel-record=1").assert_outcomes(passed=2)
    assert host.happened == ["here"] * 2 + ["imported", "measures"] * 2
    first, second = (number for number, event in host.events if event == "measures")
    assert first != second, "every run has a process of its own"
    assert host.left == []


def test_worker_killed_while_it_waits_is_replaced(bench, host):
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
    first, second = [number for number, event in host.events if event == "measures"]
    assert first < 2, "one of the two that came first"
    assert second == 2, "started after both were"
    assert host.left == []


def test_session_that_stops_early_ends_workers_that_wait(bench, host):
    bench.write(
        """
        def test_a(accel):
            measure(accel)
            assert not FRESH, "it fails in its turn"

        def test_b(accel):
            measure(accel)
        """
    )
    result = bench.run("--accel-record=1", "-x")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert host.happened == ["here"] * 2 + ["bare", "measures"]
    assert host.left == []


def test_interrupt_ends_workers_that_wait(bench, host):
    bench.pytester.makeconftest(MANY_CORES + RANKS)
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
    assert host.happened[:2] == ["here", "here"]
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert host.left == []
