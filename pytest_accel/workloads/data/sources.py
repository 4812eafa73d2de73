"""Batch sources: endless streams of batches on the device, ready for a step.

BatchSource
├── RotatingSource  a few batches made on the device once: the step and nothing else
├── ResidentSource  the whole set on the device in bytes, converted there
├── LoaderSource    from worker processes, copied ahead beside the steps
├── DecodingSource  JPEGs from worker processes, decoded on the device beside the steps
└── SplitSource     small batches cut from the large ones of a LoaderSource
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count, cycle
from queue import SimpleQueue
from random import Random
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

from pytest_accel.workloads.data.encoded import EncodedImages
from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.data.images import ArrayImages
from pytest_accel.workloads.data.loader import TIMEOUT_S, EncodedBatch, HostBatches, LoaderConfig
from pytest_accel.workloads.data.order import TrainingOrder
from pytest_accel.workloads.data.pixels import CropResize, PixelTransform, crop_for, decode_on_device

T = TypeVar("T")
Tensor: TypeAlias = Any  # torch is untyped here
Batch: TypeAlias = tuple[Any, Any]  # inputs and targets: tensors, or named tuples of tensors

COPIED_AHEAD = 2  # batches on their way to the device while a step runs
DECODED_AHEAD = 5
DECODING_THREADS = 3
CLOSING_S = 5.0  # for a decoding call in progress when its threads are closed


class BatchSource(Protocol):
    """An endless stream of batches: inputs and targets on the device."""

    @property
    def buffered(self) -> int:
        """Batches that may be ready; as many must be taken before their rate means anything."""
        ...

    @property
    def burst(self) -> int:
        """Batches that arrive together after one wait; 1: each on its own."""
        ...

    @property
    def loads(self) -> bool:
        """Whether a batch costs more than a reference to it."""
        ...

    def __next__(self) -> Batch: ...
    def close(self) -> None: ...


class RotatingSource:
    """Existing batches in turn."""

    buffered, burst = 0, 1
    loads = False

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = cycle(batches)

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        self._batches = cycle(())


class ResidentSource:
    """A set in device memory: a step selects its samples there, in the order of a loader."""

    buffered, burst = 0, 1
    loads = True

    def __init__(
        self, images: ArrayImages, order: TrainingOrder, transform: PixelTransform, device: torch.device
    ) -> None:
        self._images: Tensor = images.images.to(device)
        self._labels: Tensor = images.labels.to(device)
        self._order = order
        self._transform = transform
        self._device = device
        self._steps = count()

    def __next__(self) -> Batch:
        # The order is on the host: pinned, it crosses without a wait.
        indices = torch.tensor(self._order.indices(next(self._steps)))
        if self._device.type != "cpu":
            indices = indices.pin_memory().to(self._device, non_blocking=True)
        return self._transform(self._images[indices]), self._labels[indices]

    def close(self) -> None:
        self._images = self._labels = None


class LoaderSource:
    """Batches of worker processes: the next ones cross to the device while a step runs on this one."""

    loads = True

    def __init__(
        self,
        batches: HostBatches,
        arrive: Callable[[Any], Batch],  # converts what workers read, on the device, to what a step reads
        device: torch.device,
        *,
        loading: LoaderConfig,
    ) -> None:
        self.buffered, self.burst = loading.buffered + COPIED_AHEAD, loading.burst
        self._batches = batches
        self._arrive = arrive
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ahead: deque[tuple[Batch, Any]] = deque()

    def __next__(self) -> Batch:
        if self._side is None:
            return self._arrive(self._moved(next(self._batches)))
        while len(self._ahead) <= COPIED_AHEAD:
            self._ahead.append(self._send(next(self._batches)))
        return _receive(*self._ahead.popleft())

    def _send(self, host: Any) -> tuple[Batch, Any]:
        with torch.cuda.stream(self._side):
            batch = self._arrive(self._moved(host))
            return batch, self._side.record_event()  # type: ignore[union-attr] # there is a stream

    def _moved(self, host: Any) -> Any:
        return tree_map(lambda tensor: tensor.to(self._device, non_blocking=True), host)

    def close(self) -> None:
        self._ahead.clear()
        self._batches.close()


class DecodingSource:
    """JPEGs of worker processes, decoded on the device by threads: the decoder call blocks a thread, not a step.

    Each thread has a high-priority stream: its small kernels would otherwise queue behind the large ones of a step.
    nvJPEG's own streams need enough CUDA queues for the same reason (measure.device sets their number).
    """

    loads = True

    def __init__(
        self,
        batches: HostBatches,
        images: EncodedImages,
        crop_resize: CropResize,
        device: torch.device,
        *,
        loading: LoaderConfig,
        seed: int | None,  # of random crops; None: center crops
        decode: Callable[..., list[Tensor]] = decode_on_device,
    ) -> None:
        self.buffered, self.burst = loading.buffered + DECODED_AHEAD, loading.burst
        self._batches = batches
        self._images = images
        self._crop_resize = crop_resize
        self._device = device
        self._seed = seed
        self._decode = decode
        self._numbers = count()
        self._own = threading.local()  # each thread's stream
        self._threads = _DaemonThreads(DECODING_THREADS, "accel-decode", self._begin_thread)
        self._ahead: deque[Future[tuple[Batch, Any]]] = deque()
        self._problem: DataError | None = None
        self._closed = False

    def __next__(self) -> Batch:
        if self._closed:
            raise StopIteration
        if self._problem is not None:
            raise self._problem
        try:
            while len(self._ahead) < DECODED_AHEAD:
                work = next(self._batches), next(self._numbers)
                self._ahead.append(self._threads.submit(self._decoded, *work))
            return _receive(*self._ahead.popleft().result(timeout=TIMEOUT_S))
        except TimeoutError:
            self._problem = DataError(
                f"loader: a batch was not decoded within {TIMEOUT_S:.0f} s. Is the device hung?"
            )
            raise self._problem from None
        except DataError as error:
            self._problem = error  # raised again at the next call
            raise

    def close(self) -> None:
        self._closed = True
        for waiting in self._ahead:
            waiting.cancel()
        self._ahead.clear()
        self._threads.close()
        self._batches.close()

    def _begin_thread(self) -> None:
        on_device = self._device.type == "cuda"
        self._own.stream = torch.cuda.Stream(self._device, priority=-1) if on_device else None

    def _decoded(self, host: EncodedBatch, number: int) -> tuple[Batch, Any]:
        flat, lengths, labels, indices = host
        stream = self._own.stream
        with torch.cuda.stream(stream):  # of None: nothing
            encoded = flat.split(lengths.tolist())
            pixels = self._decode(encoded, self._device, lambda place: self._images.name(int(indices[place])))
            # Seeded by the batch's number: crops do not depend on the thread.
            random = None if self._seed is None else Random(f"{self._seed}/{number}")  # noqa: S311 - no secret
            crops = [crop_for(each.shape[1], each.shape[2], random) for each in pixels]
            inputs = self._crop_resize(pixels, crops)
            batch = inputs, labels.to(self._device, non_blocking=True)
            if stream is None:
                return batch, None
            # torchvision decodes on a stream of its own into memory of this one: that memory must not be reused
            # before the last batch was cropped.
            stream.synchronize()
            return batch, stream.record_event()


class _DaemonThreads:
    """Threads that make calls in order. Daemons, unlike those of concurrent.futures: one that hangs in a driver does
    not keep the process from ending.
    """

    def __init__(self, count: int, name: str, begin: Callable[[], None]) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._begin = begin
        self._name = name
        self._count = count
        self._threads: list[threading.Thread] = []

    def submit(self, call: Callable[..., T], *arguments: object) -> Future[T]:
        """Queue a call; the first one starts the threads."""
        if not self._threads:
            for number in range(self._count):
                thread = threading.Thread(target=self._run, name=f"{self._name}-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*arguments))
                except BaseException as error:  # noqa: BLE001 - raised again by result()
                    future.set_exception(error)

        self._calls.put(run)
        return future

    def close(self) -> None:
        """End the threads after the queued calls; one that hangs is abandoned."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(CLOSING_S)

    def _run(self) -> None:
        self._begin()
        while (call := self._calls.get()) is not None:
            call()


class SplitSource:
    """Batches cut from larger ones: small batches cross to the device many at once."""

    loads = True

    def __init__(self, source: BatchSource, *, batch_size: int, batches: int) -> None:
        self.buffered, self.burst = source.buffered * batches, source.burst * batches
        self._source = source
        self._batch_size = batch_size
        self._parts: deque[Batch] = deque()

    def __next__(self) -> Batch:
        if not self._parts:
            inputs, labels = next(self._source)
            size = self._batch_size
            self._parts.extend(zip(inputs.split(size), labels.split(size), strict=True))
        return self._parts.popleft()

    def close(self) -> None:
        self._parts.clear()
        self._source.close()


def _receive(batch: Batch, ready: Any) -> Batch:
    """Make the current stream wait, on the device alone, for a batch that another stream wrote."""
    if ready is not None:
        tensors = tree_leaves(batch)
        stream = torch.cuda.current_stream(tensors[0].device)
        stream.wait_event(ready)
        for tensor in tensors:
            tensor.record_stream(stream)  # its memory is not reused before the step has read it
    return batch
