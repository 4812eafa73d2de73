"""Detection models: DINO's targets, denoising, matching and loss, and torchvision's detectors behind the same call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from pytest_accel.workloads.data.files import IMAGENET_MEAN, IMAGENET_STD


class Targets(NamedTuple):
    """Objects of a batch of images, padded with zeros to one number of boxes; the real ones come first.

    A named tuple, as compilers, DDP and `torch.utils._pytree` look into tuples. Its shapes do not change between batches.
    """

    labels: Tensor  # (images, boxes), integers
    boxes: Tensor  # (images, boxes, 4): centre x and y, width, height; shares of the image without padding
    valid: Tensor  # (images, boxes), booleans: a real box, not padding


class Scenes(NamedTuple):
    """Images of a batch in one padded size, each in the upper left corner, with targets in training."""

    # (images, 3, height, width), normalized, or bytes of a loader; the padding may hold anything.
    images: Tensor
    sizes: Tensor  # (images, 2), whole pixels: height and width of each image without its padding
    targets: Targets | None = None


SMALLEST_AREA = 1e-7  # of an image, where an area is a divisor


def to_corners(centres: Tensor) -> Tensor:
    centre, size = centres.split(2, dim=-1)
    return torch.cat((centre - size / 2, centre + size / 2), dim=-1)


def corners_px(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Turn shares (batch, n, 4) of images of these sizes (batch, 2) into (left, top, right, bottom) in pixels."""
    extent = sizes.flip(-1).to(boxes.dtype)[:, None].repeat(1, 1, 2)
    return to_corners(boxes) * extent


def generalized_iou(corners: Tensor, others: Tensor) -> Tensor:
    """Return the GIoU (arXiv:1902.09630) of boxes given by their corners, from -1 to 1. Shapes are broadcast."""

    def area(first: Tensor, last: Tensor) -> Tensor:
        return (last - first).clamp(min=0).prod(dim=-1)

    first, last = corners[..., :2], corners[..., 2:]
    other_first, other_last = others[..., :2], others[..., 2:]
    overlap = area(torch.maximum(first, other_first), torch.minimum(last, other_last))
    hull = area(torch.minimum(first, other_first), torch.maximum(last, other_last))
    union = area(first, last) + area(other_first, other_last) - overlap
    return overlap / union.clamp(min=SMALLEST_AREA) - (hull - union) / hull.clamp(min=SMALLEST_AREA)


MATCHING = 0  # group of the queries that are matched; copies are in groups 1, 2, ..., empty slots below 0
LABEL_FLIP = 0.25  # share of the copies with a random label
BOX_NOISE = 1.0  # half sizes that a positive's corners move at most; a negative's move up to twice that


class Noise(NamedTuple):
    """Noisy copies of the true boxes: (images, slots), positives in the first half of the slots, negatives in the second."""

    labels: Tensor  # some of them flipped
    boxes: Tensor  # (images, slots, 4), centres
    group: Tensor  # of an empty slot: a unique negative number
    target: Tensor  # index of the copied box
    positive: Tensor  # to be restored
    active: Tensor  # not an empty slot


