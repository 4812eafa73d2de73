"""Operation counts against counts by hand; one count for each configuration."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_accel.workloads.flops import INPUTS, count
from pytest_accel.workloads.tasks.images import ImagePlan
from pytest_accel.workloads.tasks.text import TokenPlan

BATCH, SEQUENCE, WIDTH, HEADS = 3, 8, 16, 4
TOKENS = BATCH * SEQUENCE


class Block(nn.Module):
    """Attention and two linear layers, as in any transformer."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = (BATCH, SEQUENCE, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.out(mixed.transpose(1, 2).reshape(BATCH, SEQUENCE, WIDTH))
        return self.down(F.gelu(self.up(x)))


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

    def test_transformer_block_is_counted_forward(self):
        counted = count(Block(), plan(SEQUENCE, WIDTH))
        assert counted.flops == QKV + ATTENTION + OTHERS
        assert counted.least_flops == QKV + ATTENTION // 2 + OTHERS  # it is causal: half may be skipped

    def test_transformer_block_is_counted_backward(self):
        counted = count(Block(), plan(SEQUENCE, WIDTH), loss=total)
        # Two gradients for each product; the first layer needs none of its inputs.
        assert counted.flops == 3 * (QKV + ATTENTION + OTHERS) - QKV

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("heads", [1, 4])
    def test_torch_attention_is_counted_in_both_modes(self, heads, training):
        layer = nn.TransformerEncoderLayer(WIDTH, heads, 4 * WIDTH, batch_first=True).train(training)
        assert count(layer, plan(SEQUENCE, WIDTH)).flops == QKV + ATTENTION + OTHERS

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
        assert set(counted.gradients) == {"1.weight", "1.bias"}


class TestWhatProductsRead:
    def test_weights_and_inputs_are_read_in_both_passes(self):
        model = nn.Sequential(nn.Linear(20, 10, bias=False), nn.Linear(10, 5, bias=False))
        counted = count(model, plan(20), loss=total)
        assert counted.forward == {INPUTS: BATCH * 20, "0.weight": 200, "1.weight": 50}
        assert counted.backward == {
            INPUTS: BATCH * 20,
            "1.weight": 50,
        }  # the gradient of the inputs is not needed
        assert counted.gradients == {"0.weight": 200, "1.weight": 50}

    def test_embedding_and_unused_layer_are_not_read(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.head, self.spare = nn.Embedding(50, 4), nn.Linear(4, 50), nn.Linear(4, 4)

            def forward(self, tokens):
                return self.head(self.table(tokens))

        words = TokenPlan(name="tokens", batch_size=2, vocabulary=50, sequence=6)
        counted = count(Model(), words, loss=total)
        assert counted.forward == {"head.weight": 200, "head.bias": 50}
        assert set(counted.gradients) == {
            "table.weight",
            "head.weight",
            "head.bias",
        }  # dense, all of the table

    def test_shared_weight_is_read_once_and_a_slice_by_its_size(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.shared, self.sliced = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(8, 8))

            def forward(self, x):
                return x @ self.shared @ self.shared @ self.sliced[:, :2]

        assert count(Model(), plan(8)).forward == {INPUTS: BATCH * 8, "shared": 64, "sliced": 16}
