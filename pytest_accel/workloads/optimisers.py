"""Optimisers by name, in the fastest implementation that the device has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from pytest_accel.workloads.errors import unknown_value

OptimiserFactory = Callable[[Iterable[Any]], Any]  # parameters -> torch.optim.Optimizer

# One kernel for all parameters. On CPUs too: on a Xeon (torch 2.10, one thread, alternating, CPU time) a
# ResNet18 step takes 154 ms fused and 186 ms foreach, a tiny ViT's 76 and 92 ms, a tiny GPT's 71 and 82 ms.
FUSED_DEVICES = ("cuda", "cpu", "xpu", "mps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimiser:
    """A named optimiser and the settings that papers train with; only the speed of a step matters here."""

    torch_name: str
    lr: float
    options: tuple[tuple[str, float], ...]
    states: int  # tensors that it keeps of each parameter, as large as that


OPTIMISERS = {
    "sgd": Optimiser(
        torch_name="SGD", lr=0.01, options=(("momentum", 0.9), ("weight_decay", 1e-4)), states=1
    ),
    "adam": Optimiser(torch_name="Adam", lr=1e-4, options=(), states=2),
    "adamw": Optimiser(torch_name="AdamW", lr=1e-4, options=(("weight_decay", 0.01),), states=2),
}


def check_optimiser(optimiser: str | OptimiserFactory, *, lr: float | None) -> None:
    """Refuse what `build_optimiser` would refuse, before a model is built for it."""
    if isinstance(optimiser, str) and optimiser not in OPTIMISERS:
        remedy = "Or pass a callable that takes the parameters and returns a torch.optim.Optimizer."
        raise unknown_value("optimiser", optimiser, OPTIMISERS, remedy=remedy)
    if not isinstance(optimiser, str) and lr is not None:
        raise ValueError(f"lr: {lr} has no effect beside a callable optimiser. Set it inside the callable.")


def build_optimiser(
    optimiser: str | OptimiserFactory,
    parameters: Iterable[Any],
    *,
    device: torch.device,
    lr: float | None = None,
) -> tuple[Any, dict[str, str | float]]:
    """Return a torch optimiser and what defines it: its name, implementation and learning rate."""
    check_optimiser(optimiser, lr=lr)
    if not isinstance(optimiser, str):
        built = optimiser(parameters)
        return built, {"optimiser": callable_name(optimiser), "lr": built.param_groups[0]["lr"]}
    chosen = OPTIMISERS[optimiser]
    rate = chosen.lr if lr is None else lr
    kernel = "fused" if device.type in FUSED_DEVICES else "foreach"
    factory = getattr(torch.optim, chosen.torch_name)
    built = factory(parameters, lr=rate, **dict(chosen.options), **{kernel: True})
    if chosen.torch_name == "SGD":
        _begin_momentum(built)
    return built, {"optimiser": optimiser, "optimiser_kernel": kernel, "lr": rate}


def _begin_momentum(sgd: Any) -> None:  # noqa: ANN401 - a torch optimiser
    """Give SGD its momentum buffers before its first step, as zeros: the same arithmetic, and no garbage.

    A fused SGD makes them uninitialised in its first step and has the kernel fill them, which it does not
    when a GradScaler skips that step for an overflow, as it mostly does in fp16: the second step then adds
    garbage (seen on an H200 with torch 2.11: NaN after 16 steps of a ResNet18; the code is in 2.10 too).
    """
    for group in sgd.param_groups:
        for parameter in group["params"]:
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def callable_name(function: object) -> str:
    """Return the name that a callable has in configurations: stable from run to run, no address in it."""
    plain = getattr(function, "func", function)  # functools.partial
    if not hasattr(plain, "__qualname__"):
        plain = type(plain)
    return f"{plain.__module__}.{plain.__qualname__}"
