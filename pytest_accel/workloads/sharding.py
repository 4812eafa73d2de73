"""A model that no device has whole: its weights, gradients and optimizer states are dealt out to the ranks of a gang.

FSDP2: a block's weights come together for its forward and its backward pass, and its gradients are reduced to shards.
Weights are gathered in the precision of the step, which is why there is no autocast; gradients are reduced in fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pytest_accel.measure.errors import unknown_value
from pytest_accel.measure.ranks import Alone
from pytest_accel.workloads.plan import ModelTask, seed_of

if TYPE_CHECKING:
    from pytest_accel.measure.ranks import Ranks
    from pytest_accel.workloads.precision import Precision

SHARDINGS = ("fsdp",)


def check_sharding(sharding: str | None, *, ranks: Ranks, ddp: bool, precision: str) -> None:
    """Refuse what cannot be sharded, before a model is built for it."""
    if sharding is None:
        return
    if sharding not in SHARDINGS:
        raise unknown_value("sharding", sharding, SHARDINGS, remedy="None gives every rank the whole model.")
    alone = isinstance(ranks, Alone)
    if alone:
        raise ValueError(
            f"sharding: {sharding!r} deals a model out to the ranks of a gang, and this benchmark runs alone. Mark it "
            "with a platform of several devices (a100x4), or with @pytest.mark.accel(process_group=True) for a gang of one."
        )
    if not ddp:
        raise ValueError(f"sharding: {sharding!r} makes one model of all ranks. Leave ddp=False out.")
    if precision == "fp16":
        raise ValueError(
            f"precision: 'fp16' scales its loss, and every rank of sharding={sharding!r} would see overflows of its "
            "own shards alone. Write precision='bf16'."
        )


def check_shardable(model: nn.Module, task: ModelTask, precision: Precision) -> None:
    """Refuse a model that would compute something else in shards than whole."""
    if not precision.is_half:
        return
    if task == "detection":
        raise ValueError(
            "sharding: 'fsdp' gives a model its inputs in the precision of its weights, and boxes must stay in fp32. "
            "Write precision='fp32', or leave sharding out."
        )
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules()):  # noqa: SLF001 - they share no other
        raise ValueError(
            "sharding: 'fsdp' gathers weights in half precision, and batch norms keep their statistics in fp32. "
            "Write precision='fp32', or leave sharding out."
        )


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return what is gathered at once: `model.blocks`, else the members of its largest ModuleList or Sequential."""
    named = getattr(model, "blocks", None)
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList | nn.Sequential)]
    chosen = named if isinstance(named, nn.ModuleList | nn.Sequential) else max(lists, key=_size, default=[])
    return [block for block in chosen if _size(block)]


def shard(model: nn.Module, ranks: Ranks, precision: Precision, device: torch.device, *, seed: int) -> None:
    """Deal a model out, in place; one without contents, on the meta device, gets them shard by shard."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (ranks.size,))
    types = {"param_dtype": precision.dtype, "reduce_dtype": torch.float32} if precision.is_half else {}
    # What a block is given beside activations, as the angles of positions, stays as exact as it is.
    inside = MixedPrecisionPolicy(**types, cast_forward_inputs=False)
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=inside)
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(**types))
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=device)
        torch.manual_seed(seed_of(ranks.rank, seed))  # its shards are not those of others
        initialise: Any = model.initialise  # what is built without contents has it: see `fitting`
        initialise()


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
