"""The script for a borrowed GPU: sound as shells go, and played on the CPU."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("hour.sh")
ROOT = SCRIPT.parents[2]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_is_sound():
    done = subprocess.run(
        ["shellcheck", "--severity=style", SCRIPT], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout


def play(tmp_path, *stages, **variables):
    told = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "PLATFORM": "cpu", "BUDGET": "0.1s"}
    return subprocess.run(
        ["bash", SCRIPT, tmp_path / "results", *stages],
        cwd=ROOT,
        env={**os.environ, **told, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_an_unknown_stage_is_refused(tmp_path):
    done = play(tmp_path, "suits")
    assert (done.returncode, done.stdout) == (
        2,
        "suits is no stage: tests compile suites eager compiled streams studies\n",
    )


def test_without_time_nothing_is_begun(tmp_path):
    done = play(tmp_path, "tests", LIMIT_S="5")
    assert "tests: no time is left" in done.stdout
    assert not (tmp_path / "results/tests.txt").exists()


@pytest.mark.rehearsal
def test_a_stage_leaves_its_figures_and_what_was_compiled(tmp_path):
    (tmp_path / "inductor").mkdir()
    (tmp_path / "inductor/kernel").write_text("compiled")
    first = play(tmp_path, "suites", ONLY="test_small_gpt_training or test_small_inference")
    results = tmp_path / "results"
    told = json.loads((results / "suite-language.json").read_text())["results"]
    assert [each["benchmark"] for each in told] == ["bench_suites/test_gpt.py::test_small_gpt_training"]
    assert "suite-networks: exit 0" in first.stdout
    shutil.rmtree(tmp_path / "inductor")
    play(tmp_path, "tests", LIMIT_S="5")
    assert (tmp_path / "inductor/kernel").read_text() == "compiled"
