"""Wheel and sdist: their contents, and their use in environments without this checkout."""

import json
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import pytest_accel
from tests.packaging.conftest import ROOT, pip
from tests.support.processes import finished

INFO = f"pytest_accel-{pytest_accel.__version__}.dist-info"
SDIST = {
    *("pytest_accel", "bench_suites", "benchmarks", "baselines", "deploy", "docs", "examples", "tests"),
    *("conftest.py", "constraints.txt", "Makefile", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("pyproject.toml", "README.md", "LICENSE", ".gitignore"),
}


def below(folder: str) -> set[str]:
    return {
        path.relative_to(ROOT / folder).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def test_the_wheel_is_the_package_its_suites_and_what_was_published(built):
    expected = {f"pytest_accel/{name}" for name in below("pytest_accel")}
    expected |= {f"pytest_accel/suites/{name}" for name in below("bench_suites")}
    expected |= {f"pytest_accel/published/{name}" for name in below("baselines/published")}
    expected |= {
        f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    assert names(built.wheel) == expected


def test_the_sdist_holds_what_make_test_needs(built):
    with tarfile.open(built.sdist) as file:
        members = [PurePosixPath(*PurePosixPath(name).parts[1:]) for name in file.getnames()]
    assert {path.parts[0] for path in members} == {name for name in SDIST if (ROOT / name).exists()} | {
        "PKG-INFO"
    }
    assert [
        path for path in members if "__pycache__" in path.parts or path.suffix in (".pyc", ".sqlite", ".lock")
    ] == []


def test_the_wheel_has_the_version_and_no_path_of_this_machine(built, in_bare):
    with zipfile.ZipFile(built.wheel) as file:
        assert [each for each in file.namelist() if str(ROOT).encode() in file.read(each)] == []
        told = file.read(f"{INFO}/METADATA").decode()
    assert f"\nVersion: {pytest_accel.__version__}\n" in told
    assert built.sdist.name == f"pytest_accel-{pytest_accel.__version__}.tar.gz"
    assert in_bare.run("pytest-accel", "--version").stdout == f"pytest-accel {pytest_accel.__version__}\n"


# --- installed, without torch -------------------------------------------------------------------------

QUICK = ("--accel-budget=50ms", "-oaccel_warmup=50ms", "--accel-repeats=1")


def test_a_step_of_ones_own_is_measured(in_bare):
    (in_bare.work / "test_mine.py").write_text(
        "from pytest_accel import cpu\n\n\n@cpu\ndef test_step(accel):\n"
        "    accel.measure(lambda: sum(range(20_000)), work=1, unit='calls')\n"
    )
    shown = in_bare.run("pytest", *QUICK).stdout
    assert "1 no baseline" in shown
    assert "calls/s" in shown


@pytest.mark.rehearsal
def test_the_demo_needs_no_torch(in_bare):
    shown = in_bare.run("pytest-accel", "demo", status=None).stdout
    assert "recorded 3 runs" in shown
    assert "REGRESSED  test_wait (cpu)" in shown or "Not as expected" in shown


def test_what_needs_torch_says_in_one_line_what_is_missing_and_how_to_get_it(in_bare):
    models = [
        f"@cpu\ndef test_{name}({name}):\n    {name}('zoo/gpt-tiny', batch_size=1)\n"
        for name in ("train", "infer")
    ]
    (in_bare.work / "test_mine.py").write_text("from pytest_accel import cpu\n\n\n" + "\n\n".join(models))
    shown = in_bare.run("pytest", *QUICK, status=1).stdout
    for fixture in ("train", "infer"):
        (line,) = [line for line in shown.splitlines() if line.startswith(f"{fixture}: ")]
        assert "torch" in line
        assert "pip install torch torchvision" in line
    assert "Traceback" not in shown


# --- the suites of the wheel --------------------------------------------------------------------------

SUITES = ("--pyargs", "pytest_accel.suites")


def node_ids(output: str) -> list[str]:
    return [line for line in output.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def of_the_checkout() -> list[str]:
    options = ("--collect-only", "-q", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", "bench_suites", *options]
    return node_ids(finished(*command, cwd=ROOT, check=True).stdout)


@pytest.mark.parametrize("root", ["elsewhere", "around the environment"])
def test_benchmarks_have_the_names_of_the_checkout(in_bare, of_the_checkout, root):
    """Baselines are found by them; a root directory that holds site-packages would else tell its path."""
    rootdir = in_bare.work if root == "elsewhere" else in_bare.folder.parent
    done = in_bare.run("pytest", *SUITES, "--collect-only", "-q", "--strict-markers", f"--rootdir={rootdir}")
    assert node_ids(done.stdout) == of_the_checkout
    assert len(of_the_checkout) > 200


def test_one_suite_and_one_benchmark_can_be_named(in_bare):
    named = "pytest_accel.suites.test_gpt::test_small_gpt_training"
    done = in_bare.run("pytest", "--pyargs", named, "--collect-only", "-q")
    assert node_ids(done.stdout) == ["bench_suites/test_gpt.py::test_small_gpt_training"]


@pytest.mark.rehearsal
def test_a_suite_is_recorded_in_a_fresh_process_under_the_name_of_the_checkout(in_whole):
    shown = in_whole.run(
        "pytest", *SUITES, "-m", "cpu", "-k", "small_autoencoder", *QUICK[:2], "--accel-record=1"
    )
    assert "1 recorded" in shown.stdout
    (path,) = (in_whole.work / "baselines").glob("*/autoencoder.json")
    assert list(json.loads(path.read_text())["benchmarks"]) == [
        "bench_suites/test_autoencoder.py::test_small_autoencoder"
    ]


# --- somebody's container -----------------------------------------------------------------------------


@pytest.mark.parametrize("extras", [pytest.param("", marks=pytest.mark.rehearsal), "[suites,report]"])
def test_installing_it_changes_nothing_that_is_there(built, container, extras):
    report = pip(
        container, "install", "--dry-run", "--quiet", "--no-index", "--report", "-", f"{built.wheel}{extras}"
    )
    changed = [each["metadata"]["name"] for each in json.loads(report.stdout)["install"]]
    assert changed == ["pytest-accel"]
