"""Merging the measurements of ranks."""

import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.measurement import Measurement, Roofline, merge, merge_facts
from pytest_accel.stats.run import Run
from pytest_accel.storage.codec import decode, encode


def result(rank=0, rounds_s=(1.0, 1.0), host="n0", device="", **changes):
    own = {name: changes.pop(name) for name in ("invalid", "notes", "no_energy") if name in changes}
    run = Run(session="s", rounds_s=tuple(rounds_s), steps_per_round=1, **changes)
    return Measurement(
        run=run, work_per_step=8.0, unit="images", rank=rank, host=host, device=device or f"GPU-{rank}", **own
    )


def test_one_rank_is_the_run():
    only = result(metrics={"mfu": 0.2})
    assert merge([only]) == replace(only, run=replace(only.run, environment=only.environment.key))


def test_measurement_crosses_processes_as_json_and_the_order_of_ranks_changes_nothing():
    group = [result(0, [1.0, 3.0], metrics={"mfu": 0.2}, notes=("a",)), result(1, host="n1", loss=1.0)]
    assert merge(group[::-1]) == merge(group)
    for each in (*group, merge(group)):
        assert decode(Measurement, json.loads(json.dumps(encode(each)))) == each


def test_a_round_lasts_as_long_as_its_slowest_rank():
    merged = merge([result(0, [1.0, 3.0]), result(1, [2.0, 1.0])])
    assert merged.run.rounds_s == (2.0, 3.0)
    assert merged.work_per_step == 16
    assert merged.run.rank_step_s == pytest.approx([math.sqrt(3), math.sqrt(2)])


def test_memory_is_the_fullest_devices_and_the_loss_the_mean():
    merged = merge([result(0, peak_memory_bytes=5, loss=1.0), result(1, peak_memory_bytes=9, loss=2.0)])
    assert (merged.run.peak_memory_bytes, merged.run.loss) == (9, 1.5)


def test_energy_is_summed_once_a_device_and_everything_else_averaged():
    group = [
        result(0, host="n0", device="cpu", metrics={"package_j": 10.0, "mfu": 0.2, "temperature_c": 62.0}),
        result(1, host="n0", device="cpu", metrics={"package_j": 10.5, "mfu": 0.4}),  # of the same socket
        result(2, host="n1", device="cpu", metrics={"package_j": 20.0, "mfu": 0.6, "temperature_c": 60.0}),
    ]
    assert merge(group).run.metrics == pytest.approx({"package_j": 30.0, "mfu": 0.4, "temperature_c": 62.0})


def test_ranks_with_different_numbers_of_rounds_are_refused():
    with pytest.raises(ValueError, match="rank 0: 1, rank 1: 2"):
        merge([result(0, [1.0]), result(1, [1.0, 1.0])])


def test_facts_that_differ_between_ranks_are_all_named():
    same = {"device_name": "A100"}
    assert merge_facts([same, same]) == same
    assert merge_facts([same | {"power_limit_w": "400"}, same | {"power_limit_w": "300"}, same]) == {
        "device_name": "A100",
        "power_limit_w": "300 | 400 | unknown",
    }


def test_one_disturbed_rank_disturbs_the_group_and_is_named():
    merged = merge(
        [
            result(rank=0, notes=("hot", "narrow")),
            result(rank=1, invalid="throttled", notes=("hot",), no_energy="MIG"),
            result(rank=2, notes=("hot",), no_energy="MIG"),
        ]
    )
    assert merged.invalid == "rank 1: throttled"
    assert merged.notes == ("hot", "rank 0: narrow")
    assert merged.no_energy == "rank 1, 2: MIG"


def test_energy_of_one_node_of_two_is_no_figure_of_the_group():
    nodes = [result(rank=0, metrics={"energy_j": 3.0}), result(rank=1), result(rank=2, host="n1")]
    assert "energy_j" not in merge(nodes).run.metrics
    nodes[2] = result(rank=2, host="n1", metrics={"energy_j": 4.0})
    assert merge(nodes).run.metrics["energy_j"] == 7.0


# --- roofline ---------------------------------------------------------------------------------------

H200 = Roofline(peak_tflops=989.4, bandwidth_gb_s=4800)
POSITIVE = st.floats(1e-3, 1e6)
COUNT = st.floats(1, 1e18)
ROOFLINES = st.builds(Roofline, peak_tflops=POSITIVE, bandwidth_gb_s=POSITIVE)


@pytest.mark.parametrize(
    ("roofline", "flops", "moved", "least_s"),
    [
        (H200, 2 * 8192**3, 3 * 8192**2 * 2, 1.1113e-3),  # arithmetic: 1.0995 TFLOP at 989.4 TFLOP/s
        (H200, 2e9, 2e9, 2e9 / 4.8e12),  # memory: reading the weights for one token
        (Roofline(peak_tflops=None, bandwidth_gb_s=1000), 1e15, 1e9, 1e-3),
        (Roofline(peak_tflops=None, bandwidth_gb_s=None), 1e12, 1e9, 0),
        (H200, None, None, 0),
        (H200, 0, 0, 0),
    ],
)
def test_least_time_of_a_step(roofline, flops, moved, least_s):
    assert roofline.least_s(flops, moved) == pytest.approx(least_s, rel=1e-3)
    assert bool(roofline.impossible(1e-9, flops, moved)) == (least_s > 0)


def test_impossible_step_is_described_by_arithmetic_and_bytes():
    arithmetic, moved = H200.impossible(1e-3, 2e12, None), H200.impossible(1e-3, 1e9, 9.6e9)
    assert (
        "2000 TFLOP/s of at most 989.4 in the fastest round: a step of 1 ms cannot take less than 2.02"
        in arithmetic
    )
    assert "impossible: 9600 GB/s of at most 4800 in the fastest round: " in moved
    assert re.match("impossible: .* TFLOP/s .* and .* GB/s ", H200.impossible(1e-6, 1e12, 1e9))
    assert H200.impossible(H200.least_s(1e12, 1e9), 1e12, 1e9) == ""


@given(ROOFLINES, COUNT, COUNT, st.floats(1e-9, 1e9))
def test_only_an_impossible_step_has_a_share_above_one(roofline, flops, moved, step_s):
    share = roofline.rates(step_s, flops, moved)["roofline_share"]
    assert (share > 1) == bool(roofline.impossible(step_s, flops, moved))


@pytest.mark.parametrize(
    ("peak_tflops", "bandwidth_gb_s", "flops", "bytes_moved", "expected"),
    [
        (1000.0, 5000.0, 0.8e12, None, {"tflops": 400, "mfu": 0.4}),
        (1000.0, 5000.0, None, 4e9, {"memory_gb_per_s": 2000, "roofline_share": 0.4}),
        (1000.0, 5000.0, None, None, {}),
        (None, 5000.0, 0.8e12, 4e9, {"tflops": 400, "memory_gb_per_s": 2000, "roofline_share": 0.4}),
        (1000.0, None, 0.8e12, 4e9, {"tflops": 400, "mfu": 0.4, "memory_gb_per_s": 2000}),
        (None, None, 0.8e12, 4e9, {"tflops": 400, "memory_gb_per_s": 2000}),
    ],
)
def test_rates_are_given_for_what_is_known(peak_tflops, bandwidth_gb_s, flops, bytes_moved, expected):
    roofline = Roofline(peak_tflops=peak_tflops, bandwidth_gb_s=bandwidth_gb_s)
    assert roofline.rates(2e-3, flops, bytes_moved) == pytest.approx(expected)
