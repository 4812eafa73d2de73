"""torch's default process group of the ranks: opened once in a rank, closed at its end."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from pytest_accel.distributed.group import name_ranks
from pytest_accel.distributed.processes import WorkerError
from pytest_accel.measure.device import widen_device_queues

T = TypeVar("T")

# A collective gives up this long after the session, which has reported by then which rank hangs where.
MARGIN_S = 120.0
_PREFIX = "pytest-accel"
_opened = count()  # ranks open their groups in the same order, so the number is the same on all
# By address, one a process: a second group finds the first one's server still there.
_connections: dict[tuple[str, int], Any] = {}


@dataclass(slots=True, kw_only=True)
class ProcessGroup:
    """torch's default process group, as measuring uses it."""

    rank: int
    size: int
    device: torch.device
    timeout_s: float  # of an order: collectives wait MARGIN_S longer
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

    def agree(self, value: T) -> T:
        values = [value]
        dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        # NCCL moves the bytes through the current device, which the test may have changed.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            dist.all_gather_object(values, value)
        return values

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def open_process_group(
    device: torch.device,
    *,
    rendezvous_s: float,
    timeout_s: float,
    environ: Mapping[str, str] = os.environ,
) -> ProcessGroup:
    """Open the process group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name.

    All ranks are awaited at the store first, which can tell which is missing or holds the same GPU as another. Only
    then is the backend started: it waits without naming the rank that it waits for.
    """
    if dist.is_initialized():
        raise WorkerError(
            "this process is in a process group already: the test, or what it imports, opened one"
        )
    rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    address = (environ["MASTER_ADDR"], int(environ["MASTER_PORT"]))
    device = _with_index(device)
    backend = "nccl" if device.type == "cuda" else "gloo"  # RCCL has NCCL's name on ROCm
    if not dist.is_available() or not dist.is_backend_available(backend):
        raise WorkerError(
            f"this torch ({torch.__version__}) was built without {backend}. Install one that has it."
        )
    connection = _connection(address, hosting=rank == 0, rank=rank, rendezvous_s=rendezvous_s)
    store = dist.PrefixStore(f"{_PREFIX}/{next(_opened)}", connection)
    check_distinct_gpus(_gather_gpus(store, rank, size, device, rendezvous_s))
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
            f"rank {rank} of {size} on {platform.node()}: {backend} did not start on {device}: {_first_line(error)}. "
            f"{_REMEDIES[backend]}"
        ) from error
    return ProcessGroup(rank=rank, size=size, device=device, timeout_s=timeout_s, _store=store)


_REMEDIES = {
    "nccl": "NCCL_DEBUG=WARN in the environment makes NCCL say more; NCCL_SOCKET_IFNAME names the network to use.",
    "gloo": "GLOO_SOCKET_IFNAME in the environment names the network to use.",
}


def check_distinct_gpus(gpus: Sequence[tuple[str, str]]) -> None:
    """Refuse two ranks on one GPU, with a clearer message than NCCL's. `gpus` are host and UUID by rank."""
    for rank, (host, uuid) in enumerate(gpus):
        if uuid and (first := gpus.index((host, uuid))) != rank:
            raise WorkerError(
                f"ranks {first} and {rank} hold the same GPU ({uuid} on {host}). Give every "
                "rank its own: as many visible GPUs as ranks on a node (CUDA_VISIBLE_DEVICES; under Slurm "
                "--gpus-per-node, or --gpus-per-task=1), and no index chosen by the test."
            )


def _with_index(device: torch.device) -> torch.device:
    """Return the device with its index, made the current one: object collectives and NCCL use it."""
    if device.type != "cuda":
        return device
    widen_device_queues()
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _connection(address: tuple[str, int], *, hosting: bool, rank: int, rendezvous_s: float) -> Any:  # noqa: ANN401
    host, port = address
    if address in _connections:
        return _connections[address]
    try:
        store = dist.TCPStore(
            host,
            port,
            is_master=hosting,
            timeout=timedelta(seconds=rendezvous_s),
            wait_for_workers=False,  # they are awaited by name below
            multi_tenant=True,  # a group that the test opens itself may meet there, too
        )
    except (RuntimeError, ValueError, OSError) as error:
        remedy = (
            "Has another program taken the port meanwhile? Then try again; the session chooses another one."
            if hosting
            else f"Is rank 0 running there, and does {host} resolve here? accel_rendezvous gives it more time."
        )
        doing = "open the store at" if hosting else "reach the store of rank 0 at"
        raise WorkerError(
            f"rank {rank} could not {doing} {host}:{port}: {_first_line(error)}. {remedy}"
        ) from error
    return _connections.setdefault(address, store)


def _gather_gpus(
    store: Any,  # noqa: ANN401 - torch is untyped here
    rank: int,
    size: int,
    device: torch.device,
    rendezvous_s: float,
) -> list[tuple[str, str]]:
    """Publish this rank's host and GPU at the store, and wait for all the others'; the UUID is empty where unknown."""
    on_gpu = device.type == "cuda"
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", "") if on_gpu else ""
    keys = [f"member/{number}" for number in range(size)]
    try:
        store.set(keys[rank], f"{platform.node()}\n{uuid}")
        store.wait(keys, timedelta(seconds=rendezvous_s))
        found = [store.get(key).decode().partition("\n") for key in keys]
    except RuntimeError as error:
        raise WorkerError(
            f"rank {rank} of {size}: {_absent(store, keys)} within {rendezvous_s:g} s. Look at what it last wrote; "
            "accel_rendezvous gives slow starts more time."
        ) from error
    return [(host, uuid) for host, _, uuid in found]


def _absent(store: Any, keys: Sequence[str]) -> str:  # noqa: ANN401 - torch is untyped here
    try:
        missing = [number for number, key in enumerate(keys) if not store.check([key])]
    except RuntimeError:
        return "the store of rank 0 went away"
    return f"{name_ranks(missing, len(keys))} did not connect" if missing else "not all connected"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
