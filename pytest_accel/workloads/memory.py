"""Device memory: models that cannot fit are refused before they are built, and out-of-memory errors name the batch."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch

from pytest_accel.measure.arguments import CannotFit, OutOfMemory, StepError, says_out_of_memory
from pytest_accel.stats.quantities import gibibytes
from pytest_accel.workloads.config import StepConfig
from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.models.gpt import GPT_SHAPES, GptShape
from pytest_accel.workloads.optimizers import optimizer_states

FP32_BYTES = 4
UNSHARDED_SHARE = 0.8  # of a device's memory, for all fp32 weights before they are sharded


def check_fits(config: StepConfig, options: Mapping[str, Any]) -> bool:
    """Raise CannotFit for a GPT that cannot, before minutes go into building it; other models fit anywhere.

    Return whether each rank has room for all weights before they are sharded: they then equal those of one device.
    """
    shape = gpt_shape(config, options)
    memory = device_memory_bytes(config.device)
    if shape is None or memory is None:
        return True
    # Weight, gradient and optimizer states; activations come on top.
    tensors = 2 + optimizer_states(config) if config.training else 1
    total = shape.parameters * FP32_BYTES * tensors
    devices = config.ranks.size if config.sharding else 1
    if total <= memory * devices:
        return shape.parameters * FP32_BYTES <= UNSHARDED_SHARE * memory
    kept, remedy = "weights", "Choose a platform with more memory."
    if config.training:
        kept = "weights, gradients and optimizer states"
        remedy = f"With sharding='fsdp', at least {-(-total // memory):,} such devices hold it."
    here = f"{config.device} has {gibibytes(memory)}"
    if devices > 1:
        here = f"{devices} devices like {config.device} have {gibibytes(memory * devices)}"
    raise CannotFit(
        f"{config.name}: it cannot fit, and nothing was built. {shape.parameters / 1e9:,.1f} billion parameters take "
        f"{gibibytes(total)} for {kept} alone, and {here}. {remedy}"
    )


def gpt_shape(config: StepConfig, options: Mapping[str, Any]) -> GptShape | None:
    """Return the sizes of a named GPT without building it; None for other models."""
    shape = GPT_SHAPES.get(config.name.removeprefix("zoo/"))
    if shape is None or not {*options} <= {each.name for each in fields(shape)}:  # reported when it is built
        return None
    return replace(shape, **options)


def device_memory_bytes(device: torch.device) -> int | None:
    """Return the memory of a GPU; None for other devices."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether torch, or a library that it calls, found no memory; our own errors may quote such words."""
    ours = isinstance(error, StepError | DataError)
    return not ours and (isinstance(error, torch.OutOfMemoryError) or says_out_of_memory(str(error)))


@contextmanager
def explained_out_of_memory(config: StepConfig) -> Iterator[None]:
    """Turn an allocator's error into one that names the batch."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        lines = str(error).splitlines()
        line = next((line for line in lines if says_out_of_memory(line)), lines[0] if lines else "")
        traceback.clear_frames(error.__traceback__)  # they hold the tensors that the next benchmark needs
        micro = "" if config.micro_batch_size is None else "micro"
        raise OutOfMemory(
            f"{config.name}: a {micro and 'micro-'}batch of {config.forward_batch_size} did not fit in the memory of "
            f"{config.device}, and it was NOT made smaller. Choose a smaller {micro and 'micro_'}batch_size, or a platform "
            f"with more memory. torch said: {line.strip()}"
        ) from error
