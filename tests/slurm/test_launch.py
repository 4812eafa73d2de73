"""`pytest-accel launch --slurm` on a real Slurm of four nodes."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import xml.etree.ElementTree as ET
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_accel.slurm.launch import launch
from pytest_accel.slurm.script import Request
from tests.slurm.conftest import wait_for

pytestmark = pytest.mark.slow

PASSES = "def test_passes(): pass\n"
WAITS = """
import os, pathlib, time
def test_waits():
    pathlib.Path(f"pid-{os.environ['SLURM_PROCID']}").write_text(str(os.getpid()))
    for _ in range(600):
        if os.path.exists("enough"):
            break
        time.sleep(.1)
"""
TELLS = """
import json, os, pathlib, sys
def test_tells(pytestconfig):
    told = {"argv": list(pytestconfig.invocation_params.args), "cwd": os.getcwd(), "python": sys.executable}
    told["environment"] = dict(os.environ)
    pathlib.Path(f"told-{os.environ['SLURM_PROCID']}").write_text(json.dumps(told))
"""


def told_by(folder: Path, rank: int):
    return json.loads((folder / f"told-{rank}").read_text())


def await_ranks(folder: Path) -> None:
    for rank in range(2):
        path = folder / f"pid-{rank}"
        wait_for(lambda path=path: path.exists() and path.read_text(), f"rank {rank}")


def test_arguments_arrive_unchanged_on_every_rank(launch, tmp_path):
    odd = [
        "a b",
        "it's",
        'say "x"',
        "$(touch hacked)",
        "`touch hacked`",
        "line\r\n#SBATCH --nodes=4\n",
        "",
        "*",
        "é\\n",
    ]
    arguments = [f"--tell={word}" for word in odd]
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--tell', action='append')\n"
    )
    launch(
        "--partition=main", "--time=5", suite=TELLS, arguments=arguments,
        environment={"SBATCH_PARTITION": "nowhere", "RANK": "7", "SLURM_NTASKS": "3"},
    ).result(0)  # fmt: skip
    assert not (tmp_path / "hacked").exists()
    assert sorted(path.name for path in tmp_path.glob("told-*")) == ["told-0", "told-1"]
    for rank in range(2):
        told = told_by(tmp_path, rank)
        assert told["argv"][1 : 1 + len(odd)] == arguments
        assert (told["cwd"], told["python"]) == (str(tmp_path), sys.executable)
        assert "RANK" not in told["environment"]


def test_one_task_for_each_gpu_and_the_cpus_asked_for(launch, tmp_path):
    launch("--gpus-per-node=2", "--cpus-per-task=3", "--sbatch", "--exclusive", suite=TELLS, tasks=0).result(
        0
    )
    told = [told_by(tmp_path, rank)["environment"] for rank in range(4)]
    assert [one["SLURM_NODEID"] for one in told] == ["0", "0", "1", "1"]
    assert [one["SLURM_LOCALID"] for one in told] == ["0", "1", "0", "1"]
    assert {one["SLURM_CPUS_PER_TASK"] for one in told} == {"3"}


def test_a_failed_test_is_status_1_with_junit_and_json_in_the_run_folder(launch):
    suite = "def test_fails(benchmark):\n    benchmark(lambda: None)\n    assert 'apples' == 'pears'\n"
    run = launch(suite=suite, nodes=1).result(1)
    assert "assert 'apples' == 'pears'" in run.out
    assert "ended with exit status 1" in run.err
    assert str(run.folder / "junit.xml") in run.err
    assert str(run.folder / "benchmark.json") in run.err
    (testsuite,) = ET.parse(run.folder / "junit.xml").getroot()
    assert testsuite.get("failures") == "1"
    (benchmark,) = json.loads((run.folder / "benchmark.json").read_text())["benchmarks"]
    assert benchmark["name"] == "test_fails"


def test_junit_and_json_are_where_the_user_wants_them(launch, tmp_path):
    arguments = ("--junit-xml", "mine.xml", "--benchmark-json=mine.json")
    run = launch(suite="def test_times(benchmark): benchmark(int)", nodes=1, arguments=arguments).result(0)
    assert {path.name for path in run.folder.iterdir()} == {"job.sh", "log.txt", "status"}
    assert str(tmp_path / "mine.xml") in run.err
    assert str(tmp_path / "mine.json") in run.err
    assert (tmp_path / "mine.json").stat().st_size


def test_a_rank_that_leaves_later_may_finish_what_it_writes(launch, tmp_path):
    suite = """
    import os, pathlib, time
    def test_fails():
        if os.environ["SLURM_PROCID"] == "0":
            time.sleep(1.5)
            pathlib.Path("written").touch()
        assert False
    """
    launch(suite=suite).result(1)
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_cancels_the_job(launch, slurm, number, status):
    run = launch(suite=WAITS)
    job = run.job()
    run.process.send_signal(number)
    run.result(status)
    assert f"job {job} was cancelled: interrupted" in run.err
    assert slurm.jobs() == []


def test_a_job_that_never_starts_is_cancelled_at_the_timeout(launch, slurm):
    run = launch("--partition=small", "--timeout=3s", suite=PASSES).result(124)
    assert "not ended after 3 s (pending (PartitionNodeLimit" in run.err
    assert slurm.jobs() == []


def test_cancelled_by_somebody_else(launch, slurm):
    run = launch(suite=WAITS)
    slurm.ask("scancel", run.job())
    run.result(125)
    assert "was cancelled before the run ended" in run.err


def test_a_lost_node(launch, slurm):
    run = launch(suite=WAITS)
    job = run.job()
    node = slurm.ask("squeue", "--noheader", f"--jobs={job}", "--format=%B")
    slurm.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        run.result(125)
        assert f"job {job} lost a node (NODE_FAIL)" in run.err
    finally:
        with suppress(RuntimeError):  # it may have come back by itself
            slurm.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        slurm.await_that(lambda: slurm.states() == ["idle"] * 4, "the node's return")


def test_a_killed_task_is_not_green(launch, tmp_path):
    run = launch(suite=WAITS)
    await_ranks(tmp_path)
    os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)
    (tmp_path / "enough").touch()
    run.result(137)
    assert "task 1: Killed" in run.out


def test_sbatch_refuses(launch):
    run = launch("--partition=nowhere", suite=PASSES).result(2)
    assert "sbatch refused the job: invalid partition specified: nowhere" in run.err
    assert str(run.folder / "job.sh") in run.err


def test_no_sbatch(launch, tmp_path):
    run = launch(suite=PASSES, environment={"PATH": str(tmp_path)}).result(2)
    assert "sbatch is not on PATH" in run.err


@pytest.mark.rehearsal
def test_a_controller_that_is_away_for_a_while(launch, slurm, tmp_path):
    run = launch(suite=WAITS)
    job = run.job()
    await_ranks(tmp_path)
    with slurm.without_controller():
        lines = iter(run.process.stderr.readline, "")
        assert any("Slurm does not answer" in line for line in lines)
    (tmp_path / "enough").touch()
    run.result(0)
    assert f"job {job} ended with exit status 0" in run.err


def test_a_run_folder_that_nodes_do_not_see(slurm, tmp_path, monkeypatch, capsys):
    """The folder goes away before the job starts: to the node it is as if it had never been shared."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    request = Request(
        nodes=1, tasks_per_node=1, python=sys.executable, arguments=(), directory=tmp_path,
        folder=tmp_path / "run", sbatch=("--hold",),
    )  # fmt: skip

    def hide_and_release():
        job = wait_for(slurm.jobs, "the held job")[0]
        (tmp_path / "run").rename(tmp_path / "hidden")
        slurm.ask("scontrol", "release", job)

    helper = threading.Thread(target=hide_and_release)
    helper.start()
    status = launch(request, slurm.environment, timeout_s=60, grace_s=1)
    helper.join()
    assert status == 125
    assert f"left no status in {tmp_path / 'run'}. Can compute nodes write there?" in capsys.readouterr().err


