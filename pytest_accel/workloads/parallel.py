"""Several devices: DistributedDataParallel and FSDP2.

Under FSDP a block's weights are gathered for its forward and its backward pass, and its gradients are reduced to shards.
Weights are gathered in the precision of the step, so there is no autocast; gradients are reduced in fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pytest_accel.measure.arguments import unknown_value
from pytest_accel.measure.rounds import Alone, Ranks
from pytest_accel.workloads.config import StepConfig
from pytest_accel.workloads.input_pipeline import ModelTask, rank_seed
from pytest_accel.workloads.precision import PRECISIONS


def data_parallel(model: nn.Module, ranks: Ranks, **options: Any) -> nn.Module:
    """Return the model in DistributedDataParallel over the default process group; unchanged where there is none.

    A process group of one rank is wrapped too, so that the cost of DDP can be measured on one device.
    """
    if isinstance(ranks, Alone):
        return model
    from torch.nn.parallel import DistributedDataParallel

    device = next(model.parameters()).device
    indices = None if device.type == "cpu" else [device.index]
    # Gradients live in the buckets that are reduced, which saves a copy and its memory.
    return DistributedDataParallel(
        model, **{"device_ids": indices, "gradient_as_bucket_view": True, **options}
    )


def check_sharding(config: StepConfig) -> None:
    sharding = config.sharding
    if sharding is None:
        return
    if sharding != "fsdp":
        raise unknown_value("sharding", sharding, ["fsdp"], remedy="None gives every rank the whole model.")
    if not config.distributed:
        raise ValueError(
            f"sharding: {sharding!r} shards a model over the ranks of a process group, and this benchmark has none. "
            "Mark it with a platform of several devices (a100x4), or with @pytest.mark.accel(process_group=True) for one rank."
        )
    if not config.ddp:
        raise ValueError(f"sharding: {sharding!r} makes one model of all ranks. Leave ddp=False out.")
    if config.precision == "fp16":
        raise ValueError(
            f"precision: 'fp16' scales its loss, and every rank of sharding={sharding!r} would see overflows of its "
            "own shards alone. Write precision='bf16'."
        )


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the units that are gathered: the members of the largest ModuleList or Sequential."""
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList | nn.Sequential)]
    return [block for block in max(lists, key=_size, default=[]) if _size(block)]


def shard(model: nn.Module, task: ModelTask, config: StepConfig) -> None:
    """Shard a model in place; one on the meta device is initialized shard by shard."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    ranks, device, precision = config.ranks, config.device, PRECISIONS[config.precision]
    norms = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())  # noqa: SLF001 - they share no other
    if precision.is_half and (task == "detection" or norms):
        raise ValueError(
            "sharding: 'fsdp' gathers weights and gives inputs in half precision, and boxes and the statistics of batch norms "
            "must stay in fp32. Write precision='fp32', or leave sharding out."
        )
    mesh = init_device_mesh(device.type, (ranks.size,))
    types = {"param_dtype": precision.dtype, "reduce_dtype": torch.float32} if precision.is_half else {}
    # Other inputs of a block, as the angles of positions, keep their precision.
    inside = MixedPrecisionPolicy(**types, cast_forward_inputs=False)
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=inside)
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(**types))
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=device)
        torch.manual_seed(rank_seed(ranks.rank, config.seed))
        model.initialize()


def local(tensor: Any) -> Any:
    """Return this rank's part of a tensor: all of it, unless it is sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
