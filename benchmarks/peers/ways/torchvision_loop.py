"""torchvision's references/classification/train.py in our words, with `--amp`, as it trains unless told otherwise.

Eager and contiguous (it has no option for channels last, nor for compiling), SGD at .1 with momentum .9 and weight decay 1e-4,
fp16 with a GradScaler. It computes the accuracy of every batch, and reads the loss and both accuracies at every step: its
`--print-freq` says how often they are printed, not how often they are read. Left out: its loader, on both sides.
"""

from __future__ import annotations

import torch
from torch import nn
from torchvision import models

from benchmarks.peers.contests import Contest
from benchmarks.peers.ways import Step
from benchmarks.peers.ways.plain_loop import autocast

BEST = (1, 5)  # top-1 and top-5


def step(contest: Contest, device: torch.device) -> Step:
    model = models.get_model(contest.model, weights=None, num_classes=1000).to(device).train()
    side = contest.choices["image_size"]
    images = torch.randn(contest.batch_size, 3, side, side, device=device)
    labels = torch.randint(1000, (contest.batch_size,), device=device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    # Disabled, for a CPU in fp32, it only passes on.
    scaler = torch.amp.GradScaler(device.type, enabled=contest.precision == "fp16")

    def train() -> None:
        with autocast(contest, device):
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
    """The share of labels among the best one and the best five, in percent."""
    best = output.topk(max(BEST), dim=1).indices
    hits = best == labels[:, None]
    return [100 * hits[:, :most].any(dim=1).float().mean() for most in BEST]
