"""deploy/slurm/benchmarks.sbatch on a real Slurm of four nodes."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from tests.slurm.conftest import wait_for

pytestmark = pytest.mark.slow

QUICK = ("-m", "cpun2", "--accel-budget=60ms", "-oaccel_warmup=50ms", "--accel-json=results.json")
SHORT_CHECK = """
from pytest_accel.distributed import device_check

device_check.MEASURED_S = device_check.ALL_REDUCE_S = device_check.WARMUP_S = 0.005
"""
MEASURES = f"""{SHORT_CHECK}
from pytest_accel import cpun2

@cpun2
def test_measures(accel):
    accel.measure(lambda: sum(range(20000)), work=1, unit="steps")
"""
FAILS_ON_ONE_RANK = (
    MEASURES
    + """
@cpun2
def test_fails(accel, rank):
    accel.measure(lambda: sum(range(20000)), work=1, unit="steps")
    assert rank != 1, "of the second node"
"""
)
WAITS = (
    SHORT_CHECK
    + """
import os, pathlib, time

from pytest_accel import cpun2

@cpun2
def test_waits(accel, rank):
    pathlib.Path(f"pid-{rank}").write_text(str(os.getpid()))
    time.sleep(600)
"""
)


def test_failure_of_one_rank_is_the_status_of_the_job_and_all_results_are_written(submit, tmp_path):
    log = submit(*QUICK, "--junitxml=junit.xml", suite=FAILS_ON_ONE_RANK).result(1)
    assert "of the second node" in log
    session = json.loads((tmp_path / "results.json").read_text())
    assert {each["benchmark"]: each.get("failed", False) for each in session["results"]} == {
        "test_suite.py::test_measures": False,
        "test_suite.py::test_fails": True,
    }
    assert 'failures="1"' in (tmp_path / "junit.xml").read_text()


def test_killed_rank_is_not_green(submit, tmp_path):
    job = submit(*QUICK, "--accel-timeout=60s", suite=WAITS)
    pid = wait_for(lambda: (tmp_path / "pid-1").exists() and (tmp_path / "pid-1").read_text(), "rank 1")
    os.kill(int(pid), signal.SIGKILL)
    assert job.status() != 0


def test_ranks_in_a_container_get_the_arguments_and_are_one_session_that_passes(submit, tmp_path):
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--note', action='append')\n"
    )
    container = tmp_path / "apptainer"
    container.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$SLURM_CPUS_PER_TASK" "$@" > called-$SLURM_PROCID\n'
        f'shift 3\nexec {sys.executable} "$@"\n'
    )
    container.chmod(0o755)
    arguments = [*QUICK, *(f"--note={word}" for word in ("a b", "it's", "$(touch hacked)", "*", ""))]
    log = submit(
        *arguments,
        suite=MEASURES,
        options=["--cpus-per-task=2"],
        ACCEL_CONTAINER=f"{container} exec my.sif",
        ACCEL_PYTHON="",
    ).result(0)
    assert log.count("test session starts") == 1
    (result,) = json.loads((tmp_path / "results.json").read_text())["results"]
    assert (result["platform"], len(result["runs"])) == ("cpun2", 1)
    assert not (tmp_path / "hacked").exists()
    for rank in range(2):
        cpus, *words = (tmp_path / f"called-{rank}").read_text().splitlines()
        assert cpus == "2"
        assert words == ["exec", "my.sif", "python3", "-m", "pytest", "test_suite.py", *arguments]
