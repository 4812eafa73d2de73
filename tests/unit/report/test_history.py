"""A benchmark's past as text: its shape, its table, and what changed where its level did."""

import pytest

from pytest_accel.report.history import BLOCKS, recurring, series_table, shifts, sparkline, unchanged
from pytest_accel.stats.environment import Environment
from pytest_accel.storage.history import Point

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
        "step_times_s": (256 / throughput,),
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


def suspects(points) -> tuple[str, ...]:
    ((change, found),) = shifts(points, lambda each: ENVIRONMENTS.get(each.environment))
    assert points[change.index].session == "s14"
    assert change.relative == pytest.approx(-0.1, abs=0.005)
    return found


class TestSparkline:
    def test_higher_is_more(self):
        assert sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == BLOCKS

    def test_noise_looks_flat(self):
        assert set(sparkline([1000, 1002, 999, 1001, 1000])) <= set(BLOCKS[3:5])

    def test_many_values_keep_their_shape(self):
        assert sparkline([10.0] * 500 + [20.0] * 500, width=4) == "▁▁██"


class TestShifts:
    def test_environment_that_changed_there_is_the_suspect(self):
        first, *_, last = suspects(stepped(environment=NEW.key))
        assert first == "torch 2.10.0 -> 2.11.0"
        assert last.startswith("revision 000")

    def test_another_configuration_or_host_is_named(self):
        found = suspects(stepped(configuration="c2", host="node-8"))
        assert found[:2] == ("the benchmark's own configuration", "host node-7 -> node-8")

    def test_change_elsewhere_is_no_suspect(self):
        points = list(stepped(environment=NEW.key))
        points[13] = point(13, 1000, environment=NEW.key)
        assert not any("torch" in suspect for suspect in suspects(points))

    def test_environment_that_was_not_kept_is_not_guessed(self):
        found = suspects(stepped(environment="pruned"))
        assert [suspect.partition(" ")[0] for suspect in found] == ["revision"]


class TestText:
    def test_short_series_says_so(self):
        assert "too short to say" in unchanged(stepped()[:5])
        assert unchanged(stepped(at=99)) == "no change"

    def test_unit_may_have_a_comma(self):
        assert "images, 224 px/s" in series_table([point(1, 1000, unit="images, 224 px")])[0]


@pytest.mark.parametrize(
    ("nights", "said"),
    [
        ("." * 12 + "..x.xx", "slow runs in 3 of the last 6 sessions, in none of the 12 before"),
        ("x" + "." * 12 + "x..xxx", "slow runs in 4 of the last 6 sessions, in none of the 12 before"),
        ("." * 6 + "xxx...", "in none of the 6 before"),
        ("." * 12 + "...x.x", ""),
        ("." * 11 + "x" + "xxxxxx", ""),  # nothing new
        ("." * 5 + "xxx...", ""),  # too short to call it new
    ],
)
def test_slow_runs_that_are_new_and_frequent_are_counted(nights, said):
    text = recurring([each == "x" for each in nights])
    assert said in text
    assert bool(said) == bool(text)
