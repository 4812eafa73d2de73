"""Optimizers by name, in the fastest implementation that the device has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from pytest_accel.measure.errors import did_you_mean, unknown_value

OptimizerFactory = Callable[[Iterable[Any]], Any]  # parameters -> torch.optim.Optimizer

# One kernel for all parameters. On CPUs too: on a Xeon (torch 2.10, one thread, alternating, CPU time) a
# ResNet18 step takes 154 ms fused and 186 ms foreach, a tiny ViT's 76 and 92 ms, a tiny GPT's 71 and 82 ms.
FUSED_DEVICES = ("cuda", "cpu", "xpu", "mps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """A named optimizer and the settings that papers train with; only the speed of a step matters here."""

    torch_name: str
    lr: float
    options: tuple[tuple[str, float], ...]
    states: int  # tensors that it keeps of each parameter, as large as that


OPTIMIZERS = {
    "sgd": Optimizer(
        torch_name="SGD", lr=0.01, options=(("momentum", 0.9), ("weight_decay", 1e-4)), states=1
    ),
    "adam": Optimizer(torch_name="Adam", lr=1e-4, options=(), states=2),
    "adamw": Optimizer(torch_name="AdamW", lr=1e-4, options=(("weight_decay", 0.01),), states=2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """How gradients become updates, as a benchmark asks for it; None: as the named optimizer has it."""

    optimizer: str | OptimizerFactory = "auto"  # a name of OPTIMIZERS, or parameters -> a torch optimizer
    lr: float | None = None
    weight_decay: float | None = None
    lr_scale: Mapping[str, float] | None = None  # by prefix of a parameter's name, the longest that fits
    clip: float | None = None  # the largest norm of all gradients together

    def check(self) -> None:
        """Refuse what no optimizer can be built from, before a model is built for it."""
        if self.optimizer != "auto":
            check_optimizer(self.optimizer, lr=self.lr)
        if not isinstance(self.optimizer, str):
            for name, value in (("weight_decay", self.weight_decay), ("lr_scale", self.lr_scale)):
                if value is not None:
                    raise ValueError(
                        f"{name}: {value} has no effect beside a callable optimizer. Set it inside the callable."
                    )
        if self.clip is not None and not (_is_number(self.clip) and self.clip > 0):
            raise ValueError(
                f"clip: {self.clip!r} is not a positive number. It is the largest norm of all gradients."
            )
        if self.weight_decay is not None and not (_is_number(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay: {self.weight_decay!r} is not a number of 0 or more.")
        if self.lr_scale is not None and not isinstance(self.lr_scale, Mapping):
            raise ValueError(
                f"lr_scale: {self.lr_scale!r} names no parameters. Write {{'backbone': 0.1}}, a factor for each beginning of "
                "their names, or lr= for all of them."
            )
        for prefix, factor in (self.lr_scale or {}).items():
            if not (_is_number(factor) and factor > 0):
                raise ValueError(
                    f"lr_scale: {factor!r} for {prefix!r} is not a positive number. It multiplies the learning rate."
                )

    @property
    def states(self) -> int:
        """Tensors that the optimizer keeps of each parameter at the least, before the model is known."""
        named = self.optimizer if isinstance(self.optimizer, str) else None
        known = OPTIMIZERS.get("adamw" if named == "auto" else named or "")
        return known.states if known else 0

    @property
    def configuration(self) -> dict[str, str | float]:
        """What was asked for beside an optimizer and its rate."""
        scaled = {f"lr_scale.{prefix}": factor for prefix, factor in (self.lr_scale or {}).items()}
        asked = {"weight_decay": self.weight_decay, "clip": self.clip, **scaled}
        return {name: value for name, value in asked.items() if value is not None}


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def check_optimizer(optimizer: str | OptimizerFactory, *, lr: float | None) -> None:
    """Refuse what `build_optimizer` would refuse, before a model is built for it."""
    if isinstance(optimizer, str) and optimizer not in OPTIMIZERS:
        remedy = "Or pass a callable that takes the parameters and returns a torch.optim.Optimizer."
        raise unknown_value("optimizer", optimizer, OPTIMIZERS, remedy=remedy)
    if not isinstance(optimizer, str) and lr is not None:
        raise ValueError(f"lr: {lr} has no effect beside a callable optimizer. Set it inside the callable.")


def build_optimizer(
    optimizer: str | OptimizerFactory,
    parameters: Iterable[Any],
    *,
    device: torch.device,
    lr: float | None = None,
    weight_decay: float | None = None,
    sharded: bool = False,
) -> tuple[Any, dict[str, str | float]]:
    """Return a torch optimizer and what defines it: its name, implementation and learning rate.

    `parameters` are tensors, or groups of them as torch.optim takes them; of shards the fused SGD knows nothing.
    """
    check_optimizer(optimizer, lr=lr)
    if not isinstance(optimizer, str):
        built = optimizer(parameters)
        return built, {"optimizer": callable_name(optimizer), "lr": built.param_groups[0]["lr"]}
    chosen = OPTIMIZERS[optimizer]
    rate = chosen.lr if lr is None else lr
    options = dict(chosen.options) | ({} if weight_decay is None else {"weight_decay": weight_decay})
    fused = device.type in FUSED_DEVICES and not (sharded and chosen.torch_name == "SGD")
    kernel = "fused" if fused else "foreach"
    factory = getattr(torch.optim, chosen.torch_name)
    built = factory(parameters, lr=rate, **options, **{kernel: True})
    if chosen.torch_name == "SGD":
        _begin_momentum(built)
    return built, {"optimizer": optimizer, "optimizer_kernel": kernel, "lr": rate}


def build_updates(
    updates: Updates, optimizer: str | OptimizerFactory, named: Mapping[str, Any], *, device: torch.device
) -> tuple[Any, dict[str, str | float]]:
    """Return the optimizer of named parameters, in groups where their learning rates differ, and what defines it."""
    parameters: Iterable[Any] = named.values()
    if updates.lr_scale and isinstance(optimizer, str):
        rate = OPTIMIZERS[optimizer].lr if updates.lr is None else updates.lr
        parameters = [
            {"params": members, "lr": rate * factor}
            for factor, members in _by_factor(named, updates.lr_scale).items()
        ]
    built, described = build_optimizer(
        optimizer,
        parameters,
        device=device,
        lr=updates.lr,
        weight_decay=updates.weight_decay,
        sharded=any(hasattr(parameter, "full_tensor") for parameter in named.values()),
    )
    return built, described | updates.configuration


def _by_factor(named: Mapping[str, Any], lr_scale: Mapping[str, float]) -> dict[float, list[Any]]:
    groups: dict[float, list[Any]] = {}
    unused = set(lr_scale)
    for name, parameter in named.items():
        fitting = [prefix for prefix in lr_scale if name.startswith(prefix)]
        unused.difference_update(fitting)
        factor = lr_scale[max(fitting, key=len)] if fitting else 1.0
        groups.setdefault(factor, []).append(parameter)
    for prefix in sorted(unused):
        begins = sorted({name.partition(".")[0] for name in named})
        raise ValueError(
            f"lr_scale: no trained parameter begins with {prefix!r}.{did_you_mean(prefix, begins)} "
            f"Here they begin with: {', '.join(begins)}."
        )
    return groups


def clip_gradients(parameters: Iterable[Any], largest: float) -> None:
    """Scale all gradients down to one norm, where theirs is larger. Nothing waits for the device."""
    parameters = list(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
    if hasattr(norm, "full_tensor"):  # of shards: every rank has a part of it
        norm = norm.full_tensor()
    torch.nn.utils.clip_grads_with_norm_(parameters, largest, norm, foreach=True)


def _begin_momentum(sgd: Any) -> None:  # noqa: ANN401 - a torch optimizer
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
