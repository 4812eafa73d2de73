"""The gate on real noise: resampling and gathering as such, and what the committed streams say of the gate."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import nullcontext
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.noise import promises, resampling, tables
from benchmarks.noise.__main__ import judge_stream, main
from benchmarks.noise.gathering import Asked, Progress, _until_idle, gather
from benchmarks.noise.processes import Child, GatherError, cpu_s
from benchmarks.noise.streams import Head, Plan, Stream, StreamError, StreamRun, append, begin, parse, read
from pytest_accel.core.environment import Environment
from pytest_accel.core.gate import judge
from pytest_accel.core.results import Ending, Result, SessionResults
from pytest_accel.core.runs import Run
from pytest_accel.core.verdict import Outcome, Policy
from tests.support.fake_nvml import FakeGpu

pytest_plugins = ("tests.support.fake_nvml",)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/noise.md"
COMMITTED = sorted((ROOT / "tests/streams").glob("*.jsonl"))
MOST_KB = 100  # of a committed stream

# --- the committed streams --------------------------------------------------------------------------


@cache
def committed(path: Path) -> tuple[Stream, resampling.Figures]:
    stream = read(path)
    return stream, judge_stream(stream)


def test_there_are_committed_streams():
    assert COMMITTED, (
        "tests/streams is empty: nothing holds the gate to real noise. Gather the streams with the commands in "
        "benchmarks/noise/README.md, on a quiet machine, then write docs/noise.md with "
        "`python -m benchmarks.noise judge --write docs/noise.md`"
    )


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_committed_stream_is_evidence(path):
    stream, _ = committed(path)
    assert stream.head.name == path.stem
    assert not stream.head.trial, f"{path}: it was gathered with --trial"
    assert not stream.remaining, f"{path}: it was not finished; go on with --resume"
    assert len(stream.of(0.0)) >= 30
    assert path.stat().st_size <= 1000 * MOST_KB
    assert not [
        word for word in stream.head.command if "/" in word and not word.startswith("bench_suites/")
    ], f"{path}: paths of this machine"


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_the_gate_holds_on_real_noise(path):
    _, figures = committed(path)
    found = promises.promises_of(figures)
    assert found.made
    assert found.broken == []


def test_the_page_shows_what_the_streams_say():
    assert COMMITTED, "tests/streams is empty, see above"
    page = PAGE.read_text(encoding="utf-8")
    shown = tables.BEGIN + page.partition(tables.BEGIN)[2].partition(tables.END)[0] + tables.END
    assert shown == tables.block([committed(path) for path in COMMITTED]), (
        "docs/noise.md is not what the streams and the gate say: `python -m benchmarks.noise judge --write docs/noise.md`"
    )


# --- streams on disk --------------------------------------------------------------------------------

HEAD = Head(
    name="cpu-sum",
    benchmark="bench_suites/test_sums.py::test_sum",
    platform="cpu",
    device="cpu-made-up",
    unit="calls",
    work_per_step=1.0,
    configuration={"batch_size": 4},
    identity={"cpu_model": "made up"},
    context={"torch": "2.10.0"},
    version="0.1.0",
    revision="",
    command=("bench_suites/test_sums.py", "--accel-budget=2s"),
    plan=Plan(runs=3, slowdowns=(0.1,), slow_runs=2),
)
RUN = StreamRun(place=0, at="2026-01-01T00:00:00+00:00", took_s=1.0, steps_per_round=1, rounds_s=(0.5, 0.25))
times_s = st.floats(min_value=1e-6, max_value=1e3)
texts = st.lists(st.text(), max_size=2).map(tuple)
stream_runs = st.builds(
    StreamRun,
    place=st.integers(0, 1000),
    at=st.just("2026-01-01T00:00:00+00:00"),
    took_s=times_s,
    slowdown=st.sampled_from([0.0, 0.025, 0.1]),
    steps_per_round=st.integers(0, 20),
    rounds_s=st.lists(times_s, max_size=5).map(tuple),
    steady=st.booleans(),
    invalid=st.text(),
    notes=texts,
    problems=texts,
    metrics=st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=2),
)


@settings(max_examples=50)
@given(runs=st.lists(stream_runs, max_size=4).map(tuple))
def test_what_is_written_is_read_again(tmp_path_factory, runs):
    path = tmp_path_factory.mktemp("stream") / "stream.jsonl"
    begin(path, HEAD)
    for run in runs:
        append(path, run)
    assert read(path) == Stream(head=HEAD, runs=runs)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda lines: [], "this is no stream of runs"),
        (lambda lines: [lines[1]], "this is no stream of runs"),
        (lambda lines: [*lines, '{"place":'], "line 3: this is no JSON object"),
        (
            lambda lines: [lines[0].replace('"schema_version":1', '"schema_version":9'), lines[1]],
            "schema_version 9",
        ),
        (
            lambda lines: [lines[0], lines[1].replace("0.25", "-0.25")],
            "place 0 has a round that is no positive time",
        ),
        (
            lambda lines: [lines[0], lines[1].replace("place", "plaice")],
            "unexpected keyword argument 'plaice'",
        ),
    ],
)
def test_what_is_no_stream_says_why(tmp_path, change, fault):
    path = tmp_path / "stream.jsonl"
    begin(path, HEAD)
    append(path, RUN)
    lines = path.read_text().splitlines()
    with pytest.raises(StreamError, match=fault):
        parse(change(lines), "stream.jsonl")


def test_a_line_is_written_in_one_piece_and_is_on_the_disk(tmp_path, monkeypatch):
    path, synced = tmp_path / "stream.jsonl", []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path.read_bytes().count(b"\n")))
    begin(path, HEAD)
    append(path, RUN)
    append(path, RUN)
    assert synced == [1, 2, 3]


@given(
    runs=st.integers(1, 40),
    slow_runs=st.integers(1, 10),
    slowdowns=st.sets(st.sampled_from([0.025, 0.05, 0.1])),
)
def test_every_kind_of_run_is_spread_over_the_whole_stream(runs, slow_runs, slowdowns):
    plan = Plan(runs=runs, slowdowns=tuple(sorted(slowdowns)), slow_runs=slow_runs)
    order = plan.order()
    assert Counter(order) == Counter(plan.wanted)
    for done in range(len(order) + 1):
        for slowdown, count in plan.wanted.items():
            here = order[:done].count(slowdown)
            assert abs(here - count * done / len(order)) <= 1 + len(slowdowns) / 2


def test_what_is_remaining_leaves_out_what_was_measured_and_not_what_was_disturbed():
    runs = (
        RUN,
        dataclasses.replace(RUN, place=1, slowdown=0.1),
        dataclasses.replace(RUN, place=2, rounds_s=()),
    )
    stream = Stream(head=HEAD, runs=runs)
    assert Counter(stream.remaining) == {0.0: 2, 0.1: 1}
    assert stream.injected == (0.1,)


# --- resampling -------------------------------------------------------------------------------------


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
    assert not list(resampling.consecutive(9))
    with pytest.raises(ValueError, match="6 runs without a slowdown are too few"):
        resampling.figures_of(runs_at(*[1.0] * 6), {})


def test_consecutive_draws_are_neighbours_and_the_candidate_comes_later():
    drawn = list(resampling.consecutive(30))
    assert len(drawn) == 231 == len({(tuple(a), tuple(b)) for a, b in drawn})
    for baseline, candidate in drawn:
        assert max(baseline) - min(baseline) == max(candidate) - min(candidate) == 4
        assert max(baseline) < min(candidate)
        assert max(candidate) < 30


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


# --- gathering, with made-up processes --------------------------------------------------------------

RESULT = Result(
    benchmark=HEAD.benchmark,
    suite="sums",
    platform="cpu",
    disk_name="cpu-made-up",
    status=Outcome.NO_BASELINE,
    unit="calls",
    work_per_step=1.0,
    configuration={"batch_size": 4},
    runs=(Run(session="a", rounds_s=(0.12345678, 0.2), steps_per_round=1, metrics={"sm_clock_mhz": 1980.0}),),
    environment="e",
    details=("noted",),
)


class MadeUp:
    """A process that has ended as soon as it was started."""

    has_ended = is_waiting = True

    def __init__(self, slowdown, result=RESULT, **facts):
        self.slowdown = slowdown
        self.stopped = 0
        self._session = SessionResults(
            session="a",
            at=RUN.at,
            duration_s=1.0,
            exit_status=0,
            version="0.1.0",
            environments={"e": Environment(identity=HEAD.identity, context=HEAD.context)},
            results=(result,),
            **facts,
        )

    def results(self):
        return self._session

    def stop(self):
        self.stopped += 1


def asked(path, **changes):
    return dataclasses.replace(
        Asked(name="cpu-sum", arguments=HEAD.command, plan=HEAD.plan, out=path), **changes
    )


def test_a_stream_is_gathered_in_the_order_of_the_plan(tmp_path):
    started = []

    def start(slowdown, folder):
        started.append((slowdown, folder))
        return MadeUp(slowdown, findings=({"level": "problem", "subject": "other work", "text": "50 %"},))

    out = tmp_path / "new" / "a.jsonl"
    stream = gather(asked(out), start, nullcontext, tmp_path)
    assert stream == read(out)
    assert [slowdown for slowdown, _ in started] == HEAD.plan.order() == [run.slowdown for run in stream.runs]
    assert len({folder for _, folder in started}) == 5
    assert stream.head == HEAD
    assert stream.runs[0].rounds_s == (0.12346, 0.2)  # five digits are enough
    assert stream.runs[0].metrics["sm_clock_mhz"] == 1980
    assert (stream.runs[0].notes, stream.runs[0].problems) == (("noted",), ("other work: 50 %",))
    assert [run.place for run in stream.runs] == [0, 1, 2, 3, 4]
    with pytest.raises(StreamError, match="is there already"):
        gather(asked(out), start, nullcontext, tmp_path)
    assert gather(asked(out), start, nullcontext, tmp_path, resume=True) == stream  # nothing is left to do
    assert len(started) == 5


def test_what_was_interrupted_is_kept_and_goes_on(tmp_path):
    out, children = tmp_path / "a.jsonl", []

    def start(slowdown, folder):
        if len(children) == 2:
            raise KeyboardInterrupt
        children.append(MadeUp(slowdown))
        return children[-1]

    with pytest.raises(KeyboardInterrupt):
        gather(asked(out), start, nullcontext, tmp_path)
    assert len(read(out).runs) == 2
    assert all(child.stopped for child in children)
    stream = gather(asked(out), lambda slowdown, folder: MadeUp(slowdown), nullcontext, tmp_path, resume=True)
    assert [run.slowdown for run in stream.runs] == HEAD.plan.order()
    with pytest.raises(StreamError, match="has another plan"):
        gather(asked(out, plan=Plan(runs=9)), start, nullcontext, tmp_path, resume=True)


@pytest.mark.parametrize("kept_bytes", [1, 20, -1], ids=["first byte", "middle", "all but its end"])
def test_a_line_that_was_cut_off_is_removed_and_its_run_measured_again(tmp_path, capsys, kept_bytes):
    out = tmp_path / "a.jsonl"
    whole = gather(asked(out), lambda slowdown, folder: MadeUp(slowdown), nullcontext, tmp_path)
    *lines, last = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines) + last[:kept_bytes])
    with pytest.raises(StreamError, match=r"its last line was cut off\. Gather with --resume"):
        read(out)
    with pytest.raises(StreamError, match="has another plan"):
        gather(asked(out, plan=Plan(runs=9)), MadeUp, nullcontext, tmp_path, resume=True)
    assert out.read_bytes().endswith(last[:kept_bytes])  # what is not continued stays as it is
    started = []

    def start(slowdown, folder):
        started.append(slowdown)
        return MadeUp(slowdown)

    stream = gather(asked(out), start, nullcontext, tmp_path, resume=True)
    assert started == [whole.runs[-1].slowdown]
    assert stream == read(out)
    assert [run.slowdown for run in stream.runs] == HEAD.plan.order()
    assert "its last line was cut off and is removed" in capsys.readouterr().err


def test_a_file_that_is_no_stream_is_never_cut(tmp_path):
    out = tmp_path / "a.jsonl"
    for content in ("mine", "mine\nand more"):
        out.write_text(content)
        with pytest.raises(StreamError, match=r"no stream of runs|no JSON object"):
            gather(asked(out), MadeUp, nullcontext, tmp_path, resume=True)
        assert out.read_text() == content


def test_processes_are_stopped_before_a_failure_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.noise.gathering._until_idle", lambda children: None)
    children = []

    def start(slowdown, folder):
        children.append(MadeUp(slowdown, dataclasses.replace(RESULT, status=Ending.SKIPPED)))
        return children[-1]

    with pytest.raises(GatherError) as failure:
        gather(asked(tmp_path / "a.jsonl", ahead=3), start, nullcontext, tmp_path)
    assert failure.tb is not None  # which keeps everything alive that it names
    assert [child.stopped for child in children] == [1, 1, 1]


def test_processes_are_stopped_where_the_next_one_cannot_start(tmp_path):
    children = []

    def start(slowdown, folder):
        if children:
            raise GatherError("no memory")
        children.append(MadeUp(slowdown))
        return children[-1]

    with pytest.raises(GatherError, match="no memory"):
        gather(asked(tmp_path / "a.jsonl", ahead=3), start, nullcontext, tmp_path)
    assert [child.stopped for child in children] == [1]


def test_a_folder_that_cannot_be_removed_does_not_hide_why_it_failed(tmp_path, monkeypatch, capsys):
    def start(arguments, slowdown, folder, **facts):
        folder.mkdir()
        return MadeUp(slowdown, dataclasses.replace(RESULT, runs=(), status=Ending.FAILED, text="no memory"))

    def rmdir(*arguments, **facts):
        raise OSError(errno.ENOTEMPTY, "somebody writes into it")

    monkeypatch.setattr("benchmarks.noise.__main__.start", start)
    monkeypatch.setattr("benchmarks.noise.__main__.signal.signal", lambda *arguments: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", rmdir)
        assert main(["gather", "--name=a", f"--out={tmp_path / 'a.jsonl'}", "--", "nothing.py"]) == 1
    assert "was not measured (failed): no memory" in capsys.readouterr().err


@given(ahead=st.integers(1, 40), timeout_s=st.floats(1, 1e4))
def test_the_last_of_a_group_may_wait_for_all_the_others(ahead, timeout_s):
    group = asked(Path("a"), ahead=ahead, timeout_s=timeout_s)
    assert group.wait_s > timeout_s + (ahead - 1) * timeout_s  # built, then measured one after another
    assert asked(Path("a"), timeout_s=timeout_s).wait_s is None


def test_a_disturbed_run_is_noted_and_measured_again(tmp_path):
    invalid = dataclasses.replace(RESULT, runs=(), status=Outcome.INVALID, text="throttled")
    results = iter([RESULT, invalid, *[RESULT] * 4])
    stream = gather(
        asked(tmp_path / "a.jsonl"),
        lambda slowdown, folder: MadeUp(slowdown, next(results)),
        nullcontext,
        tmp_path,
    )
    assert [run.invalid for run in stream.runs] == ["", "throttled", "", "", "", ""]
    assert len(stream.of(0.0)) == 3


@pytest.mark.parametrize(
    ("results", "fault"),
    [
        (["throttled"], "the first process was disturbed: throttled"),
        ([RESULT, "hot", "hot", "hot"], "3 processes in a row were disturbed"),
        (
            [dataclasses.replace(RESULT, runs=(), status=Ending.FAILED, text="no memory")],
            "was not measured .*no memory",
        ),
        ([dataclasses.replace(RESULT, status=Ending.SKIPPED)], "0 benchmarks ran, and a stream is of one"),
        (
            [RESULT, dataclasses.replace(RESULT, configuration={"batch_size": 8})],
            "the configuration is another one than that of the stream",
        ),
    ],
)
def test_what_makes_no_stream_says_why(tmp_path, results, fault):
    left = iter(
        dataclasses.replace(RESULT, runs=(), status=Outcome.INVALID, text=each)
        if isinstance(each, str)
        else each
        for each in results
    )
    with pytest.raises(GatherError, match=fault):
        gather(
            asked(tmp_path / "a.jsonl"),
            lambda slowdown, folder: MadeUp(slowdown, next(left)),
            nullcontext,
            tmp_path,
        )


def test_processes_that_do_not_wait_cannot_be_built_ahead(tmp_path):
    class Unlocked(MadeUp):
        is_waiting = False

    with pytest.raises(GatherError, match="without waiting for the device"):
        gather(
            asked(tmp_path / "a.jsonl", ahead=2),
            lambda slowdown, folder: Unlocked(slowdown),
            nullcontext,
            tmp_path,
        )


def test_processes_that_work_while_they_wait_cannot_be_built_ahead():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        child = Child(slowdown=0.0, folder=Path(), process=process)
        try:
            before_s = cpu_s([child])
            with pytest.raises(GatherError, match="CPUs busy, beside which none should measure"):
                _until_idle([child], limit_s=0.0)
            assert cpu_s([child]) > before_s
        finally:
            process.kill()
    _until_idle([child], limit_s=0.0)  # it is gone


def test_progress_says_what_is_left():
    said = []
    progress = Progress(total=5, tell=said.append)
    progress.tell(RUN, left=4)
    progress.tell(dataclasses.replace(RUN, slowdown=0.025, took_s=99.0), left=3)
    assert said == [
        "1 of 5  A/A: 500 ms, 1.0 s; about 4 s left\n",
        "2 of 5  slower by 2.5 %: 500 ms, 99.0 s; about 2.5 min left\n",
    ]


# --- gathering, for real ----------------------------------------------------------------------------

UUID = "GPU-8f3aab12-0000-0000-0000-000000000001"
# The GPU is a made-up driver's; what it would compute is computed here. Each process says when it was built, and when it
# measured first and last.
CONFTEST = """
from pytest_accel.measure.device import CpuDevice
from pytest_accel.session.placing import placement


