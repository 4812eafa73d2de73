"""Merging the ranks of a gang into one run."""

from __future__ import annotations

import json
import math
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.ranks import RankResult, merge, merge_facts
from pytest_accel.stats.runs import Run

SECONDS = st.floats(1e-6, 1e3)
MAYBE = st.none() | SECONDS
METRICS = st.dictionaries(st.sampled_from(["mfu", "tflops", "device_j", "host_j"]), SECONDS)


def result(rank=0, rounds_s=(1.0, 1.0), **changes):
    plain = {"host": "n0", "device": f"GPU-{rank}", "work": 8.0}
    return RankResult(rank=rank, rounds_s=tuple(rounds_s), **plain | changes)


@st.composite
def gangs(draw, least=1):
    size, rounds = draw(st.integers(least, 5)), draw(st.integers(1, 8))
    return [
        RankResult(
            rank=rank,
            host=draw(st.sampled_from(["n0", "n1"])),
            device=draw(st.sampled_from(["GPU-a", "GPU-b"])),
            rounds_s=tuple(draw(st.lists(SECONDS, min_size=rounds, max_size=rounds))),
            work=draw(SECONDS),
            first_step_s=draw(MAYBE),
            warmup_s=draw(MAYBE),
            peak_memory_bytes=draw(st.none() | st.integers(0, 1 << 40)),
            loss=draw(MAYBE),
            metrics=draw(METRICS),
        )
        for rank in range(size)
    ]


@given(gangs(), st.randoms())
def test_the_order_in_which_ranks_come_changes_nothing(gang, random):
    shuffled = gang.copy()
    random.shuffle(shuffled)
    assert merge(shuffled) == merge(gang)


@given(gangs())
def test_one_rank_is_the_run(gang):
    only = gang[0]
    merged = merge([only])
    for name in ("rounds_s", "work", "first_step_s", "warmup_s", "peak_memory_bytes", "loss", "metrics"):
        assert getattr(merged, name) == getattr(only, name), name
    assert merged.rank_step_s == ()


def throughput(rounds_s, work):
    return Run(session="s", rounds_s=rounds_s, steps_per_round=1).throughput(work)


@given(gangs(least=2))
def test_together_ranks_are_at_most_as_fast_as_each_for_itself(gang):
    merged = merge(gang)
    apart = sum(throughput(rank.rounds_s, rank.work) for rank in gang)
    assert throughput(merged.rounds_s, merged.work) <= apart * (1 + 1e-9)


@given(gangs(least=2))
def test_each_ranks_own_step_time_is_kept_and_none_is_slower_than_the_run(gang):
    merged = merge(gang)
    whole = Run(session="s", rounds_s=merged.rounds_s, steps_per_round=1).step_time_s
    assert merged.rank_step_s == tuple(rank.step_time_s for rank in gang)
    assert max(merged.rank_step_s) <= whole * (1 + 1e-9)


@given(gangs())
def test_a_result_crosses_processes_as_plain_json(gang):
    for rank in gang:
        assert RankResult.from_plain(json.loads(json.dumps(rank.to_plain()))) == rank


def test_a_round_lasts_as_long_as_its_slowest_rank():
    merged = merge([result(0, [1.0, 3.0]), result(1, [2.0, 1.0])])
    assert merged.rounds_s == (2.0, 3.0)
    assert merged.work == 16
    assert merged.rank_step_s == pytest.approx([math.sqrt(3), math.sqrt(2)])


def test_memory_is_the_fullest_devices_and_the_loss_the_mean():
    merged = merge([result(0, peak_memory_bytes=5, loss=1.0), result(1, peak_memory_bytes=9, loss=2.0)])
    assert (merged.peak_memory_bytes, merged.loss) == (9, 1.5)


def test_what_some_ranks_do_not_know_is_taken_from_the_others():
    merged = merge([result(0, loss=None), result(1, loss=2.0, metrics={"mfu": 0.4})])
    assert (merged.loss, merged.peak_memory_bytes, merged.metrics) == (2.0, None, {"mfu": 0.4})


def test_energy_is_summed_once_a_device_and_everything_else_averaged():
    gang = [
        result(0, host="n0", device="cpu", metrics={"package_j": 10.0, "mfu": 0.2}),
        result(1, host="n0", device="cpu", metrics={"package_j": 10.5, "mfu": 0.4}),  # of the same socket
        result(2, host="n1", device="cpu", metrics={"package_j": 20.0, "mfu": 0.6}),
    ]
    assert merge(gang).metrics == pytest.approx({"package_j": 30.0, "mfu": 0.4})


@pytest.mark.parametrize(
    ("gang", "words"),
    [
        ([], "no rank"),
        ([result(0), result(0)], "came twice"),
        ([result(0, [1.0]), result(1, [1.0, 1.0])], r"rank 0: 1, rank 1: 2"),
    ],
)
def test_ranks_that_do_not_belong_together_are_refused(gang, words):
    with pytest.raises(ValueError, match=words):
        merge(gang)


def test_the_slowest_is_taken_round_by_round_so_that_turns_at_being_slow_are_seen():
    gang = [result(0, [1.0, 2.0, 1.0, 2.0]), result(1, [2.0, 1.0, 2.0, 1.0])]
    assert median(merge(gang).rounds_s) == 2.0


def test_facts_that_differ_between_ranks_are_all_named():
    same = {"device_name": "A100"}
    assert merge_facts([same, same]) == same
    assert merge_facts([same | {"power_limit_w": "400"}, same | {"power_limit_w": "300"}, same]) == {
        "device_name": "A100",
        "power_limit_w": "300 | 400 | unknown",
    }


def test_one_disturbed_rank_disturbs_the_gang_and_is_named():
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


def test_what_one_rank_says_needs_no_number():
    merged = merge([result(invalid="throttled", notes=("hot",))])
    assert (merged.invalid, merged.notes) == ("throttled", ("hot",))


def test_energy_of_one_node_of_two_is_no_figure_of_the_gang():
    nodes = [result(rank=0, metrics={"energy_j": 3.0}), result(rank=1), result(rank=2, host="n1")]
    assert "energy_j" not in merge(nodes).metrics
    nodes[2] = result(rank=2, host="n1", metrics={"energy_j": 4.0})
    assert merge(nodes).metrics["energy_j"] == 7.0


def test_peaks_are_the_highest_of_all_devices():
    gang = [
        result(rank=rank, metrics={"temperature_c": 60.0 + rank, "sm_clock_mhz": 100.0 * rank})
        for rank in (0, 2)
    ]
    assert merge(gang).metrics == {"temperature_c": 62.0, "sm_clock_mhz": 100.0}