def test_tasks_run_in_the_container(launch, tmp_path):
    """By a stand-in for apptainer, which is not in Debian: it notes its options and runs the rest."""
    runtime = tmp_path / "bin" / "apptainer"
    runtime.parent.mkdir()
    runtime.write_text(
        '#!/bin/bash\nprintf "%s\\n" "$@" > container-$SLURM_PROCID\n'
        'while [ "$1" != python3 ]; do shift; done\nshift\nexec ' + sys.executable + ' "$@"\n'
    )
    runtime.chmod(0o755)
    path = f"{runtime.parent}:{os.environ['PATH']}:/usr/sbin"
    launch(
        *("--container=my image.sif", "--container-option=--bind=/data"),
        suite=PASSES,
        environment={"PATH": path},
    ).result(0)
    expected = [
        "exec",
        f"--bind={tmp_path}",
        f"--pwd={tmp_path}",
        "--bind=/data",
        "my image.sif",
        "python3",
        "-m",
    ]
    for rank in range(2):
        assert (tmp_path / f"container-{rank}").read_text().splitlines()[: len(expected)] == expected


BENCHMARKS = """
from pytest_accel import cpun2
@cpun2
def test_measures(accel):
    accel.measure(lambda: sum(range(20000)), work=1, unit="steps")
@cpun2
def test_fails(accel, rank):
    accel.measure(lambda: sum(range(20000)), work=1, unit="steps")
    assert rank != 1, "of the second node"
"""


def test_a_benchmark_on_two_nodes_is_one_session_while_another_job_meets_its_time_limit(
    launch, slurm, tmp_path
):
    """Both tasks are ranks of one gang; rank 0 alone prints and writes, and both leave with its status.

    At the same time, since Slurm looks at time limits every half minute only.
    """
    limited = launch("--time=1", suite=WAITS, nodes=1)
    wait_for((tmp_path / "pid-0").exists, "the job that is to meet its time limit")
    # Limits are whole minutes; this moves the end of a running job nearer.
    slurm.ask("scontrol", "update", f"JobId={limited.job()}", "EndTime=now+1")
    arguments = ("-m", "cpun2", "--accel-budget=60ms", "-oaccel_warmup=50ms")
    run = launch("--timeout=100s", suite=BENCHMARKS, arguments=arguments, seats=True).result(1)
    assert run.out.count("test session starts") == 1
    assert "of the second node" in run.out
    (testsuite,) = ET.parse(run.folder / "junit.xml").getroot()
    assert (testsuite.get("tests"), testsuite.get("failures")) == ("2", "1")
    benchmarks = json.loads((run.folder / "benchmark.json").read_text())["benchmarks"]
    assert "test_measures" in [benchmark["name"] for benchmark in benchmarks]
    limited.result(124)
    assert "reached its time limit: give more with --time" in limited.err
