"""Stacks of faulthandler: location, description, shortening; answers before and after the deadline."""

import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pytest_accel.distributed.group import PendingOrder, describe_hang, locate, shorten
from pytest_accel.distributed.messages import Connection, ready

PACKAGES = "/venv/lib/python3.11/site-packages"
HANGS = """Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap_inner

Current thread 0x00007f2 (most recent call first):
  File "/home/u/bench/test_x.py", line 12 in step
  File "/home/u/bench/test_x.py", line 30 in test_x
"""
WAITS = f"""Current thread 0x00007f3 (most recent call first):
  File "{PACKAGES}/torch/distributed/distributed_c10d.py", line 2800 in all_reduce
  File "{PACKAGES}/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/u/bench/test_x.py", line 14 in step
  File "{PACKAGES}/_pytest/python.py", line 166 in pytest_pyfunc_call
  File "{PACKAGES}/pluggy/_callers.py", line 121 in _multicall
  File "<frozen runpy>", line 88 in _run_code
"""
IN_WORKLOAD = f"""Current thread 0x00007f3 (most recent call first):
  File "{PACKAGES}/torch/autograd/graph.py", line 841 in _engine_run_backward
  File "/srv/pytest_accel/workloads/steps.py", line 100 in __call__
  File "/home/u/bench/test_x.py", line 40 in test_training
"""


class TestLocate:
    @pytest.mark.parametrize(
        ("stacks", "found"),
        [
            ("", ("", "")),
            ("No stacks: it did not react", ("", "")),
            (HANGS, ("test_x.py:12 step", "")),
            (WAITS, ("test_x.py:14 step", "all_reduce")),
            (IN_WORKLOAD, ("test_x.py:40 test_training", "")),
            (
                'Current thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/a.py", line 1 in b\n',
                ("a.py:1 b", ""),
            ),
            ("Current thread 0x1 (most recent call first):\n  <no Python frame>\n", ("", "")),
        ],
    )
    def test_innermost_user_frame_of_the_main_thread_is_found(self, stacks, found):
        assert locate(stacks) == found

    def test_output_of_this_python_is_parsed(self, tmp_path):
        program = tmp_path / "program.py"
        program.write_text(
            "import faulthandler, threading\n"
            "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
            "def step():\n"
            "    faulthandler.dump_traceback(all_threads=True)\n"
            "step()\n"
        )
        found = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
        assert locate(found.stderr) == ("program.py:4 step", "")


class TestDescribe:
    def test_hanging_ranks_come_before_waiting_and_silent_ones(self):
        stacks = {0: WAITS, 1: HANGS, 2: WAITS, 3: ""}
        assert describe_hang(stacks, 4) == (
            "rank 1 hangs in test_x.py:12 step, ranks 0, 2 wait in all_reduce, rank 3 gave no stacks"
        )

    def test_single_process_is_not_called_a_rank(self):
        assert describe_hang({0: HANGS}, 1) == "the worker process hangs in test_x.py:12 step"


class TestShorten:
    def test_pytest_frames_and_addresses_are_removed(self):
        text = shorten(WAITS)
        assert "all_reduce" in text
        assert "in step" in text
        assert not any(part in text for part in ("_pytest", "pluggy", "0x"))

    def test_length_is_limited(self):
        frames = "".join(f'  File "/a.py", line {line} in deep\n' for line in range(100))
        text = shorten("".join(f"Thread 0x{n:x} (most recent call first):\n{frames}" for n in range(50)))
        assert len(text.splitlines()) < 70
        assert "..." in text


class TestPendingOrder:
    @pytest.fixture
    def ends(self):
        """Both ends of a connection between a session and a rank."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            there = Connection(socket.create_connection(server.getsockname()))
            here = Connection(server.accept()[0])
        yield here, there
        for each in (here, there):
            each.close()

    @pytest.mark.parametrize("answers", [True, False])
    def test_answer_that_arrived_in_time_counts_after_the_deadline(self, ends, answers):
        here, there = ends
        if answers:
            there.send({"answer": {"outcome": "passed"}})
            assert ready([here], 60)
        pending = PendingOrder({0: here}, SimpleNamespace(ended=dict), timeout_s=0.0)
        pending.wait(lambda: None, lambda text, remaining_s: None)
        assert pending.silent == ([] if answers else [0])
        assert pending.answers == ({0: {"outcome": "passed"}} if answers else {})

    @pytest.mark.parametrize("remaining_s", ["NaN", "-1", "1e999", "1" + "0" * 400, '"soon"'])
    def test_progress_with_a_bad_number_ends_nothing(self, ends, remaining_s):
        here, there = ends
        there._socket.sendall(f'{{"phase": "x", "remaining_s": {remaining_s}}}\n'.encode())
        there.send({"answer": {"outcome": "passed"}})
        assert ready([here], 60)
        left = []
        pending = PendingOrder({0: here}, SimpleNamespace(ended=dict), timeout_s=60.0)
        pending.wait(lambda: None, lambda text, remaining_s: left.append(remaining_s))
        assert pending.answers == {0: {"outcome": "passed"}}
        assert left in ([], [None])
