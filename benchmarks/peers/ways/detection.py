"""torchvision's own Faster R-CNN, trained by a plain loop; and our DINO, eager.

For DINO there is no maintained library without compiled operators: the plain way is our own model, eager, with autocast
and torch's own optimizer, and shows what compiling and the fused update are worth.
"""

from __future__ import annotations

import torch
from torch import nn
from torchvision import models
from torchvision.ops import FrozenBatchNorm2d

from benchmarks.peers.contests import Contest
from benchmarks.peers.ways import Step
from benchmarks.peers.ways.plain_loop import plain_loop, plain_optimizer
from pytest_accel.workloads.data.detection import corners_px
from pytest_accel.workloads.data.sets import IMAGENET_MEAN, IMAGENET_STD
from pytest_accel.workloads.models.detection import FROZEN, DinoLoss, Scenes, calibrate
from pytest_accel.workloads.models.dino import build_dino
from pytest_accel.workloads.tasks.scenes import ScenePlan, plan_scenes


def detector_step(contest: Contest, device: torch.device) -> Step:
    plan = _plan(contest)
    scenes, _ = _batch(plan, device)
    model = _as_published(contest.model, plan.bucket).to(device)
    images, boxes = _lists(scenes)

    def loss_of() -> torch.Tensor:
        return sum(model(images, boxes).values())

    return plain_loop(contest, device, loss_of, plain_optimizer(contest, model, unasked="sgd"))


def dino_step(contest: Contest, device: torch.device) -> Step:
    scenes, targets = _batch(_plan(contest), device)
    options = contest.choices.get("model_options", {})
    model = build_dino(contest.model.removeprefix("zoo/"), **options).to(device).train()
    criterion = DinoLoss()

    def loss_of() -> torch.Tensor:
        return criterion(model(scenes), targets)

    return plain_loop(contest, device, loss_of, plain_optimizer(contest, model, unasked="adamw"))


def _plan(contest: Contest) -> ScenePlan:
    return plan_scenes(
        "coco",
        batch_size=contest.batch_size,
        model=contest.model,
        image_size=contest.choices.get("image_size"),
    )


def _batch(plan: ScenePlan, device: torch.device) -> tuple[Scenes, torch.Tensor]:
    """One batch of so many images and boxes as ours has."""
    scenes, targets = plan.make(0, seed=0, device=device, dtype=torch.float32, memory_format="contiguous")
    return scenes, targets


def _as_published(name: str, bucket: tuple[int, int]) -> nn.Module:
    """The library's model as it is trained from weights: norms that learn nothing, stage 1 frozen; its own resizing."""
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
    """What the library takes: images from 0 to 1, which it normalises, and boxes by their corners."""
    images, sizes, targets = scenes
    assert targets is not None  # training
    corners = corners_px(targets.boxes, sizes)
    mean, std = (images.new_tensor(each).view(3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
    return list(images * std + mean), [
        {"boxes": corners[place][real], "labels": targets.labels[place][real] + 1}
        for place, real in enumerate(targets.valid)
    ]
