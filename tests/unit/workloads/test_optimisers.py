"""Optimisers come by name in their fastest implementation, or as the user's callable."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from pytest_accel.workloads.optimisers import OPTIMISERS, build_optimiser, callable_name

CPU = torch.device("cpu")


def parameters():
    return [torch.nn.Parameter(torch.ones(3))]


@pytest.mark.parametrize("name", OPTIMISERS)
def test_named_optimisers_are_fused_and_take_a_step(name):
    weights = parameters()
    optimiser, described = build_optimiser(name, weights, device=CPU)
    weights[0].sum().backward()
    optimiser.step()
    assert described["optimiser_kernel"] == "fused"
    assert optimiser.param_groups[0]["fused"] is True
    assert not torch.equal(weights[0], torch.ones(3))


def test_sgd_is_that_of_the_papers():
    group = build_optimiser("sgd", parameters(), device=CPU, lr=0.1)[0].param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 1e-4)


def test_a_device_without_fused_kernels_gets_foreach():
    _, described = build_optimiser("adamw", parameters(), device=torch.device("meta"))
    assert described["optimiser_kernel"] == "foreach"


def test_a_callable_is_taken_as_it_is():
    optimiser, described = build_optimiser(partial(torch.optim.Adagrad, lr=0.5), parameters(), device=CPU)
    assert isinstance(optimiser, torch.optim.Adagrad)
    assert described == {"optimiser": "torch.optim.adagrad.Adagrad", "lr": 0.5}


def test_a_learning_rate_beside_a_callable_is_refused():
    with pytest.raises(ValueError, match="Set it inside the callable"):
        build_optimiser(torch.optim.Adagrad, parameters(), device=CPU, lr=0.5)


def test_an_unknown_optimiser_gets_a_hint():
    with pytest.raises(ValueError, match=r"Did you mean 'adamw'.*Or pass a callable"):
        build_optimiser("admaw", parameters(), device=CPU)


def test_names_of_callables_hold_no_address():
    assert callable_name(partial(parameters)).endswith("test_optimisers.parameters")
    assert "0x" not in callable_name(lambda: None)
