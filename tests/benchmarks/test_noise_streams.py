"""Streams on disk: what is written is read again, and what is wrong in a file is said."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.noise.__main__ import main
from benchmarks.noise.streams import Plan, Stream, StreamError, StreamRun, append, begin, parse, read, write
from tests.support.noise import HEAD, RUN

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


def of_occasion(hour, count, **head):
    runs = tuple(
        dataclasses.replace(
            RUN, place=place, at=f"2026-01-01T{hour:02}:{place:02}:00+00:00", slowdown=slowdown
        )
        for place, slowdown in enumerate([*[0.0] * count, 0.1])
    )
    return Stream(head=dataclasses.replace(HEAD, **head), runs=runs)


def test_streams_of_several_occasions_become_one(tmp_path, capsys):
    later, earlier, out = (tmp_path / name for name in ("later.jsonl", "earlier.jsonl", "both.jsonl"))
    write(later, of_occasion(4, 2, revision="b"))
    write(earlier, of_occasion(1, 3, revision="a"))
    assert main(["join", str(later), str(earlier), "--out", str(out)]) == 0
    assert capsys.readouterr().err == f"{out}: 7 runs of 2 occasions\n"
    both = read(out)
    assert both.head == dataclasses.replace(
        HEAD, revision="a, b", plan=Plan(runs=5, slowdowns=(0.1,), slow_runs=2)
    )
    assert [run.place for run in both.runs] == list(range(7))
    assert [run.at[11:13] for run in both.runs] == ["01"] * 4 + ["04"] * 3
    assert [run.session for run in both.of(0.0)] == ["cpu-sum-0"] * 3 + ["cpu-sum-1"] * 2
    assert [run.session for run in both.of(0.1)] == ["cpu-sum-0", "cpu-sum-1"]
    assert not both.remaining
    assert main(["join", str(later), str(earlier), "--out", str(out)]) == 1
    assert capsys.readouterr().err == f"{out} is there already. Name another --out.\n"


def test_no_run_is_joined_twice(tmp_path, capsys):
    one = tmp_path / "one.jsonl"
    write(one, of_occasion(1, 3))
    assert main(["join", str(one), str(one), "--out", str(tmp_path / "both.jsonl")]) == 1
    assert capsys.readouterr().err.startswith("these streams have runs of one time. Name each once")


def test_runs_of_another_kind_are_not_joined(tmp_path, capsys):
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    write(one, of_occasion(1, 3))
    write(other, of_occasion(2, 3, name="elsewhere", identity={"cpu_model": "another"}))
    assert main(["join", str(one), str(other), "--out", str(tmp_path / "both.jsonl")]) == 1
    assert capsys.readouterr().err == (
        "elsewhere and cpu-sum are not of one kind: identity is {'cpu_model': 'another'}, and was {'cpu_model': 'made up'}.\n"
    )
    assert not (tmp_path / "both.jsonl").exists()


def test_a_stream_without_runs_has_no_occasions():
    assert Stream(head=HEAD, runs=()).occasions == []
