"""Batches in host memory, read ahead by worker processes."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.context import ForkContext
from multiprocessing.sharedctypes import RawValue
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.signal_handling import _remove_worker_pids

from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.data.order import EvaluationOrder, TrainingOrder
from pytest_accel.workloads.data.readers import Problem, Reader, Wanted

# For one batch: a file system that does not answer ends the benchmark, and does not hang it.
TIMEOUT_S = 300.0
POLL_S = 0.2  # how often a wait looks for workers that died
MOST_WORKERS = 16  # that are started unasked
# What torch says, in front, of workers that are gone; anything else is an error in the reading itself.
_TIMED_OUT = "DataLoader timed out"
_LOST = (_TIMED_OUT, "DataLoader worker (pid", "Pin memory thread exited", "Too many open files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How batches are read: by how many processes, how far ahead, on which CPUs."""

    workers: int  # 0: the training process reads by itself
    prefetch: int = 2  # batches that each worker keeps ready
    pinned: bool = True  # into memory that a device copies from without the CPU; where there is a device
    cpus: int | None = None  # that the workers may run on; None: all that this process may
    first_cpu: int = 0  # of them, counted around: ranks that share a host need not share their workers' CPUs

    @property
    def buffered(self) -> int:
        """Batches that lie ready at most: so many say nothing of how fast more will come."""
        return self.workers * self.prefetch

    @property
    def burst(self) -> int:
        """Batches that come together: of workers that began together, and take as long, one each."""
        return max(1, self.workers)


def spare_cpus() -> int:
    """How many workers to start unasked: one for every CPU that the training process leaves over."""
    return max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) - 1))


class TrainingBatches:
    """The sampler of a training loader: every step's samples, and the chance that cuts them."""

    def __init__(self, order: TrainingOrder, *, augment: bool, at_once: int = 1) -> None:
        self._order = order
        self._augment = augment
        self._at_once = at_once  # steps whose batches are read as one

    def __iter__(self) -> Iterator[Wanted]:
        # Of the sample's place in the stream of its rank: however many workers there are, and however many batches they
        # read as one, they cut alike.
        begin = (self._order.seed << 64) + (self._order.rank << 40)
        for step in count(step=self._at_once):
            chance = begin + step * self._order.batch_size if self._augment else None
            steps = range(step, step + self._at_once)
            indices = [index for each in steps for index in self._order.indices(each)]
            yield Wanted(step=step, indices=indices, chance=chance)


class EvaluationBatches:
    """The sampler of an evaluation: every sample once, none cut by chance."""

    def __init__(self, order: EvaluationOrder) -> None:
        self._order = order

    def __iter__(self) -> Iterator[Wanted]:
        for step, indices in enumerate(self._order):
            yield Wanted(step=step, indices=indices)


class HostBatches:
    """What the workers read, in order; an iterator that ends its workers when it is closed."""

    def __init__(
        self,
        reader: Reader,
        sampler: Iterable[Any],  # of what the reader is asked for, a batch each
        loading: Loading,
        *,
        for_device: bool,
    ) -> None:
        ahead: dict[str, Any] = {}
        if loading.workers:
            ahead = {
                "prefetch_factor": loading.prefetch,
                "timeout": POLL_S,
                "worker_init_fn": partial(_begin_worker, loading.cpus, loading.first_cpu),
                "multiprocessing_context": _Forking(),  # the set is shared with the workers, not sent to them
            }
        loader = DataLoader(
            reader,
            sampler=sampler,
            batch_size=None,  # the sampler asks for whole batches: collating in the parent would be its bottleneck
            num_workers=loading.workers,
            pin_memory=loading.pinned and for_device,
            generator=torch.Generator(),  # a loader draws a number; not from what dropout draws from
            **ahead,
        )
        begun = iter(loader)
        alone = for_device and not loading.workers
        self._batches: Any = _OneThread(begun) if alone else _unwatched(begun)

    def __iter__(self) -> HostBatches:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - what the reader returns
        batch = self._wait()
        if isinstance(batch, Problem):
            raise DataError(batch.text)
        return batch

    def _wait(self) -> Any:  # noqa: ANN401 - what the reader returns
        """Wait in short turns: between them torch looks for workers that died."""
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
        # torch ends them when their iterator is let go, and the traceback of an error would hold on to it.
        end_workers = getattr(self._batches, "_shutdown_workers", None)
        if end_workers is not None:
            end_workers()
        self._batches = iter(())


class _Forking(ForkContext):
    """Workers that are told to end without a lock.

    torch asks and sets that event in the training process too, and an event of multiprocessing has a lock: a worker that
    is killed while it holds it would be waited for without end.
    """

    def Event(self) -> Any:  # noqa: N802, ANN401 - the name in multiprocessing; of a class that is not ours
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
    """Read in one thread, as a worker does, while the training process reads by itself for a device.

    Threads that copied a small batch spin for the next one, and slow the one that launches the device's kernels: on an
    H200 with 16 CPUs a WideResNet (batch 32, eager) was fed to 50 and 75 % of its rate by 16 threads, to 99 % by one.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __next__(self) -> Any:  # noqa: ANN401 - what the reader returns
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return next(self._batches)
        finally:
            torch.set_num_threads(threads)


def _begin_worker(cpus: int | None, first_cpu: int, _number: int) -> None:
    if cpus is not None:
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[(first_cpu + each) % len(allowed)] for each in range(cpus)})


def _unwatched(batches: Any) -> Any:  # noqa: ANN401 - torch is untyped here
    """Keep torch's handler of SIGCHLD from these workers: it raises wherever the main thread happens to be.

    That may be in the middle of a step. Here their death is found where a batch is asked for.
    """
    if getattr(batches, "_worker_pids_set", False):
        _remove_worker_pids(id(batches))
        batches._worker_pids_set = False  # noqa: SLF001 - or it would remove them again
    return batches


def _lost(happened: str) -> DataError:
    """A worker that was killed or did not answer, and what it mostly means."""
    return DataError(
        f"loader: {happened}.\n"
        "A worker that is killed ran out of memory, mostly of /dev/shm: lower workers= or prefetch=. One that does "
        "not answer waits for its file system."
    )
