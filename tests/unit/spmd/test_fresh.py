"""A fresh process: its arguments, its answer, and how it ends when it does not answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from dataclasses import asdict
from pathlib import Path

import pytest

from pytest_accel.spmd import fresh
from pytest_accel.spmd.fresh import FRESH_VARIABLE, Order, fresh_arguments, measure_fresh


class TestArguments:
    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            ([], []),
            (["bench_suites", "-m", "cpu", "-k", "gpt"], ["bench_suites", "-m", "cpu", "-k", "gpt"]),
            (["--accel-record"], []),
            (["--accel-record=3", "suites"], ["suites"]),
            (["--accel-record", "3", "suites"], ["suites"]),
            (["--accel-record", "-v"], ["-v"]),
            (["--accel-update", "--accel-reason", "new driver", "-q"], ["-q"]),
            (["--accel-reason=-x is fine"], []),
            (["--accel-require"], []),
            (["--benchmark-json", "out.json", "--benchmark-json=out.json"], []),
            (["--benchmark-save", "a", "--benchmark-autosave", "--benchmark-save-data"], []),
            (["--benchmark-compare", "0001", "--benchmark-compare-fail", "min:5%"], []),
            (["--benchmark-compare", "--benchmark-columns=min"], ["--benchmark-columns=min"]),
            (["--junitxml=a.xml", "--junit-xml", "b.xml", "--junit-prefix=x"], []),
            (["-x", "--exitfirst", "--maxfail=1", "--maxfail", "2"], []),
            (["--lf", "--ff", "--nf", "--sw", "--last-failed"], []),
            (["--pdb", "--trace"], []),
            (["--html", "report.html"], []),
            (
                ["--accel-budget=1s", "--accel-tolerance", "5%"],
                ["--accel-budget=1s", "--accel-tolerance", "5%"],
            ),
            (["-p", "benchmark", "-o", "markers=x"], ["-p", "benchmark", "-o", "markers=x"]),
            (["test_x.py::test_y[a-b]"], ["test_x.py::test_y[a-b]"]),
        ],
        ids=" ".join,
    )
    def test_what_writes_files_or_stops_early_is_left_out(self, given, kept):
        assert fresh_arguments(given) == kept

    @pytest.mark.parametrize(
        "argument",
        [
            "--basetemp=/tmp/mine",  # a process empties it when it starts
            "--log-file=run.log",  # a process truncates it
            "--pastebin=all",
            "--stepwise-reset",
            "--stepwise-skip",
            "--sw-skip",
        ],
    )
    def test_what_acts_on_files_of_the_session_is_left_out(self, argument):
        assert fresh_arguments([argument, "suites"]) == ["suites"]
        name, _, value = argument.partition("=")
        if value:
            assert fresh_arguments([name, value, "suites"]) == ["suites"]


class TestOrder:
    def test_crosses_processes_as_a_variable(self):
        order = Order(node_id="test_x.py::test_y[ä]", session="s", result="/tmp/r.json", parent=os.getpid())
        program = (
            "import os, resource\n"
            "from pytest_accel.spmd.fresh import take_order\n"
            "print(take_order() == take_order.__globals__['Order'](**" + repr(asdict(order)) + "))\n"
            f"print({FRESH_VARIABLE!r} in os.environ, resource.getrlimit(resource.RLIMIT_CORE)[0])\n"
        )
        environ = {**os.environ, FRESH_VARIABLE: order.to_variable()}
        found = subprocess.run(
            [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
        )
        assert found.stdout.splitlines() == ["True", "False 0"]

    def test_process_whose_session_is_gone_already_ends_at_once(self):
        order = Order(node_id="x", session="s", result="/tmp/r.json", parent=os.getpid() + 1_000_000)
        program = "from pytest_accel.spmd.fresh import take_order\ntake_order()\nprint('went on')"
        environ = {**os.environ, FRESH_VARIABLE: order.to_variable()}
        found = subprocess.run(
            [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
        )
        assert (found.returncode, found.stdout) == (1, "")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a Python program where pytest would be, as the process that is to answer."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "--not-for-the-child")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def measure(program: str, *, timeout_s: float = 1000.0, waiting=lambda: None):
        # `python -m pytest` finds this module first.
        (tmp_path / "pytest.py").write_text(
            "import json, os, sys, time, signal\n"
            f"order = json.loads(os.environ[{FRESH_VARIABLE!r}])\n"
            "def answer(payload):\n"
            "    open(order['result'], 'w').write(json.dumps(payload))\n"
            "def note(name):\n"
            "    open(name, 'w').close()\n" + program
        )
        result = str(tmp_path / "answer.json")
        order = Order(node_id="test_x.py::test_y", session="s", result=result, parent=os.getpid())
        return measure_fresh(
            order,
            arguments=["suites", "-x"],
            directory=tmp_path,
            log=tmp_path / "log.txt",
            timeout_s=timeout_s,
            waiting=waiting,
        )

    return measure


@pytest.fixture
def deadline_at(tmp_path, monkeypatch):
    """The deadline passes when the process has written a file, and not before."""

    def set_file(name: str) -> None:
        def monotonic() -> float:
            return time.monotonic() + (1e9 if (tmp_path / name).exists() else 0)

        monkeypatch.setattr(fresh, "time", types.SimpleNamespace(monotonic=monotonic))

    return set_file


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    """Also if the kernel takes a moment."""
    end = time.monotonic() + 30
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not alive(pid)


class TestMeasureFresh:
    def test_answer_is_read(self, run):
        found = run("answer({'outcome': 'passed', 'node': order['node_id']})")
        assert found.payload == {"outcome": "passed", "node": "test_x.py::test_y"}
        assert found.problem == ""

    def test_process_gets_the_arguments_and_none_of_our_variables(self, run, monkeypatch):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", "mine")
        found = run(
            "answer([sys.argv[1:], {k: v for k, v in os.environ.items() if k.startswith('PYTEST_')}])"
        )
        arguments, environ = found.payload
        assert arguments[0] == "suites"
        assert "-x" not in arguments
        assert set(environ) & {"PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"} == set()

    def test_answer_counts_even_if_the_process_then_fails(self, run):
        """The exit status of pytest is 1 where the benchmark failed; its answer says why."""
        found = run("answer({'outcome': 'failed'}); sys.exit(1)")
        assert found.payload == {"outcome": "failed"}

    def test_silence_is_a_problem_with_the_status_and_the_last_words(self, run):
        found = run("print('last words'); sys.exit(3)")
        assert found.payload is None
        assert found.problem == "ended with status 3 and no measurement"
        assert found.log.endswith("last words")

    def test_killed_process_is_a_problem(self, run):
        found = run("os.kill(os.getpid(), signal.SIGKILL)")
        assert found.payload is None
        assert "-9" in found.problem or "SIGKILL" in found.problem

    def test_torn_answer_is_a_problem(self, run):
        found = run("open(order['result'], 'w').write('{\"outcome\": ')")
        assert found.payload is None
        assert "unreadable" in found.problem

    def test_log_is_cut_to_its_end(self, run):
        found = run("print('\\n'.join(map(str, range(1000)))); sys.exit(1)")
        assert len(found.log.splitlines()) <= 40
        assert found.log.endswith("999")

    def test_log_that_is_no_text_does_not_raise(self, run):
        found = run("sys.stdout.buffer.write(b'\\xff\\xfe'); sys.exit(1)")
        assert found.payload is None

    def test_deadline_stops_it_and_keeps_its_stack(self, run, deadline_at, tmp_path):
        deadline_at("hanging")
        found = run(
            "import faulthandler; faulthandler.enable()\n"
            "def wait_for_ever():\n"
            "    note('hanging')\n"
            "    time.sleep(600)\n"
            "open('pid', 'w').write(str(os.getpid()))\n"
            "wait_for_ever()\n"
        )
        assert found.payload is None
        assert found.problem == "no answer within 1000 s: stopped"
        assert "in wait_for_ever" in found.log
        assert gone(int((tmp_path / "pid").read_text()))

    def test_process_that_ignores_every_polite_signal_is_stopped(
        self, run, deadline_at, monkeypatch, tmp_path
    ):
        monkeypatch.setattr(fresh, "_GRACE_S", 0.05)
        deadline_at("hanging")
        found = run(
            "for number in (signal.SIGABRT, signal.SIGTERM, signal.SIGINT):\n"
            "    signal.signal(number, signal.SIG_IGN)\n"
            "open('pid', 'w').write(str(os.getpid()))\n"
            "note('hanging')\n"
            "time.sleep(600)\n"
        )
        assert found.payload is None
        assert gone(int((tmp_path / "pid").read_text()))

    def test_its_children_end_with_it(self, run, tmp_path):
        found = run(
            "import subprocess\n"
            "child = subprocess.Popen(['sleep', '600'])\n"
            "open('pid', 'w').write(str(child.pid))\n"
            "answer({'outcome': 'passed'})\n"
        )
        assert found.payload == {"outcome": "passed"}
        assert gone(int((tmp_path / "pid").read_text()))

    def test_interrupted_wait_leaves_nothing_behind(self, run, tmp_path, monkeypatch):
        monkeypatch.setattr(fresh, "_POLL_S", 0.01)

        def interrupt() -> None:
            if (tmp_path / "hanging").exists():
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(
                "open('pid', 'w').write(str(os.getpid())); note('hanging'); time.sleep(600)",
                waiting=interrupt,
            )
        assert gone(int((tmp_path / "pid").read_text()))

    def test_waiting_is_told(self, run, tmp_path, monkeypatch):
        monkeypatch.setattr(fresh, "_POLL_S", 0.01)
        ticks = []

        def tick() -> None:
            ticks.append(1)
            (tmp_path / "go").touch()

        found = run("while not os.path.exists('go'): time.sleep(0.01)\nanswer({})", waiting=tick)
        assert found.payload == {}
        assert ticks


def test_process_dies_with_its_parent(tmp_path):
    """SIGKILL of a session cannot be caught: the kernel ends what it started."""
    program = (
        "import os, time\n"
        "from pytest_accel.spmd.fresh import Order, take_order\n"
        "order = Order(node_id='x', session='s', result='r', parent=os.getpid())\n"
        "reader, writer = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    take_order({'PYTEST_ACCEL_FRESH': order.to_variable()})\n"
        "    os.write(writer, b'x')\n"
        "    time.sleep(600)\n"
        "os.read(reader, 1)\n"
        "print(child, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
    assert gone(child)


def test_order_variable_is_json():
    order = Order(node_id="a", session="b", result="c", parent=1)
    assert json.loads(order.to_variable()) == {"node_id": "a", "session": "b", "result": "c", "parent": 1}
    assert os.environ.get(FRESH_VARIABLE) is None
