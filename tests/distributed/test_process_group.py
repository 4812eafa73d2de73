"""Process groups of two real ranks over gloo: collectives, measuring, training."""

from __future__ import annotations

import socket

import pytest
import torch

from pytest_accel.distributed import process_group
from pytest_accel.distributed.process_group import check_distinct_gpus, open_process_group
from pytest_accel.distributed.processes import WorkerError
from tests.support.gloo import DEADLINE_S, free_port, run_ranks, start_rank

PROGRAMS = "tests.distributed.group_programs"


@pytest.fixture(scope="module")
def pair():
    """Results of two ranks, by program, then by rank."""
    answers = run_ranks(f"{PROGRAMS}:everything", 2)
    return {name: [answer[name] for answer in answers] for name in answers[0]}


class TestCollectives:
    def test_the_slowest_is_the_same_to_the_last_bit(self, pair):
        assert {found["slowest"] for found in pair["talk"]} == {(0.1 * 2 + 1e-17).hex()}

    def test_all_agree_with_rank_0(self, pair):
        assert [found["agreed"] for found in pair["talk"]] == [{"rounds": 7, "words": ["a"]}] * 2

    def test_values_of_any_length_are_gathered_by_rank(self, pair):
        for found in pair["talk"]:
            assert [(each["rank"], len(each["long"])) for each in found["gathered"]] == [(0, 1), (1, 5001)]

    def test_rank_and_size_are_known(self, pair):
        assert [(each["rank"], each["size"]) for each in pair["talk"]] == [(0, 2), (1, 2)]

    def test_a_group_can_be_opened_again(self, pair):
        assert pair["open_again"] == [{"gathered": [0, 1], "timeout_s": 500}] * 2

    def test_failure_of_one_rank_fails_all_with_the_same_text(self, pair):
        assert pair["fail_on_one"] == [["", "rank 1: the loss is nan", "unit: wrong"]] * 2


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


class TestRendezvous:
    @pytest.fixture
    def refused(self, monkeypatch):
        """Open a process group in this process; return the error."""
        monkeypatch.setattr(process_group, "_connections", {})

        def open_as(rank, port):
            environ = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            with pytest.raises(WorkerError) as caught:
                open_process_group(torch.device("cpu"), rendezvous_s=1, timeout_s=1, environ=environ)
            return str(caught.value)

        return open_as

    def test_missing_ranks_are_named_and_the_present_one_leaves(self):
        process = start_rank("builtins:id", 0, 3, free_port(), RENDEZVOUS_S="1")
        try:
            _, errors = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
            process.wait()
        assert process.returncode
        assert "WorkerError: rank 0 of 3: ranks 1, 2 did not connect within 1 s" in errors
        assert "accel_rendezvous" in errors

    def test_missing_rank_0_is_reported(self, refused):
        assert "rank 1 could not reach the store of rank 0 at 127.0.0.1:" in refused(1, free_port())

    def test_port_in_use_is_reported_with_the_remedy(self, refused):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            error = refused(0, holder.getsockname()[1])
        assert "rank 0 could not open the store at 127.0.0.1:" in error
        assert "Then try again; the session chooses another one." in error


class TestOneGpuEach:
    def test_two_ranks_on_one_gpu_are_named(self):
        with pytest.raises(WorkerError, match=r"ranks 0 and 2 hold the same GPU \(a on n0\)"):
            check_distinct_gpus([("n0", "a"), ("n0", "b"), ("n0", "a")])

    def test_the_same_uuid_on_two_hosts_or_none_at_all_is_fine(self):
        check_distinct_gpus([("n0", "a"), ("n1", "a")])
        check_distinct_gpus([("n0", ""), ("n0", "")])
