"""One cluster for all tests here, and deploy/slurm/benchmarks.sbatch submitted to it from an empty project."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.cluster import LONG_S, Cluster, cluster, missing
from tests.support.waiting import eventually

TEMPLATE = Path(__file__).parents[2] / "deploy" / "slurm" / "benchmarks.sbatch"


@pytest.fixture(scope="session")
def slurm():
    if reason := missing():
        pytest.skip(reason)
    with cluster() as running:
        yield running
    assert running.processes() == []


@dataclass
class Submitted:
    """A job of `sbatch --wait` that runs, or ran."""

    process: subprocess.Popen[str]
    folder: Path

    def result(self, status: int) -> str:
        """Wait for its end, check its status, and return the job's log."""
        _, err = self.process.communicate(timeout=2 * LONG_S)
        log = (self.folder / "job.log").read_text()
        assert self.process.returncode == status, f"{self.process.returncode}\n{log}\n{err}"
        return log


def wait_for(condition: Callable[[], object], what: str):
    found = eventually(condition, LONG_S)
    assert found, f"{what}: not after {LONG_S:.0f} s"
    return found


@pytest.fixture
def submit(slurm: Cluster, tmp_path):
    """Submit the template with these options of sbatch and arguments of pytest; two nodes of one task each."""
    started: list[Submitted] = []

    def start(*arguments: str, suite: str, options=(), **environment: str) -> Submitted:
        (tmp_path / "test_suite.py").write_text(textwrap.dedent(suite))
        inherited = {
            name: value for name, value in slurm.environment.items() if not name.startswith("PYTEST_")
        }
        process = subprocess.Popen(
            [
                *(
                    "sbatch",
                    "--wait",
                    "--nodes=2",
                    "--ntasks-per-node=1",
                    "--gpus-per-node=0",
                    "--output=job.log",
                ),
                *(*options, str(TEMPLATE), "test_suite.py", *arguments),
            ],
            cwd=tmp_path,
            env={
                **inherited,
                "ACCEL_PYTHON": sys.executable,
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # other plugins cost a second each
                "PYTEST_ADDOPTS": "-p no:cacheprovider -p benchmark -p accel",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(Submitted(process, tmp_path))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()
    if jobs := slurm.jobs():
        slurm.ask("scancel", *jobs)
        wait_for(lambda: not slurm.jobs(), "the end of all jobs")
