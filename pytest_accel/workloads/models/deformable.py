"""Multi-scale deformable attention (arXiv:2010.04159) in torch's own operations, so that it runs wherever torch does.

A query looks at a few places of every level instead of at all of them: `points` a head and level, at learned
offsets from where the query is, each read by bilinear interpolation and weighted by a softmax over all of them.
Coordinates are shares of the padded image, (x, y), whose corners are (0, 0) and (1, 1); outside there are zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

LevelSizes = Sequence[tuple[int, int]]  # (height, width) of every level, in tokens; finest first


class DeformableAttention(nn.Module):
    """Queries look at the tokens of all levels, around their references."""

    def __init__(self, width: int, *, heads: int, levels: int, points: int) -> None:
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.offsets = nn.Linear(width, heads * levels * points * 2)
        self.weights = nn.Linear(width, heads * levels * points)
        self.values = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.reset()

    def reset(self) -> None:
        """Begin with equal weights, and with each head looking into its own direction, a step further a point."""
        angle = torch.arange(self.heads) * (2 * math.pi / self.heads)
        direction = torch.stack((angle.cos(), angle.sin()), dim=-1)
        direction = direction / direction.abs().amax(dim=-1, keepdim=True)
        steps = torch.arange(1, self.points + 1)
        rays = direction[:, None, None] * steps[:, None]
        with torch.no_grad():
            self.offsets.bias.copy_(rays.expand(-1, self.levels, -1, -1).flatten())
        for zero in (
            self.offsets.weight,
            self.weights.weight,
            self.weights.bias,
            self.values.bias,
            self.out.bias,
        ):
            nn.init.zeros_(zero)
        nn.init.xavier_uniform_(self.values.weight)
        nn.init.xavier_uniform_(self.out.weight)

    def forward(
        self, queries: Tensor, references: Tensor, tokens: Tensor, sizes: LevelSizes, padding: Tensor
    ) -> Tensor:
        """Return (images, queries, width).

        `references` are (images or 1, queries, 2) places or (.., 4) boxes by their centres; `padding` are the
        (images, tokens) that hold nothing.
        """
        n, q, _ = queries.shape
        values = self.values(tokens).masked_fill(padding[..., None], 0).unflatten(-1, (self.heads, -1))
        # In fp32: eight bits of a bf16 cannot tell the neighbours on a map of 200 tokens apart.
        offsets = self.offsets(queries).view(n, q, self.heads, self.levels, self.points, 2).float()
        weights = self.weights(queries).view(n, q, self.heads, -1).softmax(dim=-1)
        where = self._locations(references.float()[:, :, None, None, None], offsets, sizes)
        return self.out(
            attend(values, sizes, where, weights.view(n, q, self.heads, self.levels, self.points))
        )

    def _locations(self, references: Tensor, offsets: Tensor, sizes: LevelSizes) -> Tensor:
        centre, size = references[..., :2], references[..., 2:]
        if references.shape[-1] == 4:  # offsets are in boxes: the furthest point begins at its edge
            return centre + offsets / self.points * size / 2
        # Offsets are in tokens. Filled, not made of a list: that would be copied from the host, and waited for.
        tokens = [torch.stack((offsets.new_full((), w), offsets.new_full((), h))) for h, w in sizes]
        return centre + offsets / torch.stack(tokens)[:, None]


def attend(values: Tensor, sizes: LevelSizes, where: Tensor, weights: Tensor) -> Tensor:
    """Read values at places and add them up by their weights: (images, queries, heads * head width).

    `values` are (images, tokens, heads, head width), `where` (images, queries, heads, levels, points, 2), `weights`
    the same without the 2.
    """
    n, q, heads, _, points = weights.shape
    grids = (2 * where - 1).transpose(1, 2).flatten(0, 1)  # as grid_sample has it: from -1 to 1
    total = None
    for level, tokens in enumerate(values.split([height * width for height, width in sizes], dim=1)):
        maps = tokens.permute(0, 2, 3, 1).reshape(n * heads, -1, *sizes[level])
        read = F.grid_sample(maps.float(), grids[:, :, level], padding_mode="zeros", align_corners=False)
        weight = weights[:, :, :, level].transpose(1, 2).reshape(n * heads, 1, q, points)
        part = (read * weight).sum(dim=-1)  # (images * heads, head width, queries)
        total = part if total is None else total + part
    assert total is not None
    return total.view(n, heads, -1, q).permute(0, 3, 1, 2).reshape(n, q, -1).type_as(values)