def make_noise(targets: Targets, *, pairs: int, num_classes: int) -> Noise:
    """Copy the boxes into `2 * max(pairs, boxes)` slots, with noise (contrastive denoising of DINO).

    There are max(1, pairs // the most boxes of an image) groups of copies. The number of slots does not depend on the
    number of boxes, so that shapes stay static and nothing waits for the device.
    """
    labels, boxes, valid = targets
    images, most = valid.shape
    slots = max(pairs, most)
    boxes_per_group = valid.sum(dim=1).amax().clamp(min=1)  # a tensor, on the device
    groups = (pairs // boxes_per_group).clamp(min=1)
    slot = torch.arange(slots, device=valid.device)
    group, target = slot // boxes_per_group, (slot % boxes_per_group).expand(images, -1)
    active = (group < groups) & valid.gather(1, target)
    target, active = target.repeat(1, 2), active.repeat(1, 2)
    positive = active & (torch.arange(2 * slots, device=valid.device) < slots)
    alone = -1 - torch.arange(2 * slots, device=valid.device)
    flipped = torch.rand_like(active, dtype=torch.float32) < LABEL_FLIP
    copied = labels.gather(1, target)
    return Noise(
        labels=torch.where(flipped, torch.randint_like(copied, num_classes), copied),
        boxes=move_corners(boxes.gather(1, target[..., None].expand(-1, -1, 4)), positive),
        group=torch.where(active, 1 + group.repeat(2), alone),
        target=target,
        positive=positive,
        active=active,
    )


def move_corners(boxes: Tensor, positive: Tensor) -> Tensor:
    """Move both corners of each box by up to BOX_NOISE half sizes if positive, else by once to twice as much."""
    far = torch.rand_like(boxes) + (~positive)[..., None]
    sign = torch.where(torch.rand_like(boxes) < 0.5, -1.0, 1.0)
    half_sizes = boxes[..., 2:].repeat(1, 1, 2) / 2
    first, last = (to_corners(boxes) + BOX_NOISE * far * sign * half_sizes).clamp(0, 1).split(2, dim=-1)
    return torch.cat(((first + last) / 2, last - first), dim=-1)


def may_see(group: Tensor) -> Tensor:
    """Return the attention mask (images, queries, queries): each row attends to its own group and to matched queries.

    An empty slot attends to itself: a softmax over nothing is NaN.
    """
    row, column = group[:, :, None], group[:, None, :]
    return (row == column) | (column == MATCHING)


UNMATCHED = -1  # of a prediction without an object


@torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
def match(costs: Tensor) -> Tensor:
    """Return for every prediction its object at the least total cost, or UNMATCHED: (layers, images, predictions).

    `costs` are (layers, images, objects, predictions); padding costs infinity and comes after the real objects. Runs on
    the host: all layers and images are copied at once.
    """
    layers, images, objects, predictions = costs.shape
    if costs.is_meta:  # FLOPs are counted there
        return torch.full((layers, images, predictions), UNMATCHED, device="meta")
    from scipy.optimize import linear_sum_assignment

    found = torch.full((layers * images, predictions), UNMATCHED)
    on_host = costs.detach().cpu().reshape(layers * images, objects, predictions).numpy()  # waits
    for problem, answer in zip(on_host, found.numpy(), strict=True):
        real = int((problem[:, 0] < float("inf")).sum())
        which, prediction = linear_sum_assignment(problem[:real])
        answer[prediction] = which
    return found.view(layers, images, predictions).to(costs.device, non_blocking=True)


FOCAL_ALPHA, FOCAL_GAMMA = 0.25, 2.0  # of the focal loss's own paper, arXiv:1708.02002


class Predictions(NamedTuple):
    """Output of DINO; the denoising part is there where targets were given."""

    logits: Tensor  # (1 + layers, images, queries, classes): of the encoder, then of each decoder layer
    boxes: Tensor  # (1 + layers, images, queries, 4), centres; shares of the image without its padding
    denoised_logits: Tensor | None = None  # (layers, images, slots, classes)
    denoised_boxes: Tensor | None = None  # (layers, images, slots, 4)
    noise: Noise | None = None


# Weights of focal, L1 and GIoU
COSTS = (2.0, 5.0, 2.0)
LOSSES = (1.0, 5.0, 2.0)


def dino_loss(predictions: Predictions, targets: Targets) -> Tensor:
    """Return the focal, L1 and GIoU loss of DINO, a scalar.

    A sum over the encoder's proposals, all decoder layers and their denoising, each divided by the number of boxes (of
    positive copies for denoising) in this rank's batch. `matching_costs` and `matched_loss` are static and can be compiled;
    `match` between them runs on the host.
    """
    return matched_loss(predictions, targets, match(matching_costs(predictions, targets)))


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def matching_costs(predictions: Predictions, targets: Targets) -> Tensor:
    """Return the costs of matching: (1 + layers, images, objects, queries)."""
    labels, boxes, valid = targets
    logits = predictions.logits.float().transpose(-1, -2)  # classes before queries
    chosen = labels[None, :, :, None].expand(*logits.shape[:2], -1, logits.shape[-1])
    found, wanted = predictions.boxes.float()[:, :, None], boxes[None, :, :, None]
    focal = (_focal(logits, torch.ones_like(logits)) - _focal(logits, torch.zeros_like(logits))).gather(
        2, chosen
    )
    l1 = (found - wanted).abs().sum(dim=-1)
    giou = generalized_iou(to_corners(found), to_corners(wanted))
    total = COSTS[0] * focal + COSTS[1] * l1 - COSTS[2] * giou
    # A diverged step must end with a NaN loss, which is reported, not with an error of SciPy.
    return torch.nan_to_num(total, nan=1e6).masked_fill(~valid[None, :, :, None], float("inf"))


def matched_loss(predictions: Predictions, targets: Targets, matched: Tensor) -> Tensor:
    logits, boxes, denoised_logits, denoised_boxes, noise = predictions
    total = _sum(logits, boxes, targets, matched.clamp(min=0), matched != UNMATCHED)
    total = total / targets.valid.sum().clamp(min=1)
    if noise is None or denoised_logits is None or denoised_boxes is None:
        return total
    copied, positive = (each.expand(len(denoised_logits), -1, -1) for each in (noise.target, noise.positive))
    denoising = _sum(denoised_logits, denoised_boxes, targets, copied, positive, counted=noise.active)
    return total + denoising / noise.positive.sum().clamp(min=1)


def _sum(
    logits: Tensor,
    boxes: Tensor,
    targets: Targets,
    target: Tensor,
    positive: Tensor,
    *,
    counted: Tensor | None = None,
) -> Tensor:
    """Return the summed loss of (layers, images, queries); only positives have a target."""
    layers, _, _, classes = logits.shape
    labels = targets.labels.expand(layers, -1, -1).gather(2, target)
    wanted = targets.boxes.expand(layers, -1, -1, -1).gather(2, target[..., None].expand(-1, -1, -1, 4))
    is_class = (labels[..., None] == torch.arange(classes, device=labels.device)) & positive[..., None]
    found = boxes.float()
    focal = _focal(logits.float(), is_class.float()).sum(dim=-1)
    focal = (focal if counted is None else focal * counted).sum()
    l1 = ((found - wanted).abs() * positive[..., None]).sum()
    giou = ((1 - generalized_iou(to_corners(found), to_corners(wanted))) * positive).sum()
    return LOSSES[0] * focal + LOSSES[1] * l1 + LOSSES[2] * giou


def _focal(logits: Tensor, truth: Tensor) -> Tensor:
    """Return the focal loss of each logit; `truth` is 1 or 0."""
    probability = logits.sigmoid()
    missed = probability + truth - 2 * probability * truth  # |truth - probability|
    alpha = FOCAL_ALPHA * truth + (1 - FOCAL_ALPHA) * (1 - truth)
    plain = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
    return alpha * missed**FOCAL_GAMMA * plain


# Stage 1 of a ResNet is frozen, as in the 1x schedule of Faster R-CNN.
FROZEN = ("body.conv1.", "body.bn1.", "body.layer1.")
CALIBRATING = (2, 3, 224, 224)  # shape of noise images


def build_detector(name: str, *, num_classes: int | None = None, **options: Any) -> TorchvisionDetector:
    """Build the named detector with random weights; `num_classes` are those of objects, without a background."""
    from torchvision import models

    if num_classes is not None:
        options["num_classes"] = num_classes + 1  # class 0 is the background
    # Without the second, "no weights" still downloads a pretrained backbone.
    return TorchvisionDetector(models.get_model(name, weights=None, weights_backbone=None, **options))


class TorchvisionDetector(nn.Module):
    """torchvision's Faster R-CNN: Scenes -> losses by name in training; in eval mode found boxes, and raw outputs.

    Images were resized and normalized on the way to the device. Coordinates stay in fp32, where the library takes the type of
    the maps: a step of bf16 is eight pixels at the right of a wide image. The backbone's batch norms stay in eval mode, as
    detectors of two images a device are trained, with the statistics of noise: without them the activations of random
    weights grow to NaN.
    """

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.detector = detector
        detector.transform = NoTransform()
        self._heads: list[Any] = []  # outputs in this pass
        detector.rpn.anchor_generator.register_forward_pre_hook(_anchors_in_fp32)
        for head in (detector.rpn.head, detector.roi_heads.box_predictor):
            head.register_forward_hook(self._in_fp32)
        calibrate(detector.backbone)
        for name, parameter in detector.backbone.named_parameters():
            if name.startswith(FROZEN):
                parameter.requires_grad = False
        self.train()

    @property
    def compiled_apart(self) -> list[nn.Module]:
        """The modules of fixed shapes: all others have as many rows as there are boxes."""
        return [self.detector.backbone, self.detector.rpn.head]

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - as torch has it
        super().train(mode)
        for norm in _norms(self.detector.backbone):
            norm.eval()
        return self

    def forward(self, scenes: Scenes) -> Any:
        images, sizes, targets = scenes
        if images.is_meta:
            counted, self._heads = self._counted(images), []
            return {"counted": counted}
        if not self.training or targets is None:
            # Under autocast, where weights have half precision too: the library pools regions in fp32 there alone.
            half = images.dtype in {torch.bfloat16, torch.float16}
            with torch.autocast(images.device.type, dtype=images.dtype if half else None, enabled=half):
                self.detector.transform.sizes = sizes.tolist()
                found = self.detector(images)
            heads, self._heads = self._heads, []  # numbers that are not finite make no box
            return found, heads
        # The number of boxes is a shape in this library: the only place where our part waits for the device.
        known = torch.cat([sizes, targets.valid.sum(dim=1, keepdim=True)], dim=1).tolist()
        self.detector.transform.sizes = [(height, width) for height, width, _ in known]
        corners, labels = corners_px(targets.boxes, sizes), targets.labels + 1
        lists = [
            {"boxes": corners[image, :count], "labels": labels[image, :count]}
            for image, (_, _, count) in enumerate(known)
        ]
        return self.detector(images, lists)

    def _in_fp32(self, _module: nn.Module, _arguments: Any, output: Any) -> Any:
        output = tree_map(Tensor.float, output)
        if not self.training:
            self._heads.append(output)
        return output

    def _counted(self, images: Tensor) -> Tensor:
        """Run the products of a step on the meta device, for the largest number of sampled regions."""
        detector, regions = self.detector, self.detector.roi_heads
        maps = detector.backbone(images)
        sampler = regions.fg_bg_sampler
        drawn = sampler.batch_size_per_image if self.training else detector.rpn.post_nms_top_n()
        shape = (len(images) * drawn, detector.backbone.out_channels, *regions.box_roi_pool.output_size)
        pooled = images.new_zeros(shape) + sum(each.sum() for each in maps.values())
        outputs = (
            detector.rpn.head(list(maps.values())),
            regions.box_predictor(regions.box_head(pooled)),
        )
        return torch.stack([leaf.sum() for leaf in tree_leaves(outputs)]).sum()


def _anchors_in_fp32(_module: nn.Module, arguments: tuple[Any, list[Tensor]]) -> tuple[Any, list[Tensor]]:
    """Give the generator maps of fp32; it reads their shapes and type alone."""
    images, maps = arguments
    return images, [torch.empty_like(each, dtype=torch.float32) for each in maps]


class NoTransform(nn.Module):
    """Replacement of the library's resizing and normalization, which the input pipeline does."""

    sizes: list[tuple[int, int]]  # of each image without its padding

    def forward(self, images: Tensor, targets: Any = None) -> tuple[Any, Any]:
        from torchvision.models.detection.image_list import ImageList

        return ImageList(images, self.sizes), targets

    def postprocess(self, found: Any, _sizes: Any, _original_sizes: Any) -> Any:
        return found


@torch.no_grad()
def calibrate(backbone: nn.Module) -> None:
    """Set the running statistics of a backbone's batch norms to those of noise."""
    for norm in _norms(backbone):
        norm.momentum = 1.0  # of this batch alone: they are in eval mode from here on
    backbone.train()
    noise = torch.rand(CALIBRATING, device=next(backbone.parameters()).device)
    mean, std = (noise.new_tensor(each).view(3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
    backbone((noise - mean) / std)


def _norms(backbone: nn.Module) -> Iterator[Any]:
    return (layer for layer in backbone.modules() if isinstance(layer, nn.BatchNorm2d))
