"""An upgrade on one screen, on one page and as JSON: the gravest first, every command exact, nothing from outside obeyed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_accel.report.upgrade import Told, as_json, markdown, screen
from pytest_accel.stats.results import Ending
from pytest_accel.stats.upgrade import Effect, assess
from pytest_accel.stats.verdict import Outcome
from tests.support.results import THEN, make_result, make_session

STATUSES = {
    "test_slow": Outcome.REGRESSED,
    "test_fast": Outcome.IMPROVED,
    "test_noisy": Outcome.INCONCLUSIVE,
    "test_same": Outcome.OK,
    "test_broken": Ending.FAILED,
}


def session(statuses, **more):
    return make_session([make_result(status, name=name) for name, status in statuses.items()], **more)


def recorded(names):
    """The old environment, in which all of them were recorded."""
    results = [replace(make_result(Ending.RECORDED, name=name), environment=THEN.key) for name in names]
    return make_session(results)


def told(*sessions) -> Told:
    return Told(
        old="apptainer exec --nv old.sif",
        new="apptainer exec --nv new.sif",
        new_pytest="apptainer exec --nv new.sif python3 -m pytest",
        folder="/scratch/kept",
        sessions=dict(zip(("old", "new", "old-again"), sessions, strict=False)),
    )


def upgrade(statuses, again=None):
    old, new = recorded(statuses), session(statuses)
    second = session(again) if again else None
    return assess(old, new, second), told(old, new, *([second] if second else []))


def test_the_screen_has_the_gravest_first_and_a_line_for_all_that_is_not_ok():
    lines = screen(*upgrade(STATUSES))
    assert lines[0].split() == ["benchmark", "platform", "unit", "old", "new", "change", "verdict"]
    assert [line.split()[0] for line in lines[1:6]] == [
        *("test_slow", "test_broken", "test_noisy", "test_fast", "test_same")
    ]
    text = "\n".join(lines)
    assert "REGRESSED  test_slow: " in text
    assert (
        "LOST  test_broken: the old environment measures it, the new one does not: failed: RuntimeError"
        in text
    )
    assert "INCONCLUSIVE  test_noisy: " in text
    assert "improved  test_fast: " in text
    assert "ok  test_same" not in text
    assert "differs: driver 570.124.06 -> 580.159.04, cuDNN 9.10.2 -> 9.19.0" in text
    assert (
        "REJECT: the new environment is worse (1 REGRESSED, 1 LOST, 1 INCONCLUSIVE, 1 improved, 1 ok; tolerance 5.0 %)."
        in text
    )


def test_advice_about_baselines_is_that_of_the_upgrade_and_not_of_a_session():
    """The baseline here is a means: nobody is to refresh it, or to record more of it."""
    text = "\n".join(screen(*upgrade({"test_fast": Outcome.IMPROVED, "test_noisy": Outcome.INCONCLUSIVE})))
    assert "refresh the baseline" not in text
    assert "record more baseline runs" not in text
    assert "look again" in text


def steps(statuses, again=None) -> dict[str, str]:
    found, words = upgrade(statuses, again)
    return {each["title"]: each["text"] for each in json.loads(as_json(found, words))["next"]}


def test_what_to_do_next_is_the_exact_command():
    rejected = steps({"test_slow": Outcome.REGRESSED, "test_same": Outcome.OK})
    assert rejected["reject"].startswith("stay with the old one")
    assert rejected["accept all the same"] == (
        "apptainer exec --nv new.sif python3 -m pytest bench_suites/test_cnn.py::test_slow -m gh200 --accel-update "
        "--accel-reason 'driver 570.124.06 -> 580.159.04, cuDNN 9.10.2 -> 9.19.0, torch 2.10.0 -> 2.11.0'"
    )
    assert rejected["look closer"] == "pytest-accel compare /scratch/kept/old.json /scratch/kept/new.json"
    accepted = steps({"test_fast": Outcome.IMPROVED, "test_same": Outcome.OK})
    assert "test_fast" in accepted["keep the gain"]
    assert "test_same" not in accepted["keep the gain"]
    assert "keep the gain" not in steps({"test_same": Outcome.OK})


def test_the_command_measures_as_the_session_did_and_moves_the_sites_own_baselines():
    old = recorded(["test_slow"])
    command = (
        "--accel-baselines=/kept/baselines",
        "--accel-json=/kept/new.json",
        "--pyargs",
        "pytest_accel.suites",
    )
    command += ("--accel-budget=1s", "--accel-data", "/data", "-m", "gh200")
    new = replace(make_session([make_result(Outcome.REGRESSED, name="test_slow")]), command=command)
    text = "\n".join(screen(assess(old, new), told(old, new)))
    (line,) = (line for line in text.splitlines() if "accept all the same" in line)
    assert "--pyargs pytest_accel.suites.test_cnn::test_slow -m gh200" in line
    assert "--accel-budget=1s --accel-data=/data" in line
    assert "/kept" not in line


def test_a_drill_moves_no_baseline():
    result = make_result(Outcome.REGRESSED, name="test_slow")
    runs = tuple(replace(run, metrics={**run.metrics, "slowdown_felt": 0.1}) for run in result.runs)
    old, new = recorded(["test_slow"]), make_session([replace(result, runs=runs)])
    text = "\n".join(screen(assess(old, new), told(old, new)))
    assert "note: new: 3 runs delayed on purpose by --accel-slowdown" in text
    assert "--accel-update" not in text


def test_a_drift_is_explained_by_both_and_moves_no_baseline():
    both = {"test_slow": Outcome.REGRESSED}
    text = "\n".join(screen(*upgrade(both, again=both)))
    assert (
        "DRIFTED  test_slow: the old environment, measured again, has another speed than before (old again regressed"
        in text
    )
    assert "the machine changed meanwhile" in text
    assert set(steps(both, again=both)) >= {"find the cause", "repeat"}
    assert "accel-update" not in text


def test_an_unsure_bracket_is_noted():
    text = "\n".join(screen(*upgrade({"test_a": Outcome.OK}, again={"test_a": Outcome.INCONCLUSIVE})))
    assert "whether the machine drifted is not known for 1 benchmark" in text


def test_news_of_numerics_stand_also_beside_ok():
    result = replace(
        make_result(Outcome.OK, name="test_a"), numerics="loss after 5 seeded steps 6.79 -> 6.81"
    )
    old, new = recorded(["test_a"]), make_session([result])
    found, words = assess(old, new), told(old, new)
    assert "NUMERICS  test_a: loss after 5 seeded steps 6.79 -> 6.81" in screen(found, words)
    assert "6.79 -> 6.81" in markdown(found, words)


def test_many_that_are_ok_give_way_to_those_that_are_not():
    statuses = {f"test_{number:02}": Outcome.OK for number in range(60)} | {"test_slow": Outcome.REGRESSED}
    lines = screen(*upgrade(statuses))
    assert lines[1].startswith("test_slow")
    assert "and 21 more that are ok (upgrade.md)" in lines
    assert markdown(*upgrade(statuses)).count("| ok |") == 60


def test_nothing_judged_is_said_in_so_many_words():
    old, new = make_session([]), make_session([])
    assert "REPEAT: nothing was judged, and that is not green (no benchmark)." in screen(
        assess(old, new), told(old, new)
    )


def test_json_has_everything_unrounded():
    content = json.loads(as_json(*upgrade(STATUSES, again=dict.fromkeys(STATUSES, Outcome.OK))))
    assert (content["kind"], content["schema_version"]) == ("pytest-accel upgrade", 1)
    assert (content["decision"], content["exit_status"], content["bracketed"]) == ("reject", 1, True)
    rows = {row["benchmark"].partition("::")[2]: row for row in content["benchmarks"]}
    assert {name: row["effect"] for name, row in rows.items()} == {
        "test_slow": Effect.REGRESSED.value,
        "test_fast": Effect.IMPROVED.value,
        "test_noisy": Effect.INCONCLUSIVE.value,
        "test_same": Effect.OK.value,
        "test_broken": Effect.LOST.value,
    }
    made = make_result(Outcome.REGRESSED, name="test_slow")
    assert rows["test_slow"]["new_throughput"] == made.throughput
    assert rows["test_slow"]["verdicts"][0]["slowdown"]["point"] == made.verdict.slowdown.point
    assert rows["test_slow"]["old_again"]["outcome"] == "ok"
    assert list(content["sessions"]) == ["new", "old", "old-again"]


@pytest.mark.parametrize(
    "name", ["test_x[| a | b |]", "test_x[::error::boom]", "test_x[\x1b[31m]", "test_x[@somebody]"]
)
def test_names_are_shown_and_never_obeyed(name):
    found, words = upgrade({name: Outcome.REGRESSED})
    assert all(line.isprintable() for line in screen(found, words))
    assert not any(line.lstrip().startswith("::") for line in screen(found, words))
    page = markdown(found, words)
    (row,) = [line for line in page.splitlines() if line.startswith("| `")]
    assert row.replace("\\|", "").count("|") == 8
