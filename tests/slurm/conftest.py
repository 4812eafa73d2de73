"""One cluster for all tests here, and `pytest-accel launch` run on it from an empty project."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.cluster import LONG_S, Cluster, cluster, missing
from tests.support.waiting import eventually


@pytest.fixture(scope="session")
def slurm():
    if reason := missing():
        pytest.skip(reason)
    with cluster() as running:
        yield running
    assert running.processes() == []


@dataclass
class Launched:
    """A `pytest-accel launch` that runs, or ran."""

    slurm: Cluster
    process: subprocess.Popen[str]
    folder: Path  # the run folder
    out: str = ""
    err: str = ""

    def result(self, status: int) -> Launched:
        """Wait for its end, and be sure of its status."""
        self.out, self.err = self.process.communicate(timeout=2 * LONG_S)
        assert self.process.returncode == status, f"{self.process.returncode}\n{self.out}\n{self.err}"
        return self

    def job(self) -> str:
        """Its number, as soon as the script runs."""
        found = wait_for(
            lambda: re.search(r"^job (\d+) on ", self.log(), re.MULTILINE), "the job's first line"
        )
        return found[1]

    def log(self) -> str:
        path = self.folder / "log.txt"
        return path.read_text() if path.exists() else ""


def wait_for(condition: Callable[[], object], what: str):
    found = eventually(condition, LONG_S)
    assert found, f"{what}: not after {LONG_S:.0f} s"
    return found


@pytest.fixture
def launch(slurm, tmp_path):
    """Start `pytest-accel launch --slurm` with these options and, for pytest, these arguments.

    Without `seats` the tasks do not load the plugin: each is a pytest of its own, and shows what Slurm did.
    """
    started = []

    def start(
        *options: str, suite: str, arguments=(), nodes=2, tasks=1, seats=False, environment=None
    ) -> Launched:
        (tmp_path / "test_suite.py").write_text(textwrap.dedent(suite))
        folder = tmp_path / f"run-{len(started)}"
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest_accel.cli", "launch", "--slurm", f"--nodes={nodes}"),
                *((f"--tasks-per-node={tasks}",) if tasks else ()),
                *(f"--output-dir={folder.name}", *options),
                *("--", "test_suite.py", *arguments),
            ],
            cwd=tmp_path,
            env={**_quick(slurm.environment, seats=seats), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(Launched(slurm, process, folder))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()
    if jobs := slurm.jobs():
        slurm.ask("scancel", *jobs)
        wait_for(lambda: not slurm.jobs(), "the end of all jobs")


def _quick(environment, *, seats: bool):
    """Without this session's own marks, and with few plugins: others cost a second each time."""
    inherited = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    return {
        **inherited,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider -p benchmark" + (" -p accel" if seats else ""),
    }
