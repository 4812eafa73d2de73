"""Faults of ranks and sessions, provoked in real processes.

Each is reported with its rank, its last output and the stacks of the others, no process is left, and the next group
works. The limit on the time to the verdict is so wide that only a hang exceeds it.
"""

import re
import time
from pathlib import Path

import pytest

from pytest_accel.distributed import group as group_module
from pytest_accel.distributed import processes
from pytest_accel.distributed.group import PendingOrder
from pytest_accel.distributed.processes import WorkerError
from tests.support.processes import left_in, processes_of

VERDICT_S = 60.0

# Rank 0 would wait for ever; what rank 1 does, when rank 0 is there, is the fault.
OTHERS_WAIT = """
import ctypes, os, signal, sys, time

print("last output of", rank, flush=True)

def others():
    note("waits")
    time.sleep(3600)

def fault():
    while not os.path.exists("waits"):
        time.sleep(0.01)
    {fault}

fault() if rank == 1 else others()
"""

EXIT_0, EXITED_0 = "os._exit(0)", "rank 1 left with exit status 0"
CRASH, CRASHED = "ctypes.string_at(0)", "rank 1 was killed by SIGSEGV"


@pytest.fixture
def provoke(groups, monkeypatch):
    """Run a program that ends its group; return the answer once no process is left."""

    monkeypatch.setattr(group_module, "_LOST_S", 0.1)

    def run(text: str, *, group=None, **options):
        if group is None:
            group = groups.start(2)
        began = time.monotonic()
        answer = groups.run(group, text, **options)
        assert time.monotonic() - began < VERDICT_S
        assert not answer.complete
        assert not group.alive
        assert processes_of(group.id) == []
        return answer

    return run


class TestRankThatEnds:
    @pytest.mark.parametrize(
        ("fault", "problem"),
        [pytest.param(EXIT_0, EXITED_0, id="exits with 0"), pytest.param(CRASH, CRASHED, id="SIGSEGV")],
    )
    def test_ended_rank_is_named_with_its_output_and_the_stacks_of_others(self, provoke, fault, problem):
        answer = provoke(OTHERS_WAIT.format(fault=fault))
        assert answer.problem == problem
        assert answer.culprit == 1
        assert "last output of 1" in answer.ranks[1].exit.log
        assert "in others" in answer.ranks[0].exit.stacks
        text = answer.describe()
        assert text.startswith(f"{problem}\n--- last output of rank 1 ---\nrank 1 takes")
        assert "in others" in text
        if "SEGV" in problem:
            assert "Segmentation fault" in text  # faulthandler's own, in its log
            assert "in fault" in text

    def test_rank_that_is_slow_to_end_is_named_with_its_status(self, provoke):
        """As on a GPU: the connection is gone, no signal reaches it, then it exits."""
        fault = (
            "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); end._connection.close()\n"
            "    time.sleep(1.5); os._exit(7)"
        )
        answer = provoke(OTHERS_WAIT.format(fault=fault))
        assert answer.problem == "rank 1 left with exit status 7"
        assert answer.culprit == 1
        assert answer.ranks[0].exit.status == ""  # it was ended

    @pytest.mark.parametrize(
        ("own_session", "end"),
        [(True, "os._exit(1)"), (False, "os.kill(os.getppid(), 9)")],
        ids=["rank ends", "supervisor is killed"],
    )
    def test_grandchildren_end_too_and_the_next_group_works(
        self, groups, provoke, eventually, tmp_path, own_session, end
    ):
        fault = (
            "import subprocess\n"
            f"    child = subprocess.Popen(['sleep', '3600'], start_new_session={own_session})\n"
            "    open('child', 'w').write(str(child.pid))\n"
            f"    {end}"
        )
        provoke(OTHERS_WAIT.format(fault=fault))
        child = int((tmp_path / "child").read_text())
        assert eventually(lambda: _gone(child))
        assert groups.run(groups.start(2), "value = rank").complete

    def test_files_that_became_fifos_do_not_hang_the_session(self, provoke):
        fault = (
            "folder = end.place.folder\n"
            "    for name in ('log', 'stacks'):\n"
            "        os.remove(f'{folder}/{name}'); os.mkfifo(f'{folder}/{name}')\n"
            "    os._exit(3)"
        )
        assert provoke(OTHERS_WAIT.format(fault=fault)).problem == "rank 1 left with exit status 3"

    def test_single_process_is_not_called_a_rank(self, groups, provoke):
        group = groups.start(1, process_group=False)
        answer = provoke("import os\nos._exit(3)", group=group)
        assert answer.problem == "the worker process left with exit status 3"
        assert "last output of the worker process" in answer.describe()


