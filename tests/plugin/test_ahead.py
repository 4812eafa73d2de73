"""Fresh processes on a host of many cores: those of a turn start together, before the first of them measures.

What may fail when is asked of fakes in tests/unit/session/test_ahead.py, and of real ones here in rehearsals.
"""

from __future__ import annotations

import os
import signal
import sys
import types

import pytest

from pytest_accel.session import workers

TWO = ("test_a", "test_b")
THREE = (*TWO, "test_c")

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


def test_processes_of_a_turn_are_there_before_the_first_measures(bench, host):
    bench.benchmarks(*TWO)
    bench.run("--accel-record=2").assert_outcomes(passed=2)
    assert host.happened == (["here"] * 2 + ["bare", "measures"] * 2) * 2
    measured = [number for number, event in host.events if event == "measures"]
    assert len(set(measured)) == 4, "every run has a process of its own"
    assert all(len(bench.entry(name)["runs"]) == 2 for name in TWO)
    assert host.left == []


def test_they_import_before_their_turns_what_the_session_has(bench, host):
    host.with_device("")
    bench.benchmarks(*TWO)
    bench.run("--accel-record=1").assert_outcomes(passed=2)
    assert host.happened == ["here"] * 2 + ["imported", "measures"] * 2


@pytest.mark.rehearsal
def test_more_than_cores_allow_come_in_batches(bench, host):
    host.cores(4)
    bench.benchmarks(*THREE)
    bench.run("--accel-record=1").assert_outcomes(passed=3)
    measured = ["bare", "measures"]
    assert host.happened == ["here"] * 2 + measured * 2 + ["here", *measured]


@pytest.mark.rehearsal
def test_second_looks_of_a_judged_session_are_started_ahead_too(bench, host):
    bench.benchmarks(*TWO)
    bench.baseline(test_a=bench.APART, test_b=bench.APART)
    bench.run("--accel-repeats=2")
    assert host.happened == ["here"] * 2 + ["bare", "measures"] * 2


def test_one_that_is_killed_while_it_waits_is_replaced_in_its_turn(bench, host):
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


@pytest.mark.rehearsal
@pytest.mark.parametrize(
    "module",
    ["raise ImportError('no driver')", "import os; os.kill(os.getpid(), 9)"],
    ids=["fails", "dies"],
)
def test_where_preparing_fails_each_is_started_in_its_turn_from_then_on(bench, host, module):
    host.with_device(module)
    bench.benchmarks(*THREE)
    bench.run("--accel-record=1").assert_outcomes(passed=3)
    assert host.happened == ["here"] * 3 + ["here", "bare", "measures"] * 3
    assert host.left == []


@pytest.mark.rehearsal
def test_one_that_hangs_while_it_prepares_takes_no_other_along(bench, host):
    host.with_device(
        "import os, pathlib, time\n"
        "try:\n"
        "    pathlib.Path('first').touch(exist_ok=False)\n"
        "    time.sleep(600)\n"
        "except FileExistsError:\n"
        "    pass\n"
    )
    bench.benchmarks(*TWO)
    bench.run("--accel-record=1", "--accel-timeout=3s").assert_outcomes(passed=2)
    assert host.happened.count("here") == 3, "of two that were started one was used"
    assert host.happened.count("imported") == 1
    assert host.left == []


@pytest.mark.rehearsal
def test_what_cannot_start_is_told_by_the_run_whose_turn_it_is(bench, host):
    bench.benchmarks(*TWO)
    with bench.path("conftest.py").open("a") as conftest:
        conftest.write('\nif FRESH:\n    note("begins")\n    raise SystemExit("no licence for this")\n')
    result = bench.run("--accel-record=1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    for name in TWO:
        result.stdout.fnmatch_lines([f"*{name} (cpu): a fresh process gave no measurement: *"])
    assert 4 <= host.happened.count("begins") <= 6, (
        "together once, some of which are ended, then each in its turn"
    )
    assert host.left == []


def test_a_session_that_stops_early_ends_those_that_wait(bench, host):
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


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="SIGINT"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.rehearsal),
    ],
)
def test_interrupted_nothing_is_left_of_those_that_wait(bench, host, number):
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
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert host.left == []
