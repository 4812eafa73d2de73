"""Reports of an upgrade: the gravest first, nothing from outside obeyed, JSON with everything."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_accel.report.upgrade import UpgradeContext, as_json, explanation, markdown, screen
from pytest_accel.stats.environment import diff
from pytest_accel.stats.paired import Effect, PairBlock, PairedComparison, PairedRow, judge_pairs
from pytest_accel.stats.run import Run
from tests.support.results import NOW, THEN

CONTEXT = UpgradeContext(
    old="apptainer exec --nv old.sif",
    new="apptainer exec --nv new.sif",
    folder="kept",
    blocks=5,
    processes=8,
    duration_s=90.0,
    resume="pytest-accel upgrade OLD NEW --keep kept -- bench",
    status=1,
)
EFFECTS = {
    "test_same": (Effect.OK, 1.0),
    "test_slow": (Effect.REGRESSED, 1.2),
    "test_fast": (Effect.IMPROVED, 0.8),
    "test_slower": (Effect.REGRESSED, 1.4),
}


def run(step_s: float) -> Run:
    return Run(session="s", rounds_s=(step_s,) * 6, steps_per_round=10)


def row(name: str, effect: Effect, slower: float = 1.0, **more: object) -> PairedRow:
    old, new = (run(0.04), run(0.04)), (run(0.04 * slower), run(0.04 * slower))
    return PairedRow(
        benchmark=f"bench_suites/test_cnn.py::{name}",
        effect=effect,
        platform="gh200",
        unit="images",
        work_per_step=128.0,
        old=old * 2,
        new=new * 2,
        verdict=judge_pairs([PairBlock(old=old, new=new)] * 2),
        **more,
    )


def comparison(*more: PairedRow, **fields: object) -> PairedComparison:
    rows = [row(name, *each) for name, each in EFFECTS.items()]
    return PairedComparison(rows=(*rows, *more), changes=diff(THEN, NOW), **fields)


LOST = PairedRow(benchmark="t.py::test_lost", effect=Effect.LOST, why="the new one does not: failed: boom")


def test_screen_has_the_gravest_first_and_a_line_for_each_verdict():
    lines = screen(comparison(LOST, notes=("measured on hosts of several names",)), CONTEXT)
    names = [line.split()[0] for line in lines[1:6]]
    assert names == ["test_slower", "test_slow", "test_lost", "test_fast", "test_same"]
    text = "\n".join(lines)
    assert "REGRESSED  test_slow: 16.7 % slower (at least " in text
    assert "LOST  test_lost: the new one does not: failed: boom" in text
    assert "differs: driver 570.124.06 -> 580.159.04, cuDNN 9.10.2 -> 9.19.0" in text
    assert "note: measured on hosts of several names" in text
    assert (
        "REJECT: the new environment is worse (2 REGRESSED, 1 LOST, 1 improved, 1 ok; tolerance 5.0 %)."
        in text
    )
    assert "kept/upgrade.md" in text


def test_failure_and_another_loss_are_shown_beside_ok():
    found = PairedComparison(rows=(row("test_a", Effect.OK, failure="off", numerics="loss 6.7 -> 6.8"),))
    text = "\n".join(screen(found, CONTEXT))
    assert "FAILED  test_a: off" in text
    assert "note:  test_a: loss 6.7 -> 6.8" in text
    assert "REJECT" in text
    assert "6.7 -> 6.8" in markdown(found, CONTEXT)


def test_many_rows_that_are_ok_give_way_to_those_that_are_not():
    many = [row(f"test_{number:02}", Effect.OK) for number in range(60)]
    found = PairedComparison(rows=(*many, row("test_slow", Effect.REGRESSED, 1.2)))
    lines = screen(found, CONTEXT)
    assert lines[1].startswith("test_slow")
    assert "and 21 more that are ok (upgrade.md)" in lines
    assert markdown(found, CONTEXT).count("| ok |") == 60


def test_nothing_judged_is_not_green():
    text = screen(PairedComparison(rows=()), CONTEXT)
    assert "REPEAT: nothing was judged, and that is not green (no benchmark)." in text


@pytest.mark.parametrize(
    ("noise", "remedy"),
    [
        (0.005, "between half the tolerance and the whole; --blocks 10"),
        (0.03, "in a new folder would hold"),
        (0.2, "quieten the machine"),
    ],
)
def test_open_question_says_what_would_decide_it(noise, remedy):
    open_row = row("test_a", Effect.INCONCLUSIVE, 1.04)
    verdict = replace(open_row.verdict, noise=noise, wants_another_run=False)
    from pytest_accel.stats.verdict import Outcome

    verdict = replace(verdict, outcome=Outcome.INCONCLUSIVE)
    assert remedy in explanation(replace(open_row, verdict=verdict), 5)


def test_json_has_everything_unrounded():
    content = json.loads(as_json(comparison(LOST), CONTEXT))
    assert (content["kind"], content["decision"], content["exit_status"]) == (
        "pytest-accel upgrade",
        "reject",
        1,
    )
    rows = {each["benchmark"].partition("::")[2]: each for each in content["benchmarks"]}
    slow = rows["test_slow"]
    assert slow["new_throughput"] == pytest.approx(128 / 0.048)
    assert slow["verdict"]["slowdown"]["point"] == pytest.approx(1 - 1 / 1.2)
    assert slow["pair_losses"] == pytest.approx([1 - 1 / 1.2] * 4)
    assert (slow["blocks"], rows["test_lost"]["blocks"]) == (2, 0)
    assert rows["test_lost"]["fails"]


@pytest.mark.parametrize(
    "name", ["test_x[| a | b |]", "test_x[::error::boom]", "test_x[\x1b[31m]", "test_x[@somebody]"]
)
def test_names_are_shown_and_never_obeyed(name):
    found = PairedComparison(rows=(row(name, Effect.REGRESSED, 1.2),))
    assert all(line.isprintable() for line in screen(found, CONTEXT))
    assert not any(line.lstrip().startswith("::") for line in screen(found, CONTEXT))
    page = markdown(found, CONTEXT)
    (table_row,) = [line for line in page.splitlines() if line.startswith("| `")]
    assert table_row.replace("\\|", "").count("|") == 8
