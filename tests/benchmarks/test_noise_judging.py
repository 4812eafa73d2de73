"""Resampling a stream, and the tables that are made of it."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.noise import promises, resampling, tables
from benchmarks.noise.__main__ import main
from benchmarks.noise.streams import Plan, append, begin
from pytest_accel.stats.gate import judge
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Policy
from tests.support.noise import HEAD, RUN


def runs_at(*steps_s: float) -> list[Run]:
    return [
        Run(session="a", rounds_s=(0.99 * step_s, step_s, 1.01 * step_s), steps_per_round=10)
        for step_s in steps_s
    ]


@given(quiet=st.integers(7, 40), injected=st.none() | st.integers(2, 8), seed=st.integers(0, 99))
def test_scattered_draws_never_judge_a_run_against_itself(quiet, injected, seed):
    drawn = list(resampling.scattered(quiet, injected, draws=20, seed=seed))
    assert drawn == list(resampling.scattered(quiet, injected, draws=20, seed=seed))
    assert len(drawn) == 20
    for baseline, candidate in drawn:
        assert len(set(baseline)) == 5
        assert len(set(candidate)) == min(5, quiet - 5 if injected is None else injected)
        assert max(baseline) < quiet
        assert max(candidate) < (quiet if injected is None else injected)
        assert injected is not None or not {*baseline} & {*candidate}


def test_too_few_runs_give_no_draws():
    assert not list(resampling.scattered(6, draws=5, seed=1))
    assert not list(resampling.scattered(4, 5, draws=5, seed=1))
    assert not list(resampling.scattered(30, 1, draws=5, seed=1))
    assert not list(resampling.consecutive(runs_at(*[1.0] * 9)))
    with pytest.raises(ValueError, match="6 runs without a slowdown are too few"):
        resampling.figures_of(runs_at(*[1.0] * 6), {})


def test_consecutive_draws_are_neighbours_and_the_candidate_comes_later():
    drawn = list(resampling.consecutive(runs_at(*[1.0] * 30)))
    assert len(drawn) == 231 == len({(tuple(a), tuple(b)) for a, b in drawn})
    for baseline, candidate in drawn:
        assert max(baseline) - min(baseline) == max(candidate) - min(candidate) == 4
        assert max(baseline) < min(candidate)
        assert max(candidate) < 30


def test_neighbours_are_of_one_occasion():
    """What one night records is judged by the next, and no baseline is of both."""
    runs = [
        dataclasses.replace(run, session="ab"[place >= 6]) for place, run in enumerate(runs_at(*[1.0] * 12))
    ]
    drawn = [(baseline.start, candidate.start) for baseline, candidate in resampling.consecutive(runs)]
    assert drawn == [(0, 6), (0, 7), (1, 6), (1, 7)]


rounds = st.lists(st.floats(min_value=0.9, max_value=1.1), min_size=1, max_size=9).map(tuple)


@given(baseline=st.lists(rounds, min_size=1, max_size=5), candidate=st.lists(rounds, min_size=1, max_size=5))
def test_remembering_a_summary_changes_no_verdict(baseline, candidate):
    old, new = (
        [Run(session="a", rounds_s=each, steps_per_round=1) for each in group]
        for group in (baseline, candidate)
    )
    assert judge([*map(resampling.kept, old)], [*map(resampling.kept, new)], Policy()) == judge(
        old, new, Policy()
    )


def test_slowed_runs_lose_that_fraction_of_their_throughput():
    (run,), (slow,) = runs_at(0.02), resampling.slowed(runs_at(0.02), 0.1)
    assert slow.throughput(1) == pytest.approx(0.9 * run.throughput(1))
    assert resampling.lost(runs_at(0.02, 0.02), resampling.slowed(runs_at(0.02), 0.1)) == pytest.approx(0.1)


def test_the_rules_of_pytest_benchmark_compare_the_first_run_with_the_latest():
    quiet = runs_at(1.0, 1.0, 1.0, 1.0, 1.2)
    draws = [([0, 1, 2, 3, 4], [0, 1])]
    against_the_slow_one = resampling.tally(quiet, runs_at(1.2, 1.2), draws)
    assert (against_the_slow_one.mean, against_the_slow_one.minimum) == (0, 0)
    draws = [([4, 1, 2, 3, 0], [0, 1])]
    against_a_fast_one = resampling.tally(quiet, runs_at(1.2, 0.5), draws)
    assert (against_a_fast_one.mean, against_a_fast_one.minimum) == (1, 1)
    stalled = [Run(session="a", rounds_s=(1.0, 1.0, 1.0, 1.3), steps_per_round=1)] * 2
    assert resampling.tally(quiet, stalled, draws).mean == 1  # which a minimum does not see
    assert resampling.tally(quiet, stalled, draws).minimum == 0


def test_a_gate_that_asks_for_more_runs_than_there_are_leaves_it_open():
    found = resampling.tally(runs_at(*[1.0] * 5), runs_at(1.04, 1.04), [(range(5), range(2))])
    assert (found.undecided, found.gate, found.processes) == (1, 0, 2.0)


def test_steady_runs_raise_no_alarm_and_every_large_slowdown_is_caught():
    quiet = runs_at(*(1.0 + 0.001 * (number % 3) for number in range(12)))
    injected = {0.1: resampling.slowed(quiet[:6], 0.1)}
    figures = resampling.figures_of(quiet, injected, draws=50, slow_draws=50)
    assert [cell.slowdown for cell in figures.cells] == [0.0, 0.025, 0.05, 0.075, 0.1]
    assert (figures.quiet.scaled.gate, figures.quiet.scaled.draws, figures.quiet.injected) == (0, 50, None)
    assert figures.at(0.1).scaled.gate == figures.at(0.1).injected.gate == 50
    assert figures.at(0.1).injected_runs == 6
    assert figures.at(0.1).lost == pytest.approx(0.1, abs=0.001)
    assert figures.at(0.05).injected is None
    found = promises.promises_of(figures)
    assert [each.text.partition(":")[0] for each in found.made] == [
        "false alarms",
        "false alarms of neighbours in time",
        "scaled slowdowns of 10 %",
        "injected slowdowns of 10 %",
    ]
    assert (found.broken, found.not_made) == ([], ())


def figures_with(*, between=0.01, resolution=0.05, neighbours=0.0, anywhere=0, in_time=0, mean=0, caught=100):
    """Of a stream, with so many of 100 draws."""

    def counted(gate):
        return resampling.Tally(draws=100, gate=gate, undecided=0, mean=mean, minimum=0, processes=1.0)

    return resampling.Figures(
        noise=resampling.Noise(runs=30, between=between, resolution=resolution),
        drift=0.0,
        neighbours=neighbours,
        cells=(
            resampling.Cell(slowdown=0.0, scaled=counted(anywhere), consecutive=counted(in_time)),
            resampling.Cell(slowdown=0.1, scaled=counted(caught), consecutive=None, injected=counted(caught)),
        ),
    )


@pytest.mark.parametrize(
    ("figures", "broken"),
    [
        (figures_with(anywhere=2, in_time=5, caught=90), []),
        (figures_with(anywhere=3), ["false alarms: at most 2 %; 3.0 % found"]),
        (figures_with(in_time=6), ["false alarms of neighbours in time: at most 5 %; 6.0 % found"]),
        (
            figures_with(caught=89),
            [
                f"{kind} slowdowns of 10 %: at least 90 % caught; 89.0 % found"
                for kind in ("scaled", "injected")
            ],
        ),
        (figures_with(resolution=0.08, caught=0), []),
        (figures_with(between=0.1, resolution=0.3, anywhere=8, mean=40, in_time=13, caught=0), []),
        (
            figures_with(between=0.1, resolution=0.3, anywhere=9, mean=40),
            ["false alarms: at most a fifth of those of `mean:5%`, which is 8.0 %; 9.0 % found"],
        ),
        (
            figures_with(between=0.1, resolution=0.3, in_time=14, mean=40),
            [
                "false alarms of neighbours in time: at most a third of those of `mean:5%`, which is 13.3 %; 14.0 % found"
            ],
        ),
        (figures_with(neighbours=0.3, in_time=99), []),
    ],
)
def test_a_promise_that_does_not_hold_is_named_and_none_is_made_that_the_noise_does_not_allow_for(
    figures, broken
):
    assert promises.promises_of(figures).broken == broken


def test_what_is_not_promised_says_why_and_what_was_found():
    noisy = promises.promises_of(figures_with(between=0.1, resolution=0.3))
    assert noisy.not_made == ("that slowdowns of 10 % are caught (it resolves 30.0 %)",)
    drifting = promises.promises_of(figures_with(neighbours=0.3, in_time=30, mean=60))
    assert drifting.not_made == (
        (
            "false alarms of neighbours in time (neighbours correlate by 0.30, and the gate allows for 0.2; 30.0 % found, "
            "and 60.0 % with `mean:5%`)"
        ),
    )


def test_drift_and_neighbours():
    rising = runs_at(*(math.exp(0.01 * number) for number in range(10)))
    assert resampling.drift(rising) == pytest.approx(0.05)
    assert resampling.neighbours(rising) > 0.5
    assert resampling.neighbours(runs_at(1.0, 1.1, 1.0, 1.1, 1.0, 1.1)) < -0.5
    assert resampling.neighbours(runs_at(1.0, 1.0)) == 0.0


# --- tables -----------------------------------------------------------------------------------------


@pytest.fixture
def stream(tmp_path, monkeypatch) -> Path:
    """In a file, of runs that hardly differ; few draws say it too."""
    quick = partial(resampling.figures_of, draws=40, slow_draws=40)
    monkeypatch.setattr("benchmarks.noise.__main__.figures_of", quick)
    path = tmp_path / "cpu-sum.jsonl"
    plan = Plan(runs=12, slowdowns=(0.1,), slow_runs=5)
    begin(path, dataclasses.replace(HEAD, plan=plan))
    for place, slowdown in enumerate(plan.order()):
        step_s = (1.0 + 0.001 * (place % 3)) / (1 - slowdown)
        append(
            path,
            dataclasses.replace(
                RUN, place=place, slowdown=slowdown, rounds_s=(0.99 * step_s, step_s, 1.01 * step_s)
            ),
        )
    return path


def test_judge_prints_and_writes_the_same_block(stream, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n\n{tables.BEGIN}\nold\n{tables.END}\n\nafter\n")
    assert main(["judge", str(stream), "--write", str(page)]) == 0
    printed = capsys.readouterr().out
    before, begun, rest = page.read_text().partition(tables.BEGIN)
    assert (before, rest.partition(tables.END)[2]) == ("# Before\n\n", "\n\nafter\n")
    assert begun + rest.partition(tables.END)[0] + tables.END in printed
    assert "| **the gate** | 0.0 | 0.0 |" in printed
    assert "| really injected: runs | - | - | - | - | 5 |" in printed
    assert main(["judge", str(stream), "--write", str(page)]) == 0  # again, and nothing changes
    assert page.read_text().count("### cpu-sum") == 1


def test_the_block_says_what_a_stream_has_and_what_it_was_held_to(stream, capsys):
    assert main(["judge", str(stream)]) == 0
    printed = capsys.readouterr().out
    assert "12 runs without a slowdown and in turns with them 5 with one of 10 %." in printed
    assert "- false alarms: at most 2 %; 0.0 % found\n" in printed
    lines = stream.read_text().splitlines(keepends=True)
    stream.write_text("".join(line for line in lines if '"slowdown":0.1' not in line))
    assert main(["judge", str(stream)]) == 0
    assert "12 runs without a slowdown and none with one." in capsys.readouterr().out


def test_a_stream_that_cannot_be_judged_is_named(stream, capsys):
    stream.write_text("".join(stream.read_text().splitlines(keepends=True)[:4]))
    assert main(["judge", str(stream)]) == 1
    assert "cpu-sum: 2 runs without a slowdown are too few" in capsys.readouterr().err


def test_a_trial_is_judged_and_never_written(stream, tmp_path, capsys):
    stream.write_text(stream.read_text().replace('"trial":false', '"trial":true'))
    page = tmp_path / "page.md"
    page.write_text(f"{tables.BEGIN}\n{tables.END}\n")
    assert main(["judge", str(stream), "--write", str(page)]) == 1
    assert "a trial is no evidence" in capsys.readouterr().err
    assert page.read_text() == f"{tables.BEGIN}\n{tables.END}\n"
    assert main(["judge", str(stream)]) == 0
    assert "A trial: no evidence" in capsys.readouterr().out


def test_a_page_without_the_block_is_left_alone(stream, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("# Mine\n")
    assert main(["judge", str(stream), "--write", str(page)]) == 1
    assert "has no block to write" in capsys.readouterr().err
    assert page.read_text() == "# Mine\n"
