"""A benchmark's past as text: its shape, its table, and what changed where its level did."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.report.history import (
    BLOCKS,
    WIDTH,
    Track,
    csv_text,
    json_lines,
    overview,
    pruned_line,
    series_table,
    shift_lines,
    shifts,
    sparkline,
)
from pytest_accel.stats.changepoints import trend
from pytest_accel.stats.environment import Environment
from pytest_accel.storage.history import HistoryRun, Point, Pruned

OLD = Environment(identity={"device_name": "NVIDIA H200"}, context={"torch": "2.10.0"})
NEW = Environment(identity={"device_name": "NVIDIA H200"}, context={"torch": "2.11.0"})
ENVIRONMENTS = {OLD.key: OLD, NEW.key: NEW}


def point(night: int, throughput: float, **more) -> Point:
    facts = {
        "session": f"s{night}",
        "at": f"2026-03-{night + 1:02d}T02:00:00+00:00",
        "host": "node-7",
        "revision": f"{night:040d}",
        "status": "ok",
        "loss": None,
        "runs": (HistoryRun(step_time_s=256 / throughput),),
        "work_per_step": 256.0,
        "unit": "images",
        "environment": OLD.key,
        "configuration": "c1",
    }
    return Point(**facts | more)


def stepped(at: int = 14, **after) -> tuple[Point, ...]:
    """28 nights, 10 % slower from one on."""
    wiggle = [0.001, -0.002, 0.003, -0.001, 0.002]
    return tuple(
        point(
            night, (1000 if night < at else 900) * (1 + wiggle[night % 5]), **(after if night >= at else {})
        )
        for night in range(28)
    )


def track(points) -> Track:
    return Track(platform="h200", key="t.py::test_a", points=tuple(points))


class TestSparkline:
    def test_higher_is_more(self):
        assert sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == BLOCKS

    def test_noise_looks_flat(self):
        assert set(sparkline([1000, 1002, 999, 1001, 1000])) <= set(BLOCKS[3:5])

    @given(st.lists(st.floats(-1e300, 1e300), max_size=200))
    def test_any_values_fit_the_width(self, values):
        assert len(sparkline(values)) == min(len(values), WIDTH)

    def test_many_values_keep_their_shape(self):
        assert sparkline([10.0] * 500 + [20.0] * 500, width=4) == "▁▁██"


class TestShifts:
    def test_environment_that_changed_there_is_the_suspect(self):
        (shift,) = shifts(trend(stepped(environment=NEW.key)), ENVIRONMENTS)
        assert (shift.last.session, shift.first.session) == ("s13", "s14")
        assert shift.is_slower
        assert shift.change.relative == pytest.approx(-0.1, abs=0.005)
        assert shift.suspects[0] == "torch 2.10.0 -> 2.11.0"
        assert shift.suspects[-1].startswith("revision 000")

    def test_another_configuration_or_host_is_named(self):
        (shift,) = shifts(trend(stepped(configuration="c2", host="node-8")), ENVIRONMENTS)
        assert shift.suspects[:2] == ("the benchmark's own configuration", "host node-7 -> node-8")

    def test_change_elsewhere_is_no_suspect(self):
        points = list(stepped(environment=NEW.key))
        points[13] = point(13, 1000, environment=NEW.key)
        (shift,) = shifts(trend(points), ENVIRONMENTS)
        assert not any("torch" in suspect for suspect in shift.suspects)

    def test_environment_that_was_not_kept_is_not_guessed(self):
        (shift,) = shifts(trend(stepped(environment="pruned")), ENVIRONMENTS)
        assert [suspect.partition(" ")[0] for suspect in shift.suspects] == ["revision"]


class TestText:
    def test_short_series_says_so(self):
        short, level = stepped()[:5], stepped(at=99)
        assert "too short to say" in shift_lines(track(short), trend(short), ())[-1]
        assert shift_lines(track(level), trend(level), ())[-1] == "  no change"

    def test_no_control_character_reaches_the_terminal(self):
        evil = "\x1b[31m\x00\n"
        bad = Track(
            platform=evil, key=evil, points=tuple(point(n, 1000, unit=evil, status=evil) for n in range(2))
        )
        for line in (*overview(bad), *series_table(bad)):
            assert line.isprintable()
        commanding = Track(platform="::error::x", key="k", points=bad.points)
        assert not overview(commanding)[0].startswith("::")

    def test_what_pruning_takes(self):
        pruned = Pruned(sessions=("a", "b"), left=3, bytes_before=4096, bytes_after=2048)
        assert pruned_line(pruned, is_done=False) == (
            "would remove 2 sessions, 3 stay (4,096 -> 2,048 bytes, 50.0 % less)"
        )


def exported(key: str) -> Track:
    runs = (
        HistoryRun(step_time_s=0.05, metrics={"mfu": 0.3}),
        HistoryRun(step_time_s=0.04, peak_memory_bytes=7, metrics={"mfu": 0.4}),
    )
    return Track(platform="h200", key=key, points=(point(1, 1, runs=runs, work_per_step=100.0),))


def test_json_line_is_a_session_with_its_runs_and_csv_row_a_run():
    (line,) = map(json.loads, json_lines([exported("t.py::test_a[x, y]")]))
    assert (line["platform"], line["benchmark"], line["session"]) == ("h200", "t.py::test_a[x, y]", "s1")
    assert line["runs"] == [
        {"step_time_s": 0.05, "mfu": 0.3},
        {"step_time_s": 0.04, "mfu": 0.4, "peak_memory_bytes": 7},
    ]
    text = csv_text([exported("t.py::test_a[x, y]"), exported('"quoted"\nkey')])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["run"], float(row["throughput"])) for row in rows[:2]] == [("0", 2000.0), ("1", 2500.0)]
    assert [row["metrics.peak_memory_bytes"] for row in rows[:2]] == ["", "7"]
    assert rows[3]["benchmark"] == '"quoted"\nkey'
