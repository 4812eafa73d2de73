"""Loader: the order of samples, and batches in host memory that worker processes read ahead.

Training reads one endless stream: permutations of all samples, one an epoch, end to end. Each step takes
`world * batch_size` samples of it, rank after rank. Batches cross the ends of epochs, so that no sample is dropped or
repeated within an epoch, and no rank ends before another.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, count
from random import Random
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data._utils.signal_handling import _remove_worker_pids

from pytest_accel.workloads.data.files import DataError, read_bytes
from pytest_accel.workloads.data.pixels import crop_for, crop_on_host, decode_on_host

# Has `__getitem__` of a request, as a DataLoader's data set; runs in worker processes and never touches a device
Reader: TypeAlias = Any
EncodedBatch: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]  # all bytes, length of each, labels, indices

MAX_DEFAULT_WORKERS = 16
# How torch's messages about lost workers begin; any other RuntimeError comes from the reader itself.
_LOST = ("DataLoader worker (pid", "Pin memory thread exited", "Too many open files")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """Samples of one rank for one step or several, and the seed of their crops."""

    indices: Sequence[int]
    seed: int | None = None  # of the first sample, the next one has the next; None: center crops


@dataclass(kw_only=True)
class TrainingOrder:
    """One rank's endless share of the stream. `groups` are shards: they are shuffled, and their samples keep their order."""

    length: int
    batch_size: int
    rank: int = 0
    world: int = 1
    seed: int = 0
    shuffle: bool = True
    groups: Sequence[int] | None = None  # lengths

    def __post_init__(self) -> None:
        self._permutation = lru_cache(maxsize=2)(self._permute)  # a batch may need those of two epochs

    def indices(self, step: int) -> list[int]:
        position = (step * self.world + self.rank) * self.batch_size
        taken: list[int] = []
        while len(taken) < self.batch_size:
            epoch, start = divmod(position + len(taken), self.length)
            taken += self._permutation(epoch)[start : start + self.batch_size - len(taken)].tolist()
        return taken

    def requests(self, *, augment: bool, at_once: int = 1) -> Iterator[BatchRequest]:
        """Yield a loader's requests, each for `at_once` steps.

        Seeds follow a sample's position in its rank's stream: they do not depend on workers or `at_once`.
        """
        first_seed = stream_seed(self.seed, self.rank)
        for step in count(step=at_once):
            indices = [index for each in range(step, step + at_once) for index in self.indices(each)]
            seed = first_seed + step * self.batch_size if augment else None
            yield BatchRequest(indices=indices, seed=seed)

    def steps_for_epochs(self, epochs: int) -> int:
        """Return how many steps read every sample that many times; the last may reach into the next epoch."""
        return -(-epochs * self.length // (self.world * self.batch_size))

    def _permute(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.length)
        random = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
        if self.groups is None:
            return torch.randperm(self.length, generator=random)
        ends = list(accumulate(self.groups))
        shuffled = torch.randperm(len(ends), generator=random).tolist()
        return torch.cat([torch.arange(ends[each] - self.groups[each], ends[each]) for each in shuffled])


def evaluation_order(
    *, length: int, batch_size: int, rank: int = 0, world: int = 1
) -> Iterator[BatchRequest]:
    """Yield one rank's share of all samples, each exactly once over the ranks; the last batch may be partial.

    Shares differ by one sample at most. With more ranks than samples some shares are empty.
    """
    share = range(rank, length, world)
    for start in range(0, len(share), batch_size):
        yield BatchRequest(indices=share[start : start + batch_size])


def stream_seed(seed: int, rank: int) -> int:
    """Return the seed of the first sample in a rank's stream; streams of ranks do not overlap."""
    return (seed << 64) + (rank << 40)


def mixed_seed(seed: int, epoch: int) -> int:
    """Return one seed of two, within 32 bits: a CPU generator ignores the rest of a seed."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=4).digest(), "big")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayImages:
    """A whole set in memory. A loader's reader of their batches: a set shorter than the order is repeated."""

    images: Tensor  # uint8 (N, channels, height, width)
    labels: Tensor  # int64 (N,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, wanted: BatchRequest) -> tuple[Tensor, Tensor]:
        chosen = torch.tensor(wanted.indices) % len(self)
        return self.images[chosen], self.labels[chosen]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedImages:
    """JPEGs on disk.

    Names are one large array, which forked workers share: a Python string for each would have its reference count
    written, and workers would copy all pages.
    """

    root: str
    names: NDArray[np.bytes_]
    labels: Tensor  # int64 (N,)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def groups(self) -> tuple[int, ...] | None:
        """The lengths of runs of images that are read in order; None: there are none."""
        return None

    def name(self, index: int) -> str:
        return f"{self.root}/{os.fsdecode(self.names[index])}"

    def read(self, index: int) -> Tensor:
        return read_bytes(self.name(index))

    def __getitem__(self, wanted: BatchRequest) -> EncodedBatch:
        """Return the bytes of a batch, for a device that decodes them."""
        read = [self.read(index) for index in wanted.indices]
        indices = torch.tensor(wanted.indices)
        return torch.cat(read), torch.tensor([len(each) for each in read]), self.labels[indices], indices


def spare_cpus() -> int:
    """Return the default number of workers: one for every CPU but the training process's own."""
    return max(1, min(MAX_DEFAULT_WORKERS, len(os.sched_getaffinity(0)) - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotographReader:
    images: EncodedImages
    size: int

    def __getitem__(self, wanted: BatchRequest) -> tuple[Tensor, Tensor]:
        batch = torch.empty(len(wanted.indices), 3, self.size, self.size, dtype=torch.uint8)
        for place, index in enumerate(wanted.indices):
            random = None if wanted.seed is None else Random(wanted.seed + place)  # noqa: S311 - no secret
            pixels = decode_on_host(self.images.read(index), self.images.name(index))
            crop = crop_for(pixels.shape[1], pixels.shape[2], random)
            batch[place] = crop_on_host(pixels, crop, self.size)
        return batch, self.images.labels[torch.tensor(wanted.indices)]


@dataclass(frozen=True, slots=True)
class _CheckedReader:
    """Returns a DataError as a value: raised, it would carry the traceback of another process."""

    reader: Reader

    def __getitem__(self, wanted: Any) -> Any:
        try:
            return self.reader[wanted]
        except DataError as error:
            return DataError(str(error))


class HostBatches:
    """Iterator over what the workers read, in order; close() ends the workers."""

    def __init__(
        self,
        reader: Reader,
        sampler: Iterable[Any],  # of the reader's requests, one per batch
        *,
        workers: int,  # processes; 0: the training process reads
        prefetch: int = 2,  # batches that each worker keeps ready
        cpus: int | None = None,  # that the workers may run on; None: all of this process
        first_cpu: int = 0,  # offset into them, modulo: ranks on one host can have separate CPUs
        for_device: bool,
    ) -> None:
        self.buffered = workers * prefetch  # batches that may be ready before they are needed
        # Batches that arrive together: workers start together, and take equally long.
        self.burst = max(1, workers)
        ahead: dict[str, Any] = {}
        if workers:
            ahead = {
                "prefetch_factor": prefetch,
                "worker_init_fn": partial(_pin_worker, cpus, first_cpu),
                "multiprocessing_context": "fork",  # the set is shared with the workers, not sent
            }
        loader = DataLoader(
            _CheckedReader(reader),
            sampler=sampler,
            batch_size=None,  # requests are whole batches: collating in the parent would be its bottleneck
            num_workers=workers,
            pin_memory=for_device,
            generator=torch.Generator(),  # a loader draws a number; not from dropout's generator
            **ahead,
        )
        # Intra-op threads spin after a small copy and slow the thread that launches kernels: on an H200 with 16 CPUs a
        # WideResNet (batch 32, eager) without workers kept 50 to 75 % of its rate with 16 threads, 99 % with one.
        self._threads = torch.get_num_threads()
        if for_device and not workers:
            torch.set_num_threads(1)
        self._batches: Any = iter(loader)
        if workers:
            # torch's SIGCHLD handler would raise in the middle of a step. A dead worker is found at the next batch.
            _remove_worker_pids(id(self._batches))
            self._batches._worker_pids_set = False  # noqa: SLF001 - or it would remove them again

    def __iter__(self) -> HostBatches:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)  # torch checks every few seconds whether the workers live
        except (RuntimeError, OSError, EOFError) as error:  # a pipe or a socket breaks with its worker
            said = str(error).partition("\n")[0] or type(error).__name__
            if isinstance(error, RuntimeError) and not said.startswith(_LOST):
                raise
            raise DataError(
                f"loader: a worker ended before its batch came: {said}.\nA worker that is killed ran out of memory, mostly of /dev/shm: "
                "lower workers= or prefetch=."
            ) from None
        if isinstance(batch, DataError):
            raise batch
        return batch

    def close(self) -> None:
        torch.set_num_threads(self._threads)
        # torch ends them when their iterator is freed, and the traceback of an error would keep it alive.
        end_workers = getattr(self._batches, "_shutdown_workers", None)
        if end_workers is not None:
            end_workers()
        self._batches = iter(())


def _pin_worker(cpus: int | None, first_cpu: int, _number: int) -> None:
    if cpus is not None:
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[(first_cpu + each) % len(allowed)] for each in range(cpus)})
