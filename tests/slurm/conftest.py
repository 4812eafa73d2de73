"""One cluster for all tests here, and deploy/slurm/benchmarks.sbatch submitted to it from an empty project."""

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
    """A job that was submitted."""

    slurm: Cluster
    number: str
    folder: Path

    def status(self) -> int:
        """Wait for its end and return its exit status; `sbatch --wait` looks only every ten seconds."""
        wait_for(lambda: self.number not in self.slurm.jobs(), "the end of the job")
        shown = self.slurm.ask("scontrol", "show", "job", "--oneliner", self.number)
        return int(shown.partition(" ExitCode=")[2].partition(":")[0])

    def result(self, status: int) -> str:
        """Check its exit status, and return its log."""
        ended = self.status()
        log = (self.folder / "job.log").read_text()
        assert ended == status, log
        return log


def wait_for(condition: Callable[[], object], what: str):
    found = eventually(condition, LONG_S)
    assert found, f"{what}: not after {LONG_S:.0f} s"
    return found


@pytest.fixture
def submit(slurm: Cluster, tmp_path):
    """Submit the template with these options of sbatch and arguments of pytest; two nodes of one task each."""

    def start(*arguments: str, suite: str, options=(), **environment: str) -> Submitted:
        (tmp_path / "test_suite.py").write_text(textwrap.dedent(suite))
        inherited = {
            name: value for name, value in slurm.environment.items() if not name.startswith("PYTEST_")
        }
        done = subprocess.run(
            [
                *("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0"),
                *("--output=job.log", *options, str(TEMPLATE), "test_suite.py", *arguments),
            ],
            cwd=tmp_path,
            env={
                **inherited,
                "ACCEL_PYTHON": sys.executable,
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # other plugins cost a second each
                "PYTEST_ADDOPTS": "-p no:cacheprovider -p benchmark -p accel",
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=LONG_S,
        )
        assert done.returncode == 0, done.stderr
        return Submitted(slurm, done.stdout.strip(), tmp_path)

    yield start
    if jobs := slurm.jobs():
        slurm.ask("scancel", *jobs)
        wait_for(lambda: not slurm.jobs(), "the end of all jobs")
