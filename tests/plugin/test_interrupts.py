"""Interrupts, hangs and deaths: measured runs are kept, and no process is left running."""

import importlib
import os
import re
import resource
import shlex
import signal
import time
import types

import pytest

from pytest_accel.cli import main

# The first fresh process measures, the next one hangs until it is ended.
HANGS_SECOND = """
def test_step(accel):
    measure(accel)
    if FRESH and pathlib.Path("measured").exists():
        note("hanging", os.getpid())
        while True:
            time.sleep(0.1)
    note("measured", os.getpid())
"""

DAEMON = 'subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)'


def interrupt(process, number=signal.SIGINT) -> str:
    """Send a signal to pytest alone, as `kill` and a batch system do; its output."""
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=120)
    return output


def test_interrupted_recording_keeps_finished_runs_whatever_interrupts_follow(bench):
    """pytest is still formatting the first one when the second comes, as after half a second."""
    bench.write(HANGS_SECOND)
    bench.path("conftest.py").write_text(
        "import os, signal\n\n"
        "def pytest_keyboard_interrupt():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n\n"
        "def pytest_sessionfinish():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    process = bench.start("--accel-record=3")
    bench.wait_for("hanging", process)
    output = interrupt(process)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "Traceback" not in output
    assert "recorded 1 run" in output
    assert "1 of 3 runs: record the rest with --accel-record=2" in output
    assert len(bench.entry("test_step")["runs"]) == bench.entry("test_step")["ledger"][0]["runs"] == 1
    assert bench.left_behind() == []


def test_pending_reports_are_logged_when_repeats_are_interrupted(bench):
    bench.write(
        """
        def test_first(accel):
            measure(accel)
            if FRESH:
                note("hanging", os.getpid())
                while True:
                    time.sleep(0.1)

        def test_second(accel):
            measure(accel)
        """
    )
    bench.baseline(test_first=bench.FASTER, test_second=bench.FASTER)
    process = bench.start("-v", "--junitxml=out.xml")
    bench.wait_for("hanging", process)
    output = interrupt(process)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    for name in ("test_first", "test_second"):
        assert f"::{name} INCONCLUSIVE" in output
        assert f"INCONCLUSIVE  {name} (cpu): " in output
    assert {case.get("name") for case in bench.junit().iter("testcase")} == {"test_first", "test_second"}
    assert bench.left_behind() == []


def test_pending_reports_are_logged_when_another_item_is_interrupted(bench):
    bench.write(
        """
        def test_open(accel):
            measure(accel)

        def test_long():
            note("hanging", os.getpid())
            while True:
                time.sleep(0.1)

        def test_never(accel):
            measure(accel)
        """
    )
    bench.baseline(test_open=bench.FASTER)
    process = bench.start("-v", "--benchmark-json=out.json")
    bench.wait_for("hanging", process)
    output = interrupt(process)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "::test_open INCONCLUSIVE" in output
    assert "PASSED" not in output
    assert [each["name"] for each in bench.json()["benchmarks"]] == ["test_open"]


def test_interrupted_update_leaves_the_old_baseline(bench):
    bench.write(HANGS_SECOND)
    bench.baseline(test_step=bench.SAME)
    before = bench.load_baseline()
    process = bench.start("--accel-update", "--accel-record=3", "--accel-reason=try")
    bench.wait_for("hanging", process)
    output = interrupt(process, signal.SIGTERM)  # as at the end of a job's time
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert bench.load_baseline() == before
    assert "the recording was not finished" in output
    (accept,) = re.findall(r"\(1 run\) is kept in .*\. To store it: pytest-accel (.*)", output)
    assert main(shlex.split(accept)) == 0
    assert len(bench.entry("test_step")["runs"]) == 1
    assert bench.load_baseline() != before


def test_killed_session_leaves_no_process_and_no_folder(bench, monkeypatch):
    """Not even a child of a worker with nothing in its environment and a session of its own."""
    temporary = bench.path("tmp")
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    bench.write(
        f"import subprocess\n\nDAEMON = {DAEMON!r}\n{HANGS_SECOND}".replace(
            "while True", "exec(DAEMON)\n        while True"
        )
    )
    process = bench.start("--accel-record=2")
    bench.wait_for("hanging", process)
    process.kill()
    process.wait()
    assert bench.left_behind() == []
    assert list(temporary.glob("pytest-accel-rank-*")) == []


def test_children_of_a_worker_end_with_it(bench):
    bench.write(
        f"""
        import subprocess

        def test_step(accel):
            measure(accel)
            if FRESH:
                subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; sleep 600"])
                {DAEMON}
        """
    )
    bench.run("--accel-record=1").assert_outcomes(passed=1)
    assert bench.left_behind() == []


def test_repeat_that_goes_wrong_is_a_failure_that_says_how(bench):
    """The first run was inconclusive, and no second one confirmed it; the other benchmarks go on."""
    bench.write(
        """
        def test_killed(accel):
            measure(accel)
            if FRESH:
                os.kill(os.getpid(), 9)

        def test_exits(accel):
            measure(accel)
            if FRESH:
                os._exit(3)

        def test_raises(accel):
            measure(accel)
            if FRESH:
                raise RuntimeError("only the second time")

        def test_skips(accel):
            measure(accel)
            if FRESH:
                pytest.skip("no memory left")

        def test_good(accel):
            measure(accel)
        """
    )
    names = ("test_killed", "test_exits", "test_raises", "test_skips", "test_good")
    bench.baseline(**dict.fromkeys(names, bench.FASTER))
    result = bench.run("--junitxml=out.xml")
    result.assert_outcomes(failed=5)
    messages = [bench.testcase(name).find("failure").get("message") for name in names]
    assert messages[0].startswith("a fresh process gave no measurement: ")
    assert "SIGKILL" in messages[0]
    assert "gave no measurement" in messages[1]
    assert "exit status 3" in messages[1]
    assert messages[2] == "failed in a fresh process: RuntimeError: only the second time"
    assert "no memory left" in messages[3]
    assert "slower (at least" in messages[4]


def test_full_disk_fails_a_recording_and_loses_no_run(bench):
    """A limit on the size of files stands for it: no file has room for a baseline or its runs."""
    bench.benchmarks("test_a", "test_b")
    bench.baseline(test_a=bench.SAME)
    before = bench.baseline_path.read_bytes()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    process = bench.start("--accel-update", "--accel-record=1", "--accel-reason=try", "--accel-json=out.json")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, most))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, output
    assert "2 failed" in output
    assert "INTERNALERROR" not in output
    failures = output.partition("short test summary")[0]  # which repeats them where CI is set
    assert failures.count("cannot be written: File too large") == 2
    assert output.count("follows, since no temporary folder has room for it:") == 2
    assert bench.baseline_path.read_bytes() == before


def test_hanging_worker_is_stopped_at_the_deadline_with_its_stack(bench, monkeypatch):
    bench.write(
        """
        def go_wrong():
            note("hanging", 1)
            time.sleep(600)

        def test_bad(accel):
            measure(accel)
            go_wrong()
        """
    )

    def monotonic() -> float:  # the deadline passes when the process hangs, and not before
        return time.monotonic() + (1e6 if bench.path("hanging").exists() else 0)

    # By its import, not by a dotted name: that would find the module of an earlier inner session.
    course = importlib.import_module("pytest_accel.distributed.group")
    monkeypatch.setattr(course, "time", types.SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    result = bench.run("--accel-record=1", "--accel-timeout=1000s")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "test_bad (cpu): a fresh process gave no measurement: no answer within 1000 s: *hangs in *go_wrong",
            '*File "*test_suite.py", line * in go_wrong',
        ]
    )
    assert bench.left_behind() == []
