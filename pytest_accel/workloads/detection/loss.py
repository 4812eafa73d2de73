"""The loss over sets of boxes: focal, L1 and GIoU, on what matching and denoising say each query stands for.

Three parts, so that a compiler may have the first and the last: `costs` and `loss` run on the device in static
shapes and wait for nothing, `match` between them needs the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.workloads.detection.batch import Targets
from pytest_accel.workloads.detection.boxes import generalised_iou, to_corners
from pytest_accel.workloads.detection.denoising import Noise
from pytest_accel.workloads.detection.matching import UNMATCHED, match

FOCAL_ALPHA, FOCAL_GAMMA = 0.25, 2.0  # of the focal loss's own paper, arXiv:1708.02002


class Predictions(NamedTuple):
    """What a detector returns. The denoising part is there where it was given targets."""

    logits: (
        Tensor  # (1 + layers, images, queries, classes): what the encoder proposed, then each decoder layer
    )
    boxes: Tensor  # (1 + layers, images, queries, 4), centres; shares of the image without its padding
    denoised_logits: Tensor | None = None  # (layers, images, slots, classes)
    denoised_boxes: Tensor | None = None  # (layers, images, slots, 4)
    noise: Noise | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What a unit of each disagreement weighs."""

    focal: float
    l1: float
    giou: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DinoLoss:
    """What DINO minimises: `DinoLoss()(predictions, targets)`, a scalar.

    It is a sum over the encoder's proposals, all decoder layers and their denoising, each divided by the number of
    boxes (of positive copies for denoising) in the batch of this process.
    """

    cost: Weights = Weights(focal=2, l1=5, giou=2)
    weight: Weights = Weights(focal=1, l1=5, giou=2)

    def __call__(self, predictions: Predictions, targets: Targets) -> Tensor:
        return self.loss(predictions, targets, match(self.costs(predictions, targets)))

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def costs(self, predictions: Predictions, targets: Targets) -> Tensor:
        """Return what each object would cost each query: (1 + layers, images, objects, queries), for `match`."""
        labels, boxes, valid = targets.harmless()
        logits = predictions.logits.float().transpose(-1, -2)  # classes before queries
        chosen = labels[None, :, :, None].expand(*logits.shape[:2], -1, logits.shape[-1])
        found, wanted = predictions.boxes.float()[:, :, None], boxes[None, :, :, None]
        focal = (_focal(logits, 1.0) - _focal(logits, 0.0)).gather(2, chosen)
        l1 = (found - wanted).abs().sum(dim=-1)
        giou = generalised_iou(to_corners(found), to_corners(wanted))
        total = self.cost.focal * focal + self.cost.l1 * l1 - self.cost.giou * giou
        # A step that diverged must end as a loss that is NaN, which is reported, not as an error of SciPy's.
        return torch.nan_to_num(total, nan=1e6).masked_fill(~valid[None, :, :, None], float("inf"))

    def loss(self, predictions: Predictions, targets: Targets, matched: Tensor) -> Tensor:
        """Return the loss, given for each query the object that it answers for (see `match`)."""
        targets, noise = targets.harmless(), predictions.noise
        total = self._sum(
            predictions.logits,
            predictions.boxes,
            targets,
            target=matched.clamp(min=0),
            positive=matched != UNMATCHED,
        )
        total = total / targets.valid.sum().clamp(min=1)
        if noise is None or predictions.denoised_logits is None or predictions.denoised_boxes is None:
            return total
        layers = len(predictions.denoised_logits)
        denoising = self._sum(
            predictions.denoised_logits,
            predictions.denoised_boxes,
            targets,
            target=noise.target.expand(layers, -1, -1),
            positive=noise.positive.expand(layers, -1, -1),
            counted=noise.active,
        )
        return total + denoising / noise.positive.sum().clamp(min=1)

    def _sum(
        self,
        logits: Tensor,
        boxes: Tensor,
        targets: Targets,
        *,
        target: Tensor,
        positive: Tensor,
        counted: Tensor | None = None,
    ) -> Tensor:
        """Add up the disagreement of (layers, images, queries) with their targets; only positives have one."""
        layers, _, _, classes = logits.shape
        labels = targets.labels.expand(layers, -1, -1).gather(2, target)
        wanted = targets.boxes.expand(layers, -1, -1, -1).gather(2, target[..., None].expand(-1, -1, -1, 4))
        is_class = (labels[..., None] == torch.arange(classes, device=labels.device)) & positive[..., None]
        found = boxes.float()
        focal = _focal(logits.float(), is_class.float()).sum(dim=-1)
        focal = (focal if counted is None else focal * counted).sum()
        l1 = ((found - wanted).abs() * positive[..., None]).sum()
        giou = ((1 - generalised_iou(to_corners(found), to_corners(wanted))) * positive).sum()
        return self.weight.focal * focal + self.weight.l1 * l1 + self.weight.giou * giou


def _focal(logits: Tensor, truth: Tensor | float) -> Tensor:
    """Return the focal loss of each logit against its truth, 1 or 0."""
    if not isinstance(truth, Tensor):
        truth = torch.full_like(logits, truth)
    probability = logits.sigmoid()
    missed = probability + truth - 2 * probability * truth  # |truth - probability|
    alpha = FOCAL_ALPHA * truth + (1 - FOCAL_ALPHA) * (1 - truth)
    plain = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
    return alpha * missed**FOCAL_GAMMA * plain
