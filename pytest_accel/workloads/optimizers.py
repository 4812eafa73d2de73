"""Optimizers by name, in the fastest implementation that the device has; parameter groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from pytest_accel.measure.arguments import unknown_value
from pytest_accel.workloads.config import OptimizerFactory, StepConfig, callable_name

# One kernel for all parameters. On CPUs too: on a Xeon (torch 2.10, one thread, CPU time) a ResNet18 step takes 154 ms
# fused and 186 ms foreach, a tiny ViT's 76 and 92 ms, a tiny GPT's 71 and 82 ms.
FUSED_DEVICES = ("cuda", "cpu", "xpu", "mps")


class NamedOptimizer(NamedTuple):
    torch_name: str
    options: Mapping[str, float]
    states: int  # tensors that it keeps of each parameter, of the same size


OPTIMIZERS = {
    "sgd": NamedOptimizer("SGD", {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}, states=1),
    "adam": NamedOptimizer("Adam", {"lr": 1e-4}, states=2),
    "adamw": NamedOptimizer("AdamW", {"lr": 1e-4, "weight_decay": 0.01}, states=2),
}


def check_optimizer(optimizer: str | OptimizerFactory, **changes: Any) -> None:
    if isinstance(optimizer, str) and optimizer not in OPTIMIZERS:
        remedy = "Or pass a callable that takes the parameters and returns a torch.optim.Optimizer."
        raise unknown_value("optimizer", optimizer, OPTIMIZERS, remedy=remedy)
    for name, value in changes.items():
        if not isinstance(optimizer, str) and value is not None:
            raise ValueError(
                f"{name}: {value} has no effect beside a callable optimizer. Set it inside the callable."
            )


def check_updates(config: StepConfig) -> None:
    if config.optimizer != "auto":
        changes = {"lr": config.lr, "weight_decay": config.weight_decay, "lr_scale": config.lr_scale}
        check_optimizer(config.optimizer, **changes)
    factors = {f"lr_scale[{prefix!r}]": factor for prefix, factor in (config.lr_scale or {}).items()}
    for name, value in {"clip": config.clip, **factors}.items():
        if value is not None and not value > 0:  # NaN neither
            raise ValueError(f"{name}: {value!r} is not a positive number.")


def optimizer_states(config: StepConfig) -> int:
    """Return the tensors that the optimizer keeps of each parameter at least, before the model is known."""
    if not isinstance(config.optimizer, str):
        return 0
    return OPTIMIZERS["adamw" if config.optimizer == "auto" else config.optimizer].states


def optimizer_options(name: str, *, lr: float | None, weight_decay: float | None) -> dict[str, float]:
    """Return the options of a named optimizer: those that are given, else its own."""
    given = {"lr": lr, "weight_decay": weight_decay}
    return {**OPTIMIZERS[name].options, **{key: value for key, value in given.items() if value is not None}}


def build_optimizer(
    optimizer: str | OptimizerFactory,
    parameters: Iterable[Any],
    *,
    device: torch.device,
    lr: float | None = None,
    weight_decay: float | None = None,
    sharded: bool = False,
) -> tuple[Any, dict[str, str | float]]:
    """Return a torch optimizer and its configuration: name, implementation and learning rate.

    `parameters` are tensors or torch.optim's groups of them. The fused SGD cannot update shards.
    """
    check_optimizer(optimizer, lr=lr)
    if not isinstance(optimizer, str):
        built = optimizer(parameters)
        return built, {"optimizer": callable_name(optimizer), "lr": built.param_groups[0]["lr"]}
    name = OPTIMIZERS[optimizer].torch_name
    options = optimizer_options(optimizer, lr=lr, weight_decay=weight_decay)
    fused = device.type in FUSED_DEVICES and not (sharded and name == "SGD")
    kernel = "fused" if fused else "foreach"
    built = getattr(torch.optim, name)(parameters, **options, **{kernel: True})
    if name == "SGD":
        # Momentum of zeros before the first step: a fused SGD allocates it uninitialized in that step and has the kernel fill
        # it, which it does not do when a GradScaler skips the step, as it mostly does in fp16 (H200, torch 2.11: NaN after
        # 16 steps of a ResNet18).
        for parameter in (each for group in built.param_groups for each in group["params"]):
            built.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return built, {"optimizer": optimizer, "optimizer_kernel": kernel, "lr": options["lr"]}


def build_step_optimizer(
    config: StepConfig, optimizer: str | OptimizerFactory, named: Mapping[str, Any]
) -> tuple[Any, dict[str, str | float]]:
    """Return the optimizer of named parameters, in groups where their learning rates differ, and its configuration."""
    parameters: Iterable[Any] = named.values()
    if config.lr_scale and isinstance(optimizer, str):
        rate = optimizer_options(optimizer, lr=config.lr, weight_decay=None)["lr"]
        groups = _by_factor(named, config.lr_scale)
        parameters = [{"params": members, "lr": rate * factor} for factor, members in groups.items()]
    built, configuration = build_optimizer(
        optimizer,
        parameters,
        device=config.device,
        lr=config.lr,
        weight_decay=config.weight_decay,
        sharded=any(hasattr(parameter, "full_tensor") for parameter in named.values()),
    )
    scaled = {f"lr_scale.{prefix}": factor for prefix, factor in (config.lr_scale or {}).items()}
    given = {"weight_decay": config.weight_decay, "clip": config.clip, **scaled}
    return built, configuration | {name: value for name, value in given.items() if value is not None}


def _by_factor(named: Mapping[str, Any], lr_scale: Mapping[str, float]) -> dict[float, list[Any]]:
    groups: dict[float, list[Any]] = {}
    for name, parameter in named.items():
        fitting = [prefix for prefix in lr_scale if name.startswith(prefix)]
        factor = lr_scale[max(fitting, key=len)] if fitting else 1.0
        groups.setdefault(factor, []).append(parameter)
    for prefix in lr_scale:
        if not any(name.startswith(prefix) for name in named):
            begins = sorted({name.partition(".")[0] for name in named})
            raise ValueError(
                f"lr_scale: no trained parameter begins with {prefix!r}. Here they begin with: {', '.join(begins)}."
            )
    return groups
