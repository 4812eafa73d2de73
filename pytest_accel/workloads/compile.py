"""Compilation and CUDA graphs: what of a step is compiled, in which mode, and the replay of a whole step.

torch's `reduce-overhead` records what it compiles piece by piece, and leaves the optimizer and the calls between pieces
to the host. `GraphReplay` records the whole step, the optimizer too: one launch for hundreds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from pytest_accel.measure.arguments import StepError, unknown_value
from pytest_accel.options import COMPILE_MODES
from pytest_accel.workloads.config import StepConfig
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.demand import count, is_out_of_memory
from pytest_accel.workloads.input_pipeline import InputPipeline, ModelInfo, Plan
from pytest_accel.workloads.models.build import task_of

CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")
# Below these a step waits for its launches, so they are recorded. Measured on an H200, which needs 5 ms for 2 TFLOP:
# a WideResNet at batch 32 (.46 TFLOP) trains 3,500 images/s eager and 14,500 recorded; a whole recorded step takes .986 of
# one recorded in pieces, the autoencoder's at batch 10 .64, ResNet50's on a single image .97.
LAUNCH_BOUND_FLOPS = 2e12
# Many small layers: SegFormer-B4 with fused attention at batch 1 (2 TFLOP in 423 layers) takes 119 ms, and 23 ms recorded. A
# layer takes .2 to .4 ms to launch. The layers of a ResNet, of 58 GFLOP, keep the device busy for longer.
LAUNCH_BOUND_FLOPS_A_LAYER = 40e9
# Parts that are compiled apart are recorded one by one, which saves less. A Faster R-CNN has 21 GFLOP a layer.
LAUNCH_BOUND_FLOPS_A_LAYER_APART = 25e9
RECOMPILE_LIMIT = 128  # of one class compiled apart: stages, shifted or not, times the sizes of images
# Calls before recording, in which it is compiled, algorithms are chosen and optimizer states made
CALLS_BEFORE_RECORDING = 3

StepBody = Callable[[Iterator[Batch]], Any]  # takes batches, returns tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """Compiles functions of a step in one mode; mode None returns them unchanged."""

    mode: str | None
    tuned: bool = False

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.mode is None:
            return function
        # It logs every graph at DEBUG whatever the level is: pytest would show it all with a failure.
        logging.getLogger("torch.__trace").propagate = False
        options = torch._inductor.list_mode_options(self.mode)  # noqa: SLF001 - its documentation names it
        if self.tuned:
            # Half of a ResNet's step is batch norm, whose shapes differ from layer to layer: 2 % (H200, fp16).
            options |= {"max_autotune_pointwise": True}
        return torch.compile(function, options=options, dynamic=False)

    def apart(self, modules: Iterable[nn.Module]) -> None:
        """Compile modules one by one, in place. Those of one class and shape share their code."""
        for module in modules:
            module.forward = self(module.forward)

    def limits(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return a context that raises dynamo's recompile limit for parts that are compiled apart."""
        if self.mode is None or compiled_apart(model) is None:
            return nullcontext()
        config = torch._dynamo.config  # noqa: SLF001 - its documented home
        # Until torch 2.6 it had another name.
        name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
        return config.patch({name: RECOMPILE_LIMIT})


def compiled_apart(model: nn.Module) -> list[nn.Module] | None:
    """Return the modules that a model wants compiled one by one; None: all of it, in one graph.

    Some have shapes that follow from their data, and some so many layers that one graph takes minutes.
    """
    return getattr(model, "compiled_apart", None)


def check_compile(config: StepConfig) -> None:
    mode = config.compile
    if mode in CUDA_GRAPH_MODES and (config.sharding or config.micro_batches > 1):
        # Gathered weights have another address every time, and a replay writes its gradients where the last one did.
        raise ValueError(
            f"compile: {mode!r} replays CUDA graphs, which cannot accumulate gradients or gather shards. Write 'default'."
        )
    if mode is not None and mode not in {"auto", *COMPILE_MODES}:
        raise unknown_value("compile", mode, ("auto", *COMPILE_MODES), remedy="None leaves the model eager.")
    if config.replay and not recordable(config):
        raise ValueError(
            "replay: a step is recorded on a CUDA device, without a process group, and not where compile= records it already, "
            "where a detector waits for the device, or where fp16 counts on the host what overflowed. Leave replay out."
        )


