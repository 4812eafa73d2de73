"""Operations and minimum bytes of a step against counts by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_accel.workloads.demand import count
from pytest_accel.workloads.optimizers import OPTIMIZERS, build_optimizer
from pytest_accel.workloads.step import InferStep, TrainStep
from pytest_accel.workloads.tasks.images import ImagePlan
from pytest_accel.workloads.tasks.text import TokenPlan

# Operations.


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
        assert counted.gradients == 10 * 5 + 5


class TestWhatProductsRead:
    def test_weights_and_inputs_are_read_in_both_passes(self):
        model = nn.Sequential(nn.Linear(20, 10, bias=False), nn.Linear(10, 5, bias=False))
        counted = count(model, plan(20), loss=total)
        assert counted.forward == BATCH * 20 + 200 + 50
        assert counted.backward == BATCH * 20 + 50  # the gradient of the inputs is not needed
        assert counted.gradients == 200 + 50

    def test_embedding_and_unused_layer_are_not_read(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.head, self.spare = nn.Embedding(50, 4), nn.Linear(4, 50), nn.Linear(4, 4)

            def forward(self, tokens):
                return self.head(self.table(tokens))

        words = TokenPlan(name="tokens", batch_size=2, vocabulary=50, sequence=6)
        counted = count(Model(), words, loss=total)
        assert counted.forward == 200 + 50  # the head's weight and bias
        assert counted.gradients == 200 + 200 + 50  # dense, all of the table

    def test_shared_weight_is_read_once_and_a_slice_by_its_size(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.shared, self.sliced = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(8, 8))

            def forward(self, x):
                return x @ self.shared @ self.shared @ self.sliced[:, :2]

        assert count(Model(), plan(8)).forward == BATCH * 8 + 64 + 16


# Bytes.


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
            monkeypatch.setattr("pytest_accel.workloads.demand.cache_bytes", lambda device: size)

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
