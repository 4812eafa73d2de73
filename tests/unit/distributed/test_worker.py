"""A rank's connection to its session: place, orders, signals; arguments of its pytest."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from pytest_accel.distributed.group import Order
from pytest_accel.distributed.messages import ConnectionLost, Listener, ready
from pytest_accel.distributed.processes import RankSpec
from pytest_accel.distributed.worker import rank_arguments
from pytest_accel.options import OPTIONS, WORKER_VARIABLE
from pytest_accel.storage.codec import encode

LONG_S = 60.0
ORDER = Order(node_id="test_x.py::test_y", session="s", platform="cpux2")

# The start of a rank; each test adds its program.
RANK = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
from pytest_accel.distributed.worker import begin_rank
end = begin_rank()
"""


@pytest.fixture
def listener():
    found = Listener("127.0.0.1")
    yield found
    found.close()


@pytest.fixture
def worker(listener, tmp_path):
    return RankSpec(
        group="g",
        rank=3,
        nodes=2,
        per_node=4,
        process_group=True,
        host="127.0.0.1",
        port=listener.port,
        token=listener.token,
        bind="none",
        rendezvous_s=5.0,
        folder=str(tmp_path),
    )


@pytest.fixture
def start(listener, worker):
    """Start a rank; return its process, its connection and its hello."""
    started = []

    def start(program: str):
        environ = {**os.environ, WORKER_VARIABLE: json.dumps(encode(worker))}
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


def give(connection):
    connection.send({"order": encode(ORDER)})


def test_rank_begins_with_its_place_and_without_torch(start, worker):
    process, _, hello = start(
        "print(repr(end.place))\n"
        f"print({WORKER_VARIABLE!r} in os.environ, resource.getrlimit(resource.RLIMIT_CORE)[0], 'torch' in sys.modules)"
    )
    assert process.communicate()[0] == f"{worker!r}\nFalse 0 False\n"
    assert hello == {"rank": 3}


def test_orders_are_answered(start):
    _, connection, _ = start(
        "for order in end.orders():\n    end.say('begins', 1.5)\n    end.answer({'node': order.node_id})\n"
    )
    for _ in range(2):
        give(connection)
        assert connection.receive() == {"phase": "begins", "remaining_s": 1.5}
        assert connection.receive() == {"answer": {"node": ORDER.node_id}}


@pytest.mark.parametrize("dismissed", [True, False])
def test_orders_end_when_the_session_ends(start, dismissed):
    process, connection, _ = start("print(list(end.orders()))")
    if dismissed:
        connection.send({"leave": True})
    else:
        connection.close()
    assert process.communicate(timeout=LONG_S)[0] == "[]\n"


def test_forked_child_does_not_keep_the_connection_open(start):
    process, connection, _ = start(
        "child = os.fork()\nif child == 0:\n    time.sleep(600)\nprint(child, flush=True)\nos._exit(0)\n"
    )
    child = int(process.stdout.readline())
    try:
        with pytest.raises(ConnectionLost, match="closed the connection"):
            connection.receive()
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
    assert connection.receive()["phase"] == "there"
    process.send_signal(signal.SIGTERM)
    assert process.wait(LONG_S) == -signal.SIGTERM
    assert "in native" in (tmp_path / "stacks").read_text()


def test_unreachable_session_is_reported(worker):
    with socket.create_server(("127.0.0.1", 0)) as server:
        worker = replace(worker, port=server.getsockname()[1])
    environ = {**os.environ, WORKER_VARIABLE: json.dumps(encode(worker))}
    found = subprocess.run(
        [sys.executable, "-c", RANK], env=environ, capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert "WorkerError: rank 3 cannot reach its session: no answer at 127.0.0.1" in found.stderr


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (
            "bench_suites -m cpu -k gpt -p benchmark -o markers=x",
            "bench_suites -m cpu -k gpt -p benchmark -o markers=x",
        ),
        ("--accel-budget=1s --accel-tolerance 5% test_x.py::test_y[a-b]",) * 2,
        ("--accel-record=3 suites", "suites"),
        ("--accel-record 3 suites", "suites"),
        ("--accel-record -v", "-v"),
        ("--accel-update --accel-reason driver -q", "-q"),
        ("--benchmark-json out.json --benchmark-json=out.json --benchmark-autosave --html page.html", ""),
        ("--benchmark-compare 0001 --benchmark-compare-fail min:5% --benchmark-save-data", ""),
        ("--benchmark-compare --benchmark-columns=min", "--benchmark-columns=min"),
        ("--junitxml=a.xml --junit-xml b.xml --basetemp /tmp/mine --log-file run.log suites", "suites"),
        ("-x --exitfirst --maxfail=1 --maxfail 2 --lf --ff --nf --sw --stepwise-skip --pdb --trace", ""),
        ("-xq -vx -xx -sv", "-q -v -sv"),
        ("--cov src --cov-report=html suites --cov -q", "suites -q"),
    ],
)
def test_options_that_write_files_or_stop_early_are_dropped(given, kept):
    assert rank_arguments(given.split()) == kept.split()


def test_every_option_of_ours_is_dropped_or_kept_on_purpose():
    """An option that writes files or decides for the session must be dropped: add a new one here and there."""
    flags = {option.flag for option in OPTIONS if option.on_command_line}
    kept = {flag for flag in flags if rank_arguments([flag])}
    assert flags - kept == {
        *("--accel-history", "--accel-in-process", "--accel-json", "--accel-reason", "--accel-record"),
        *("--accel-report", "--accel-update"),
    }
