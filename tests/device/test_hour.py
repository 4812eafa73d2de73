"""The script for a borrowed GPU: sound as shells go, refused before anything is done where it is called wrongly, and played on the CPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("hour.sh")
ROOT = SCRIPT.parents[2]
STAGES = "tests groups compile contests whole loading suites language scenes networks images gangs eager compiled timm streams studies"


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_is_sound():
    done = subprocess.run(
        ["shellcheck", "--severity=style", SCRIPT], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout


def play(tmp_path, *arguments, **variables):
    told = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "PLATFORM": "cpu",
        "BUDGET": "0.1s",
        "PYTHON": sys.executable,
    }
    return subprocess.run(
        ["bash", SCRIPT, *arguments],
        cwd=ROOT,
        env={**os.environ, **told, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), f"hour.sh RESULTS STAGE [STAGE ...], of: {STAGES}\n"),
        (("results",), f"hour.sh RESULTS STAGE [STAGE ...], of: {STAGES}\n"),
        (("results", "tests", "suits"), f"suits is no stage. Valid: {STAGES}\n"),
    ],
    ids=["nothing", "no stage", "unknown stage"],
)
def test_a_wrong_call_is_refused_before_anything_is_done(tmp_path, arguments, words):
    folder = [str(tmp_path / each) if each == "results" else each for each in arguments]
    done = play(tmp_path, *folder)
    assert (done.returncode, done.stderr, done.stdout) == (2, words, "")


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    done = play(tmp_path, tmp_path / "file/results", "tests")
    assert done.returncode == 2
    assert "is no folder to write into" in done.stderr


def test_without_time_nothing_is_begun_and_that_is_no_success(tmp_path):
    results = tmp_path / "results"
    done = play(tmp_path, results, "tests", "streams", LIMIT_S="50")
    assert done.returncode == 1
    assert done.stdout.count("no time is left") == 4
    assert [*results.iterdir()] == []


def test_what_was_compiled_is_taken_along_and_stays_where_it_cannot_be_packed(tmp_path):
    results, caches = tmp_path / "results", tmp_path / "results/caches.tar.xz"
    (tmp_path / "inductor").mkdir()
    (tmp_path / "inductor/kernel").write_text("compiled")
    play(tmp_path, results, "tests", LIMIT_S="50")
    shutil.rmtree(tmp_path / "inductor")
    play(tmp_path, results, "tests", LIMIT_S="50")
    assert (tmp_path / "inductor/kernel").read_text() == "compiled"
    packed = caches.read_bytes()
    (results / "caches.tar.xz.new").mkdir()  # nothing can be written there
    done = play(tmp_path, results, "tests", LIMIT_S="50")
    assert "what was compiled could not be packed" in done.stderr
    assert caches.read_bytes() == packed


@pytest.fixture
def stubbed(tmp_path):
    """Plays stages with a python that notes its data and its arguments, then does as told; gives what it said, and all notes so far."""
    calls, stub = tmp_path / "calls", tmp_path / "python"

    def play_with(script, *stages, **variables):
        stub.write_text(
            f'#!/usr/bin/env bash\necho "${{PYTEST_ACCEL_DATA:-nothing}}: $*" >>"$CALLS"\n{script}\n'
        )
        stub.chmod(0o755)
        told = {"PYTHON": str(stub), "CALLS": str(calls), "PACK": "no", **variables}
        return play(tmp_path, tmp_path / "results", *stages, **told), calls.read_text().splitlines()

    return play_with


MAKES_PHOTOGRAPHS = """
case $* in
*tests.studies.photographs*) mkdir "$3" && touch "$3/photograph" && [ ! -e "$CALLS.cut" ] ;;
esac
"""


def test_rows_fed_with_photographs_have_them_made_once_and_whole(stubbed, tmp_path):
    calls, photographs = tmp_path / "calls", tmp_path / "photographs"
    cut = tmp_path / "calls.cut"

    def loading():
        calls.write_text("")
        done, lines = stubbed(MAKES_PHOTOGRAPHS, "loading", TMPDIR=str(tmp_path), ONLY="cached")
        made = sum("studies.photographs" in line for line in lines)
        return done.returncode, made, [line for line in lines if "-k" in line]

    cut.touch()
    assert loading() == (1, 1, [])
    assert not photographs.exists()
    cut.unlink()
    status, made, (compiled, measured) = loading()
    assert (status, made, (photographs / "photograph").exists()) == (0, 1, True)
    for line, words in (
        (compiled, "-m pytest_accel.cli compile"),
        (measured, "-m pytest bench_suites/test_cnn.py"),
    ):
        assert line.startswith(f"{photographs}: {words}")
        assert "-k (cached) and test_loading" in line
    assert loading()[:2] == (0, 0)


def test_gangs_compile_beside_the_others_and_again_where_they_found_no_room(stubbed, tmp_path):
    first = tmp_path / "first"
    failing = f"case $* in *test_process_group*) [ -e {first} ] || {{ touch {first}; exit 1; }} ;; esac"
    done, calls = stubbed(failing, "compile")
    assert done.returncode == 0, done.stdout
    (others,) = (call for call in calls if "test_process_group.py" not in call)
    assert "--jobs 10 -- bench_suites/test_cnn.py" in others
    assert len(calls) == 3
    assert "--jobs 1 -- bench_suites/test_process_group.py" in calls[-1]
    done, calls = stubbed("true", "compile", ONLY="cached")
    assert "test_process_group.py" in calls[-1]
    assert (done.returncode, len(calls)) == (0, 4)


def test_a_limit_that_is_no_number_is_refused_before_anything_is_done(tmp_path):
    done = play(tmp_path, tmp_path / "results", "compile", COMPILE_S="9min")
    assert (done.returncode, done.stderr) == (2, "COMPILE_S=9min: a whole number is wanted\n")


def test_contests_that_are_named_are_compiled_and_played_instead_of_all(stubbed):
    lists = (
        "case $* in *--list) printf 'contest model\\ngpt-117m zoo\\nbert-128 zoo\\nbert-384 zoo\\n' ;; esac"
    )
    done, calls = stubbed(lists, "contests", "compiled", CONTESTS="gpt-117m\nbert-128 ")
    assert done.returncode == 0, done.stderr
    _, *compiled, played = (call.partition("benchmarks.peers ")[2] for call in calls)
    assert sorted(compiled) == [f"{each} --compile-only --device cpu" for each in ("bert-128", "gpt-117m")]
    assert played.startswith("gpt-117m bert-128 --device cpu --groups 3 --json ")
    for named, complaint in (
        (" ", "CONTESTS names none."),
        ("bert-384 bert", "CONTESTS: bert is no contest."),
        ("contest", "CONTESTS: contest is no contest."),
    ):
        done, again = stubbed(lists, "contests", "compiled", CONTESTS=named)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"{complaint} Valid: gpt-117m bert-128 bert-384\n"
        assert [call for call in again if "--list" not in call] == [
            call for call in calls if "--list" not in call
        ]


def test_the_script_of_timm_is_run_where_there_is_one(stubbed, tmp_path):
    (tmp_path / "timm").mkdir()
    for needed in ("benchmark.py", "timm/version.py"):
        done = play(tmp_path, tmp_path / "results", "compile", "timm", TIMM_SOURCE=str(tmp_path))
        assert (done.returncode, done.stdout) == (2, "")
        assert (
            done.stderr
            == f"TIMM_SOURCE={tmp_path} is no checkout of pytorch-image-models: it has no {needed}\n"
        )
        (tmp_path / needed).touch()
    done, calls = stubbed("true", "timm", TIMM_SOURCE=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert f"benchmarks.peers resnet50 resnet50-infer --timm-source {tmp_path} --device cpu" in calls[-1]


@pytest.mark.rehearsal  # it waits for a limit of seconds
def test_neither_gangs_nor_others_compile_for_longer_than_they_may(stubbed):
    done, calls = stubbed("sleep 60", "compile", "tests", COMPILE_S="13", LIMIT_S="20")
    assert done.returncode == 1
    assert len(calls) == 2
    for words in ("compile-gangs: exit 124", "compile: exit 124", "tests: no time is left"):
        assert words in done.stdout


@pytest.mark.rehearsal
def test_a_stage_leaves_its_figures_and_no_later_call_overwrites_them(tmp_path):
    results = tmp_path / "results"
    first = play(
        tmp_path, results, "language", "networks", ONLY="test_small_gpt_training or test_small_inference"
    )
    assert first.returncode == 0, first.stdout
    (written,) = results.glob("language-*.json")
    (told,) = json.loads(written.read_text())["results"]
    assert told["benchmark"] == "bench_suites/test_gpt.py::test_small_gpt_training"
    again = play(tmp_path, results, "language", ONLY="no_such_row")
    assert again.returncode == 1
    assert json.loads(written.read_text())["results"] == [told]
