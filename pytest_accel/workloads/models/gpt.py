"""A decoder-only transformer on one screen: pre-norm, rotary positions, fused causal attention.

The head shares the embedding's weights, as in GPT-2 and Megatron. Linear layers have no bias. The vocabulary
is padded to a multiple of 128 for the tensor cores; no token and no target is in the padding. `forward` returns logits in
the type they were computed in: the loss upcasts them, where a compiler fuses it into the softmax. The residual stream has
the type of the products, as in Megatron-LM: .973 of the step time of a fp32 stream at 0.8 B on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pytest_accel.workloads.parallel import local

PAD_TO = 128  # elements; tensor cores want 64, and 128 divides evenly over two ranks too


@dataclass(frozen=True, slots=True, kw_only=True)
class GptShape:
    layers: int
    width: int
    heads: int
    sequence: int
    vocabulary: int
    checkpoint: bool = False

    @property
    def padded_vocabulary(self) -> int:
        return -(-self.vocabulary // PAD_TO) * PAD_TO


GPT_SHAPES = {
    "gpt-tiny": GptShape(layers=4, width=192, heads=6, sequence=128, vocabulary=4096),
    # CARAML's two: GPT-2 small, and the 800 M model (head width 256).
    "gpt-117m": GptShape(layers=12, width=768, heads=12, sequence=1024, vocabulary=50257),
    "gpt-800m": GptShape(layers=16, width=2048, heads=8, sequence=2048, vocabulary=50257),
    # GPT-3's (arXiv:2005.14165, table 2.1), with CARAML's sequences; their training fits no single device.
    "gpt-13b": GptShape(layers=40, width=5120, heads=40, sequence=2048, vocabulary=50257),
    "gpt-175b": GptShape(layers=96, width=12288, heads=96, sequence=2048, vocabulary=50257),
}


class CausalAttention(nn.Module):
    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n, t, width = x.shape
        # Unbound at once, so that a compiler writes their gradients where the next product reads them.
        q, k, v = (each.transpose(1, 2) for each in self.qkv(x).view(n, t, 3, self.heads, -1).unbind(2))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(n, t, width))


class GptBlock(nn.Module):
    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(shape.width), CausalAttention(shape)
        self.norm2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.down(gelu(self.up(self.norm2(x))))


def gelu(x: Tensor) -> Tensor:
    """GPT-2's GELU, x (1 + tanh z) / 2, which is x sigmoid(2 z): a compiler's exp is faster than its tanh."""
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    return x * torch.sigmoid(sqrt(8 / pi) * (x + 0.044715 * x * x * x))


class GPT(nn.Module):
    """(batch, sequence) tokens -> (batch, sequence, padded vocabulary) logits."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.padded_vocabulary, shape.width)
        self.blocks = nn.ModuleList(GptBlock(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.padded_vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        for name in ("cos", "sin"):
            angles = torch.empty(shape.sequence, shape.width // shape.heads // 2)
            self.register_buffer(name, angles, persistent=False)
        self.initialize()

    def initialize(self) -> None:
        for name, parameter in self.named_parameters():
            here = local(parameter)
            if parameter.dim() > 1:  # GPT-2: .02, and what adds to the residual stream shrinks with depth
                depth = 2 * self.shape.layers if name.endswith(("out.weight", "down.weight")) else 1
                nn.init.normal_(here, std=0.02 / depth**0.5)
            else:
                nn.init.constant_(here, 1.0 if name.endswith("weight") else 0.0)
        for buffer, angles in zip((self.cos, self.sin), rotary_angles(self.shape), strict=True):
            buffer.copy_(angles)

    def forward(self, tokens: Tensor) -> Tensor:
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        # Not on the meta device, where FLOPs are counted: recomputation is not counted.
        recompute = self.shape.checkpoint and self.training and not tokens.is_meta
        x = self.embedding(tokens)
        device = x.device.type
        if not x.is_meta and torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False) if recompute else block(x, cos, sin)
        return self.head(self.norm(x))


def rotary_angles(shape: GptShape) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of every position's angles, each (sequence, head width / 2)."""
    half = shape.width // shape.heads // 2
    frequency = 10000.0 ** (-torch.arange(half).float() / half)
    angle = torch.outer(torch.arange(shape.sequence).float(), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (x[i], x[i + half]) by their position's angle: RoPE, arXiv:2104.09864."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).type_as(x)


def attention_backend(model: Any, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return the kernel that torch chooses for a GPT's attention, by shape, type and version; None for other models."""
    shape = getattr(model, "shape", None)
    if not isinstance(shape, GptShape):
        return None
    from torch.nn.attention import SDPBackend

    size = (1, shape.heads, shape.sequence, shape.width // shape.heads)
    tensors = [torch.empty(size, dtype=dtype, device=device, requires_grad=model.training) for _ in range(3)]
    chosen = SDPBackend(torch._fused_sdp_choice(*tensors, is_causal=True))  # noqa: SLF001 - torch has no public query
    return chosen.name.removesuffix("_ATTENTION").lower()
