"""Process groups of two real ranks over gloo: collectives, device check, measuring, training, sharding."""

import socket

import pytest
import torch

from pytest_accel.distributed import process_group
from pytest_accel.distributed.device_check import Reading, find_stragglers
from pytest_accel.distributed.process_group import open_process_group
from pytest_accel.distributed.processes import WorkerError
from tests.support.gloo import free_port, run_ranks

PROGRAMS = "tests.distributed.group_programs"


@pytest.fixture(scope="module")
def pair():
    """Results of two ranks, by program, then by rank."""
    answers = run_ranks(f"{PROGRAMS}:everything", 2)
    return {name: [answer[name] for answer in answers] for name in answers[0]}


class TestCollectives:
    def test_ranks_talk(self, pair):
        slowest = (0.1 * 2 + 1e-17).hex()  # the same to the last bit
        for rank, found in enumerate(pair["talk"]):
            assert (found["rank"], found["size"], found["slowest"]) == (rank, 2, slowest)
            assert found["agreed"] == {"rounds": 7, "words": ["a"]}  # of rank 0
            assert [(each["rank"], len(each["long"])) for each in found["gathered"]] == [(0, 1), (1, 5001)]

    def test_the_store_of_one_machine_listens_on_loopback_alone(self, pair):
        for (address,) in pair["listen"]:
            assert address.startswith("0100007F:")  # 127.0.0.1

    def test_a_group_can_be_opened_again(self, pair):
        assert pair["open_again"] == [[0, 1]] * 2

    def test_failure_of_one_rank_fails_all_with_the_same_text(self, pair):
        assert pair["fail_on_one"] == [["", "rank 1: the loss is nan", "unit: wrong"]] * 2


class TestDeviceCheck:
    def test_slow_rank_is_named_on_every_rank(self, pair):
        first, second = pair["check_devices"]
        assert first == second  # every rank comes to the same result
        assert first["same_seed"]
        assert {(each["kind"], each["rank"]) for each in first["readings"]} == {
            (kind, rank) for kind in ("matrix product", "copy") for rank in range(2)
        }
        found = find_stragglers(Reading(**each) for each in first["readings"])
        (product,) = [each.line() for each in found if each.reading.kind == "matrix product"]
        assert product.startswith("rank 1 (device 1, node n1): matrix product ")
        assert product.endswith(" % under the median of 2 devices")

    def test_all_reduces_are_timed(self, pair):
        first, _ = pair["check_devices"]
        assert first["all_reduces"].startswith("all-reduce of 2 ranks: 4 KiB in ")


class TestMeasuring:
    def test_a_slow_rank_and_a_fast_one_take_the_same_steps(self, pair):
        fast, slow = pair["measure_with_a_slow_rank"]
        for name in ("warmup_steps", "steps", "warm_step_s", "steady", "rounds", "steps_per_round"):
            assert fast[name] == slow[name], name

    def test_each_rank_keeps_its_own_clock_and_the_slowdown_is_on_both(self, pair):
        fast, slow = pair["measure_with_a_slow_rank"]
        warm_step_s = float.fromhex(slow["warm_step_s"])  # the slowest rank's, so 6 ms or more
        assert warm_step_s >= 0.006
        # Each step is followed by a delay of that time: half the throughput of the slowest.
        assert slow["step_s"] >= 0.006 + warm_step_s
        assert fast["step_s"] >= 0.002 + warm_step_s
        assert fast["step_s"] != slow["step_s"]


class TestTraining:
    def test_gradients_are_the_mean_of_the_ranks_own(self, pair):
        for found in pair["train_together"]:
            assert found["averaged"] == [True] * 4

    def test_batches_differ_and_weights_do_not(self, pair):
        first, second = pair["train_together"]
        assert not set(first["first_inputs"]) & set(second["first_inputs"])
        assert first["own_loss"] != second["own_loss"]
        assert first["weight_before"] == second["weight_before"]
        assert first["weights_after"] == second["weights_after"]
        assert first["loss"] != second["loss"]

    def test_work_is_one_ranks_and_the_configuration_knows_no_ranks(self, pair):
        first, second = pair["train_together"]
        assert first["work"] == 8
        assert first["configuration"] == second["configuration"]
        assert first["configuration"]["batch_size"] == 8
        assert "ddp" not in first["configuration"]

    def test_independent_jobs_end_with_different_weights(self, pair):
        first, second = pair["train_apart"]
        assert first["weights_after"] != second["weights_after"]
        assert first["configuration"]["ddp"] is False

    def test_a_global_batch_is_shared(self, pair):
        for found in pair["share_a_batch"]:
            assert found["work"] == 8
            assert found["configuration"]["global_batch_size"] == 16
            assert found["configuration"]["scaling"] == "strong"
            assert "batch_size" not in found["configuration"]
            assert "does not divide among 2 ranks" in found["refused"]

    def test_dropout_differs(self, pair):
        first, second = pair["draw_dropout"]
        assert first["drawn"] != second["drawn"]

    def test_inference_is_not_wrapped_by_ddp(self, pair):
        first, second = pair["infer"]
        assert first["output"] != second["output"]
        assert not first["wrapped"]

    def test_a_closed_step_leaves_nothing_of_ddp(self, pair):
        assert pair["close_a_step"] == [{"before": 1, "after": 0}] * 2


