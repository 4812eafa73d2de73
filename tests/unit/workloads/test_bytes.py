"""Minimum bytes of a step against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_accel.workloads.optimizers import OPTIMIZERS, build_optimizer
from pytest_accel.workloads.step import InferStep, TrainStep


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_have_as_many_state_tensors_as_declared(name):
    layer = nn.Linear(5, 3)
    optimizer, _ = build_optimizer(name, layer.parameters(), device=torch.device("cpu"))
    layer(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    kept = [tensor for tensor in optimizer.state[layer.weight].values() if tensor.shape == layer.weight.shape]
    assert len(kept) == OPTIMIZERS[name].states


class TestSteps:
    """28 x 28 pixels -> 10 classes: one weight of 7840, a bias of 10."""

    PARAMETERS = 7850

    @pytest.fixture(autouse=True)
    def cache(self, monkeypatch):
        def give(size):
            monkeypatch.setattr("pytest_accel.workloads.flops.cache_bytes", lambda device: size)

        give(0)
        return give

    def bytes_of(self, kind, **choices):
        def layer():
            return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

        with kind.build(layer, data="mnist", batch_size=4, **choices) as step:
            return step.demand.bytes_moved

    @pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("bf16", 2)])
    def test_inference_reads_weights_in_its_precision(self, precision, size):
        assert self.bytes_of(InferStep, precision=precision) == size * (self.PARAMETERS + 4 * 784)

    @pytest.mark.parametrize(("optimizer", "states"), [("sgd", 1), ("adamw", 2)])
    @pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("bf16", 2)])
    def test_training_keeps_its_weights_in_fp32(self, optimizer, states, precision, size):
        forward = 4 * (self.PARAMETERS + 4 * 784)
        backward = size * 4 * 784  # the images, for the gradient of the weight
        update = 4 * self.PARAMETERS * (1 + 2 + states + 1 + states)
        found = self.bytes_of(TrainStep, optimizer=optimizer, precision=precision)
        assert found == forward + backward + update

    def test_cache_is_subtracted_from_every_pass(self, cache):
        inference, training = (self.bytes_of(kind) for kind in (InferStep, TrainStep))
        cache(1000)
        assert self.bytes_of(InferStep) == inference - 1000
        # Forward, backward, gradients; then what the optimizer reads, and what it writes.
        assert self.bytes_of(TrainStep, micro_batch_size=4) == training - 5 * 1000
        cache(10**6)
        assert self.bytes_of(TrainStep) is None

    def test_users_optimizer_is_not_counted(self):
        found = self.bytes_of(TrainStep, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        assert found == 4 * (self.PARAMETERS + 4 * 784) + 4 * 4 * 784 + 4 * self.PARAMETERS


def test_small_model_has_no_byte_count():
    with TrainStep.build("zoo/gpt-tiny", batch_size=2, sequence=16) as step:
        assert step.demand.flops
        assert step.demand.bytes_moved is None
