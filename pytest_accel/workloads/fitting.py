"""What fits in the memory of a device: known before a model is built, or said in plain words when it did not."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_accel.measure.errors import CannotFit, OutOfMemory, StepError, says_out_of_memory
from pytest_accel.stats.quantities import gibibytes
from pytest_accel.workloads.choices import Choices
from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.models.gpt import GPT_SHAPES, gpt_shape
from pytest_accel.workloads.optimizers import callable_name

FP32_BYTES = 4
# Of a device's memory, for all weights in fp32 before they are dealt out: what else is there then is small.
WHOLE_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a model keeps on its devices whatever the batch is; what lies between layers comes on top."""

    parameters: int
    bytes_each: int  # of weight, gradient and optimizer states
    shards: int = 1  # devices that it is dealt out to

    @property
    def total_bytes(self) -> int:
        return self.parameters * self.bytes_each

    @property
    def weights_bytes(self) -> int:
        return self.parameters * FP32_BYTES


def state_of(
    model: object, options: Mapping[str, Any], *, states: int | None, shards: int = 1
) -> State | None:
    """Return what a named GPT will keep, without building it; None of models that fit anywhere, or are not known.

    `states` are the tensors that an optimizer keeps of each parameter; None: inference, whose weights are made in fp32.
    """
    name = str(model).removeprefix("zoo/") if isinstance(model, str) else ""
    if name not in GPT_SHAPES:
        return None
    tensors = 1 if states is None else 2 + states
    parameters = gpt_shape(name, **options).parameters
    return State(parameters=parameters, bytes_each=FP32_BYTES * tensors, shards=shards)


def check_fits(name: str, state: State, device: torch.device) -> None:
    """Raise CannotFit for what cannot, before minutes go into building it."""
    memory = device_memory_bytes(device)
    if memory is None or state.total_bytes <= memory * state.shards:
        return
    training = state.bytes_each > FP32_BYTES
    kept = "weights, gradients and optimizer states" if training else "weights"
    here = f"{device} has {gibibytes(memory)}"
    if state.shards > 1:
        here = f"{state.shards} devices like {device} have {gibibytes(memory * state.shards)}"
    remedy = "Choose a platform with more memory."
    if training:
        devices = -(-state.total_bytes // memory)
        remedy = f"With sharding='fsdp', a gang of at least {devices:,} such devices holds it."
    raise CannotFit(
        f"{name}: it cannot fit, and nothing was built. {state.parameters / 1e9:,.1f} billion parameters take "
        f"{gibibytes(state.total_bytes)} for {kept} alone, and {here}. {remedy}"
    )


def builds_whole(state: State | None, device: torch.device) -> bool:
    """Whether each rank has room for all weights before they are dealt out: they are then those of a single device."""
    memory = device_memory_bytes(device)
    return state is None or memory is None or state.weights_bytes <= WHOLE_SHARE * memory


def device_memory_bytes(device: torch.device) -> int | None:
    """Return how much memory a device has; of the host, what is left of it; None where it cannot be known."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type != "cpu":
        return None
    left = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        left.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # "max" where there is no limit
        group = Path("/sys/fs/cgroup")
        limit, used = (
            (group / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current")
        )
        left.append(int(limit) - int(used))
    return min(left, default=None)


@contextmanager
def explained_out_of_memory(choices: Choices, micro_batch_size: int | None = None) -> Iterator[None]:
    """Turn an allocator's error into one that names the batch."""
    try:
        yield
    except RuntimeError as error:
        name = choices.model if isinstance(choices.model, str) else callable_name(choices.model)
        batch = batch_in_words(choices.batch_size, micro_batch_size)
        raise_if_out_of_memory(error, name=name, batch=batch, device=torch.device(choices.device))
        raise


def batch_in_words(batch_size: int, micro_batch_size: int | None) -> str:
    """Say what lies on a device at once."""
    return f"batch of {batch_size}" if micro_batch_size is None else f"micro-batch of {micro_batch_size}"


def lacked_memory(error: BaseException) -> bool:
    """Whether torch, or a library that it passes on, found no memory; what we said ourselves may have such words in it, and is another error."""
    ours = isinstance(error, StepError | DataError)
    return not ours and (isinstance(error, torch.OutOfMemoryError) or says_out_of_memory(str(error)))


def raise_if_out_of_memory(error: RuntimeError, *, name: str, batch: str, device: torch.device) -> None:
    """Raise OutOfMemory from the error of who found no memory; return when it is another error."""
    if not lacked_memory(error):
        return
    lines = str(error).splitlines()
    said = next((line for line in lines if says_out_of_memory(line)), lines[0] if lines else "")
    traceback.clear_frames(error.__traceback__)  # they hold the tensors that the next benchmark needs
    argument = "micro_batch_size" if batch.startswith("micro") else "batch_size"
    raise OutOfMemory(
        f"{name}: a {batch} did not fit in the memory of {device}, and it was NOT made smaller. "
        f"Choose a smaller {argument}, or a platform with more memory. torch said: {said.strip()}"
    ) from error
