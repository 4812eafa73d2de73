"""A measurement crosses processes as plain JSON."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.measure.measurement import SCHEMA_VERSION, Measurement
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.ranks import RankResult
from pytest_accel.stats.runs import Run

SECONDS = st.floats(1e-9, 1e4)
MAYBE = st.one_of(st.none(), SECONDS)
FACTS = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
MEASUREMENTS = st.builds(
    Measurement,
    run=st.builds(
        Run,
        session=st.text(max_size=8),
        rounds_s=st.lists(SECONDS, min_size=1, max_size=8).map(tuple),
        steps_per_round=st.integers(1, 1000),
        environment=st.text(max_size=8),
        first_step_s=MAYBE,
        warmup_s=MAYBE,
        peak_memory_bytes=st.one_of(st.none(), st.integers(0, 1 << 40)),
        loss=MAYBE,
        metrics=st.dictionaries(st.text(max_size=8), SECONDS, max_size=3),
        rank_step_s=st.lists(SECONDS, max_size=3).map(tuple),
    ),
    work_per_step=SECONDS,
    unit=st.text(max_size=8),
    configuration=st.dictionaries(
        st.text(max_size=8),
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
        max_size=3,
    ),
    environment=st.builds(Environment, identity=FACTS, context=FACTS),
    steady=st.booleans(),
    ranks=st.lists(
        st.builds(
            RankResult,
            rank=st.integers(0, 7),
            host=st.text(max_size=8),
            device=st.text(max_size=8),
            rounds_s=st.lists(SECONDS, min_size=1, max_size=3).map(tuple),
            work=SECONDS,
            peak_memory_bytes=st.none() | st.integers(0, 1 << 40),
            loss=MAYBE,
            metrics=st.dictionaries(st.text(max_size=8), SECONDS, max_size=2),
        ),
        max_size=2,
    ).map(tuple),
    gates=st.dictionaries(st.text(max_size=8), st.none() | st.floats(0.01, 0.99), max_size=2),
)


@given(MEASUREMENTS)
def test_round_trip(measurement):
    plain = json.loads(json.dumps(measurement.to_plain()))
    assert Measurement.from_plain(plain) == measurement


@given(MEASUREMENTS)
def test_plain_form_is_versioned_and_names_its_units(measurement):
    plain = measurement.to_plain()
    assert plain["schema_version"] == SCHEMA_VERSION
    assert plain["unit"] == f"{plain['work_unit']}/s"
    assert plain["throughput"] == measurement.throughput


@given(MEASUREMENTS)
def test_what_only_some_have_is_absent_elsewhere(measurement):
    plain = measurement.to_plain()
    assert ("gates" in plain) == bool(measurement.gates)
    assert ("ranks" in plain) == bool(measurement.ranks)
    assert ("rank_step_s" in plain["run"]) == bool(measurement.run.rank_step_s)
