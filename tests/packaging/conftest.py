"""The wheel and the sdist as they would be published, and environments that have nothing of this checkout."""

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.processes import finished, inherited

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Built:
    wheel: Path  # by way of the sdist, as `python -m build` does it
    sdist: Path


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment with the wheel in it, and somewhere to work that has no file of ours."""

    folder: Path
    work: Path

    def run(self, *command: str, status: int | None = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        """A command of its bin/ in the empty folder; nothing of this session's environment leads to the checkout."""
        kept = inherited("PYTEST_", "PYTHON", "GITHUB_", "CI_", "COV_")
        path = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "COLUMNS": "100"}
        program = self.folder / "bin" / command[0]
        done = finished(program, *command[1:], cwd=self.work, env=kept | path | environ)
        assert status is None or done.returncode == status, done.stdout + done.stderr
        return done


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    finished(*command, check=True)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return Built(wheel, sdist)


def borrow(environment: Path, names: set[str]) -> None:
    """Give an environment packages of this one by links: no network, and torch is not copied."""
    (there,) = environment.glob("lib/python3*/site-packages")
    here = Path(str(metadata.distribution("pytest").locate_file("")))
    for name in names:
        if not (there / name).exists():
            (there / name).symlink_to(here / name)


def needs_of(name: str) -> set[str]:
    """The files and folders of a distribution and of all that it needs."""
    distribution = metadata.distribution(name)
    found = {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}
    for requirement in map(Requirement, distribution.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found |= needs_of(requirement.name)
    return found


def everything() -> set[str]:
    """All packages of this environment but pytest-accel itself."""
    here = Path(str(metadata.distribution("pytest").locate_file("")))
    ours = ("pytest_accel", "_pytest_accel", "__editable__", "__pycache__")
    return {path.name for path in here.iterdir() if not path.name.startswith(ours) and path.suffix != ".pth"}


def environment(folder: Path, names: set[str]) -> Path:
    venv.create(folder, with_pip=False, symlinks=True)
    borrow(folder, names)
    command = folder / "bin/pytest"  # which a link to the package does not bring
    command.write_text(f"#!{folder}/bin/python\nimport sys, pytest\nsys.exit(pytest.console_main())\n")
    command.chmod(0o755)
    return folder


def pip(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check"]
    done = finished(*command, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def bare(built, tmp_path_factory) -> Path:
    """The wheel and what it needs: no torch, no numpy."""
    needs = needs_of("pytest") | needs_of("pytest-benchmark") | needs_of("nvidia-ml-py")
    folder = environment(tmp_path_factory.mktemp("bare") / "venv", needs)
    pip(folder, "install", "--quiet", "--no-index", str(built.wheel))
    return folder


@pytest.fixture(scope="session")
def container(tmp_path_factory) -> Path:
    """Stands for somebody's image: torch, pytest and all the rest, and no pytest-accel yet."""
    return environment(tmp_path_factory.mktemp("container") / "venv", everything())


@pytest.fixture(scope="session")
def whole(built, tmp_path_factory) -> Path:
    """Everything that the suites need, and the wheel."""
    folder = environment(tmp_path_factory.mktemp("whole") / "venv", everything())
    pip(folder, "install", "--quiet", "--no-index", "--no-deps", str(built.wheel))
    return folder


@pytest.fixture
def in_bare(bare, tmp_path) -> Installed:
    return Installed(bare, tmp_path)


@pytest.fixture
def in_whole(whole, tmp_path) -> Installed:
    return Installed(whole, tmp_path)
