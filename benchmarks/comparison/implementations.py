"""Peers: registry, and the plain training loop that most of them share.

A peer is a function of a comparison and a device. It builds the model as the peer does, puts a batch on the device, and
returns one step that does all that the peer does between two batches, synchronization included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

    from benchmarks.comparison.catalogue import Comparison

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Peer:
    title: str
    module: str
    function: str


PEERS = {
    "timm": Peer("timm's loop, compiled", "image_models", "timm_step"),
    "torchvision": Peer("torchvision's reference loop", "image_models", "torchvision_step"),
    "gpt2": Peer("transformers' GPT-2, eager", "language_models", "gpt2_step"),
    "bert": Peer("transformers' BERT, eager", "language_models", "bert_step"),
    "nanogpt": Peer("nanoGPT's loop, compiled", "language_models", "nanogpt_step"),
    "segmentation": Peer("segmentation-models-pytorch, eager", "dense_models", "segmentation_step"),
    "detector": Peer("torchvision's detector, eager", "dense_models", "detector_step"),
    "dino": Peer("our own DINO, eager", "dense_models", "dino_step"),
    "olivia": Peer("Olivia's guide, eager", "image_models", "olivia_step"),
}


def title(comparison: Comparison) -> str:
    """Return the peer of a comparison in words."""
    return PEERS[comparison.peer].title + comparison.unlike


def peer_step(comparison: Comparison, device: torch.device) -> Step:
    """Build the peer's step; ImportError where its library is not installed."""
    peer = PEERS[comparison.peer]
    module = import_module(f"benchmarks.comparison.{peer.module}")
    step: Step = getattr(module, peer.function)(comparison, device)
    return step


# --- the plain loop: eager, autocast, torch's default optimizer, the loss read at every step ---------


def autocast(comparison: Comparison, device: torch.device) -> Any:  # noqa: ANN401 - torch is untyped here
    """Return the autocast context of the comparison's precision."""
    import torch

    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(comparison.precision)
    return torch.autocast(device.type, dtype=half, enabled=half is not None)


def compiled(function: Any, device: torch.device) -> Any:  # noqa: ANN401 - a module or a function, as torch.compile
    """Compile as the peer does; not on a CPU, where comparisons are small."""
    import torch

    return function if device.type == "cpu" else torch.compile(function)


def plain_optimizer(comparison: Comparison, model: nn.Module, *, default: str) -> torch.optim.Optimizer:
    """Return the optimizer of the comparison as torch builds it by default: foreach, not fused."""
    import torch

    from pytest_accel.workloads.optimizers import OPTIMIZERS, optimizer_options

    wanted = comparison.options
    chosen = wanted.get("optimizer", default)
    options = optimizer_options(chosen, lr=wanted.get("lr"), weight_decay=wanted.get("weight_decay"))
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            factors = (by for prefix, by in wanted.get("lr_scale", {}).items() if name.startswith(prefix))
            groups.setdefault(next(factors, 1.0), []).append(parameter)
    members = [{"params": parameters, "lr": options["lr"] * factor} for factor, parameters in groups.items()]
    optimizer: torch.optim.Optimizer = getattr(torch.optim, OPTIMIZERS[chosen].torch_name)(members, **options)
    return optimizer


def plain_loop(
    comparison: Comparison,
    device: torch.device,
    loss_of: Callable[[], torch.Tensor],
    optimizer: torch.optim.Optimizer,
) -> Step:
    """Return one training step, with gradients clipped where the comparison clips them."""
    from torch import nn

    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    clip = comparison.options.get("clip")

    def train() -> None:
        optimizer.zero_grad()
        with autocast(comparison, device):
            loss = loss_of()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        loss.item()

    return train
