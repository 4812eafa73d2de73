"""Batch sources: endless streams of batches on the device, ready for a step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, cycle
from random import Random
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from pytest_accel.workloads.data import loader
from pytest_accel.workloads.data.pixels import CropResize, crop_for, decode_on_device

Batch: TypeAlias = tuple[Any, Any]  # inputs and targets: tensors, or named tuples of tensors

COPIED_AHEAD = 2  # batches on their way to the device while a step runs
DECODED_AHEAD = 5
DECODING_THREADS = 3


class BatchSource:
    """An endless stream of batches: inputs and targets on the device."""

    buffered = 0  # batches that may be ready; as many must be taken before their rate means anything
    burst = 1  # batches that arrive together after one wait
    loads = True  # whether a batch costs more than a reference to it

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        self._batches = iter(())


class RotatingSource(BatchSource):
    loads = False

    def __init__(self, batches: Sequence[Batch]) -> None:
        super().__init__(cycle(batches))


def resident(
    samples: Batch,  # tensors whose first dimension counts samples
    order: loader.TrainingOrder,
    finish: Callable[[Any], Batch],  # converts selected samples to what a step reads
    device: torch.device,
) -> BatchSource:
    """Return a source of a whole set on the device: a step selects its samples there."""
    there = tree_map(lambda tensor: tensor.to(device), samples)

    def read(order: list[int]) -> Batch:
        indices = torch.tensor(order)
        if device.type != "cpu":  # pinned, it crosses without a wait
            indices = indices.pin_memory().to(device, non_blocking=True)
        return finish(tree_map(lambda tensor: tensor[indices], there))

    return BatchSource(map(read, map(order.indices, count())))


class LoaderSource(BatchSource):
    """Batches of worker processes: the next ones cross to the device while a step runs on this one."""

    def __init__(
        self,
        batches: loader.HostBatches,
        arrive: Callable[[Any], Batch],  # converts what workers read, on the device, to what a step reads
        device: torch.device,
        *,
        at_once: int = 1,  # batches that cross together, as one of tensors
    ) -> None:
        self.buffered = (batches.buffered + COPIED_AHEAD) * at_once
        self.burst = batches.burst * at_once
        self._host = batches
        self._arrive = arrive
        self._device = device
        self._at_once = at_once
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ahead: deque[tuple[Batch, Any]] = deque()
        self._parts: deque[Batch] = deque()

    def __next__(self) -> Batch:
        if self._at_once == 1:
            return self._next()
        if not self._parts:
            self._parts.extend(zip(*(each.chunk(self._at_once) for each in self._next()), strict=True))
        return self._parts.popleft()

    def _next(self) -> Batch:
        if self._side is None:
            return self._arrived(next(self._host))
        while len(self._ahead) <= COPIED_AHEAD:
            host = next(self._host)
            with torch.cuda.stream(self._side):
                self._ahead.append((self._arrived(host), self._side.record_event()))
        return _receive(*self._ahead.popleft())

    def _arrived(self, host: Any) -> Batch:
        return self._arrive(tree_map(lambda tensor: tensor.to(self._device, non_blocking=True), host))

    def close(self) -> None:
        self._parts.clear()
        self._ahead.clear()
        self._host.close()


class DecodingSource(BatchSource):
    """JPEGs of worker processes, decoded on the device by threads: the decoder call blocks a thread, not a step.

    Each thread has a high-priority stream: its small kernels would otherwise queue behind the large ones of a step.
    nvJPEG's own streams need enough CUDA queues for the same reason (measure.device sets their number).
    """

    def __init__(
        self,
        batches: loader.HostBatches,
        images: loader.EncodedImages,
        crop_resize: CropResize,
        device: torch.device,
        *,
        seed: int | None,  # of random crops; None: center crops
        decode: Callable[..., list[Tensor]] = decode_on_device,
    ) -> None:
        self.buffered, self.burst = batches.buffered + DECODED_AHEAD, batches.burst
        self._host = batches
        self._images = images
        self._crop_resize = crop_resize
        self._device = device
        self._seed = seed
        self._decode = decode
        self._numbers = count()
        self._own = threading.local()  # each thread's stream
        self._threads = ThreadPoolExecutor(DECODING_THREADS, "accel-decode", self._begin_thread)
        self._ahead: deque[Future[tuple[Batch, Any]]] = deque()

    def __next__(self) -> Batch:
        while len(self._ahead) < DECODED_AHEAD:
            work = next(self._host), next(self._numbers)
            self._ahead.append(self._threads.submit(self._decoded, *work))
        return _receive(*self._ahead.popleft().result())

    def close(self) -> None:
        self._ahead.clear()
        self._threads.shutdown(cancel_futures=True)
        self._host.close()

    def _begin_thread(self) -> None:
        on_device = self._device.type == "cuda"
        self._own.stream = torch.cuda.Stream(self._device, priority=-1) if on_device else None

    def _decoded(self, host: loader.EncodedBatch, number: int) -> tuple[Batch, Any]:
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


def _receive(batch: Batch, ready: Any) -> Batch:
    """Make the current stream wait, on the device alone, for a batch that another stream wrote."""
    if ready is not None:
        tensors = tree_leaves(batch)
        stream = torch.cuda.current_stream(tensors[0].device)
        stream.wait_event(ready)
        for tensor in tensors:
            tensor.record_stream(stream)  # its memory is not reused before the step has read it
    return batch
