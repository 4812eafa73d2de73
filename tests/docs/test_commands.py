"""Every command that README and docs show is run: here, or by the test that `RUN_BY` names.

What measures is collected here with `--collect-only`: its options, marks and names are read, and nothing needs the hardware.
"""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import chdir, closing
from functools import cache
from pathlib import Path

import pytest

from pytest_accel.cli import main
from pytest_accel.storage.results import write_results
from tests.docs.pages import ROOT, blocks, page_name, pages
from tests.docs.test_pages import words
from tests.examples import test_examples
from tests.examples.test_examples import run
from tests.support.results import make_session

environment = test_examples.environment  # a steady clock

RUN_BY = {  # by page, or by the command
    r"examples/|.*: python (expect|faster)\.py": "examples/test_examples",
    r"docs/releasing\.md": "packaging/test_wheel",
    r".*: \S*deploy/containers|.*: pytest --pyargs": "packaging/test_containers",
    r".*: pytest-accel demo": "unit/commands/test_demo",
    r".*: pytest-accel upgrade": "deploy/test_upgrade",
    r".*: pytest-accel compile": "deploy/test_compile",
    r".*: (\S+=\S+ )*bash deploy/ci/night\.sh": "deploy/test_night",
    r".*: (srun|sbatch)": "slurm/test_template",
    r".*: torchrun": "distributed/test_torchrun",
    r".*: python -m benchmarks\.comparison": "benchmarks/test_comparison",
    r".*: (pytest|python -m pytest) .*test_tiny\.py": "deploy/test_night",
}


@cache
def shown() -> list[tuple[str, str]]:
    """Return every command with its page."""
    return [
        (page_name(block.page), re.sub(r"\s+# .*", "", line).strip())
        for block in blocks()
        for line in block.commands
    ]


def is_run_elsewhere(page: str, line: str) -> bool:
    return any(re.match(pattern, f"{page}: {line}") for pattern in RUN_BY)


def run_here() -> list[str]:
    return sorted({line for page, line in shown() if not is_run_elsewhere(page, line)})


def these(program: str) -> list[list[str]]:
    return [split[1:] for line in run_here() if (split := words(line))[0] == program]


@pytest.mark.parametrize("test", sorted(set(RUN_BY.values())))
def test_named_tests_exist(test):
    assert [*(ROOT / "tests").glob(f"{test}.py")]


def test_every_command_is_of_a_program_that_is_run_here():
    programs = {"pytest", "pytest-accel", "python3", "sqlite3", "git"}
    assert [line for line in run_here() if words(line)[0] not in programs] == []


def named_files(page: Path) -> list[tuple[str, str]]:
    named = re.compile(r"^`(test_\w+\.py)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return named.findall(page.read_text(encoding="utf-8"))


@pytest.fixture
def with_torch():
    """Import it before pytester, which forgets what was imported after it."""
    pytest.importorskip("torch")


@pytest.mark.usefixtures("with_torch")
def test_pytest_commands_collect(pytester):
    """In this process: a session takes a second, most of it imports."""
    for block in blocks("python"):
        for name in re.findall(r"^def (test_\w+)\(", block.text, re.MULTILINE):
            path = pytester.path / f"{name}.py"  # of pages that do not name the file
            path.write_text(block.text)
    for page in pages():
        for name, text in named_files(page):
            (pytester.path / name).write_text(text)
    (pytester.path / "bench_suites").symlink_to(ROOT / "bench_suites")
    (pytester.path / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:cacheprovider --import-mode=importlib\nmarkers = sweep: one of many\n"
    )
    for argv in these("pytest"):
        collected = pytester.runpytest_inprocess(*argv, "--collect-only", "-q")
        assert collected.ret == pytest.ExitCode.OK, argv


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the files that the commands of the pages name."""
    for name in [name for name in os.environ if name.startswith("PYTEST_ACCEL_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "baselines" / "h200"
    folder.mkdir(parents=True)
    for stem in ("bert", "gpt", "process_group"):  # what the commands name by -k: all take seconds to read
        shutil.copy(ROOT / "baselines" / "h200" / f"{stem}.json", folder)
    for name in ("results", "after", "fresh", "results-node-7"):
        write_results(tmp_path / f"{name}.json", make_session())
    with chdir(tmp_path):
        assert main(["history", "--import", "results.json"]) == 0
        yield tmp_path


def test_commands_of_pytest_accel_run(project, capsys):
    for argv in these("pytest-accel"):
        status = main(argv)
        assert status in (0, 1), (argv, capsys.readouterr())  # 1 is a finding, 2 wrong usage or a bad file


def test_other_commands_run(project):
    for argv in these("python3"):
        assert subprocess.run([sys.executable, *argv], capture_output=True, check=True).stdout
    for _, statements in these("sqlite3"):
        with closing(sqlite3.connect(".accel/history.sqlite", isolation_level=None)) as database:
            database.executescript(statements)


@pytest.mark.rehearsal
def test_example_of_the_readme_is_recorded_judged_and_caught(tmp_path, environment):
    ((name, text),) = named_files(ROOT / "README.md")
    (tmp_path / name).write_text(text)
    lines = [line for page, line in shown() if page == "README.md" and name in line]
    assert "recorded 5 runs" in " ".join(run(lines[0], tmp_path, environment))
    assert "1 ok" in run(lines[1], tmp_path, environment)[-1]
    caught = run(f"{lines[1]} --accel-slowdown=50% || true", tmp_path, environment)
    assert "1 regressed" in caught[-1]


def test_targets_of_make_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [name for block in blocks() for name in re.findall(r"^make (\w+)", block.text, re.MULTILINE)]
    assert "bench" in targets
    assert {name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)} == set()


def test_scripts_in_pages_exist():
    for page in pages():
        for path in re.findall(r"\bdeploy/[\w/-]+\.\w+", page.read_text(encoding="utf-8")):
            assert (ROOT / path).is_file(), (page, path)
