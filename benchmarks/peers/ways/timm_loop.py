"""The loop of timm's benchmark.py (1.0.29) in our words: `--amp --amp-dtype bfloat16 --channels-last --torchcompile`.

It waits for the device at every step, since it times every one, draws new targets each time and goes backward inside the
autocast. Its optimizer is timm's own "sgd" (with Nesterov's momentum) at a rate of 1e-4. Its own process, with its own words,
runs with `--timm-source`: timm_script.py.
"""

from __future__ import annotations

import timm
import torch
from timm.optim import create_optimizer_v2
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from benchmarks.peers.contests import Contest
from benchmarks.peers.timm_names import model_options, pixels, timm_name
from benchmarks.peers.waiting import wait
from benchmarks.peers.ways import Step
from benchmarks.peers.ways.plain_loop import autocast, compiled


def step(contest: Contest, device: torch.device) -> Step:
    model = timm.create_model(timm_name(contest), **model_options(contest))
    model = model.to(device, memory_format=torch.channels_last).train(contest.task == "train")
    side = pixels(contest)
    inputs = torch.randn(contest.batch_size, 3, side, side, device=device)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    forward = compiled(model, device)

    def infer() -> None:
        with torch.inference_mode(), autocast(contest, device):
            forward(inputs)
        wait(device)

    if contest.task == "infer":
        return infer
    optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-4)

    def train() -> None:
        optimizer.zero_grad()
        with autocast(contest, device):
            output = forward(inputs)
            targets = torch.empty(len(output), device=device, dtype=torch.long).random_(model.num_classes)
            F.cross_entropy(output, targets).backward()
        optimizer.step()
        wait(device)

    return train
