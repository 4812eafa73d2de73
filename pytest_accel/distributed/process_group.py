"""torch's default process group of the ranks: opened once in a rank, closed at its end."""

from __future__ import annotations

import os
import platform
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from pytest_accel.distributed.group import name_ranks
from pytest_accel.distributed.processes import WorkerError, tcp_store
from pytest_accel.measure.device import widen_device_queues
from pytest_accel.measure.rounds import Ranks

T = TypeVar("T")

# A collective gives up this long after the session, which has reported by then which rank hangs where.
MARGIN_S = 120.0
# The next item opens the group again where one failed to; in the same order, so the number is the same on all ranks.
_opened = count()


@dataclass(slots=True, kw_only=True)
class ProcessGroup(Ranks):
    rank: int
    size: int
    device: torch.device
    _store: Any = field(repr=False)  # rank 0's is the server of all, so it lives as long as the group

    def barrier(self) -> None:
        """Wait until every rank is here, and on a GPU until the device is, too."""
        if self.device.type == "cuda":
            dist.barrier(device_ids=[self.device.index])
            torch.cuda.synchronize(self.device)
        else:
            dist.barrier()

    def slowest(self, seconds: float) -> float:
        value = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return float(value.item())

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        # NCCL moves the bytes through the current device, which the test may have changed.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            dist.all_gather_object(values, value)
        return values

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def open_process_group(device: torch.device, *, rendezvous_s: float, timeout_s: float) -> ProcessGroup:
    """Open the process group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name.

    All ranks are awaited at the store first, which can tell which is missing. Only then is the backend started: it waits
    without naming the rank that it waits for.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = _with_index(device)
    backend = "nccl" if device.type == "cuda" else "gloo"  # RCCL has NCCL's name on ROCm
    store = dist.PrefixStore(f"pytest-accel/{next(_opened)}", _open_store(rank, rendezvous_s))
    _await_ranks(store, rank, size, rendezvous_s)
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s + MARGIN_S),
            # Bound to its device at once: NCCL connects here and not in the first timed step.
            device_id=device if device.type == "cuda" else None,
        )
    except (RuntimeError, ValueError) as error:
        raise WorkerError(
            f"rank {rank} of {size} on {platform.node()}: {backend} did not start on {device}: {_words(error)}. "
            f"{_REMEDY}"
        ) from error
    return ProcessGroup(rank=rank, size=size, device=device, _store=store)


_REMEDY = "NCCL_DEBUG=WARN in the environment makes NCCL say more; NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names the network to use."


def _with_index(device: torch.device) -> torch.device:
    """Return the device with its index, made the current one: object collectives and NCCL use it."""
    if device.type != "cuda":
        return device
    widen_device_queues()
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


@cache  # the server stays for groups that are opened again, also by the test itself
def _open_store(rank: int, rendezvous_s: float) -> Any:  # noqa: ANN401 - torch is untyped
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        return tcp_store(host, port, hosting=rank == 0, timeout_s=rendezvous_s, shared=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise WorkerError(
            f"rank {rank} could not reach the store of rank 0 at {host}:{port}: {_words(error)}. Try again: the session "
            "chooses another port. accel_rendezvous gives slow starts more time."
        ) from error


def _await_ranks(store: Any, rank: int, size: int, rendezvous_s: float) -> None:  # noqa: ANN401 - torch is untyped
    keys = [f"member/{number}" for number in range(size)]
    try:
        store.set(keys[rank], platform.node())
        store.wait(keys, timedelta(seconds=rendezvous_s))
    except RuntimeError as error:
        try:
            missing = [number for number, key in enumerate(keys) if not store.check([key])]
            absent = f"{name_ranks(missing, size)} did not connect"
        except RuntimeError:
            absent = "the store of rank 0 went away"
        raise WorkerError(
            f"rank {rank} of {size}: {absent} within {rendezvous_s:g} s. Look at what it last wrote; "
            "accel_rendezvous gives slow starts more time."
        ) from error


def _words(error: BaseException) -> str:
    """Return an error in one line: NCCL's has its reason (such as two ranks on one GPU) in the last one."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
