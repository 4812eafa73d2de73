"""torchvision's own Faster R-CNN, trained by a plain loop: what ours is held against in peers.py.

For DINO there is no maintained library without compiled operators: the plain way is our own model, eager, with autocast
and torch's own optimiser, and shows what compiling and the fused update are worth.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from pytest_accel.data.detection import corners_px
from pytest_accel.data.sets import IMAGENET_MEAN, IMAGENET_STD
from pytest_accel.workloads.detection.batch import Scenes
from pytest_accel.workloads.detection.loss import DinoLoss
from pytest_accel.workloads.detection.torchvision import FROZEN, calibrate
from pytest_accel.workloads.tasks.scenes import plan_scenes
from pytest_accel.workloads.zoo.dino import build_dino

SMALL = 64  # pixels, on a CPU


def plain_step(name: str, batch_size: int, device: torch.device) -> Callable[[], None]:
    """Eager, autocast to bf16, torch's optimiser, the loss read at every step."""
    plan = plan_scenes(
        "coco", batch_size=batch_size, model=name, image_size=SMALL if device.type == "cpu" else None
    )
    scenes, targets = plan.make(0, seed=0, device=device, dtype=torch.float32, memory_format="contiguous")
    model: nn.Module
    if name.startswith("zoo/dino-"):
        large = {"checkpoint": True} if "swin" in name else {}
        model = build_dino(name.removeprefix("zoo/"), **large).to(device)
        criterion = DinoLoss()
        optimiser: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
        most = 0.1

        def loss_of() -> torch.Tensor:
            return criterion(model(scenes), targets)

    else:
        model = _as_published(name, plan.bucket).to(device)
        images, boxes = _lists(scenes)
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimiser = torch.optim.SGD(learning, lr=0.02, momentum=0.9, weight_decay=1e-4)
        most = 1.0

        def loss_of() -> torch.Tensor:
            return sum(model(images, boxes).values())

    def train() -> None:
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), most)
        optimiser.step()
        loss.item()

    return train


def _as_published(name: str, bucket: tuple[int, int]) -> nn.Module:
    """The library's model as it is trained from weights: norms that learn nothing, stage 1 frozen; its own resizing."""
    from torchvision import models
    from torchvision.ops import FrozenBatchNorm2d

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
            parameter.requires_grad_(False)
    return model.train()


def _lists(scenes: Scenes) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """What the library takes: images from 0 to 1, which it normalises, and boxes by their corners."""
    images, sizes, targets = scenes
    corners = corners_px(targets.boxes, sizes)
    mean, std = (images.new_tensor(each).view(3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
    return list(images * std + mean), [
        {"boxes": corners[place][real], "labels": targets.labels[place][real] + 1}
        for place, real in enumerate(targets.valid)
    ]
