"""Micro-batches and FSDP over a real pair of ranks: the gradients of DDP, in half the memory."""

from __future__ import annotations

import pytest

from tests.support.gloo import run_ranks


@pytest.fixture(scope="module")
def pair():
    """Results of two ranks, by program, then by rank."""
    answers = run_ranks("tests.distributed.sharding_programs:everything", 2)
    return {name: [answer[name] for answer in answers] for name in answers[0]}


@pytest.mark.parametrize("way", ["micro-batches", "shards", "both"])
def test_gradients_are_those_of_ddp_with_the_whole_batch(pair, way):
    for found in pair["same_gradients"]:
        assert found[way]["gradients"] < 1e-5 * found["largest"]
        assert found[way]["loss"] < 1e-5


def test_ddp_reduces_with_the_last_micro_batch_alone(pair):
    first, second = zip(*pair["reduce_once"], strict=True)
    assert first[0] != first[1]
    assert second[0] == pytest.approx(second[1], rel=1e-9)


def test_a_sharded_model_learns_as_ddp_does(pair):
    for found in pair["train_in_shards"]:
        assert found["fsdp"] == pytest.approx(found["ddp"], rel=1e-4)
        assert found["bf16"] == pytest.approx(found["ddp"], rel=1e-2)
        assert found["bf16"] != found["fsdp"]
        assert found["fsdp"][-1] < found["fsdp"][0]


def test_each_rank_has_half_of_the_parameters(pair):
    parameters = pair["train_in_shards"][0]["parameters"]
    assert [found["here"] for found in pair["train_in_shards"]] == [parameters // 2] * 2
    assert sum(pair["own_model"]) == 785 * 16 + 17 * 10


def test_a_sharded_step_says_so_and_is_counted_whole(pair):
    for found in pair["train_in_shards"]:
        assert found["configuration"]["sharding"] == "fsdp"
        assert found["configuration"]["parameters"] == found["parameters"]
        assert found["flops"] > 6 * 4 * 16 * 2 * 12 * 32**2  # of the blocks alone
        assert found["bytes"] is None


def test_gradients_are_clipped_by_the_norm_of_all_shards(pair):
    for found in pair["clip_alike"]:
        assert found == {"ddp": pytest.approx(1e-3, rel=1e-3), "fsdp": pytest.approx(1e-3, rel=1e-3)}


def test_large_model_is_built_in_shards(pair):
    first, second = pair["build_in_shards"]
    for found in (first, second):
        assert found["deviation"] == pytest.approx(0.02, rel=0.1)
        assert (found["tied"], found["norm"], found["cosine"]) == (True, 1.0, 1.0)
        assert found["losses"][-1] < found["losses"][0]
    assert first["first"] != second["first"]


def test_unsupported_sharding_is_refused(pair):
    for independent, scaled, replayed, normed, detector in pair["refused"]:
        assert "Leave ddp=False out" in independent
        assert "Write precision='bf16'" in scaled
        assert "Write 'default'" in replayed
        assert "batch norms keep their statistics in fp32" in normed
        assert "boxes must stay in fp32" in detector


def test_sgd_updates_shards_as_it_updates_the_whole(pair):
    for found in pair["plain_sgd"]:
        assert found["fsdp"] == pytest.approx(found["ddp"], rel=1e-4)