class TestRankThatFails:
    def test_exit_and_memory_error_are_answers(self, groups):
        group = groups.start(2)
        answer = groups.run(group, "import sys\nif rank: sys.exit(3)")
        assert [rank.payload["outcome"] for rank in answer.ranks] == ["passed", "failed"]
        assert answer.ranks[1].payload["cause"] == "SystemExit: 3"
        answer = groups.run(
            group,
            """
            import resource
            if rank == 1:
                resource.setrlimit(resource.RLIMIT_AS, (2**30, resource.RLIM_INFINITY))
                kept = [bytearray(2**28) for _ in range(16)]
            """,
        )
        assert [rank.payload["outcome"] for rank in answer.ranks] == ["passed", "failed"]
        assert answer.ranks[1].payload["cause"].startswith("MemoryError")
        assert group.alive

    def test_waiting_ranks_are_ended_after_a_failure(self, provoke, monkeypatch):
        monkeypatch.setattr(group_module, "_FAILED_S", 0.5)
        answer = provoke(OTHERS_WAIT.format(fault="raise ValueError('no such layer')"))
        assert answer.problem.startswith(
            "rank 1 failed (ValueError: no such layer); rank 0 hangs in program_0.py"
        )
        assert answer.culprit == 1
        assert answer.ranks[1].payload["outcome"] == "failed"
        assert answer.ranks[0].payload is None
        text = answer.describe()
        assert text.index("raise ValueError('no such layer')") < text.index("in others")

    def test_other_ranks_may_answer_after_a_failure(self, groups, tmp_path):
        group = groups.start(2)
        text = (
            "import pathlib, time\n"
            "if rank: raise ValueError\n"
            "while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
        )
        answer = groups.run(group, text, waiting=(tmp_path / "go").touch)
        assert [rank.payload["outcome"] for rank in answer.ranks] == ["passed", "failed"]
        assert answer.culprit == 1
        assert group.alive


