"""DINO, DETR with improved denoising anchor boxes (arXiv:2203.03605), in plain torch over timm's Swin-L.

Images to maps, maps to tokens, an encoder over all tokens; the best tokens propose anchors, queries refine them
layer by layer. Anchors are kept as logits, so that refining is adding. There are 91 classes as in the published
model, which takes COCO's category ids as they are; labels that were renumbered to 0..79 fit as well, and eleven
outputs that no label names change neither its work nor its size by a thousandth.

`model(Scenes(images, sizes, targets))` returns `Predictions`, in shapes that follow from those of its arguments
alone; `DinoLoss()(predictions, targets)` is its loss.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pytest_accel.workloads.detection.batch import Scenes, Targets
from pytest_accel.workloads.detection.denoising import MATCHING, Noise, make_noise, may_see
from pytest_accel.workloads.detection.loss import Predictions
from pytest_accel.workloads.models.dino_backbones import PlainBackbone, SwinBackbone
from pytest_accel.workloads.models.dino_layers import (
    BoxHead,
    DecoderLayer,
    EncoderLayer,
    Places,
    class_head,
    outside,
    places_of,
    sine,
)
from pytest_accel.workloads.models.dino_shapes import DINO_SHAPES, DinoShape

TOKEN_TEMPERATURE = 20  # of the sines that say where a token is
QUERY_TEMPERATURE = 10_000  # of those that say where a query's box is
PROPOSED_SIZE = 0.05  # of the image: what a token of the finest level proposes; each coarser one twice that
BORDER = 0.01  # of the image: no proposal's centre is nearer to the edge, no size smaller
SMALLEST = 1e-5  # of the image: what logits are taken of at the least


def build_dino(name: str, **changes: Any) -> Dino:  # noqa: ANN401 - the fields of DinoShape
    """Return the named DINO; keyword arguments change single sizes of its shape."""
    return Dino(replace(DINO_SHAPES[name], **changes))


class Dino(nn.Module):
    """Scenes -> Predictions."""

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
        """What repeats, and what reads all tokens: compiled as one graph, its 36 layers take minutes."""
        return [*self.neck.backbone.compiled_apart, *self.encoder, self.proposer, *self.decoder.layers]

    def forward(self, scenes: Scenes) -> Predictions:
        images, sizes, targets = scenes
        targets = targets if self.training else None  # there is nothing to learn of them
        height, width = images.shape[-2:]
        extent = torch.stack((sizes[:, 1] / width, sizes[:, 0] / height), dim=-1)[:, None].float()
        tokens, positions, places = self.neck(images, extent)
        for layer in self.encoder:
            tokens = layer(tokens, positions, places)
        proposed = self.proposer(tokens, places)
        queries = self._queries(proposed.anchors, targets)
        logits, boxes = self.decoder(queries, tokens, places)
        slots = logits.shape[2] - self.shape.queries
        denoised_logits, logits = logits.split([slots, self.shape.queries], dim=2)
        denoised_boxes, boxes = boxes.split([slots, self.shape.queries], dim=2)
        logits = torch.cat((proposed.logits[None], logits))
        boxes = torch.cat((proposed.anchors.sigmoid()[None], boxes))
        if queries.noise is None:
            return Predictions(logits, boxes)
        return Predictions(logits, boxes, denoised_logits, denoised_boxes, queries.noise)

    def _queries(self, proposed: Tensor, targets: Targets | None) -> Queries:
        """Mixed selection: anchors come from the encoder, what the queries carry at first is learned.

        Where there are targets, noisy copies of them come before.
        """
        n, anchors = len(proposed), proposed.detach()  # the encoder learns from its own loss
        content = self.content.weight.expand(n, -1, -1)
        if targets is None:
            return Queries(content, anchors, None, None)
        noise = make_noise(targets, pairs=self.shape.denoising_pairs, num_classes=self.shape.num_classes)
        group = torch.cat((noise.group, noise.group.new_full((n, self.shape.queries), MATCHING)), dim=1)
        return Queries(
            content=torch.cat((self.label_content(noise.labels).type_as(content), content), dim=1),
            anchors=torch.cat((torch.logit(noise.boxes.float(), eps=SMALLEST), anchors), dim=1),
            mask=may_see(group)[:, None],
            noise=noise,
        )


class Queries(NamedTuple):
    """What goes into the decoder: (images, queries, ..), denoising ones first."""

    content: Tensor
    anchors: Tensor  # logits of boxes
    mask: Tensor | None  # (images, 1, queries, queries): who may see whom; None: all
    noise: Noise | None


class Neck(nn.Module):
    """Images to tokens of one width on all levels, with where they are."""

    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.width = shape.width
        if shape.backbone == "plain":
            self.backbone: Any = PlainBackbone()
        else:
            self.backbone = SwinBackbone(shape.backbone, stages=shape.stages, checkpoint=shape.checkpoint)
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
        maps = self.backbone(images.masked_fill(padding, 0))  # convolutions and windows look across the edge
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


class Proposals(NamedTuple):
    """What the best tokens say: (images, queries, ..)."""

    logits: Tensor  # of classes
    anchors: Tensor  # logits of boxes


class Proposer(nn.Module):
    """The tokens whose best class is the surest propose a box each."""

    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.queries = shape.queries
        self.change, self.norm = nn.Linear(shape.width, shape.width), nn.LayerNorm(shape.width)
        self.classes, self.boxes = class_head(shape.width, shape.num_classes), BoxHead(shape.width)

    def forward(self, tokens: Tensor, places: Places) -> Proposals:
        if tokens.shape[1] < self.queries:
            raise ValueError(
                f"images: their {tokens.shape[1]} tokens cannot propose {self.queries} boxes. "
                "Give larger images, or a model with fewer queries: model_options={'queries': N}."
            )
        plain = proposals_of(places)
        inside = ((plain > BORDER) & (plain < 1 - BORDER)).all(dim=-1) & ~places.padding
        # Most tokens are not chosen, and have no gradient: their graph ends here. Not under no_grad: autocast would
        # keep the weights as it casts them there, without a gradient, and use those again below.
        surest = self.classes(self.norm(self.change(tokens))).amax(dim=-1).float()
        chosen = surest.masked_fill(~inside, -torch.inf).topk(self.queries, dim=1).indices[..., None]
        best = self.norm(self.change(tokens.gather(1, chosen.expand(-1, -1, tokens.shape[-1]))))
        anchors = torch.logit(plain.gather(1, chosen.expand(-1, -1, 4)), eps=SMALLEST)
        return Proposals(logits=self.classes(best), anchors=anchors + self.boxes(best))


def proposals_of(places: Places) -> Tensor:
    """Return (images, tokens, 4): a square box at every token, twice as large on each coarser level."""
    sizes = [
        places.in_image.new_full((height * width, 2), PROPOSED_SIZE * 2**level)
        for level, (height, width) in enumerate(places.sizes)
    ]
    return torch.cat((places.in_image, torch.cat(sizes).expand_as(places.in_image)), dim=-1)


class Decoder(nn.Module):
    """Layers that refine the anchors one after the other, with heads that they share."""

    def __init__(self, shape: DinoShape) -> None:
        super().__init__()
        self.width = shape.width
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.decoder_layers))
        self.norm = nn.LayerNorm(shape.width)
        self.position = nn.Sequential(
            nn.Linear(2 * shape.width, shape.width), nn.ReLU(), nn.Linear(shape.width, shape.width)
        )
        self.classes, self.boxes = class_head(shape.width, shape.num_classes), BoxHead(shape.width)

    def forward(self, queries: Queries, tokens: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        """Return logits of classes and boxes of every layer: (layers, images, queries, ..)."""
        x, anchors, mask, _ = queries
        scale = places.extent.repeat(1, 1, 2)  # from shares of the image to shares of the padded one
        refined, logits, boxes = anchors, [], []
        for layer in self.layers:
            box = anchors.sigmoid()
            positions = self.position(sine(box, self.width // 2, temperature=QUERY_TEMPERATURE).type_as(x))
            x = layer(x, positions, mask=mask, boxes=box * scale, tokens=tokens, places=places)
            normed = self.norm(x)
            change = self.boxes(normed)
            # Look forward twice: the box of this layer teaches the layer before too, and none further back.
            boxes.append((refined + change).sigmoid())
            logits.append(self.classes(normed))
            refined = anchors + change
            anchors = refined.detach()
        return torch.stack(logits), torch.stack(boxes)


def _projection(channels: int, width: int, *, kernel: int) -> nn.Sequential:
    """Return a convolution to the common width with 32 groups normalised; of 3 x 3 pixels it halves the map."""
    stride, padding = (1, 0) if kernel == 1 else (2, 1)
    convolution = nn.Conv2d(channels, width, kernel, stride=stride, padding=padding)
    nn.init.xavier_uniform_(convolution.weight)
    nn.init.zeros_(convolution.bias)
    return nn.Sequential(convolution, nn.GroupNorm(32, width))
