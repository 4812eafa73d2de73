"""Streams on disk: what is written is read again, and what is wrong in a file is said."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.noise.streams import Plan, Stream, StreamError, StreamRun, append, begin, parse, read
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
