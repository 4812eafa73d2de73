"""DINO, DETR with improved denoising anchor boxes (arXiv:2203.03605), in plain torch over timm's Swin-L.

`model(Scenes(images, sizes, targets))` returns `Predictions`; `dino_loss(predictions, targets)` is its loss. There are
91 classes as in the published model, which takes COCO's category ids; labels renumbered to 0..79 fit as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_accel.workloads.models.detection import MATCHING, Predictions, Scenes, make_noise, may_see


@dataclass(frozen=True, slots=True, kw_only=True)
class DinoShape:
    backbone: str  # a Swin's name in timm
    backbone_options: Mapping[str, Any] = field(default_factory=dict)  # of timm's builder
    stages: tuple[int, ...]  # of the Swin whose maps are used
    scales: int  # levels of tokens; those beyond the backbone's maps halve its last map again
    width: int = 256
    heads: int = 8
    points: int = 4  # a head and level
    encoder_layers: int = 6
    decoder_layers: int = 6
    feedforward: int = 2048
    queries: int = 900
    denoising_pairs: int = 100  # of a positive and a negative copy
    num_classes: int = 91
    checkpoint: bool = False  # recompute the backbone's activations in the backward pass


_SWIN_L = "swin_large_patch4_window12_384"
DINO_SHAPES = {
    "dino-swin-l-4scale": DinoShape(backbone=_SWIN_L, stages=(1, 2, 3), scales=4),
    "dino-swin-l-5scale": DinoShape(backbone=_SWIN_L, stages=(0, 1, 2, 3), scales=5),
    # Of seconds on one CPU core.
    "dino-tiny": DinoShape(
        backbone="swin_tiny_patch4_window7_224",
        backbone_options={"embed_dim": 16, "depths": (1, 1, 1), "num_heads": (1, 1, 2), "window_size": 4},
        stages=(1, 2), scales=3, width=64, heads=4, encoder_layers=2, decoder_layers=2, feedforward=128,
        queries=30, denoising_pairs=10,
    ),
}  # fmt: skip


TOKEN_TEMPERATURE = 20  # of the sine positions of tokens
QUERY_TEMPERATURE = 10_000  # of the sine positions of query boxes
PROPOSED_SIZE = 0.05  # of the image: box of a token of the finest level; twice that on each coarser one
BORDER = 0.01  # of the image: smallest distance of a proposal's centre from the edge, smallest size
SMALLEST = 1e-5  # of the image: smallest value that a logit is taken of


class Dino(nn.Module):
    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.shape = shape
        self.neck = Neck(shape)
        self.encoder = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.encoder_layers))
        self.proposer = Proposer(shape)
        self.content = nn.Embedding(shape.queries, shape.width)
        self.label_content = nn.Embedding(shape.num_classes, shape.width)  # of denoising queries
        self.decoder = Decoder(shape)

    @property
    def compiled_apart(self) -> list[nn.Module]:
        """Repeated layers: compiled as one graph, all 36 take minutes."""
        backbone = [block for stage in self.neck.backbone.stages for block in stage.blocks]
        return [*backbone, *self.encoder, self.proposer, *self.decoder.layers]

    def forward(self, scenes: Scenes) -> Predictions:
        images, sizes, targets = scenes
        targets = targets if self.training else None  # without denoising
        height, width = images.shape[-2:]
        extent = torch.stack((sizes[:, 1] / width, sizes[:, 0] / height), dim=-1)[:, None].float()
        tokens, positions, places = self.neck(images, extent)
        for layer in self.encoder:
            tokens = layer(tokens, positions, places)
        proposed_logits, proposed = self.proposer(tokens, places)
        # Mixed selection: anchors from the encoder, which has its own loss, and learned content.
        n, queries = len(images), self.shape.queries
        content, anchors = self.content.weight.expand(n, -1, -1), proposed.detach()
        noise = mask = None
        if targets is not None:  # noisy copies of the targets come first
            noise = make_noise(targets, pairs=self.shape.denoising_pairs, num_classes=self.shape.num_classes)
            group = torch.cat((noise.group, noise.group.new_full((n, queries), MATCHING)), dim=1)
            content = torch.cat((self.label_content(noise.labels).type_as(content), content), dim=1)
            anchors = torch.cat((torch.logit(noise.boxes.float(), eps=SMALLEST), anchors), dim=1)
            mask = may_see(group)[:, None]  # (images, 1, queries, queries)
        logits, boxes = self.decoder(content, anchors, mask, tokens, places)
        slots = logits.shape[2] - queries
        denoised_logits, logits = logits.split([slots, queries], dim=2)
        denoised_boxes, boxes = boxes.split([slots, queries], dim=2)
        logits = torch.cat((proposed_logits[None], logits))
        boxes = torch.cat((proposed.sigmoid()[None], boxes))
        if noise is None:
            return Predictions(logits, boxes)
        return Predictions(logits, boxes, denoised_logits, denoised_boxes, noise)


class Neck(nn.Module):
    """Images to tokens of one width on all levels, with their positions."""

    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.width = shape.width
        self.backbone = SwinBackbone(shape)
        channels = self.backbone.channels
        self.same = nn.ModuleList(_projection(each, shape.width, kernel=1) for each in channels)
        further = [channels[-1], *[shape.width] * (shape.scales - len(channels) - 1)]
        self.halved = nn.ModuleList(
            _projection(each, shape.width, kernel=3) for each in further[: shape.scales - len(channels)]
        )
        self.level = nn.Embedding(shape.scales, shape.width)

    def forward(self, images: Tensor, extent: Tensor) -> tuple[Tensor, Tensor, Places]:
        """Return tokens and their positions, each (images, tokens, width), and their places."""
        padding = outside(images.shape[2], images.shape[3], extent)[:, None]
        maps = self.backbone(images.masked_fill(padding, 0))  # convolutions and windows cross the edge
        levels = [project(each) for project, each in zip(self.same, maps, strict=True)]
        last = maps[-1]
        for project in self.halved:
            last = project(last)
            levels.append(last)
        tokens = torch.cat([level.flatten(2).transpose(1, 2) for level in levels], dim=1)
        places = places_of([(level.shape[2], level.shape[3]) for level in levels], extent)
        where = sine(places.in_image, self.width // 2, temperature=TOKEN_TEMPERATURE).type_as(tokens)
        counts = [height * width for height, width in places.sizes]
        which = torch.cat([self.level.weight[i].expand(count, -1) for i, count in enumerate(counts)])
        return tokens, where + which, places


class Proposer(nn.Module):
    """The tokens with the largest class logits propose a box each."""

    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.queries = shape.queries
        self.change, self.norm = nn.Linear(shape.width, shape.width), nn.LayerNorm(shape.width)
        self.classes, self.boxes = class_head(shape.width, shape.num_classes), BoxHead(shape.width)

    def forward(self, tokens: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        """Return logits of classes and of boxes, each (images, queries, ..)."""
        if tokens.shape[1] < self.queries:
            raise ValueError(
                f"images: their {tokens.shape[1]} tokens cannot propose {self.queries} boxes. "
                "Give larger images, or a model with fewer queries: model_options={'queries': N}."
            )
        sizes = [  # a square box at every token
            places.in_image.new_full((height * width, 2), PROPOSED_SIZE * 2**level)
            for level, (height, width) in enumerate(places.sizes)
        ]
        plain = torch.cat((places.in_image, torch.cat(sizes).expand_as(places.in_image)), dim=-1)
        inside = ((plain > BORDER) & (plain < 1 - BORDER)).all(dim=-1) & ~places.padding
        # Most tokens are not chosen and have no gradient. Not under no_grad: autocast would cache the weights that it
        # casts there without a gradient, and use them again below.
        surest = self.classes(self.norm(self.change(tokens))).amax(dim=-1).float()
        chosen = surest.masked_fill(~inside, -torch.inf).topk(self.queries, dim=1).indices[..., None]
        best = self.norm(self.change(tokens.gather(1, chosen.expand(-1, -1, tokens.shape[-1]))))
        anchors = torch.logit(plain.gather(1, chosen.expand(-1, -1, 4)), eps=SMALLEST)
        return self.classes(best), anchors + self.boxes(best)


class Decoder(nn.Module):
    """Layers that refine the anchors one after the other, with shared heads."""

    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.width = shape.width
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.decoder_layers))
        self.norm = nn.LayerNorm(shape.width)
        self.position = nn.Sequential(
            nn.Linear(2 * shape.width, shape.width), nn.ReLU(), nn.Linear(shape.width, shape.width)
        )
        self.classes, self.boxes = class_head(shape.width, shape.num_classes), BoxHead(shape.width)

    def forward(
        self, x: Tensor, anchors: Tensor, mask: Tensor | None, tokens: Tensor, places: Places
    ) -> tuple[Tensor, Tensor]:
        """Return logits of classes and boxes of every layer: (layers, images, queries, ..)."""
        scale = places.extent.repeat(1, 1, 2)  # from shares of the image to shares of the padded one
        refined, logits, boxes = anchors, [], []
        for layer in self.layers:
            box = anchors.sigmoid()
            positions = self.position(sine(box, self.width // 2, temperature=QUERY_TEMPERATURE).type_as(x))
            x = layer(x, positions, mask=mask, boxes=box * scale, tokens=tokens, places=places)
            normed = self.norm(x)
            change = self.boxes(normed)
            # Look forward twice: the box of this layer has a gradient in the layer before too.
            boxes.append((refined + change).sigmoid())
            logits.append(self.classes(normed))
            refined = anchors + change
            anchors = refined.detach()
        return torch.stack(logits), torch.stack(boxes)


def _projection(channels: int, width: int, *, kernel: int) -> nn.Sequential:
    """Return a convolution to the common width with a group norm; a 3 x 3 one halves the map."""
    stride, padding = (1, 0) if kernel == 1 else (2, 1)
    convolution = nn.Conv2d(channels, width, kernel, stride=stride, padding=padding)
    nn.init.xavier_uniform_(convolution.weight)
    nn.init.zeros_(convolution.bias)
    return nn.Sequential(convolution, nn.GroupNorm(32, width))


class Places(NamedTuple):
    """Positions of the tokens of all levels, finest first, row by row."""

    sizes: LevelSizes
    in_padded: Tensor  # (1, tokens, 2): centres (x, y), shares of the padded image
    in_image: Tensor  # (images, tokens, 2): shares of the image itself; past 1 in its padding
    padding: Tensor  # (images, tokens): outside of the image
    extent: Tensor  # (images, 1, 2): width and height of the image, shares of the padded one


def places_of(sizes: LevelSizes, extent: Tensor) -> Places:
    """Return the positions of tokens over images that fill `extent` of the padded size."""
    centres, padding = [], []
    for height, width in sizes:
        across = (torch.arange(width, device=extent.device) + 0.5) / width
        down = (torch.arange(height, device=extent.device) + 0.5) / height
        centre = torch.stack((across.expand(height, -1), down[:, None].expand(-1, width)), dim=-1)
        centres.append(centre.flatten(0, 1))
        padding.append(outside(height, width, extent).flatten(1))
    in_padded = torch.cat(centres)[None]
    return Places(sizes, in_padded, in_padded / extent, torch.cat(padding, dim=1), extent)


def outside(height: int, width: int, extent: Tensor) -> Tensor:
    """Return (images, height, width): which cells of a grid over the padded image are outside of the image."""
    across = torch.arange(width, device=extent.device) / width >= extent[..., 0]
    down = torch.arange(height, device=extent.device) / height >= extent[..., 1]
    return across[:, None, :] | down[:, :, None]


def sine(coordinates: Tensor, width: int, *, temperature: float) -> Tensor:
    """Encode each coordinate (0 to 1) as sines and cosines of `width` / 2 frequencies: (.., coordinates * width)."""
    step = torch.arange(width // 2, device=coordinates.device) / (width // 2)
    angle = coordinates[..., None] * (2 * math.pi * temperature**-step)
    return torch.cat((angle.sin(), angle.cos()), dim=-1).flatten(-2)


class FeedForward(nn.Module):
    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.feedforward)
        self.down = nn.Linear(shape.feedforward, shape.width)
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(F.relu(self.up(x))))


class EncoderLayer(nn.Module):
    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.attention = DeformableAttention(shape)
        self.norm = nn.LayerNorm(shape.width)
        self.feedforward = FeedForward(shape)

    def forward(self, tokens: Tensor, positions: Tensor, places: Places) -> Tensor:
        seen = self.attention(tokens + positions, places.in_padded, tokens, places)
        return self.feedforward(self.norm(tokens + seen))


class QuerySelfAttention(nn.Module):
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
    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.attention = QuerySelfAttention(shape)
        self.norm1 = nn.LayerNorm(shape.width)
        self.cross = DeformableAttention(shape)
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
        """`mask` is (images, 1, queries, queries); `boxes` are shares of the padded image."""
        x = self.norm1(x + self.attention(x, positions, mask))
        seen = self.cross(x + positions, boxes, tokens, places)
        return self.feedforward(self.norm2(x + seen))


class BoxHead(nn.Module):
    """Three linear layers, initially zero: the change of an anchor's logits."""

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
    """Return a linear layer with an initial probability of .01 for every class, for the focal loss."""
    head = nn.Linear(width, classes)
    nn.init.constant_(head.bias, -math.log((1 - 0.01) / 0.01))
    return head


