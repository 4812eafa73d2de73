"""`pytest-accel demo` from its command line."""

import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_accel import cli
from pytest_accel.commands import demo
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.results import Ending

# Plugins of this environment take half of the time of each process.
QUICK = demo.FILES["pytest.ini"].replace("500ms", "30ms") + (
    "accel_warmup = 30ms\n"
    "addopts = -p tests.support.quick_sessions -p no:hypothesispytest -p no:xdist -p no:anyio\n"
)


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Run it with short sessions, where importing torch is an error and the reader has settings of another project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(demo.FILES, "pytest.ini", QUICK)
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "torch.py").write_text("raise AssertionError('torch is imported')\n")
    here = Path(cli.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path / "shadow", here))))
    monkeypatch.setenv("PYTEST_ACCEL_BASELINES", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")

    def call(*words, status=0):
        found = cli.main(["demo", *words])
        out, err = capfd.readouterr()
        assert status is None or found == status, out + err
        return err if status == 2 else out

    return call


def test_it_records_judges_and_catches_a_slowdown(run, tmp_path):
    text = run(status=None)  # a machine that is busy now may leave a verdict open, which it says
    folder = tmp_path / "pytest-accel-demo"
    typed = [shlex.split(line.removeprefix("$ "))[-1] for line in text.splitlines() if line.startswith("$ ")]
    assert typed[0] == "pytest-accel-demo"
    assert typed[1] == "--accel-record=3"
    assert "recorded 3 runs" in text
    assert not (tmp_path / "elsewhere").exists()
    assert "--accel-report=report.html" in typed
    assert "exit status 1" in text
    assert (folder / "report.html").is_file()
    if "Not as expected" not in text:
        assert "REGRESSED  test_wait (cpu): " in text
    assert "is not empty. Remove it, or name a new folder." in run(status=2)


def test_a_folder_with_files_of_others_is_refused(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pytest.ini").write_bytes(b"\xff")
    assert "mine is not empty. Remove it" in run("mine", status=2)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["pytest.ini"]
    assert "demo: mine/pytest.ini: File exists" in run("mine/pytest.ini", status=2)


@pytest.fixture
def sessions(monkeypatch):
    """Replace the sessions by ones that end with these statuses; return the options of each."""

    def end_with(*statuses):
        asked, left = [], list(statuses)

        def session(_folder, options):
            asked.append(options)
            return SimpleNamespace(status=left.pop(0))

        monkeypatch.setattr(demo, "_pytest", session)
        return asked

    return end_with


def test_without_plotly_there_is_no_page_and_the_rest_goes_on(run, sessions, monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "plotly" else sys)
    asked = sessions(Ending.RECORDED, Outcome.OK, Outcome.REGRESSED)
    assert "page" not in run()
    assert asked == [("--accel-record=3",), (), ("--accel-slowdown=50%",)]


def test_interrupt_ends_it_without_a_traceback(run, monkeypatch):
    def interrupted(_folder, _options):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_pytest", interrupted)
    assert run(status=2) == "pytest-accel demo: interrupted\n"


def test_a_session_that_ends_otherwise_is_said_and_the_rest_goes_on(run, sessions, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    sessions(Ending.RECORDED, Outcome.INCONCLUSIVE, Outcome.REGRESSED)
    text = run("a b", status=1)
    assert "Not as expected: The benchmark is measured again" in text
    assert "'a b/report.html'" in text
    assert max(map(len, text.splitlines())) <= 80
    sessions(Ending.RECORDED, Outcome.IMPROVED, Outcome.REGRESSED)
    assert "Next: " in run("b")
