"""What a segmentation model's library leaves slow: attention over few keys, images enlarged without additions by chance.

Each layer has the parameters of the one that it stands in for, under the same names, and computes the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

# A fused backward pass of attention works on blocks of keys at once: the 1,024 keys of a SegFormer are some 8 blocks for each
# image and head, and its first stage has one head. Queries are dealt into parts until there are this many times 8 blocks:
# about as many as a large GPU has multiprocessors (an H200: 132).
FILLING = 20
FEWEST_QUERIES = 512  # of a part


class FusedAttention(nn.Module):
    """A Mix Transformer's attention, with fewer keys than queries, that never writes its weights down.

    At 1024 x 1024 pixels they are 65,536 x 1,024 for each head of the first stage.
    """

    def __init__(self, theirs: Any) -> None:  # noqa: ANN401 - an Attention of segmentation_models_pytorch
        super().__init__()
        self.q, self.kv, self.proj = theirs.q, theirs.kv, theirs.proj
        self.sr, self.norm = theirs.sr, theirs.norm
        self._heads = theirs.num_heads
        self._reduces = theirs.sr_ratio > 1

    def forward(self, tokens: torch.Tensor, height: int, width: int) -> torch.Tensor:
        batch, length, channels = tokens.shape
        parts = query_parts(batch * self._heads, length)
        queries = self.q(tokens).reshape(batch * parts, length // parts, self._heads, -1).transpose(1, 2)
        fewer = self._reduced(tokens, height, width) if self._reduces else tokens
        pairs = self.kv(fewer).unflatten(2, (2, self._heads, -1)).permute(2, 0, 3, 1, 4)
        keys, values = (_repeated(each, parts) for each in pairs.unbind(0))
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, channels))

    def _reduced(self, tokens: torch.Tensor, height: int, width: int) -> torch.Tensor:
        images = tokens.transpose(1, 2).unflatten(2, (height, width))
        return self.norm(self.sr(images).flatten(2).transpose(1, 2))


def query_parts(rows: int, length: int) -> int:
    """Return into how many parts to deal the queries, for so many images times heads."""
    parts = 1
    while (
        rows * parts * 2 <= FILLING and length % (parts * 2) == 0 and length // (parts * 2) >= FEWEST_QUERIES
    ):
        parts *= 2
    return parts


def _repeated(images: torch.Tensor, parts: int) -> torch.Tensor:
    """Return (batch * parts, ...): each image for every part of its queries."""
    return images[:, None].expand(-1, parts, *[-1] * (images.dim() - 1)).flatten(0, 1)


class Enlarged(nn.Module):
    """Bilinear enlargement by a whole factor; corners are not aligned, as the studies' configurations have it."""

    def __init__(self, factor: int, *, logits: bool = False) -> None:
        super().__init__()
        self._factor = factor
        self._logits = logits

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height, width = images.shape[-2:]
        size = (height * self._factor, width * self._factor)
        return enlarged(images, size, logits=self._logits)


class Pooled(nn.Sequential):
    """The branch of an ASPP that sees the whole image: one pixel, and every pixel of its output is it."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            check_pooled_batch(len(images), "batch_size")
        # Not interpolated: the backward pass of that adds all pixels into one place, one after the other.
        return super().forward(images).expand(-1, -1, *images.shape[-2:])


def check_pooled_batch(size: int, argument: str) -> None:
    """Refuse to train on one image; `argument` is what the user calls the batch."""
    if size == 1:
        raise ValueError(
            f"{argument}: DeepLabV3 normalises one pixel an image over the batch, and cannot be trained with 1 on a device. "
            "Valid: 2 or more."
        )


def enlarged(images: torch.Tensor, size: tuple[int, int], *, logits: bool = False) -> torch.Tensor:
    """Enlarge (batch, channels, height, width), bilinear.

    The compiler's own backward pass of it is four atomic additions for each value, and for bf16 before Hopper a sort (torch
    2.10). What it is given instead are products with two small matrices, whose backward pass are products, too. Eager it is
    torch's, so that what is counted of a model has no products that the model does not ask for.
    """
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    if not torch.compiler.is_compiling():
        return F.interpolate(images, size=size, mode="bilinear", align_corners=False)
    return enlarged_planes(images, size) if logits else enlarged_pixels(images, size)


def enlarged_planes(images: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Enlarge class by class, into planes.

    19 classes are no width for a tensor core, and planes are; and the softmax reads 19 values for each pixel, of planes
    those of neighbouring pixels side by side. So logits leave channels last here, while they are small.
    """
    count, channels, height, width = images.shape
    rows, columns = _weights(size[0], height, images), _weights(size[1], width, images)
    planes = images.reshape(count * channels * height, width)
    wide = (planes @ columns.T).view(count * channels, height, size[1])
    return torch.bmm(rows.expand(count * channels, -1, -1), wide).view(count, channels, *size)


def enlarged_pixels(images: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Enlarge all channels of a pixel at once: hundreds of them, channels last."""
    count, channels, height, width = images.shape
    rows, columns = _weights(size[0], height, images), _weights(size[1], width, images)
    lines = images.permute(0, 2, 3, 1).reshape(count, height, width * channels)
    tall = torch.bmm(rows.expand(count, -1, -1), lines).view(count * size[0], width, channels)
    pixels = torch.bmm(columns.expand(count * size[0], -1, -1), tall)
    return pixels.view(count, *size, channels).permute(0, 3, 1, 2)


def _weights(target: int, source: int, images: torch.Tensor) -> torch.Tensor:
    """Return how much of each source row is in each target row, (target, source).

    For a factor of a power of two these are fractions that bf16 holds exactly.
    """
    places = torch.arange(target, device=images.device, dtype=torch.float32)
    middles = ((places + 0.5) * (source / target) - 0.5).clamp(0, source - 1)
    sources = torch.arange(source, device=images.device, dtype=torch.float32)
    return (1 - (middles[:, None] - sources).abs()).clamp(min=0).to(images.dtype)
