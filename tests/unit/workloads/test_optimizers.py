"""Optimizers come by name in their fastest implementation, or as the user's callable."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from pytest_accel.workloads.config import callable_name
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


def test_sgd_is_that_of_the_papers():
    group = build_optimizer("sgd", parameters(), device=CPU, lr=0.1)[0].param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 1e-4)


def test_a_device_without_fused_kernels_gets_foreach():
    _, described = build_optimizer("adamw", parameters(), device=torch.device("meta"))
    assert described["optimizer_kernel"] == "foreach"


def test_a_callable_is_taken_as_it_is():
    optimizer, described = build_optimizer(partial(torch.optim.Adagrad, lr=0.5), parameters(), device=CPU)
    assert isinstance(optimizer, torch.optim.Adagrad)
    assert described == {"optimizer": "torch.optim.adagrad.Adagrad", "lr": 0.5}


def test_a_learning_rate_beside_a_callable_is_refused():
    with pytest.raises(ValueError, match="Set it inside the callable"):
        build_optimizer(torch.optim.Adagrad, parameters(), device=CPU, lr=0.5)


def test_an_unknown_optimizer_gets_a_hint():
    with pytest.raises(ValueError, match=r"Did you mean 'adamw'.*Or pass a callable"):
        build_optimizer("admaw", parameters(), device=CPU)


def test_names_of_callables_hold_no_address():
    assert callable_name(partial(parameters)).endswith("test_optimizers.parameters")
    assert "0x" not in callable_name(lambda: None)


def test_a_first_step_that_a_scaler_skips_leaves_no_garbage_in_the_momentum():
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


def test_momentum_that_begins_as_zeros_is_the_same_arithmetic():
    ours, plain = (torch.nn.Parameter(torch.ones(8)) for _ in range(2))
    optimizer, _ = build_optimizer("sgd", [ours], device=torch.device("cpu"), lr=0.1)
    reference = torch.optim.SGD([plain], lr=0.1, momentum=0.9, weight_decay=1e-4)
    for scale in (1.0, -2.0, 0.5):
        for parameter, each in ((ours, optimizer), (plain, reference)):
            parameter.grad = torch.full((8,), scale)
            each.step()
    torch.testing.assert_close(ours, plain)
