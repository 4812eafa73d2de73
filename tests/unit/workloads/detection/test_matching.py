"""Matching finds the least cost in all: no permutation has less."""

from __future__ import annotations

import itertools

import pytest
import torch

from pytest_accel.workloads.models.detection import UNMATCHED, match

INFINITY = float("inf")


def least_cost(cost):
    """Try every way to give each of (objects, predictions) a prediction of its own."""
    objects, predictions = cost.shape
    return min(
        sum(cost[row, column].item() for row, column in enumerate(columns))
        for columns in itertools.permutations(range(predictions), objects)
    )


@pytest.mark.parametrize("seed", range(5))
def test_no_permutation_costs_less(seed):
    costs = torch.randn(2, 3, 3, 5, generator=torch.Generator().manual_seed(seed))
    matched = match(costs)
    assert matched.shape == (2, 3, 5)
    for layer, image in itertools.product(range(2), range(3)):
        answer = matched[layer, image]
        assert sorted(answer.tolist()) == [UNMATCHED, UNMATCHED, 0, 1, 2]
        cost = sum(costs[layer, image, each, query].item() for query, each in enumerate(answer) if each >= 0)
        assert cost == pytest.approx(least_cost(costs[layer, image]))


def test_padding_is_never_matched():
    costs = torch.randn(1, 2, 4, 6)
    costs[0, 0, 1:] = INFINITY
    costs[0, 1] = INFINITY
    matched = match(costs)
    assert sorted(matched[0, 0].tolist()) == [UNMATCHED] * 5 + [0]
    assert matched[0, 0, costs[0, 0, 0].argmin()] == 0
    assert matched[0, 1].tolist() == [UNMATCHED] * 6


def test_of_too_many_objects_the_dearest_go_without():
    costs = torch.tensor([[9.0, 9.0], [1.0, 2.0], [2.0, 1.0]])[None, None]
    assert match(costs).tolist() == [[[1, 2]]]


def test_a_set_without_objects_matches_nothing():
    assert match(torch.empty(2, 1, 0, 3)).tolist() == [[[UNMATCHED] * 3]] * 2


def test_counting_operations_needs_no_values():
    assert match(torch.empty(2, 3, 4, 5, device="meta")).shape == (2, 3, 5)