LevelSizes = Sequence[tuple[int, int]]  # (height, width) of every level, in tokens; finest first


class DeformableAttention(nn.Module):
    """Multi-scale deformable attention (arXiv:2010.04159) in torch's own operations.

    A query reads `points` places a head and level, at learned offsets from its reference, by bilinear interpolation.
    Coordinates are shares of the padded image, (x, y).
    """

    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.heads, self.levels, self.points = shape.heads, shape.scales, shape.points
        places = shape.heads * shape.scales * shape.points
        self.offsets = nn.Linear(shape.width, places * 2)
        self.weights = nn.Linear(shape.width, places)
        self.values = nn.Linear(shape.width, shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        # Equal weights at first, and a direction for each head, one step further a point
        angle = torch.arange(self.heads) * (2 * math.pi / self.heads)
        direction = torch.stack((angle.cos(), angle.sin()), dim=-1)
        direction = direction / direction.abs().amax(dim=-1, keepdim=True)
        rays = direction[:, None, None] * torch.arange(1, self.points + 1)[:, None]
        with torch.no_grad():
            self.offsets.bias.copy_(rays.expand(-1, self.levels, -1, -1).flatten())
        for zero in (self.offsets.weight, *self.weights.parameters(), self.values.bias, self.out.bias):
            nn.init.zeros_(zero)
        nn.init.xavier_uniform_(self.values.weight)
        nn.init.xavier_uniform_(self.out.weight)

    def forward(self, queries: Tensor, references: Tensor, tokens: Tensor, places: Places) -> Tensor:
        """Return (images, queries, width); `references` are (images or 1, queries, 2) centres or (.., 4) boxes."""
        n, q, _ = queries.shape
        values = self.values(tokens).masked_fill(places.padding[..., None], 0).unflatten(-1, (self.heads, -1))
        # In fp32: the eight bits of bf16 cannot distinguish neighbours on a map of 200 tokens.
        offsets = self.offsets(queries).view(n, q, self.heads, self.levels, self.points, 2).float()
        weights = self.weights(queries).view(n, q, self.heads, -1).softmax(dim=-1)
        reference = references.float()[:, :, None, None, None]
        centre, size = reference[..., :2], reference[..., 2:]
        if reference.shape[-1] == 4:  # offsets are in boxes
            where = centre + offsets / self.points * size / 2
        else:  # in tokens. new_full, not a list: that would be copied from the host, and waited for.
            tokens_of = [
                torch.stack((offsets.new_full((), w), offsets.new_full((), h))) for h, w in places.sizes
            ]
            where = centre + offsets / torch.stack(tokens_of)[:, None]
        weights = weights.view(n, q, self.heads, self.levels, self.points)
        return self.out(attend(values, places.sizes, where, weights))


def attend(values: Tensor, sizes: LevelSizes, where: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of values at locations: (images, queries, heads * head width).

    `values` are (images, tokens, heads, head width), `where` (images, queries, heads, levels, points, 2), `weights`
    the same without the 2.
    """
    n, q, heads, _, points = weights.shape
    grids = (2 * where - 1).transpose(1, 2).flatten(0, 1)  # grid_sample: from -1 to 1
    total = None
    for level, tokens in enumerate(values.split([height * width for height, width in sizes], dim=1)):
        maps = tokens.permute(0, 2, 3, 1).reshape(n * heads, -1, *sizes[level])
        read = F.grid_sample(maps.float(), grids[:, :, level], padding_mode="zeros", align_corners=False)
        weight = weights[:, :, :, level].transpose(1, 2).reshape(n * heads, 1, q, points)
        part = (read * weight).sum(dim=-1)  # (images * heads, head width, queries)
        total = part if total is None else total + part
    assert total is not None
    return total.view(n, heads, -1, q).permute(0, 3, 1, 2).reshape(n, q, -1).type_as(values)


class SwinBackbone(nn.Module):
    """Maps of some stages of timm's Swin, each with its own norm; images of any size."""

    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        import timm  # slow to import

        # always_partition: the last stage is one window at 384 pixels, and would not shift it on larger images either.
        self.swin: Any = timm.create_model(
            shape.backbone,
            pretrained=False,
            features_only=True,
            out_indices=shape.stages,
            strict_img_size=False,
            always_partition=True,
            drop_path_rate=0.0,
            **shape.backbone_options,
        )
        self.channels: list[int] = self.swin.feature_info.channels()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for channels in self.channels)
        self.checkpoint = shape.checkpoint

    @property
    def stages(self) -> list[Any]:
        return [module for module in self.swin.modules() if hasattr(module, "blocks")]

    def forward(self, images: Tensor) -> list[Tensor]:
        for stage in self.stages:  # not on the meta device, where FLOPs are counted
            stage.grad_checkpointing = self.checkpoint and not images.is_meta
        maps = self.swin(images)
        return [norm(stage).permute(0, 3, 1, 2) for norm, stage in zip(self.norms, maps, strict=True)]
