"""The text of an issue: which baselines should move, why, and the very command that moves them."""

from __future__ import annotations

import random
import re
import shlex
from dataclasses import replace

import pytest

from pytest_accel.cli import main
from pytest_accel.report.proposal import render_proposal
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.results import Ending
from pytest_accel.storage.results import write_results
from tests.support.results import CHANGES, hostile, make_result, make_runs, make_session, many

FILE = "bench_suites/test_cnn.py"


def commands(text: str) -> list[list[str]]:
    """Each as a shell would have it."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
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


@pytest.mark.parametrize(
    ("status", "changes", "headline", "options"),
    [
        (
            Outcome.REGRESSED,
            CHANGES[:2],
            "1 regressed after a change",
            ["--accel-update", "--accel-reason=driver 570.124.06 -> 580.159.04, cuDNN 9.10.2 -> 9.19.0"],
        ),
        (Outcome.REGRESSED, (), "1 regressed, and nothing recorded changed", []),
        (
            Outcome.IMPROVED,
            (),
            "1 improved",
            ["--accel-update", "--accel-reason=faster at revision 9c31d8905741"],
        ),
        (
            Outcome.STALE_BASELINE,
            (),
            "1 stale-baseline",
            [
                "--accel-update",
                "--accel-reason=its configuration changed since the baseline: batch_size 256 -> 512",
            ],
        ),
        (Outcome.NO_BASELINE, (), "1 no-baseline", ["--accel-record"]),
    ],
)
def test_a_verdict_has_a_headline_and_the_command_that_moves_its_baseline(status, changes, headline, options):
    result = make_result(status, changes=changes)
    text = render_proposal(make_session([result]))
    assert text.startswith(f"# gh200: {headline}\n")
    assert result.text in text.replace("\\", "")
    assert commands(text) == [["pytest", result.benchmark, "-m", "gh200", *options]]
    for change in changes:
        assert f"| {change.title} | `{change.old}` | `{change.new}` |" in text


@pytest.mark.parametrize("status", [Outcome.REGRESSED, Outcome.IMPROVED])
def test_a_drill_is_left_out(status):
    result = make_result(status, name="test_drill")
    drill = replace(result, runs=tuple(replace(run, metrics={"slowdown_felt": 0.1}) for run in result.runs))
    assert render_proposal(make_session([drill])) == ""


def recorded(runs: int, *, stored: int = 0, noise: float = 0.004, command: tuple[str, ...] = ()) -> str:
    """The text on a recording of so many runs beside those of so many earlier sessions."""
    source = random.Random(7)
    before = [make_runs(source, 0.04, runs=1, session=f"night-{each}", noise=noise) for each in range(stored)]
    result = make_result(
        Ending.RECORDED,
        runs=make_runs(source, 0.04, runs=runs, noise=noise),
        baseline=tuple(run for runs_of_night in before for run in runs_of_night),
    )
    return render_proposal(make_session([result], command=command))


@pytest.mark.parametrize(
    ("stored", "runs", "a_day"),
    [(0, 5, 2), (0, 2, 2), (0, 7, 1), (1, 5, 2), (1, 8, 1), (2, 2, 2)],
)
def test_a_provisional_recording_goes_on_for_as_many_runs_as_there_is_room_for(stored, runs, a_day):
    text = recorded(runs, stored=stored)
    assert text.startswith("# gh200: 1 recorded provisionally\n")
    assert "Baselines were recorded." in text
    ((*_, option),) = commands(text)
    assert option == f"--accel-record={a_day}"


def test_a_full_baseline_of_one_session_is_recorded_anew():
    ((*_, update, reason),) = commands(recorded(10))
    assert (update, reason) == ("--accel-update", "--accel-reason=provisional: 1 session of 3")


def test_a_recording_that_is_enough_asks_for_nothing():
    assert recorded(3, stored=2) == ""
    assert "1 session of 3" in recorded(5, stored=2, command=("--accel-update",))  # those two are gone


def test_a_recording_that_is_too_noisy_is_made_anew_and_of_two_runs_nobody_knows():
    text = recorded(5, stored=2, noise=0.05)
    assert text.startswith("# gh200: 1 recorded too noisily\n")
    assert "too noisy for its tolerance" in text
    assert "pytest-accel doctor" in text
    (again,) = commands(text)
    assert again[-2:] == ["--accel-update", "--accel-reason=too noisy for its tolerance"]
    assert recorded(2, noise=0.05).startswith("# gh200: 1 recorded provisionally\n")


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
    named = f"--remove={FILE}::test_cnn[resnet50-bf16-256]"
    assert remove == [
        *("pytest-accel", "baseline", "edit", "gh200", named),
        *("--baselines=/srv/b", "--reason=it is gone"),
    ]


def test_suites_of_the_wheel_are_named_as_the_wheel_has_them():
    session = make_session(
        [make_result(Outcome.IMPROVED)], command=("--pyargs", "pytest_accel.suites", "-m", "gh200")
    )
    (update,) = commands(render_proposal(session))
    assert update[1:3] == ["--pyargs", "pytest_accel.suites.test_cnn::test_cnn[resnet50-bf16-256]"]


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


def test_an_issue_has_room_for_it_and_what_is_left_out_is_said():
    results = [replace(each, status=Outcome.IMPROVED) for each in many(600) if each.runs and each.baseline]
    some = render_proposal(make_session(results[:100]))
    named = [word for each in commands(some) for word in each if "::" in word]
    assert sorted(named) == sorted(each.benchmark for each in results[:100])
    cut = render_proposal(make_session(results))
    assert 50_000 < len(cut) <= 60_000  # GitHub takes 65,536 in an issue, and nothing of a longer one
    assert cut.endswith("there is no room for it.**\n")
    assert cut.count("```") % 2 == 0


def test_names_from_outside_are_shown_and_never_obeyed():
    text = render_proposal(make_session(hostile()))
    assert "\x1b" not in text
    prose = re.sub(r"(`+).*?\1", "", text, flags=re.DOTALL)
    assert "<script>" not in prose
    assert "<img" not in prose


def test_the_command_prints_it(tmp_path, capsys):
    path = tmp_path / "results.json"
    for session in (make_session([make_result(Outcome.OK)]), make_session([make_result(Outcome.IMPROVED)])):
        write_results(path, session)
        assert main(["baseline", "accept", "--markdown", str(path)]) == 0
        assert capsys.readouterr().out == render_proposal(session)
    assert main(["baseline", "accept", "--markdown", str(tmp_path / "absent.json")]) == 2
    assert "--accel-json" in capsys.readouterr().err
