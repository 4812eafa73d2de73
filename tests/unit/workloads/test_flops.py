"""Operations of a step against counts by hand."""

import pytest
from torch import nn

from pytest_accel.workloads.demand import count
from pytest_accel.workloads.tasks.images import ImagePlan

BATCH, SEQUENCE, WIDTH = 3, 8, 16
TOKENS = BATCH * SEQUENCE


def plan(*shape, batch_size=BATCH):
    return ImagePlan(name="own", batch_size=batch_size, classes=10, shape=shape)


def total(output, _):
    return output.sum()


QKV = 2 * TOKENS * WIDTH * 3 * WIDTH
ATTENTION = 2 * 2 * BATCH * SEQUENCE**2 * WIDTH  # scores, and the mixing of values
OTHERS = 2 * TOKENS * WIDTH * (WIDTH + 4 * WIDTH + 4 * WIDTH)


class TestByHand:
    def test_linear_layer_is_counted(self):
        counted = count(nn.Linear(20, 7), plan(20))
        assert counted.flops == counted.least_flops == 2 * BATCH * 20 * 7

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("heads", [1, 4])
    def test_transformer_layer_is_counted(self, heads, training):
        layer = nn.TransformerEncoderLayer(WIDTH, heads, 4 * WIDTH, batch_first=True).train(training)
        counted = count(layer, plan(SEQUENCE, WIDTH))
        assert counted.flops == QKV + ATTENTION + OTHERS
        assert counted.least_flops == QKV + ATTENTION // 2 + OTHERS  # half may be skipped where it is causal
        # Backward: two gradients for each product; the first layer needs none of its inputs.
        found = count(layer, plan(SEQUENCE, WIDTH), loss=total)
        assert found.flops == 3 * (QKV + ATTENTION + OTHERS) - QKV

    @pytest.mark.parametrize("groups", [1, 2, 6])
    def test_convolution_is_counted_forward_and_backward(self, groups):
        model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 12, 3, stride=2, groups=groups))
        first = 2 * BATCH * 9 * 9 * 3 * 6
        second = 2 * BATCH * 4 * 4 * 12 * (6 // groups) * 3 * 3
        assert count(model, plan(3, 9, 9)).flops == first + second
        assert count(model, plan(3, 9, 9), loss=total).flops == 2 * first + 3 * second

    def test_transposed_convolution_is_counted(self):
        model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2))
        first = 2 * BATCH * 5 * 5 * 3 * 6
        second = 2 * BATCH * 5 * 5 * 6 * (4 // 2) * 3 * 3
        assert count(model, plan(3, 5, 5), loss=total).flops == 2 * first + 3 * second

    def test_frozen_layer_has_no_gradient(self):
        model = nn.Sequential(nn.Linear(20, 10), nn.Linear(10, 5))
        model[0].requires_grad_(requires_grad=False)
        counted = count(model, plan(20), loss=total)
        assert counted.flops == 2 * BATCH * 20 * 10 + 2 * (2 * BATCH * 10 * 5)
