"""What of a step is compiled, and how: by its operations, its layers and what a model says of itself."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from pytest_accel.measure.errors import unknown_value
from pytest_accel.measure.ranks import Alone
from pytest_accel.options import COMPILE_MODES
from pytest_accel.workloads.choices import Choices
from pytest_accel.workloads.feeding import Task
from pytest_accel.workloads.flops import count
from pytest_accel.workloads.plan import Plan

CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")
# A step of less arithmetic than this waits for its launches: an H200 needs some 5 ms for it, and a step of a
# ResNet launches hundreds of kernels. The WideResNet at batch 32 (.46 TFLOP) trains 3,500 images/s eager there and
# 14,500 with its launches recorded. Recorded whole, its optimizer too, a step takes .986 of what it does recorded in pieces, that of the
# autoencoder at batch 10 .64, and ResNet50 on a single image .97 (tests/studies/replay.py).
LAUNCH_BOUND_FLOPS = 2e12
# So does one of many small layers: a SegFormer-B4 at batch 1 (2 TFLOP in 423 layers) keeps an H200 busy for 22 ms of 119,
# and its step takes 23 ms with its launches recorded. At batch 8 (38 GFLOP a layer) launching it takes 140 ms on a slow host, and its
# step 104 on a quick one. A layer takes .2 to .4 ms to launch there; a ResNet's, of 58 GFLOP, keep the device busy for longer, at its limit of power.
LAUNCH_BOUND_FLOPS_A_LAYER = 40e9
# Parts that are compiled apart are recorded one by one, with the host between them: less is won. A Faster R-CNN has 21 GFLOP a layer.
LAUNCH_BOUND_FLOPS_A_LAYER_APART = 25e9
# Of one class, in kinds and shapes, that are compiled apart: stages, shifted or not, times the sizes of images.
KINDS_OF_PART = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """Compiles what a step calls, in its mode; without one it hands everything back as it is."""

    mode: str | None
    tunes_pointwise: bool = False

    @classmethod
    def of(cls, mode: str | None, model: nn.Module, device: torch.device) -> Self:
        # Half of a ResNet's step is normalising, and its shapes differ from layer to layer: 2 % (H200, fp16).
        return cls(mode=mode, tunes_pointwise=device.type == "cuda" and _normalises_batches(model))

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.mode is None:
            return function
        # It logs every graph at level DEBUG whatever is asked for: pytest would show it all with a failure.
        logging.getLogger("torch.__trace").propagate = False
        options = torch._inductor.list_mode_options(self.mode)  # noqa: SLF001 - its documentation names it
        if self.tunes_pointwise:
            options |= {"max_autotune_pointwise": True}
        return torch.compile(function, options=options, dynamic=False)

    def apart(self, modules: Iterable[nn.Module]) -> None:
        """Compile modules one by one, in place. Those of one class and shape share what is compiled."""
        for module in modules:
            module.forward = self(module.forward)

    def limits(self, model: nn.Module) -> AbstractContextManager[None]:
        """Let parts that are compiled apart be of as many kinds as they are, while a step lives."""
        if self.mode is None or compiled_apart(model) is None:
            return nullcontext()
        config = torch._dynamo.config  # noqa: SLF001 - its documented home
        # Until torch 2.6 it had another name.
        name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
        patched: AbstractContextManager[None] = config.patch({name: KINDS_OF_PART})
        return patched


def compiled_apart(model: nn.Module) -> list[nn.Module] | None:
    """Return what a model wants compiled part by part, the rest left as it is; None: all of it, in one graph.

    Some have parts whose shapes follow from their data, and some so many parts that one graph takes minutes.
    """
    return getattr(model, "compiled_apart", None)


def check_compile(mode: str | None, micro_batches: int, *, sharded: bool) -> None:
    if mode in CUDA_GRAPH_MODES and sharded:
        raise ValueError(
            f"compile: {mode!r} replays CUDA graphs, and the weights of shards lie elsewhere every time. Write 'default'."
        )
    if mode in CUDA_GRAPH_MODES and micro_batches > 1:
        # A replay writes its gradients where the last one did, and would overwrite what it has to be added to.
        raise ValueError(
            f"compile: {mode!r} replays CUDA graphs, which cannot add up gradients. Write 'default'."
        )
    if mode is not None and mode not in {"auto", *COMPILE_MODES}:
        raise unknown_value("compile", mode, ("auto", *COMPILE_MODES), remedy="None leaves the model eager.")


def settle_compile(
    choices: Choices,
    model: nn.Module,
    plan: Plan,
    *,
    task: Task,
    threaded: bool,
    varied: bool,
    known_as: Hashable,
    micro_batches: int,
    recordable: bool,
) -> tuple[str | None, bool]:
    """Return how a step is compiled, and whether all its launches are replayed as one.

    Compiled on accelerators, where it is 1.4 x for ResNet50 and 2 x for Swin-T (H200); not on CPUs.

    Where a step is short of arithmetic its launches are recorded and replayed as well, and where threads decode beside
    them: launching one by one takes Python's lock for 29 of the 37 ms of a step (ResNet50, H200), replaying for 8. Not in
    a gang: there the collectives of DDP run between the pieces of what is compiled. Nor where batches differ in shape: each
    would be recorded when it first comes, which may be in a timed round.

    The whole step where it is `recordable` and very short; else what is compiled of it, in which gradients cannot be added up.
    """
    device = torch.device(choices.device)
    if choices.compile != "auto":
        return choices.compile, bool(choices.replay)
    if device.type == "cpu":
        return None, False
    passes = 3 if task == "train" else 1  # backward is twice forward
    counted = count(model, plan, known_as=known_as)
    apart = compiled_apart(model) is not None
    a_layer = LAUNCH_BOUND_FLOPS_A_LAYER_APART if apart else LAUNCH_BOUND_FLOPS_A_LAYER
    most = max(LAUNCH_BOUND_FLOPS, a_layer * _layers(model))
    flops = passes * counted.flops if counted is not None else math.inf
    can = device.type == "cuda" and isinstance(choices.ranks, Alone) and not varied
    whole = can and recordable and not threaded and flops < LAUNCH_BOUND_FLOPS
    if choices.replay or (choices.replay is None and whole):
        return "default", True
    pieces = can and micro_batches == 1 and (threaded or flops < most)
    return "reduce-overhead" if pieces else "default", False


def _layers(model: nn.Module) -> int:
    """Count what has weights of its own: what a step launches grows with it."""
    return sum(next(layer.parameters(recurse=False), None) is not None for layer in model.modules())


def _normalises_batches(model: nn.Module) -> bool:
    """Say whether every other convolution, or more, has a batch norm behind it."""
    norms, convolutions = (
        sum(isinstance(layer, kind) for layer in model.modules()) for kind in (nn.BatchNorm2d, nn.Conv2d)
    )
    return 2 * norms >= convolutions > 0