class TestRankThatHangs:
    def test_location_of_a_hang_is_reported(self, provoke, deadline_when):
        """In native code that holds the interpreter's lock."""
        deadline_when("hangs", "waits")
        fault = "library = ctypes.PyDLL(None); note('hangs'); library.sleep(3600)"
        answer = provoke(OTHERS_WAIT.format(fault=fault), timeout_s=1000)
        assert answer.problem.startswith("no answer within 1000 s: ")
        assert "rank 1 hangs in program_0.py:" in answer.problem
        assert " fault" in answer.problem
        assert "in fault" in answer.ranks[1].exit.stacks
        assert "in others" in answer.ranks[0].exit.stacks

    def test_rank_that_answered_is_not_blamed(self, provoke, deadline_when, monkeypatch, tmp_path):
        take = PendingOrder._take

        def take_and_note(pending, rank, message, phase):
            take(pending, rank, message, phase)
            if rank in pending.answers:
                (tmp_path / "answered").touch()

        monkeypatch.setattr(PendingOrder, "_take", take_and_note)
        deadline_when("hangs", "answered")
        answer = provoke(
            """
            import time
            if rank == 1:
                note("hangs")
                time.sleep(3600)
            """,
            timeout_s=1000,
        )
        assert answer.problem == "no answer within 1000 s: rank 1 hangs in program_0.py:5 <module>"
        assert answer.culprit == 1
        assert answer.ranks[0].payload["outcome"] == "passed"

    def test_rank_that_blocks_all_signals_is_killed(self, provoke, deadline_when, monkeypatch):
        monkeypatch.setattr(processes, "_STACKS_S", 1.5)
        deadline_when("hangs", "waits")
        fault = (
            "signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals)); note('hangs')\n"
            "    ctypes.PyDLL(None).sleep(3600)"
        )
        answer = provoke(OTHERS_WAIT.format(fault=fault), timeout_s=1000)
        assert "rank 1 gave no stacks" in answer.problem
        assert "did not react to signals" in answer.ranks[1].exit.stacks
        assert "in others" in answer.ranks[0].exit.stacks

    @pytest.mark.slow
    def test_collective_that_waits_for_a_hanging_rank_is_reported(self, provoke, deadline_when):
        deadline_when("hangs", "waits")
        answer = provoke(
            """
            import threading, time
            torch, dist = join()
            dist.barrier()

            def step():
                if rank == 1:
                    note("hangs")
                    time.sleep(3600)
                # Not before it waits indeed; the other thread is in the stacks as well.
                threading.Timer(1.0, note, ["waits"]).start()
                dist.all_reduce(torch.ones(8))

            step()
            """,
            timeout_s=1000,
        )
        assert answer.problem == (
            "no answer within 1000 s: rank 1 hangs in program_0.py:9 step, rank 0 waits in all_reduce"
        )


class TestRendezvous:
    """Faults before a rank connects: an import that hangs, a usage error."""

    @pytest.fixture
    def start(self, groups, monkeypatch):
        def start(before: str, **options) -> str:
            monkeypatch.setenv("BEFORE_HELLO", str(groups.program(before)))
            began = time.monotonic()
            with pytest.raises(WorkerError) as caught:
                groups.start(2, **options)
            assert time.monotonic() - began < VERDICT_S
            assert left_in(groups.folder) == []
            return str(caught.value)

        return start

    def test_rank_that_never_connects_is_named_with_its_stacks(self, start, deadline_when):
        deadline_when("hangs")
        text = start(
            "import os, time\n"
            "def load():\n"
            "    while not os.path.exists('calls'): time.sleep(0.05)\n"
            "    time.sleep(0.5)\n"  # until rank 0 has connected
            "    open('hangs', 'w').close()\n"
            "    time.sleep(3600)\n"
            "if os.environ['RANK'] == '1': load()\n"
            "open('calls', 'w').close()\n",
            rendezvous_s=1000,
        )
        assert text.startswith("not all ranks connected within 1000 s (accel_rendezvous)")
        # The deadline passes when rank 1 hangs: rank 0 may not have called by then either.
        assert re.search("rank 1|ranks 0, 1", text.splitlines()[0])
        assert "in load" in text

    def test_rank_that_ends_before_it_connects_is_named(self, start):
        text = start(
            "import os\nif os.environ['RANK'] == '1':\n    print('cannot load', flush=True)\n    os._exit(4)"
        )
        assert text.startswith("rank 1 left with exit status 4 before it took an order; rank")
        assert "cannot load" in text

    def test_interrupted_wait_leaves_nothing(self, groups, monkeypatch):
        monkeypatch.setenv(
            "BEFORE_HELLO", str(groups.program("import time\nopen('begun', 'w').close()\ntime.sleep(3600)"))
        )

        def interrupt() -> None:
            if (groups.folder / "begun").exists():
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            groups.start(2, waiting=interrupt)
        assert left_in(groups.folder) == []


def test_interrupted_session_leaves_no_rank(groups):
    """tests/plugin/test_interrupts.py kills one."""
    group = groups.start(2)

    def interrupt() -> None:
        if (groups.folder / "waits").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        groups.run(group, OTHERS_WAIT.format(fault="others()"), waiting=interrupt)
    assert not group.alive
    assert processes_of(group.id) == []


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
