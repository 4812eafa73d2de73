"""Deformable attention against the definition: loops, and bilinear interpolation by hand."""

import itertools
import math

import pytest
import torch

from pytest_accel.workloads.models.dino import DeformableAttention, DinoShape, Places

SIZES = [(3, 4), (2, 2)]
TOKENS = 3 * 4 + 2 * 2


def read(values, height, width, x, y):
    """Read (height * width, channels) at a share of the map: token (row, column) is at its middle, zeros around."""
    column, row = x * width - 0.5, y * height - 0.5
    total = torch.zeros_like(values[0])
    for i, j in itertools.product((0, 1), (0, 1)):
        at_row, at_column = math.floor(row.item()) + i, math.floor(column.item()) + j
        if 0 <= at_row < height and 0 <= at_column < width:
            share = (1 - abs(row - at_row)) * (1 - abs(column - at_column))
            total = total + share * values[at_row * width + at_column]
    return total


def attend_by_hand(values, where, weights):
    n, q, heads, levels, points = weights.shape
    starts = [0, 12]
    rows = []
    for image, query, head in itertools.product(range(n), range(q), range(heads)):
        total = torch.zeros(values.shape[-1], dtype=values.dtype)
        for level, point in itertools.product(range(levels), range(points)):
            height, width = SIZES[level]
            tokens = values[image, starts[level] : starts[level] + height * width, head]
            x, y = where[image, query, head, level, point]
            total = total + weights[image, query, head, level, point] * read(tokens, height, width, x, y)
        rows.append(total)
    return torch.stack(rows).view(n, q, -1)


def places(padding):
    return Places(SIZES, in_padded=None, in_image=None, padding=padding, extent=None)


@pytest.fixture
def attention():
    torch.manual_seed(1)
    layer = DeformableAttention(DinoShape(backbone="", stages=(), scales=2, width=8, heads=2, points=3))
    for parameter in layer.parameters():  # its offsets and weights begin at zero
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def layer_by_hand(layer, queries, references, tokens, padding):
    n, q, _ = queries.shape
    offsets = layer.offsets(queries).view(n, q, 2, 2, 3, 2)
    weights = layer.weights(queries).view(n, q, 2, 6).softmax(-1).view(n, q, 2, 2, 3)
    where = torch.empty_like(offsets)
    for image, query, head, level, point in itertools.product(*map(range, (n, q, 2, 2, 3))):
        reference, offset = references[image, query], offsets[image, query, head, level, point]
        height, width = SIZES[level]
        unit = reference[2:] / 2 / 3 if len(reference) == 4 else torch.tensor([1 / width, 1 / height])
        where[image, query, head, level, point] = reference[:2] + offset * unit
    values = layer.values(tokens) * ~padding[..., None]
    return layer.out(attend_by_hand(values.view(n, -1, 2, 4), where, weights))


@torch.no_grad()
@pytest.mark.parametrize("coordinates", [2, 4])
def test_offsets_are_tokens_from_a_place_and_parts_of_a_box(attention, coordinates):
    queries, tokens = torch.randn(2, 4, 8), torch.randn(2, TOKENS, 8)
    references = torch.rand(2, 4, coordinates) * 0.6 + 0.2
    padding = torch.rand(2, TOKENS) < 0.3
    torch.testing.assert_close(
        attention(queries, references, tokens, places(padding)),
        layer_by_hand(attention, queries, references, tokens, padding),
        rtol=1e-4,
        atol=1e-5,
    )
