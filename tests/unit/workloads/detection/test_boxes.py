"""Boxes in two notations, and their generalised overlap against areas added up by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.models.detection import generalized_iou, to_centres, to_corners

SHARE = st.integers(0, 12).map(lambda twelfth: twelfth / 12)
CORNERS = st.tuples(SHARE, SHARE, SHARE, SHARE).map(
    lambda c: (min(c[0], c[2]), min(c[1], c[3]), max(c[0], c[2]), max(c[1], c[3]))
)


def giou_by_hand(a, b):
    """Count the cells of a fine grid: the corners that are drawn above lie on it."""

    def cells(box):
        left, top, right, bottom = (round(12 * edge) for edge in box)
        return {(x, y) for x in range(left, right) for y in range(top, bottom)}

    hull = (min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3]))
    union, around = len(cells(a) | cells(b)), len(cells(hull))
    iou = len(cells(a) & cells(b)) / union if union else 0.0
    return iou - ((around - union) / around if around else 0.0)


@given(CORNERS, CORNERS)
def test_generalized_iou_is_that_of_counted_cells(a, b):
    found = generalized_iou(torch.tensor(a), torch.tensor(b)).item()
    assert found == pytest.approx(giou_by_hand(a, b), abs=1e-4)
    assert -1 <= found <= 1 + 1e-6
    assert found == pytest.approx(generalized_iou(torch.tensor(b), torch.tensor(a)).item(), abs=1e-6)


def test_generalized_iou_is_one_with_itself_and_nears_minus_one_far_away():
    box = torch.tensor([0.2, 0.3, 0.5, 0.4])
    assert generalized_iou(box, box).item() == pytest.approx(1)
    near, far = torch.tensor([0.0, 0.0, 0.001, 0.001]), torch.tensor([0.999, 0.999, 1.0, 1.0])
    assert -1 < generalized_iou(near, far).item() < -0.999


def test_a_box_without_an_area_has_a_finite_overlap_and_gradient():
    point = torch.full((4,), 0.5, requires_grad=True)
    overlap = generalized_iou(point, torch.full((4,), 0.5))
    overlap.backward()
    assert torch.isfinite(overlap)
    assert torch.isfinite(point.grad).all()


def test_all_pairs_come_by_broadcasting():
    a, b = (to_corners(torch.rand(n, 4)) for n in (3, 5))
    pairs = generalized_iou(a[:, None], b[None])
    assert pairs.shape == (3, 5)
    torch.testing.assert_close(pairs[2, 4], generalized_iou(a[2], b[4]))


def test_notations_are_each_others_inverse():
    centres = torch.tensor([[0.5, 0.4, 0.2, 0.1]])
    torch.testing.assert_close(to_corners(centres), torch.tensor([[0.4, 0.35, 0.6, 0.45]]))
    boxes = torch.rand(7, 4)
    torch.testing.assert_close(to_centres(to_corners(boxes)), boxes)
