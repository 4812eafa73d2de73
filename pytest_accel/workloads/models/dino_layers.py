"""The layers that DINO is made of: where tokens and queries are, encoder, decoder, heads."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.workloads.models.deformable import DeformableAttention, LevelSizes
from pytest_accel.workloads.models.dino_shapes import DinoShape


class Places(NamedTuple):
    """Where the tokens of all levels are, one level after the other, each row by row."""

    sizes: LevelSizes
    in_padded: Tensor  # (1, tokens, 2): centres (x, y), shares of the padded image
    in_image: Tensor  # (images, tokens, 2): shares of the image itself; past 1 in its padding
    padding: Tensor  # (images, tokens): begins outside of the image
    extent: Tensor  # (images, 1, 2): width and height of the image, shares of the padded one


def places_of(sizes: LevelSizes, extent: Tensor) -> Places:
    """Lay out the tokens of levels over images that fill `extent` of them."""
    centres, padding = [], []
    for height, width in sizes:
        across = (torch.arange(width, device=extent.device) + 0.5) / width
        down = (torch.arange(height, device=extent.device) + 0.5) / height
        centre = torch.stack((across.expand(height, -1), down[:, None].expand(-1, width)), dim=-1)
        centres.append(centre.flatten(0, 1))
        padding.append(outside(height, width, extent).flatten(1))
    in_padded = torch.cat(centres)[None]
    return Places(
        sizes=sizes,
        in_padded=in_padded,
        in_image=in_padded / extent,
        padding=torch.cat(padding, dim=1),
        extent=extent,
    )


def outside(height: int, width: int, extent: Tensor) -> Tensor:
    """Return (images, height, width): which cells of a grid over the padded image begin outside of the image."""
    across = torch.arange(width, device=extent.device) / width >= extent[..., 0]
    down = torch.arange(height, device=extent.device) / height >= extent[..., 1]
    return across[:, None, :] | down[:, :, None]


def sine(coordinates: Tensor, width: int, *, temperature: float) -> Tensor:
    """Write each coordinate (0 to 1) as sines and cosines of `width` / 2 frequencies: (.., coordinates * width)."""
    step = torch.arange(width // 2, device=coordinates.device) / (width // 2)
    angle = coordinates[..., None] * (2 * math.pi * temperature**-step)
    return torch.cat((angle.sin(), angle.cos()), dim=-1).flatten(-2)


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them, added to what came in, then normalised."""

    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.up, self.down = (
            nn.Linear(shape.width, shape.feedforward),
            nn.Linear(shape.feedforward, shape.width),
        )
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(F.relu(self.up(x))))


class EncoderLayer(nn.Module):
    """Tokens look at the tokens around them, on all levels."""

    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.attention = DeformableAttention(
            shape.width, heads=shape.heads, levels=shape.scales, points=shape.points
        )
        self.norm = nn.LayerNorm(shape.width)
        self.feedforward = FeedForward(shape)

    def forward(self, tokens: Tensor, positions: Tensor, places: Places) -> Tensor:
        seen = self.attention(tokens + positions, places.in_padded, tokens, places.sizes, places.padding)
        return self.feedforward(self.norm(tokens + seen))


class SelfAttention(nn.Module):
    """Queries look at queries, where the mask lets them."""

    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query_key = nn.Linear(shape.width, 2 * shape.width)
        self.value = nn.Linear(shape.width, shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        n, t, width = x.shape
        query, key = self.query_key(x + positions).view(n, t, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        value = self.value(x).view(n, t, self.heads, -1).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(n, t, width))


class DecoderLayer(nn.Module):
    """Queries look at each other, then at the tokens in and around their boxes."""

    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.attention = SelfAttention(shape)
        self.norm1 = nn.LayerNorm(shape.width)
        self.cross = DeformableAttention(
            shape.width, heads=shape.heads, levels=shape.scales, points=shape.points
        )
        self.norm2 = nn.LayerNorm(shape.width)
        self.feedforward = FeedForward(shape)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        *,
        mask: Tensor | None,
        boxes: Tensor,
        tokens: Tensor,
        places: Places,
    ) -> Tensor:
        """`mask` is (images, 1, queries, queries), who may see whom; `boxes` are shares of the padded image."""
        x = self.norm1(x + self.attention(x, positions, mask))
        seen = self.cross(x + positions, boxes, tokens, places.sizes, places.padding)
        return self.feedforward(self.norm2(x + seen))


class BoxHead(nn.Module):
    """Three linear layers, beginning at zero: what to add to the logits of an anchor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
        )
        nn.init.zeros_(self.layers[-1].weight)
        nn.init.zeros_(self.layers[-1].bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).float()  # in fp32: a step of a bf16 near 1 is five pixels of a wide image


def class_head(width: int, classes: int) -> nn.Linear:
    """Return a linear layer that begins by giving every class a hundredth, as focal loss wants it."""
    head = nn.Linear(width, classes)
    nn.init.constant_(head.bias, -math.log((1 - 0.01) / 0.01))
    return head
