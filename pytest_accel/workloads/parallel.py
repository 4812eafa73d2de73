"""One model on several devices: the ranks of a gang average their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_accel.measure.ranks import Alone

if TYPE_CHECKING:
    from torch import nn

    from pytest_accel.measure.ranks import Ranks


def data_parallel(model: nn.Module, ranks: Ranks, **options: Any) -> nn.Module:  # noqa: ANN401 - of torch's DDP
    """Return the model in DistributedDataParallel over the default process group; as it is where there is none.

    A gang of one rank is wrapped too: what DDP costs can then be seen on one device. Gradients live in the
    buckets that are reduced, which saves their copy and its memory.
    """
    if isinstance(ranks, Alone):
        return model
    from torch.nn.parallel import DistributedDataParallel

    device = next(model.parameters()).device
    indices = None if device.type == "cpu" else [device.index]
    return DistributedDataParallel(
        model, **{"device_ids": indices, "gradient_as_bucket_view": True, **options}
    )
