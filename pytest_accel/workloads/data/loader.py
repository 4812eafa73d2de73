"""Loader: batches in host memory, read ahead by worker processes."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkContext
from multiprocessing.sharedctypes import RawValue
from random import Random
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.signal_handling import _remove_worker_pids

from pytest_accel.workloads.data.encoded import EncodedImages
from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.data.images import ArrayImages
from pytest_accel.workloads.data.order import BatchRequest
from pytest_accel.workloads.data.pixels import crop_for, crop_on_host, decode_on_host

Tensor: TypeAlias = Any  # torch is untyped here
PixelBatch: TypeAlias = tuple[Tensor, Tensor]  # uint8 (batch, channels, height, width), int64 (batch,)
EncodedBatch: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]  # all bytes, length of each, labels, indices

TIMEOUT_S = 300.0  # for one batch: a file system that does not answer must not hang the benchmark
POLL_S = 0.2  # between two checks for dead workers
MAX_DEFAULT_WORKERS = 16
SYNTHETIC_IMAGES = 64  # that a worker keeps and repeats: drawing pixels would cost more than moving them
# How torch's messages about lost workers begin; any other RuntimeError comes from the reader itself.
_TIMED_OUT = "DataLoader timed out"
_LOST = (_TIMED_OUT, "DataLoader worker (pid", "Pin memory thread exited", "Too many open files")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig:
    """Number of worker processes, how far they read ahead, and their CPUs."""

    workers: int  # 0: the training process reads
    prefetch: int = 2  # batches that each worker keeps ready
    pinned: bool = True  # page-locked memory, where there is a device
    cpus: int | None = None  # that the workers may run on; None: all of this process
    first_cpu: int = 0  # offset into them, modulo: ranks on one host can have separate CPUs

    @property
    def buffered(self) -> int:
        """Batches that may be ready before they are needed; their rate says nothing about the loader's."""
        return self.workers * self.prefetch

    @property
    def burst(self) -> int:
        """Batches that arrive together: one per worker, because workers start together and take equally long."""
        return max(1, self.workers)


def spare_cpus() -> int:
    """Return the default number of workers: one for every CPU but the training process's own."""
    return max(1, min(MAX_DEFAULT_WORKERS, len(os.sched_getaffinity(0)) - 1))


@dataclass(frozen=True, slots=True)
class ReadProblem:
    """Why a worker could not read a batch. A value: an exception would carry another process's traceback."""

    text: str


