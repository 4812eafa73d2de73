"""Gradient accumulation, clipping and learning rates by parameter name."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pytest_accel.workloads.data.sources import RotatingSource
from pytest_accel.workloads.step import TrainStep


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 8), nn.Tanh(), nn.Linear(8, 10))


def build(**choices):
    return TrainStep.build(mlp, **{"data": "mnist", "batch_size": 12, "lr": 0.1} | choices)


def one_step(batch, **choices):
    inputs, labels = batch
    with build(**choices) as step:
        size = choices.get("micro_batch_size", 12)
        step._source = RotatingSource(list(zip(inputs.split(size), labels.split(size), strict=True)))
        step()
        return step.loss_value(), [parameter.grad.clone() for parameter in step._trainable]


@settings(max_examples=4)
@given(size=st.sampled_from([1, 2, 3, 4, 6, 12]), seed=st.integers(0, 1000))
def test_accumulated_gradients_and_loss_equal_those_of_the_whole_batch(size, seed):
    random = torch.Generator().manual_seed(seed)
    batch = torch.randn(12, 1, 28, 28, generator=random), torch.randint(10, (12,), generator=random)
    loss, gradients = one_step(batch)
    in_parts, sums = one_step(batch, micro_batch_size=size)
    assert in_parts == pytest.approx(loss, rel=1e-5)
    for whole, summed in zip(gradients, sums, strict=True):
        torch.testing.assert_close(summed, whole, rtol=1e-4, atol=1e-6)


def test_step_counts_the_whole_batch():
    with build() as whole, build(micro_batch_size=4) as step:
        assert step.work == whole.work == 12
        assert step.demand.flops == whole.demand.flops
        assert step.demand.least_flops == whole.demand.least_flops
        assert next(step._source)[0].shape[0] == 4
        step()
        step.check()
        assert step.steps == 1
        assert step.configuration["batch_size"] == 12
        assert step.configuration["micro_batch_size"] == 4
        assert "micro_batch_size" not in whole.configuration


class Counting(RotatingSource):
    taken = 0
    buffered, burst = 4, 4

    def __next__(self):
        self.taken += 1
        return super().__next__()


def test_loader_gives_all_micro_batches_of_a_step():
    with build(micro_batch_size=4) as step:
        step._source = source = Counting([next(step._source)])
        assert step.buffered == 2  # of three parts each
        assert step.burst == 4  # whose 12 are three bursts
        step.load()
        assert source.taken == 3
        step()
        assert source.taken == 6


# Clipping and learning rates.


def test_gradients_are_clipped_to_the_norm():
    with build(clip=1e-3) as step:
        step()
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in step._trainable])
        assert float(norm) == pytest.approx(1e-3, rel=1e-2)
        assert step.configuration["clip"] == 1e-3
        step.check()
    with build() as plain, build(clip=1e6) as wide:
        plain(), wide()
        for a, b in zip(plain._trainable, wide._trainable, strict=True):
            assert torch.equal(a.grad, b.grad)
        assert "clip" not in plain.configuration


def test_learning_rates_follow_the_prefix_of_parameter_names():
    with build(lr_scale={"1.": 0.1, "1.bias": 0.5}, weight_decay=0.3) as step:
        rates = {
            id(parameter): group["lr"]
            for group in step._optimizer.param_groups
            for parameter in group["params"]
        }
        named = dict(step.parts.model.named_parameters())
        found = {name: rates[id(parameter)] for name, parameter in named.items()}
        expected = {"1.weight": 0.01, "1.bias": 0.05, "3.weight": 0.1, "3.bias": 0.1}
        assert found == pytest.approx(expected)
        assert {group["weight_decay"] for group in step._optimizer.param_groups} == {0.3}
        assert step.configuration["lr_scale.1."] == 0.1
        assert (step.configuration["lr"], step.configuration["weight_decay"]) == (0.1, 0.3)
        step()
        step.check()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"lr_scale": {"backbone": 0.1}}, "no trained parameter begins with 'backbone'.*begin with: 1, 3"),
        (
            {"lr_scale": {"1.": 0.1}, "optimizer": torch.optim.Adagrad, "lr": None},
            "Set it inside the callable",
        ),
        ({"weight_decay": 0.1, "optimizer": torch.optim.Adagrad, "lr": None}, "Set it inside the callable"),
    ],
)
def test_update_options_that_do_not_apply_are_refused(options, problem):
    with pytest.raises(ValueError, match=problem):
        build(**options)


def test_scaled_gradient_is_clipped_by_its_unscaled_norm():
    """fp16: what is clipped is the gradient, not the gradient times the scale of the loss."""
    weights = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**16)):
        with build(clip=1e-3, optimizer="sgd") as step:
            step._scaler = scaler or step._scaler
            step()
            weights.append([parameter.detach().clone() for parameter in step._trainable])
    for plain, scaled in zip(*weights, strict=True):
        torch.testing.assert_close(scaled, plain, rtol=0, atol=1e-7)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_consecutive_steps_read_different_batches(size):
    with build(micro_batch_size=size) as step:
        seen = [[next(step._source)[0] for _ in range(12 // size)] for _ in range(2)]
    assert any(not torch.equal(first, second) for first, second in zip(*seen, strict=True))
