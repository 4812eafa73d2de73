"""A rank's connection to its session: place, orders, signals; arguments of its pytest."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from pytest_accel.distributed.group import Order
from pytest_accel.distributed.messages import ConnectionLost, Listener, ready
from pytest_accel.distributed.worker import rank_arguments
from pytest_accel.options import WORKER_VARIABLE
from pytest_accel.storage.codec import encode

LONG_S = 60.0
ORDER = Order(node_id="test_x.py::test_y", session="s", platform="cpux2")

# The start of a rank; each test adds its program.
RANK = """
import os, sys, time
from pytest_accel.distributed.worker import begin_rank
end = begin_rank()
"""


@pytest.fixture
def listener():
    found = Listener()
    yield found
    found.close()


@pytest.fixture
def worker(listener, tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "3").mkdir()
    return {
        "group": "g",
        "host": "127.0.0.1",
        "port": listener.port,
        "token": listener.token,
        "folder": str(tmp_path),
        "rendezvous_s": 5.0,
        "bind": "none",
        "process_group": True,
    }


@pytest.fixture
def start(listener, worker):
    """Start a rank; return its process, its connection and its hello."""
    started = []

    def start(program: str, **variables: str):
        environ = {**os.environ, WORKER_VARIABLE: json.dumps(worker), **variables}
        process = subprocess.Popen(
            [sys.executable, "-c", RANK + program], env=environ, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        while True:
            assert ready(listener.sources(), LONG_S)
            if arrived := listener.arrived():
                ((connection, hello),) = arrived
                return process, connection, hello

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def give(connection, number=1):
    connection.send({"kind": "order", "number": number, "order": encode(ORDER)})


def test_place_is_read_from_launcher_variables(start, tmp_path):
    place = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}
    process, _, hello = start("print(end.place)", **place)
    printed = process.communicate()[0]
    for field in ("rank=3", "size=8", "local_rank=1", "local_size=4", "node=1", "nodes=2"):
        assert field in printed
    assert "bind='none'" in printed
    assert repr(tmp_path / "3") in printed
    assert hello == {"rank": 3, "pid": process.pid, "host": socket.gethostname()}


def test_worker_variable_is_removed_and_core_dumps_are_off(start):
    process, _, _ = start(
        "import resource\n"
        f"print({WORKER_VARIABLE!r} in os.environ, resource.getrlimit(resource.RLIMIT_CORE)[0])"
    )
    assert process.communicate()[0] == "False 0\n"


def test_each_order_is_answered_once(start):
    _, connection, _ = start(
        "for order in end.orders():\n"
        "    end.say('begins', 1.5)\n"
        "    end.answer({'node': order.node_id})\n"
        "    end.answer({'node': 'again'})\n"
    )
    for number in (1, 2):
        give(connection, number)
        assert connection.receive(LONG_S) == {"kind": "phase", "phase": "begins", "remaining_s": 1.5}
        answer = {"kind": "answer", "number": number, "payload": {"node": ORDER.node_id}}
        assert connection.receive(LONG_S) == answer


@pytest.mark.parametrize("dismissed", [True, False])
def test_orders_end_when_the_session_ends(start, dismissed):
    process, connection, _ = start("print(list(end.orders()))")
    if dismissed:
        connection.send({"kind": "leave"})
    else:
        connection.close()
    assert process.communicate(timeout=LONG_S)[0] == "[]\n"


def test_answer_to_a_lost_session_is_no_error(start):
    process, connection, _ = start(
        "for order in end.orders():\n"
        "    sys.stdin.readline()\n"
        "    for _ in range(100): end.say('x' * 10_000)\n"
        "    end.answer({})\n"
        "print('left')"
    )
    give(connection)
    connection.close()
    assert process.communicate(timeout=LONG_S)[0] == "left\n"


def test_forked_child_does_not_keep_the_connection_open(start):
    process, connection, _ = start(
        "child = os.fork()\nif child == 0:\n    time.sleep(600)\nprint(child, flush=True)\nos._exit(0)\n"
    )
    child = int(process.stdout.readline())
    try:
        with pytest.raises(ConnectionLost, match="closed the connection"):
            connection.receive(LONG_S)
    finally:
        os.kill(child, signal.SIGKILL)


def test_sigterm_writes_stacks_and_ends_the_rank(start, tmp_path):
    process, connection, _ = start(
        "import ctypes\n"
        "def native():\n"
        "    end.say('there')\n"
        "    ctypes.PyDLL(None).sleep(600)\n"  # with the interpreter's lock, never back in Python
        "native()\n"
    )
    assert connection.receive(LONG_S)["phase"] == "there"
    process.send_signal(signal.SIGTERM)
    assert process.wait(LONG_S) == -signal.SIGTERM
    assert "in native" in (tmp_path / "0" / "stacks").read_text()


def test_rank_ends_with_its_parent(listener, worker):
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {RANK + 'time.sleep(600)'!r}])\n"
        "time.sleep(600)\n"
    )
    environ = {**os.environ, WORKER_VARIABLE: json.dumps(worker)}
    with subprocess.Popen([sys.executable, "-c", parent], env=environ) as process:
        while not (ready(listener.sources(), LONG_S) and (arrived := listener.arrived())):
            pass
        process.kill()
    ((connection, _),) = arrived
    with pytest.raises(ConnectionLost):
        connection.receive(LONG_S)


def test_unreachable_session_is_reported(worker, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        worker["port"] = server.getsockname()[1]
    program = RANK.replace("end = begin_rank()", "begin_rank()")
    environ = {**os.environ, WORKER_VARIABLE: json.dumps(worker)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert "WorkerError: rank 0 cannot reach its session: no answer at 127.0.0.1" in found.stderr


def test_rank_does_not_import_torch(start):
    process, _, _ = start("print('torch' in sys.modules)")
    assert process.communicate()[0] == "False\n"


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
        (["--benchmark-json", "out.json", "--benchmark-json=out.json"], []),
        (["--benchmark-save", "a", "--benchmark-autosave", "--benchmark-save-data"], []),
        (["--benchmark-compare", "0001", "--benchmark-compare-fail", "min:5%"], []),
        (["--benchmark-compare", "--benchmark-columns=min"], ["--benchmark-columns=min"]),
        (["--junitxml=a.xml", "--junit-xml", "b.xml", "--junit-prefix=x"], []),
        (["-x", "--exitfirst", "--maxfail=1", "--maxfail", "2"], []),
        (["--lf", "--ff", "--nf", "--sw", "--last-failed"], []),
        (["--pdb", "--trace"], []),
        (["--html", "report.html"], []),
        (["-xq", "-vx", "-xx", "-sv"], ["-q", "-v", "-sv"]),
        (["--cov", "src", "--cov-report=html", "suites", "--cov", "-q"], ["suites", "-q"]),
        (
            ["--accel-budget=1s", "--accel-tolerance", "5%"],
            ["--accel-budget=1s", "--accel-tolerance", "5%"],
        ),
        (["-p", "benchmark", "-o", "markers=x"], ["-p", "benchmark", "-o", "markers=x"]),
        (["test_x.py::test_y[a-b]"], ["test_x.py::test_y[a-b]"]),
        (["--basetemp=/tmp/mine", "--log-file=run.log", "--pastebin=all", "suites"], ["suites"]),
        (["--basetemp", "/tmp/mine", "--log-file", "run.log", "suites"], ["suites"]),
        (["--stepwise-reset", "--stepwise-skip", "--sw-skip"], []),
    ],
    ids=" ".join,
)
def test_options_that_write_files_or_stop_early_are_dropped(given, kept):
    assert rank_arguments(given) == kept