class Reader(Protocol):
    """What a DataLoader calls its data set: maps a request of the sampler to tensors, or a ReadProblem.

    It runs in worker processes and never touches a device.
    """

    def __getitem__(self, wanted: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayReader:
    """Samples of a set in memory."""

    images: ArrayImages

    def __getitem__(self, wanted: BatchRequest) -> PixelBatch:
        chosen = torch.tensor(wanted.indices)
        return self.images.images[chosen], self.images.labels[chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotographReader:
    """JPEGs, decoded, cropped and resized by the worker."""

    images: EncodedImages
    size: int

    def __getitem__(self, wanted: BatchRequest) -> PixelBatch | ReadProblem:
        batch = torch.empty(len(wanted.indices), 3, self.size, self.size, dtype=torch.uint8)
        try:
            for place, index in enumerate(wanted.indices):
                random = None if wanted.seed is None else Random(wanted.seed + place)  # noqa: S311 - no secret
                pixels = decode_on_host(self.images.read(index), self.images.name(index))
                crop = crop_for(pixels.shape[1], pixels.shape[2], random)
                batch[place] = crop_on_host(pixels, crop, self.size)
        except DataError as error:
            return ReadProblem(str(error))
        return batch, self.images.labels[torch.tensor(wanted.indices)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedReader:
    """JPEG bytes, for a device that decodes them."""

    images: EncodedImages

    def __getitem__(self, wanted: BatchRequest) -> EncodedBatch | ReadProblem:
        try:
            read = [self.images.read(index) for index in wanted.indices]
        except DataError as error:
            return ReadProblem(str(error))
        indices = torch.tensor(wanted.indices)
        lengths = torch.tensor([len(each) for each in read])
        return torch.cat(read), lengths, self.images.labels[indices], indices


class SyntheticReader:
    """Random pixels of the model's input size: the cost of the way to the device alone."""

    def __init__(self, *, channels: int, size: int, classes: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        shape = (SYNTHETIC_IMAGES, channels, size, size)
        self._images = torch.randint(256, shape, dtype=torch.uint8, generator=random)
        self._labels = torch.randint(classes, (SYNTHETIC_IMAGES,), generator=random)

    def __getitem__(self, wanted: BatchRequest) -> PixelBatch:
        chosen = torch.tensor(wanted.indices) % SYNTHETIC_IMAGES
        return self._images[chosen], self._labels[chosen]


class HostBatches:
    """Iterator over what the workers read, in order; close() ends the workers."""

    def __init__(
        self,
        reader: Reader,
        sampler: Iterable[Any],  # of the reader's requests, one per batch
        loading: LoaderConfig,
        *,
        for_device: bool,
    ) -> None:
        ahead: dict[str, Any] = {}
        if loading.workers:
            ahead = {
                "prefetch_factor": loading.prefetch,
                "timeout": POLL_S,
                "worker_init_fn": partial(_pin_worker, loading.cpus, loading.first_cpu),
                "multiprocessing_context": _ForkContext(),  # the set is shared with the workers, not sent
            }
        loader = DataLoader(
            reader,
            sampler=sampler,
            batch_size=None,  # requests are whole batches: collating in the parent would be its bottleneck
            num_workers=loading.workers,
            pin_memory=loading.pinned and for_device,
            generator=torch.Generator(),  # a loader draws a number; not from dropout's generator
            **ahead,
        )
        begun = iter(loader)
        alone = for_device and not loading.workers
        self._batches: Any = _OneThread(begun) if alone else _without_sigchld_handler(begun)

    def __iter__(self) -> HostBatches:
        return self

    def __next__(self) -> Any:
        batch = self._wait()
        if isinstance(batch, ReadProblem):
            raise DataError(batch.text)
        return batch

    def _wait(self) -> Any:
        """Wait in short intervals; between them torch checks for dead workers."""
        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return next(self._batches)
            except (RuntimeError, OSError, EOFError) as error:  # a pipe or a socket breaks with its worker
                said = str(error).partition("\n")[0] or type(error).__name__
                if isinstance(error, RuntimeError) and not said.startswith(_LOST):
                    raise
                if not said.startswith(_TIMED_OUT):
                    raise _lost(f"a worker ended before its batch came: {said}") from None
                if time.monotonic() >= until:
                    raise _lost(f"no batch came within {TIMEOUT_S:g} s") from None

    def close(self) -> None:
        """End the workers."""
        # torch ends them when their iterator is freed, and the traceback of an error would keep it alive.
        end_workers = getattr(self._batches, "_shutdown_workers", None)
        if end_workers is not None:
            end_workers()
        self._batches = iter(())


class _ForkContext(ForkContext):
    """Fork context whose events have no lock.

    torch also sets and reads the workers' stop event in the training process. multiprocessing's event has a lock: a
    worker killed while it holds the lock would block the training process forever.
    """

    def Event(self) -> Any:  # noqa: N802 - the name in multiprocessing; of a class that is not ours
        return _Flag()


class _Flag:
    """One byte that forked processes share."""

    def __init__(self) -> None:
        self._byte = RawValue(ctypes.c_bool)  # false

    def is_set(self) -> bool:
        return bool(self._byte.value)

    def set(self) -> None:
        self._byte.value = True


class _OneThread:
    """Read in one thread where the training process reads for a device without workers.

    Intra-op threads spin after a small copy and slow the thread that launches kernels: on an H200 with 16 CPUs a
    WideResNet (batch 32, eager) kept 50 to 75 % of its rate with 16 threads, 99 % with one.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __next__(self) -> Any:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return next(self._batches)
        finally:
            torch.set_num_threads(threads)


def _pin_worker(cpus: int | None, first_cpu: int, _number: int) -> None:
    if cpus is not None:
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[(first_cpu + each) % len(allowed)] for each in range(cpus)})


def _without_sigchld_handler(batches: Any) -> Any:
    """Unregister the workers from torch's SIGCHLD handler, which would raise in the middle of a step.

    A dead worker is found when the next batch is requested.
    """
    if getattr(batches, "_worker_pids_set", False):
        _remove_worker_pids(id(batches))
        batches._worker_pids_set = False  # noqa: SLF001 - or it would remove them again
    return batches


def _lost(happened: str) -> DataError:
    return DataError(
        f"loader: {happened}.\n"
        "A worker that is killed ran out of memory, mostly of /dev/shm: lower workers= or prefetch=. One that does "
        "not answer waits for its file system."
    )
