"""Optimizers by name in their fastest implementation, or as a callable."""

from functools import partial

import pytest
import torch

from pytest_accel.workloads.optimizers import OPTIMIZERS, build_optimizer

CPU = torch.device("cpu")


def parameters():
    return [torch.nn.Parameter(torch.ones(3))]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_named_optimizers_are_fused_and_take_a_step(name):
    weights = parameters()
    optimizer, described = build_optimizer(name, weights, device=CPU)
    weights[0].sum().backward()
    optimizer.step()
    assert described["optimizer_kernel"] == "fused"
    assert optimizer.param_groups[0]["fused"] is True
    assert not torch.equal(weights[0], torch.ones(3))
    kept = [tensor for tensor in optimizer.state[weights[0]].values() if tensor.shape == (3,)]
    assert len(kept) == OPTIMIZERS[name].states


def test_sgd_has_the_published_momentum_and_weight_decay():
    group = build_optimizer("sgd", parameters(), device=CPU, lr=0.1)[0].param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 1e-4)


def test_device_without_fused_kernels_uses_foreach():
    _, described = build_optimizer("adamw", parameters(), device=torch.device("meta"))
    assert described["optimizer_kernel"] == "foreach"


def test_callable_optimizer_is_used_unchanged():
    optimizer, described = build_optimizer(partial(torch.optim.Adagrad, lr=0.5), parameters(), device=CPU)
    assert isinstance(optimizer, torch.optim.Adagrad)
    assert described == {"optimizer": "torch.optim.adagrad.Adagrad", "lr": 0.5}


def test_learning_rate_beside_a_callable_is_refused():
    with pytest.raises(ValueError, match="Set it inside the callable"):
        build_optimizer(torch.optim.Adagrad, parameters(), device=CPU, lr=0.5)


def test_skipped_first_step_leaves_the_momentum_at_zero():
    """Found on an H200: fp16 overflows in its first step, and a fused SGD then began from raw memory."""
    weight = torch.nn.Parameter(torch.ones(1000))
    optimizer, _ = build_optimizer("sgd", [weight], device=torch.device("cpu"), lr=0.1)
    weight.grad = torch.full((1000,), float("inf"))
    optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.ones(())
    optimizer.step()
    assert torch.equal(weight, torch.ones(1000))
    weight.grad = torch.ones(1000)
    optimizer.found_inf = torch.zeros(())
    optimizer.step()
    torch.testing.assert_close(weight, torch.full((1000,), 1 - 0.1 * (1 + 1e-4)))
