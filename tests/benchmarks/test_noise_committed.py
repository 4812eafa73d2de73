"""What the committed streams say of the gate, and of the page that shows it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from benchmarks.noise import promises, resampling, tables
from benchmarks.noise.__main__ import judge_stream
from benchmarks.noise.streams import Stream, read

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/noise.md"
COMMITTED = sorted((ROOT / "tests/streams").glob("*.jsonl"))
MOST_KB = 100  # of a committed stream


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
        word
        for word in stream.head.command
        if "/" in word and not word.startswith(("bench_suites/", "benchmarks/"))
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