def resolve_compile(
    config: StepConfig, model: nn.Module, info: ModelInfo, plan: Plan, pipeline: InputPipeline
) -> tuple[str | None, bool]:
    """Return the compile mode of a step, and whether the whole step is replayed as a CUDA graph.

    Compiled on accelerators (1.4 x for ResNet50, 2 x for Swin-T on an H200), not on CPUs. Launches are recorded where a
    step has little arithmetic, and where threads decode beside it: launching takes Python's lock for 29 of the 37 ms of
    a ResNet50 step, replaying for 8. Not with DDP, whose collectives run between compiled pieces, and not where batches
    differ in shape: each would be recorded when it first comes, which may be in a timed round.
    """
    if config.compile != "auto":
        return config.compile, bool(config.replay)
    if config.device.type == "cpu":
        return None, False
    passes = 3 if config.training else 1  # backward is twice forward
    counted = count(model, plan)
    apart = compiled_apart(model) is not None
    flops_a_layer = LAUNCH_BOUND_FLOPS_A_LAYER_APART if apart else LAUNCH_BOUND_FLOPS_A_LAYER
    # With weights of their own: the number of launches grows with it.
    layers = sum(next(layer.parameters(recurse=False), None) is not None for layer in model.modules())
    most = max(LAUNCH_BOUND_FLOPS, flops_a_layer * layers)
    flops = passes * (counted.flops or math.inf)
    possible = config.device.type == "cuda" and not config.distributed and not pipeline.varied
    # A loss or an optimizer of the user's own may wait for the device, and so may a model.
    own_code = config.loss is not None or not isinstance(config.optimizer, str) or info.own
    whole = possible and recordable(config) and not own_code
    whole = whole and not pipeline.threaded and flops < LAUNCH_BOUND_FLOPS
    if config.replay or (config.replay is None and whole):
        return "default", True
    pieces = possible and config.micro_batches == 1 and (pipeline.threaded or flops < most)
    return "reduce-overhead" if pieces else "default", False


def recordable(config: StepConfig) -> bool:
    """Return whether a step can be recorded, as far as its keywords tell."""
    return (
        config.device.type == "cuda"
        and config.compile not in CUDA_GRAPH_MODES
        and not config.distributed
        and task_of(config.model) != "detection"
        and not (config.training and config.precision == "fp16")
    )


class GraphReplay:
    """Calls the body of a step a few times, records one call as a CUDA graph, and replays it on further batches.

    What the body reads beside its batches, and what it writes, must stay at its address: parameters, optimizer states.
    It must not wait for the device. The next call overwrites what it returned.
    """

    def __init__(self, body: StepBody, *, batches: int, device: torch.device) -> None:
        self._body = body
        self._device = device
        self._batches = batches  # of one call
        self._stream: Any = None
        self._calls = 0
        self._graph: Any = None
        self._inputs: list[Batch] = []  # that the recorded call reads
        self._result: Any = None

    def __call__(self, source: Iterator[Batch]) -> Any:
        self._calls += 1
        batches = islice(source, self._batches)
        if self._calls <= CALLS_BEFORE_RECORDING:
            return self._call(list(batches))
        if self._graph is None:
            self._inputs = [tree_map(torch.clone, batch) for batch in batches]
            self._record()
        else:
            for target, batch in zip(self._inputs, batches, strict=True):
                for tensor, kept in zip(tree_leaves(batch), tree_leaves(target), strict=True):
                    kept.copy_(tensor, non_blocking=True)
        self._graph.replay()
        return self._result

    def _call(self, batches: Sequence[Batch]) -> Any:
        """Call the body on the recording's stream: autograd binds a parameter to the stream that it first ran on."""
        current = torch.cuda.current_stream(self._device)
        self._stream = self._stream or torch.cuda.Stream(self._device)
        self._stream.wait_stream(current)
        for tensor in tree_leaves(batches):
            tensor.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            result = self._body(iter(batches))
        current.wait_stream(self._stream)
        return result

    def _record(self) -> None:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        _clear_workspaces()
        try:
            # thread_local: threads of a loader may allocate and copy meanwhile.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._result = self._body(iter(self._inputs))
        except RuntimeError as error:
            torch.cuda.set_stream(current)  # torch leaves it where a recording fails
            _raise_cause(error)
        _clear_workspaces()
        self._graph = graph

    def close(self) -> None:
        if self._stream is not None:
            _clear_workspaces()
        self._graph = self._result = None
        self._inputs = []


def _clear_workspaces() -> None:
    """Give a recording workspaces of its own: those that cuBLAS keeps may be freed under it."""
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - as torch's own recordings do


def _raise_cause(error: BaseException) -> NoReturn:
    """Raise the first error of a recording; torch's own at its end only says that it failed."""
    cause = error
    while not is_out_of_memory(cause) and cause.__context__ is not None:
        cause = cause.__context__
    if is_out_of_memory(cause):
        raise cause
    raise StepError(
        f"replay: the step could not be recorded: {str(cause).splitlines()[0]}. It must not wait for the device, as a loss that "
        "is read does. Pass replay=False. What this process measures from here on may fail, too."
    ) from error


def make_capturable(optimizer: Any) -> None:
    """Make an optimizer count its steps on the device, so that it can be recorded. SGD counts none."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        elif type(optimizer) is not torch.optim.SGD:
            raise ValueError(
                f"replay: {type(optimizer).__name__} counts its steps on the host, where a recording would stand still. "
                "Choose one that is capturable, or leave replay out."
            )
    optimizer._warned_capturable_if_run_uncaptured = True  # noqa: SLF001 - the first steps are not recorded on purpose
