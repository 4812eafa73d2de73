"""How many bytes a step moves through the device's memory at the least, whatever its kernels are like.

Only what every kernel must touch is counted: weights and inputs of products, gradients, and what an optimizer keeps.
What lies between layers is not: a compiler may never write it. A wrong alarm is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from pytest_accel.measure.device import is_nvidia
from pytest_accel.workloads.flops import INPUTS, Count

# The largest that stands between a device of the catalogue and its memory: the Infinity Cache of an MI300X. Its driver
# tells of the smaller one before that.
LARGEST_CACHE_BYTES = 256 * 2**20


def least_bytes(
    count: Count,
    stored: Mapping[str, int],
    *,
    compute: int,
    states: int | None,
    cache_bytes: int,
    micro_batches: int = 1,
) -> int | None:
    """Return what a step cannot avoid, or None where a cache could hold all of it.

    `stored` is the size of an element by name, `compute` that of what products run in. `states` is how many tensors an
    optimizer keeps of each parameter; None where there is none, or none that surely updates all of them. `micro_batches` go
    forward and backward in one step; `count` is of one of them.

    A step is a few passes over the model, and of what a pass touches once at most a cacheful lies there already, or
    stays there for the next one: all but that goes through the memory, in each pass.
    """
    forward = sum(elements * stored[name] for name, elements in count.forward.items())
    # Autocast may have left a smaller copy of a weight for it.
    backward = sum(elements * min(stored[name], compute) for name, elements in count.backward.items())
    gradients = sum(elements * stored[name] for name, elements in count.gradients.items())
    passes = [forward, backward, gradients] * micro_batches  # read, read, written
    if states is not None:
        passes += [gradients * (2 + states), gradients * (1 + states)]  # all read; all but gradients written
    return sum(max(0, touched - cache_bytes) for touched in passes) or None


def cache_bytes(device: torch.device) -> int:
    """Return the size of the last cache before a device's memory, or more where it cannot be known."""
    if not is_nvidia(device.type):
        return LARGEST_CACHE_BYTES
    told = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    return told or LARGEST_CACHE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one step asks of its device."""

    flops: int | None = None  # of the model
    least_flops: int | None = None  # those that no algorithm saves
    bytes_moved: int | None = None  # at the least


def demand_of(
    model: nn.Module,
    counted: Count | None,
    *,
    input_bytes: int,
    compute: int,
    states: int | None,
    cache_bytes: int,
    micro_batches: int = 1,
) -> Demand:
    """Put what was counted of a model together with how its numbers are stored."""
    if counted is None:
        return Demand()
    tensors = [*model.named_parameters(), *model.named_buffers()]
    stored = {INPUTS: input_bytes} | {name: tensor.element_size() for name, tensor in tensors}
    moved = least_bytes(
        counted,
        stored,
        compute=compute,
        states=states,
        cache_bytes=cache_bytes,
        micro_batches=micro_batches,
    )
    return Demand(
        flops=counted.flops * micro_batches,
        least_flops=counted.least_flops * micro_batches,
        bytes_moved=moved,
    )
