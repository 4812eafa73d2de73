"""Segmentation and detection as segmentation-models-pytorch and torchvision train them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it
from torchvision import models
from torchvision.ops import FrozenBatchNorm2d

from benchmarks.comparison.catalogue import Comparison
from benchmarks.comparison.implementations import Step, plain_loop, plain_optimizer
from pytest_accel.workloads.data.files import IMAGENET_MEAN, IMAGENET_STD
from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.models.detection import FROZEN, Scenes, calibrate, corners_px, dino_loss
from pytest_accel.workloads.models.zoo import CROPS
from pytest_accel.workloads.tasks.detection import ScenePlan, resizing_of
from pytest_accel.workloads.tasks.segmentation import AUXILIARY_WEIGHT, MaskPlan

IGNORED = 255  # class of pixels without one, in Cityscapes


def segmentation_step(comparison: Comparison, device: torch.device) -> Step:
    """Return a step of segmentation-models-pytorch's model, with our auxiliary head of DeepLabV3+, in a plain loop."""
    model, _ = build_model(comparison.model, device=device)
    size = comparison.options.get("image_size")
    crop = (size, size) if size else CROPS[comparison.model.removeprefix("zoo/")]
    plan = MaskPlan(name="cityscapes", batch_size=comparison.batch_size, crop=crop)
    images, masks = plan.make(0, seed=0, device=device)

    def of_head(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, masks, ignore_index=IGNORED)

    def loss_of() -> torch.Tensor:
        output = model(images)
        if isinstance(output, tuple):
            return of_head(output[0]) + AUXILIARY_WEIGHT * of_head(output[1])
        return of_head(output)

    return plain_loop(comparison, device, loss_of, plain_optimizer(comparison, model, default="sgd"))


def detector_step(comparison: Comparison, device: torch.device) -> Step:
    """Return a step of torchvision's Faster R-CNN in a plain loop."""
    plan = _plan(comparison)
    scenes, _ = _batch(plan, device)
    model = _as_published(comparison.model, plan.bucket).to(device)
    images, boxes = _lists(scenes)

    def loss_of() -> torch.Tensor:
        return sum(model(images, boxes).values())

    return plain_loop(comparison, device, loss_of, plain_optimizer(comparison, model, default="sgd"))


def dino_step(comparison: Comparison, device: torch.device) -> Step:
    """Return a step of our own DINO, eager: no maintained library has it without compiled operators."""
    scenes, targets = _batch(_plan(comparison), device)
    options = comparison.options.get("model_options", {})
    model = build_model(comparison.model, device=device, **options)[0].train()

    def loss_of() -> torch.Tensor:
        return dino_loss(model(scenes), targets)

    return plain_loop(comparison, device, loss_of, plain_optimizer(comparison, model, default="adamw"))


def _plan(comparison: Comparison) -> ScenePlan:
    resizing = resizing_of(comparison.model, comparison.options.get("image_size"))
    return ScenePlan(name="coco", batch_size=comparison.batch_size, resizing=resizing)


def _batch(plan: ScenePlan, device: torch.device) -> tuple[Scenes, torch.Tensor]:
    """Return a batch with as many images and boxes as ours."""
    scenes, targets = plan.make(0, seed=0, device=device)
    return scenes, targets


def _as_published(name: str, bucket: tuple[int, int]) -> nn.Module:
    """Return the library's model as it is fine-tuned: frozen batch norms, stage 1 frozen, its own resizing."""
    sizes = {"min_size": min(bucket), "max_size": max(bucket)}
    model = models.get_model(name, weights=None, weights_backbone=None, **sizes)
    calibrate(model.backbone)  # without weights its loss would be NaN
    for module in list(model.backbone.modules()):
        for child_name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                frozen = FrozenBatchNorm2d(child.num_features, child.eps)
                frozen.running_mean, frozen.running_var = child.running_mean, child.running_var
                setattr(module, child_name, frozen)
    for parameter_name, parameter in model.backbone.named_parameters():
        if parameter_name.startswith(FROZEN):
            parameter.requires_grad = False
    return model.train()


def _lists(scenes: Scenes) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Return the library's inputs: images from 0 to 1, and boxes by their corners."""
    images, sizes, targets = scenes
    assert targets is not None  # training
    corners = corners_px(targets.boxes, sizes)
    mean, std = (images.new_tensor(each).view(3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
    return list(images * std + mean), [
        {"boxes": corners[place][real], "labels": targets.labels[place][real] + 1}
        for place, real in enumerate(targets.valid)
    ]
