"""A checkout of its own for each test that runs nights."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.deploy.project import CI, CLOCK, PYTHON, SUITE, Project
from tests.support.processes import finished, inherited


@pytest.fixture(scope="session")
def machine(tmp_path_factory) -> Path:
    """A file with what `pytest-accel doctor --json` says here."""
    path = tmp_path_factory.mktemp("doctor") / "machine.json"
    path.write_text(finished(sys.executable, "-m", "pytest_accel", "doctor", "--json").stdout)
    return path


@pytest.fixture
def project(tmp_path, machine) -> Project:
    root = tmp_path / "project"
    (root / "deploy").mkdir(parents=True)
    shutil.copytree(CI, root / "deploy" / "ci")
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "conftest.py").write_text(CLOCK)
    (root / "test_tiny.py").write_text(SUITE)
    python = root / "python"
    paths = {"python": sys.executable, "unfit": f"{root}/unfit", "machine": str(machine)}
    python.write_text(PYTHON.format(**{name: shlex.quote(path) for name, path in paths.items()}))
    python.chmod(0o755)
    environment = {
        **inherited("PYTEST_", "ACCEL_", "GITHUB_", "CI_", "SLURM_", "NCCL_"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # other plugins of this environment cost a second each time
        "PYTEST_ADDOPTS": "-p tests.support.quick_sessions -p benchmark -p accel -p no:cacheprovider",
        "ACCEL_PLATFORM": "cpu",
        "ACCEL_SUITES": "test_tiny.py",
        "ACCEL_PYTHON": str(python),
        "ACCEL_RUNS": "2",
    }
    made = Project(root, environment)
    made.step_takes(0.001)
    return made
