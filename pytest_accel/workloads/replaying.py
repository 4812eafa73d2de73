"""A whole step as one launch: recorded once on the device, replayed from then on.

A step of small layers is hundreds of launches, and a host that launches slowly sets its pace. What is recorded (a CUDA graph) holds
all of them, the optimizer's too, and costs the host one. torch's own `reduce-overhead` records what it compiles, piece by piece, and
leaves the optimizer and the calls between the pieces to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves, tree_map

from pytest_accel.measure.errors import OutOfMemory, StepError
from pytest_accel.measure.ranks import Alone
from pytest_accel.workloads.choices import Choices
from pytest_accel.workloads.compiling import CUDA_GRAPH_MODES
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.feeding import Task
from pytest_accel.workloads.fitting import lacked_memory
from pytest_accel.workloads.models.build import task_of
from pytest_accel.workloads.precision import Precision

Body = Callable[[Iterator[Batch]], Any]  # takes its batches from there, and returns tensors
# Before it can be recorded: compiled, its algorithms chosen, the optimizer's states made. Fewer than the first steps of a warm-up.
CALLS_BEFORE = 3


class Replay:
    """Calls the body of a step a few times as it is, records one call, and replays it on the batches that come.

    What the body reads beside its batches, and what it writes, must stay where it is: parameters, states of an optimizer. It must not
    wait for the device. What it returns is written anew by the next call.
    """

    def __init__(self, body: Body, *, batches: int, device: torch.device) -> None:
        self._body = body
        self._device = device
        self._batches = batches  # that a call takes
        self._stream: Any = None  # its own
        self._calls = 0
        self._graph: Any = None
        self._places: list[Batch] = []  # from which the recorded call reads
        self._result: Any = None

    def __call__(self, source: Iterator[Batch]) -> Any:  # noqa: ANN401 - what the body returns
        self._calls += 1
        batches = islice(source, self._batches)
        if self._calls <= CALLS_BEFORE:
            return self._as_it_is(list(batches))
        if self._graph is None:
            self._places = [tree_map(torch.clone, batch) for batch in batches]
            self._record()
        else:
            for place, batch in zip(self._places, batches, strict=True):
                _put(batch, place)
        self._graph.replay()
        return self._result

    def _as_it_is(self, batches: Sequence[Batch]) -> Any:  # noqa: ANN401 - as above
        """On the stream of the recording: what autograd keeps of a parameter belongs to the stream that it first ran on."""
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
        _forget_workspaces()
        try:
            # Threads of a loader may meanwhile ask for memory, and copy.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._result = self._body(iter(self._places))
        except RuntimeError as error:
            torch.cuda.set_stream(current)  # torch leaves it where a recording fails
            _raise_cause(error)
        _forget_workspaces()
        self._graph = graph

    def close(self) -> None:
        """Give the memory of the recording back."""
        if self._stream is not None:
            _forget_workspaces()
        self._graph = self._result = None
        self._places = []


def _forget_workspaces() -> None:
    """What is recorded must have workspaces of its own: those that cuBLAS keeps may be freed under it."""
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - as torch's own recordings do


def _raise_cause(error: BaseException) -> NoReturn:
    """Raise what went wrong in a recording; torch says at its end only that something did."""
    causes = [error]
    while causes[-1].__context__ is not None:
        causes.append(causes[-1].__context__)
    for cause in causes:
        if isinstance(cause, OutOfMemory) or lacked_memory(cause):
            raise cause
    raise StepError(
        f"replay: the step could not be recorded: {str(causes[-1]).splitlines()[0]}. It must not wait for the device, as a loss that "
        "is read does. Pass replay=False. What this process measures from here on may fail, too."
    ) from error


def _put(batch: Batch, place: Batch) -> None:
    for tensor, kept in zip(tree_leaves(batch), tree_leaves(place), strict=True):
        kept.copy_(tensor, non_blocking=True)


def make_capturable(optimizer: Any) -> None:  # noqa: ANN401 - a torch optimizer
    """Let an optimizer be recorded: it counts its steps on the device then. SGD counts none."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        elif type(optimizer) is not torch.optim.SGD:
            raise ValueError(
                f"replay: {type(optimizer).__name__} counts its steps on the host, where a recording would stand still. "
                "Choose one that is capturable, or leave replay out."
            )
    optimizer._warned_capturable_if_run_uncaptured = True  # noqa: SLF001 - that the first steps are not recorded is meant


def check_replay(choices: Choices, precision: Precision, *, task: Task, sharded: bool) -> None:
    """Refuse what cannot be recorded, before a model is built for it."""
    if choices.replay and (why := why_not(choices, precision, task=task, sharded=sharded)):
        raise ValueError(f"replay: {why} Leave replay out.")


def why_not(choices: Choices, precision: Precision, *, task: Task, sharded: bool) -> str | None:
    """Return why a step cannot be recorded, as far as its arguments say; None: it can."""
    reasons = _reasons(choices, precision, task=task, sharded=sharded)
    return next((why for applies, why in reasons if applies), None)


def _reasons(
    choices: Choices, precision: Precision, *, task: Task, sharded: bool
) -> Iterable[tuple[bool, str]]:
    device = torch.device(choices.device)
    yield device.type != "cuda", f"launches are recorded on CUDA devices, and this is {device}."
    yield (
        choices.compile in CUDA_GRAPH_MODES,
        f"compile={choices.compile!r} records launches by itself, and what is recorded cannot be recorded again.",
    )
    yield (
        sharded or not isinstance(choices.ranks, Alone),
        "in a gang the ranks wait for each other in the middle of a step.",
    )
    yield task_of(choices.model) == "detection", "detectors wait for the device in the middle of a step."
    yield (
        task == "train" and precision.scales_loss,
        f"in {precision.name} the host counts the steps that overflowed.",
    )
