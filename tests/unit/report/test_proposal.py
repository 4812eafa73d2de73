"""The text of an issue: which baselines should move, why, and the very command that moves them."""

import random
import re
import shlex
from dataclasses import replace

import pytest

from pytest_accel.cli import main
from pytest_accel.report.markdown import render_proposal
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.results import Ending
from pytest_accel.storage.results import write_results
from tests.support.results import CHANGES, make_result, make_runs, make_session

FILE = "bench_suites/test_cnn.py"


def commands(text: str) -> list[list[str]]:
    """Each as a shell would have it."""
    blocks = re.findall(r"^````sh\n(.*?)^````$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize(
    "status",
    [
        *(Outcome.OK, Outcome.INCONCLUSIVE, Outcome.INVALID, Outcome.DOES_NOT_FIT),
        *(Ending.FAILED, Ending.SKIPPED, Ending.NOT_MEASURED),
    ],
)
def test_what_moves_no_baseline_proposes_nothing(status):
    assert render_proposal(make_session([make_result(status)])) == ""


UPDATE = ["--accel-update", "--accel-reason=why it may stay so"]
CHANGED = ["--accel-update", "--accel-reason=driver 570.124.06 -> 580.159.04, cuDNN 9.10.2 -> 9.19.0"]


@pytest.mark.parametrize(
    ("status", "changes", "options"),
    [
        (Outcome.REGRESSED, CHANGES[:2], CHANGED),
        (Outcome.REGRESSED, (), []),  # a baseline that follows a fault hides it
        (Outcome.IMPROVED, (), UPDATE),
        (Outcome.STALE_BASELINE, (), UPDATE),
        (Outcome.NO_BASELINE, (), ["--accel-record"]),
    ],
)
def test_a_verdict_has_a_headline_and_the_command_that_moves_its_baseline(status, changes, options):
    result = make_result(status, changes=changes)
    text = render_proposal(make_session([result], command=("-m", "gh200")))
    assert text.startswith(f"# gh200: 1 {status.value}\n")
    assert result.text in text.replace("\\", "")
    assert commands(text) == [["pytest", result.benchmark, "-m", "gh200", *options]]
    assert all(f"{change.title} {change.old} -" in text for change in changes)


@pytest.mark.parametrize("status", [Outcome.REGRESSED, Outcome.IMPROVED])
def test_a_drill_is_left_out(status):
    result = make_result(status, name="test_drill")
    drill = replace(result, runs=tuple(replace(run, metrics={"slowdown_felt": 0.1}) for run in result.runs))
    assert render_proposal(make_session([drill])) == ""


@pytest.mark.parametrize(
    ("stored", "runs", "a_day"), [(0, 5, 2), (0, 2, 2), (0, 7, 1), (1, 5, 2), (1, 8, 1), (2, 2, 2), (2, 3, 0)]
)
def test_a_provisional_recording_goes_on_for_as_many_runs_as_there_is_room_for(stored, runs, a_day):
    source = random.Random(7)
    before = [make_runs(source, 0.04, runs=1, session=f"night-{each}") for each in range(stored)]
    result = make_result(
        Ending.RECORDED,
        runs=make_runs(source, 0.04, runs=runs),
        baseline=tuple(run for runs_of_night in before for run in runs_of_night),
    )
    options = [each[-1] for each in commands(render_proposal(make_session([result])))]
    assert options == ([f"--accel-record={a_day}"] if a_day else [])


def test_replaced_runs_do_not_count_as_stored():
    source = random.Random(7)
    old, new = make_runs(source, 0.04, runs=9, session="old"), make_runs(source, 0.04, runs=5)
    session = make_session(
        [make_result(Ending.RECORDED, runs=new, baseline=old)], command=("--accel-update",)
    )
    assert commands(render_proposal(session))[0][-1] == "--accel-record=2"


def test_what_decided_the_measurement_is_kept_and_what_wrote_files_is_not():
    kept = (
        "--accel-baselines=/srv/b --accel-history=/h --accel-data=/d --accel-budget=9s -o a=b --accel-require"
    )
    others = "bench_suites -m gh200 --accel-json=x --accel-slowdown=5%"
    session = make_session(
        [make_result(Outcome.VANISHED), make_result(Outcome.IMPROVED)],
        command=(*others.split(), "--accel-baselines", "/srv/b", *kept.split()[1:]),
    )
    remove, update = commands(render_proposal(session))
    assert update[4:-2] == kept.split()
    named = f"{FILE}::test_cnn[resnet50-bf16-256]"
    assert remove == ["pytest-accel", "baseline", "edit", "--remove", named, "--baselines=/srv/b"]


def test_each_platform_and_each_set_of_changes_has_its_own_command():
    results = [
        make_result(Outcome.IMPROVED, name="test_a", changes=CHANGES[:1]),
        make_result(Outcome.IMPROVED, name="test_b", changes=CHANGES[:1]),
        make_result(Outcome.IMPROVED, name="test_c", changes=CHANGES[:2]),
        make_result(Outcome.IMPROVED, name="test_d", platform="gh200x4", changes=CHANGES[:1]),
    ]
    text = render_proposal(make_session(results))
    named = [[word.partition("::")[2] for word in each if "::" in word] for each in commands(text)]
    assert sorted(named) == [["test_a", "test_b"], ["test_c"], ["test_d"]]
    assert text.startswith("# gh200, gh200x4: 4 improved\n")


def test_long_list_names_forty_and_counts_the_rest():
    results = [make_result(Outcome.IMPROVED, name=f"test_{each}") for each in range(300)]
    assert "- and 260 more" in render_proposal(make_session(results))


def test_the_command_prints_it(tmp_path, capsys):
    path = tmp_path / "results.json"
    for session in (make_session([make_result(Outcome.OK)]), make_session([make_result(Outcome.IMPROVED)])):
        write_results(path, session)
        assert main(["baseline", "accept", "--markdown", str(path)]) == 0
        assert capsys.readouterr().out == render_proposal(session)
    assert main(["baseline", "accept", "--markdown", str(tmp_path / "absent.json")]) == 2
    assert "--accel-json" in capsys.readouterr().err