class TestSharding:
    """Micro-batches and FSDP: the gradients of DDP, in half the memory."""

    @pytest.mark.parametrize("way", ["micro-batches", "shards", "both"])
    def test_gradients_are_those_of_ddp_with_the_whole_batch(self, pair, way):
        for found in pair["same_gradients"]:
            assert found[way]["gradients"] < 1e-5 * found["largest"]
            assert found[way]["loss"] < 1e-5

    def test_ddp_reduces_with_the_last_micro_batch_alone(self, pair):
        first, second = zip(*pair["reduce_once"], strict=True)
        assert first[0] != first[1]
        assert second[0] == pytest.approx(second[1], rel=1e-9)

    def test_a_sharded_model_learns_as_ddp_does(self, pair):
        for found in pair["train_in_shards"]:
            assert found["fsdp"] == pytest.approx(found["ddp"], rel=1e-4)
            assert found["bf16"] == pytest.approx(found["ddp"], rel=1e-2)
            assert found["bf16"] != found["fsdp"]
            assert found["fsdp"][-1] < found["fsdp"][0]

    def test_each_rank_has_half_of_the_parameters(self, pair):
        parameters = pair["train_in_shards"][0]["parameters"]
        assert [found["here"] for found in pair["train_in_shards"]] == [parameters // 2] * 2
        assert sum(pair["own_model"]) == 785 * 16 + 17 * 10

    def test_a_sharded_step_says_so_and_is_counted_whole(self, pair):
        for found in pair["train_in_shards"]:
            assert found["configuration"]["sharding"] == "fsdp"
            assert found["configuration"]["parameters"] == found["parameters"]
            assert found["flops"] > 6 * 4 * 16 * 2 * 12 * 32**2  # of the blocks alone

    def test_gradients_are_clipped_by_the_norm_of_all_shards(self, pair):
        for found in pair["clip_alike"]:
            assert found == {"ddp": pytest.approx(1e-3, rel=1e-3), "fsdp": pytest.approx(1e-3, rel=1e-3)}

    def test_large_model_is_built_in_shards(self, pair):
        first, second = pair["build_in_shards"]
        for found in (first, second):
            assert found["deviation"] == pytest.approx(0.02, rel=0.1)
            assert (found["tied"], found["norm"], found["cosine"]) == (True, 1.0, 1.0)
            assert found["losses"][-1] < found["losses"][0]
        assert first["first"] != second["first"]

    def test_unsupported_sharding_is_refused(self, pair):
        for independent, replayed, normed, detector in pair["refused"]:
            assert "Leave ddp=False out" in independent
            assert "Write 'default'" in replayed
            assert "must stay in fp32" in normed
            assert "must stay in fp32" in detector

    def test_sgd_updates_shards_as_it_updates_the_whole(self, pair):
        for found in pair["plain_sgd"]:
            assert found["fsdp"] == pytest.approx(found["ddp"], rel=1e-4)


class TestRendezvous:
    @pytest.fixture
    def refused(self, monkeypatch):
        """Open a process group in this process; return the error."""

        def open_as(rank, port, size=2):
            place = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            for name, value in place.items():
                monkeypatch.setenv(name, str(value))
            with pytest.raises(WorkerError) as caught:
                open_process_group(torch.device("cpu"), rendezvous_s=1, timeout_s=1)
            return str(caught.value)

        yield open_as
        process_group._open_store.cache_clear()

    def test_missing_ranks_are_named_and_the_present_one_leaves(self, refused):
        error = refused(0, free_port(), size=3)
        assert "rank 0 of 3: ranks 1, 2 did not connect within 1 s" in error
        assert "accel_rendezvous" in error

    def test_missing_rank_0_is_reported(self, refused):
        assert "rank 1 could not reach the store of rank 0 at 127.0.0.1:" in refused(1, free_port())

    def test_port_in_use_is_reported_with_the_remedy(self, refused):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            error = refused(0, holder.getsockname()[1])
        assert "rank 0 could not reach the store of rank 0 at 127.0.0.1:" in error
        assert "Try again: the session chooses another port." in error
