"""deploy/slurm/benchmarks.sbatch on a real Slurm of four nodes."""

import json
import sys

import pytest

pytestmark = pytest.mark.slow

QUICK = ("-m", "cpun2", "--accel-budget=60ms", "-oaccel_warmup=50ms", "--accel-json=results.json")
MEASURES = """
from pytest_accel.distributed import device_check

device_check.REPEATS = 3

from pytest_accel import cpun2

@cpun2
def test_measures(accel):
    accel.measure(lambda: sum(range(20000)), work=1, unit="steps")
"""
KILLED = f"""{MEASURES}
import os, signal

@cpun2
def test_killed(accel, rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    accel.measure(lambda: sum(range(20000)), work=1, unit="steps")
"""


def test_killed_rank_is_the_status_of_the_job_and_all_results_are_written(submit, tmp_path):
    log = submit(*QUICK, "--accel-timeout=60s", "--junitxml=junit.xml", suite=KILLED).result(1)
    assert "SIGKILL" in log
    session = json.loads((tmp_path / "results.json").read_text())
    assert {each["benchmark"]: each.get("failed", False) for each in session["results"]} == {
        "test_suite.py::test_measures": False,
        "test_suite.py::test_killed": True,
    }
    assert 'failures="1"' in (tmp_path / "junit.xml").read_text()


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
