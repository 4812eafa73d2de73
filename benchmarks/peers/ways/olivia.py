"""The optimised step of Olivia's guide: its WideResNet eager, under autocast, plain SGD, the loss read at every step."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from benchmarks.peers.contests import Contest
from benchmarks.peers.ways import Step
from benchmarks.peers.ways.plain_loop import plain_loop
from pytest_accel.workloads.models.build import build_model

CLASSES, PIXELS = 100, 32  # of CIFAR-100


def step(contest: Contest, device: torch.device) -> Step:
    model, _ = build_model(contest.model, num_classes=CLASSES, device=device)
    images = torch.randn(contest.batch_size, 3, PIXELS, PIXELS, device=device)
    labels = torch.randint(CLASSES, (contest.batch_size,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return plain_loop(contest, device, lambda: F.cross_entropy(model(images), labels), optimizer)
