"""The loop that people write: eager, autocast, torch's optimizer as it comes, the loss read at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.peers.contests import Contest
from benchmarks.peers.ways import Step
from pytest_accel.workloads.optimizers import OPTIMIZERS

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(contest: Contest, device: torch.device) -> Any:  # noqa: ANN401 - torch is untyped here
    """Return a context in which products run in the contest's precision."""
    half = HALVES.get(contest.precision)
    return torch.autocast(device.type, dtype=half, enabled=half is not None)


def compiled(function: Any, device: torch.device) -> Any:  # noqa: ANN401 - a module or a function, as torch.compile
    """Compile as the peer does; on a CPU, where small models show that everything works, nobody compiles."""
    return function if device.type == "cpu" else torch.compile(function)


def plain_optimizer(contest: Contest, model: nn.Module, *, unasked: str) -> torch.optim.Optimizer:
    """The contest's own optimizer and rates, built as torch builds it unless told otherwise: foreach, not fused."""
    choices = contest.choices
    chosen = OPTIMIZERS[choices.get("optimizer", unasked)]
    lr = choices.get("lr", chosen.lr)
    options: dict[str, float] = dict(chosen.options)
    if "weight_decay" in choices:
        options["weight_decay"] = choices["weight_decay"]
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            factors = (by for prefix, by in choices.get("lr_scale", {}).items() if name.startswith(prefix))
            groups.setdefault(next(factors, 1.0), []).append(parameter)
    members = [{"params": parameters, "lr": lr * factor} for factor, parameters in groups.items()]
    optimizer: torch.optim.Optimizer = getattr(torch.optim, chosen.torch_name)(members, lr=lr, **options)
    return optimizer


def plain_loop(
    contest: Contest,
    device: torch.device,
    loss_of: Callable[[], torch.Tensor],
    optimizer: torch.optim.Optimizer,
) -> Step:
    """Return one step of it, with gradients clipped where the contest's are."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    clip = contest.choices.get("clip")

    def train() -> None:
        optimizer.zero_grad()
        with autocast(contest, device):
            loss = loss_of()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        loss.item()

    return train
