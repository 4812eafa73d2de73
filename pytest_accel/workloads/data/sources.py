"""Where a step's batches come from: endless, on the device, ready to be used.

Source
├── Rotation   a few batches that were made on the device once: the step, and nothing else
├── Resident   the whole set on the device in bytes, cut and widened there
├── Loaded     through worker processes, copied ahead beside the steps
├── Decoded    through worker processes as JPEG, decoded on the device beside the steps
└── Dealt      small batches out of the large ones of one of these two
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count, cycle
from random import Random
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils._pytree import tree_leaves, tree_map

from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.data.finish import Finish
from pytest_accel.workloads.data.images import ArrayImages, EncodedImages
from pytest_accel.workloads.data.jpeg import crop_for, decode_on_device
from pytest_accel.workloads.data.loader import TIMEOUT_S, HostBatches, Loading
from pytest_accel.workloads.data.order import TrainingOrder
from pytest_accel.workloads.data.readers import Encoded
from pytest_accel.workloads.data.sampling import Sampler
from pytest_accel.workloads.data.threads import Threads

Tensor: TypeAlias = Any  # torch is untyped here
Batch: TypeAlias = tuple[Any, Any]  # inputs and targets: tensors, or named tuples of tensors

COPIED_AHEAD = 2  # batches on their way to the device while a step runs
DECODED_AHEAD = 5
DECODING_THREADS = 3


class Source(Protocol):
    """An endless stream of batches: inputs and targets on the device."""

    @property
    def buffered(self) -> int:
        """Batches that may lie ready; as many must be taken before the rate of taking them means anything."""
        ...

    @property
    def burst(self) -> int:
        """Batches that come together, one after a wait and the others at once; 1: each by itself."""
        ...

    @property
    def loads(self) -> bool:
        """Whether a batch costs more than to point at it."""
        ...

    def __next__(self) -> Batch: ...
    def close(self) -> None: ...


class Rotation:
    """Batches that are there already, in turn."""

    buffered, burst = 0, 1
    loads = False

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = cycle(batches)

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        self._batches = cycle(())


class Resident:
    """A set in the memory of the device: a step picks its samples there, in the order of a loader."""

    buffered, burst = 0, 1
    loads = True

    def __init__(
        self, images: ArrayImages, order: TrainingOrder, finish: Finish, device: torch.device
    ) -> None:
        self._images: Tensor = images.images.to(device)
        self._labels: Tensor = images.labels.to(device)
        self._order = order
        self._finish = finish
        self._device = device
        self._steps = count()

    def __next__(self) -> Batch:
        # The order lies on the host: pinned, it crosses without anybody waiting.
        indices = torch.tensor(self._order.indices(next(self._steps)))
        if self._device.type != "cpu":
            indices = indices.pin_memory().to(self._device, non_blocking=True)
        return self._finish(self._images[indices]), self._labels[indices]

    def close(self) -> None:
        self._images = self._labels = None


class Loaded:
    """What worker processes read: the next batches cross to the device while a step runs on this one."""

    loads = True

    def __init__(
        self,
        batches: HostBatches,
        arrive: Callable[[Any], Batch],  # what workers read, on the device -> what a step reads
        device: torch.device,
        *,
        loading: Loading,
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
        batch, there = self._ahead.popleft()
        return received(batch, there)

    def _send(self, host: Any) -> tuple[Batch, Any]:  # noqa: ANN401 - what the reader returns
        with torch.cuda.stream(self._side):
            batch = self._arrive(self._moved(host))
            return batch, self._side.record_event()  # type: ignore[union-attr] # there is a stream

    def _moved(self, host: Any) -> Any:  # noqa: ANN401 - as above
        return tree_map(lambda tensor: tensor.to(self._device, non_blocking=True), host)

    def close(self) -> None:
        self._ahead.clear()
        self._batches.close()


class Decoded:
    """JPEGs from worker processes, decoded on the device by threads: the call waits for the decoder, a step does not.

    Several threads, each with a stream that goes first: its small kernels would otherwise queue behind the large ones of a
    step. So would those of nvJPEG's own streams, wherever CUDA has fewer queues than streams: measure.device widens them.
    """

    loads = True

    def __init__(
        self,
        batches: HostBatches,
        images: EncodedImages,
        sampler: Sampler,
        device: torch.device,
        *,
        loading: Loading,
        chance: int | None,
        decode: Callable[..., list[Tensor]] = decode_on_device,
    ) -> None:
        self.buffered, self.burst = loading.buffered + DECODED_AHEAD, loading.burst
        self._batches = batches
        self._images = images
        self._sampler = sampler
        self._device = device
        self._chance = chance
        self._decode = decode
        self._numbers = count()
        self._own = threading.local()  # each thread's stream
        self._threads = Threads(DECODING_THREADS, "accel-decode", self._begin_thread)
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
            return received(*self._ahead.popleft().result(timeout=TIMEOUT_S))
        except TimeoutError:
            self._problem = DataError(
                f"loader: a batch was not decoded within {TIMEOUT_S:.0f} s. Is the device hung?"
            )
            raise self._problem from None
        except DataError as error:
            self._problem = error  # for whoever asks again
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

    def _decoded(self, host: Encoded, number: int) -> tuple[Batch, Any]:
        flat, lengths, labels, indices = host
        stream = self._own.stream
        with torch.cuda.stream(stream):  # of None: nothing
            encoded = flat.split(lengths.tolist())
            pixels = self._decode(encoded, self._device, lambda place: self._images.name(int(indices[place])))
            # By the number of the batch: whichever thread has it cuts it alike.
            random = None if self._chance is None else Random(f"{self._chance}/{number}")  # noqa: S311 - no secret
            crops = [crop_for(each.shape[1], each.shape[2], random) for each in pixels]
            inputs = self._sampler(pixels, crops)
            batch = inputs, labels.to(self._device, non_blocking=True)
            if stream is None:
                return batch, None
            # torchvision's decoder writes on a stream of its own into memory that it takes from this one: memory of the
            # last batch must not be given back before the last batch was cut.
            stream.synchronize()
            return batch, stream.record_event()


class Dealt:
    """Batches cut from larger ones: small batches cross to the device many at once, and cost their share of one."""

    loads = True

    def __init__(self, source: Source, *, batch_size: int, batches: int) -> None:
        self.buffered, self.burst = source.buffered * batches, source.burst * batches
        self._source = source
        self._batch_size = batch_size
        self._dealt: deque[Batch] = deque()

    def __next__(self) -> Batch:
        if not self._dealt:
            inputs, labels = next(self._source)
            size = self._batch_size
            self._dealt.extend(zip(inputs.split(size), labels.split(size), strict=True))
        return self._dealt.popleft()

    def close(self) -> None:
        self._dealt.clear()
        self._source.close()


def received(batch: Batch, there: Any) -> Batch:  # noqa: ANN401 - a CUDA event, or None
    """A batch that another stream wrote, for the stream of the steps: they wait for it on the device alone."""
    if there is not None:
        tensors = tree_leaves(batch)
        stream = torch.cuda.current_stream(tensors[0].device)
        stream.wait_event(there)
        for tensor in tensors:
            tensor.record_stream(stream)  # its memory is not given away before the step has read it
    return batch