def open_device(item, settings):
    placed = item.config.stash[placement.PLACEMENT]
    platform = placed.place(item).platform
    return platform, CpuDevice(threads=1), placement.hardware_of(placed.machine, platform, 0)


placement.open_device = open_device
"""
SUITE = """
import os, pathlib, time
import pytest

steps_s = []


def note(what, at_s):
    with pathlib.Path("notes").open("a") as file:
        file.write(f"{what} {os.getpid()} {at_s}\\n")


def step():
    steps_s.append(time.monotonic())
    sum(range(2000))


@pytest.mark.h200
def test_step(accel):
    note("built", time.monotonic())
    accel.measure(step, work=2000, unit="numbers")
    note("began", steps_s[0])
    note("ended", steps_s[-1])
"""


@pytest.fixture
def on_a_gpu(fake_nvml, tmp_path):
    """`python -m benchmarks.noise` in a folder with a benchmark of a GPU that is a fake driver's."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    # Nobody who waits for others is done by then: `gather` has to give them more.
    (tmp_path / "pytest.ini").write_text("[pytest]\naccel_timeout = 100ms\n")
    environ = fake_nvml.environment(
        [FakeGpu(uuid=UUID)],
        PYTEST_ACCEL_LOCKS=str(tmp_path / "locks"),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        PYTHONPATH=str(ROOT),
    )

    def run(*options, arguments=()):
        command = [
            sys.executable,
            "-m",
            "benchmarks.noise",
            "gather",
            "--name=fake",
            "--out=fake.jsonl",
            *options,
        ]
        command += [
            "--",
            "test_suite.py",
            "-p",
            "benchmark",
            "-p",
            "accel",
            "--accel-budget=60ms",
            "--accel-warmup=50ms",
        ]
        return subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_processes_that_are_built_ahead_measure_one_after_another_and_beside_no_building(on_a_gpu, tmp_path):
    done = on_a_gpu("--runs=2", "--slowdowns=0.5", "--slow-runs=1", "--ahead=3")
    assert done.returncode == 0, done.stderr
    stream = read(tmp_path / "fake.jsonl")
    assert Counter(run.slowdown for run in stream.runs if run.is_valid) == {0.0: 2, 0.5: 1}
    assert stream.head.platform == "h200"
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    at_s = {(what, pid): float(second) for what, pid, second in notes}
    pids = {pid for _, pid, _ in notes}
    assert len(pids) == 3
    spans = sorted((at_s["began", pid], at_s["ended", pid]) for pid in pids)
    assert max(at_s["built", pid] for pid in pids) < spans[0][0]
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    slow = next(run for run in stream.runs if run.slowdown)
    assert slow.metrics["slowdown_felt"] > 0.1  # half was asked for; a busy machine gives and takes


def test_building_ahead_is_refused_where_nothing_is_locked(tmp_path):
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "benchmarks.noise",
                "gather",
                "--name=a",
                f"--out={tmp_path / 'a'}",
                "--ahead=2",
            ),
            *("--", "nothing.py"),
        ],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "--ahead needs a device that sessions lock" in done.stderr


def test_a_process_that_leaves_no_results_shows_its_last_words(tmp_path):
    (tmp_path / "log.txt").write_text("usage: pytest\nerror: unrecognised\n")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(4)"]) as process:
        process.wait()
    child = Child(slowdown=0.0, folder=tmp_path, process=process)
    with pytest.raises(GatherError, match=r"ended with 4 and left no results[^$]*error: unrecognised"):
        child.results()
