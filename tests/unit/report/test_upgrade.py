"""Reports of an upgrade: the gravest first, nothing from outside obeyed, JSON with everything."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_accel.report.upgrade import UpgradeContext, as_json, explanation, markdown, screen
from pytest_accel.stats.environment import diff
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.paired import Effect, PairedBenchmark, PairedComparison, judge_pairs
from pytest_accel.stats.results import ReportLine
from pytest_accel.stats.run import Run
from tests.support.results import NOW, THEN, make_result

CONTEXT = UpgradeContext(
    old="apptainer exec --nv old.sif",
    new="apptainer exec --nv new.sif",
    arguments=("bench",),
    folder="kept",
    max_blocks=5,
    processes=8,
    duration_s=90.0,
    exit_status=1,
)


def row(name: str, effect: Effect, slower: float = 1.0, **more: object) -> PairedBenchmark:
    made = replace(make_result(Outcome.NO_BASELINE, name=name), work_per_step=128.0, unit="images")
    old, new = (
        [Run(session="s", rounds_s=(step_s,) * 6, steps_per_round=10)] * 4 for step_s in (0.04, 0.04 * slower)
    )
    return PairedBenchmark(
        benchmark=f"bench_suites/test_cnn.py::{name}",
        effect=effect,
        why="",
        is_open=False,
        old=[replace(made, runs=(run,)) for run in old],
        new=[replace(made, runs=(run,), **more) for run in new],
        verdict=judge_pairs(old, new),
    )


def comparison(*more: PairedBenchmark, **fields: object) -> PairedComparison:
    rows = [
        row("test_same", Effect.OK),
        row("test_slow", Effect.REGRESSED, 1.2),
        row("test_fast", Effect.IMPROVED, 0.8),
        row("test_slower", Effect.REGRESSED, 1.4),
    ]
    return PairedComparison(rows=(*rows, *more), changes=diff(THEN, NOW), **fields)


LOST = PairedBenchmark(
    benchmark="t.py::test_lost", effect=Effect.LOST, why="the new one does not: failed: boom"
)


def test_screen_and_page_have_the_gravest_first_and_a_line_for_each_verdict():
    found = comparison(LOST, notes=("measured on hosts of several names",))
    lines = screen(found, CONTEXT)
    names = [line.split()[0] for line in lines[1:6]]
    assert names == ["test_slower", "test_slow", "test_lost", "test_fast", "test_same"]
    text = "\n".join(lines)
    for said in (
        "REGRESSED  test_slow: 16.7 % slower (at least ",
        "LOST  test_lost: the new one does not: failed: boom",
        "differs: driver 570.124.06 -> 580.159.04, cuDNN 9.10.2 -> 9.19.0",
        "note: measured on hosts of several names",
        "REJECT: the new environment is worse (2 REGRESSED, 1 LOST, 1 improved, 1 ok; tolerance 5.0 %).",
        "send upgrade.md to those who built the new one",
    ):
        assert said in text
    page = markdown(found, CONTEXT)
    assert page.startswith("# Upgrade: REJECT")
    assert page.count("| REGRESSED |") == 2
    assert "| LOST |" in page


def test_failure_and_another_loss_are_shown_beside_ok():
    found = PairedComparison(rows=(row("test_a", Effect.OK, failed=True, lines=(ReportLine(text="off"),)),))
    text = "\n".join(screen(found, CONTEXT))
    assert "FAILED  test_a: off" in text
    assert "REJECT" in text


def test_nothing_judged_is_not_green():
    text = screen(PairedComparison(rows=()), CONTEXT)
    assert "REPEAT: nothing was judged, and that is not green (no benchmark)." in text


@pytest.mark.parametrize(
    ("noise", "remedy"),
    [
        (0.005, "between half the tolerance and the whole; --blocks 10"),
        (0.03, "would hold the tolerance"),
        (0.2, "quieten the machine"),
    ],
)
def test_open_question_says_what_would_decide_it(noise, remedy):
    found = row("test_a", Effect.INCONCLUSIVE, 1.04)
    found.verdict = replace(found.verdict, noise=noise, wants_another_run=False, outcome=Outcome.INCONCLUSIVE)
    assert remedy in explanation(found, 5)


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
    assert (slow["verdict"]["runs"], rows["test_lost"]["verdict"]) == (4, None)
    assert rows["test_lost"]["fails"]


@pytest.mark.parametrize(
    "name", ["test_x[| a | b |]", "test_x[::error::boom]", "test_x[\x1b[31m]", "test_x[@somebody]"]
)
def test_names_are_shown_and_never_obeyed(name):
    found = PairedComparison(rows=(row(name, Effect.REGRESSED, 1.2),))
    assert all(line.isprintable() for line in screen(found, CONTEXT))
    assert not any(line.lstrip().startswith("::") for line in screen(found, CONTEXT))
    page = markdown(found, CONTEXT)
    (table_row,) = [line for line in page.splitlines() if line.startswith("| test")]
    assert table_row.replace("\\|", "").count("|") == 8
