"""Image classification as timm, torchvision and Olivia's guide train it."""

from __future__ import annotations

import timm
import torch
from timm.optim import create_optimizer_v2
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it
from torchvision import models

from benchmarks.comparison.catalogue import Comparison
from benchmarks.comparison.implementations import Step, autocast, compiled, plain_loop
from benchmarks.comparison.own_scripts import model_options, pixels, timm_name
from benchmarks.comparison.timing import synchronize
from pytest_accel.workloads.models.build import build_model

TOP = (1, 5)  # accuracies that torchvision computes
CIFAR_CLASSES, CIFAR_PIXELS = 100, 32


def timm_step(comparison: Comparison, device: torch.device) -> Step:
    """Return a step of timm's benchmark.py (1.0.29) with `--amp --amp-dtype bfloat16 --channels-last --torchcompile`.

    It synchronizes after every step, draws new targets each time, and runs backward inside autocast. Its optimizer is
    timm's "sgd" (Nesterov) at 1e-4. With `--source` the script itself runs instead (own_scripts.py).
    """
    model = timm.create_model(timm_name(comparison), **model_options(comparison))
    model = model.to(device, memory_format=torch.channels_last).train(comparison.task == "train")
    side = pixels(comparison)
    inputs = torch.randn(comparison.batch_size, 3, side, side, device=device)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    forward = compiled(model, device)

    def infer() -> None:
        with torch.inference_mode(), autocast(comparison, device):
            forward(inputs)
        synchronize(device)

    if comparison.task == "infer":
        return infer
    optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-4)

    def train() -> None:
        optimizer.zero_grad()
        with autocast(comparison, device):
            output = forward(inputs)
            targets = torch.empty(len(output), device=device, dtype=torch.long).random_(model.num_classes)
            F.cross_entropy(output, targets).backward()
        optimizer.step()
        synchronize(device)

    return train


def torchvision_step(comparison: Comparison, device: torch.device) -> Step:
    """Return a step of torchvision's references/classification/train.py with `--amp` and its other defaults.

    Eager and contiguous, SGD at .1 with momentum .9 and weight decay 1e-4, fp16 with a GradScaler. It computes the
    accuracies of every batch and reads them and the loss at every step. Both sides leave out the loader.
    """
    model = models.get_model(comparison.model, weights=None, num_classes=1000).to(device).train()
    side = comparison.options["image_size"]
    images = torch.randn(comparison.batch_size, 3, side, side, device=device)
    labels = torch.randint(1000, (comparison.batch_size,), device=device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=comparison.precision == "fp16")

    def train() -> None:
        with autocast(comparison, device):
            output = model(images)
            loss = criterion(output, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        shares = accuracies(output, labels)
        loss.item()
        for share in shares:
            share.item()

    return train


@torch.inference_mode()
def accuracies(output: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Return top-1 and top-5 accuracy in percent."""
    best = output.topk(max(TOP), dim=1).indices
    hits = best == labels[:, None]
    return [100 * hits[:, :most].any(dim=1).float().mean() for most in TOP]


def olivia_step(comparison: Comparison, device: torch.device) -> Step:
    """Return the optimized step of Olivia's guide: WideResNet, eager, autocast, plain SGD, the loss read at every step."""
    model, _ = build_model(comparison.model, num_classes=CIFAR_CLASSES, device=device)
    images = torch.randn(comparison.batch_size, 3, CIFAR_PIXELS, CIFAR_PIXELS, device=device)
    labels = torch.randint(CIFAR_CLASSES, (comparison.batch_size,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return plain_loop(comparison, device, lambda: F.cross_entropy(model(images), labels), optimizer)
