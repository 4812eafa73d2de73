"""Gradients of one step in several micro-batches: the batch of a study in the memory of a smaller one.

The loss of a step is the mean of theirs, as is common. Where a loss divides by what it finds in a batch (boxes, pixels that
have a class), that is not quite the loss of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from pytest_accel.measure.errors import check_whole


def check_micro_batches(batch_size: int, micro_batch_size: int | None) -> int:
    """Return how many micro-batches make up one rank's batch; a remainder would be a step of another size."""
    if micro_batch_size is None:
        return 1
    check_whole("micro_batch_size", micro_batch_size)
    if batch_size % micro_batch_size:
        raise ValueError(
            f"micro_batch_size: {micro_batch_size} does not divide the batch of {batch_size} that one device takes. "
            f"Choose a divisor of {batch_size}, or leave it out."
        )
    return batch_size // micro_batch_size


def accumulate(backward: Callable[[], Any], micro_batches: int, model: Any) -> Any:  # noqa: ANN401 - a loss; a module, perhaps in DDP
    """Call `backward`, which returns a loss, for every micro-batch; return their sum.

    DDP reduces with the last: until then the sums of gradients are each rank's own. Shards of FSDP are reduced every time:
    what is not would lie whole on every device.
    """
    total = None
    for index in range(micro_batches):
        apart = hasattr(model, "no_sync") and index < micro_batches - 1
        with model.no_sync() if apart else nullcontext():
            loss = backward()
        total = loss if total is None else total + loss
    return total
