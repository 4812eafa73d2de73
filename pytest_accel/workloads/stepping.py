"""What both kinds of step have: what they are, how much they do, where their batches come from, how they end."""

from __future__ import annotations

import gc
import math
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils._pytree import tree_map

from pytest_accel.workloads.assembly import Configuration, Parts
from pytest_accel.workloads.attention import attention_backend
from pytest_accel.workloads.compiling import CUDA_GRAPH_MODES, Compiler
from pytest_accel.workloads.data.sources import Batch, BatchSource, RotatingSource
from pytest_accel.workloads.fitting import raise_if_out_of_memory
from pytest_accel.workloads.flops import count
from pytest_accel.workloads.plan import Loss, seed_of
from pytest_accel.workloads.replaying import Body, Replay
from pytest_accel.workloads.traffic import Demand, cache_bytes, demand_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class Step:
    """What both kinds of step have: what they are, how much they do, how they end."""

    def __init__(self, parts: Parts) -> None:
        self.configuration: Configuration = parts.configuration
        self.work: int = parts.plan.work * parts.micro_batches
        self.unit: str = parts.plan.unit
        self.device: torch.device = parts.device
        self.info = parts.info
        self.steps = 0  # called so far
        self._plan = parts.plan  # of a micro-batch, where a step takes several
        self._micro_batches = parts.micro_batches
        self._model: Any = parts.model
        self._source: BatchSource = parts.feed.source
        self.varied: bool = parts.feed.varied  # batches differ in shape, and in what they cost
        self._compiled = Compiler.of(parts.compile, parts.model, parts.device)
        self._cuda_graphs = parts.compile in CUDA_GRAPH_MODES and parts.device.type == "cuda"
        self._precision = parts.precision
        self._input_bytes = parts.destination.dtype.itemsize  # an element
        self._known_as = parts.known_as
        self._batch = parts.batch
        self._loss_function: Loss | None = None  # of training
        self._states: int | None = None  # of an optimizer that surely updates every parameter
        self._demand: Demand | None = None
        self._replay: Replay | None = None
        self._cleanup = ExitStack()

    @classmethod
    def _of(cls, parts: Parts, **options: Any) -> Self:  # noqa: ANN401 - of the kind of step
        """Make the step; where that fails, no worker of its loader is left behind."""
        try:
            return cls(parts, **options)
        except BaseException:
            parts.feed.source.close()
            raise

    def _begin(self, parts: Parts) -> None:
        """Take hold of the process's flags and generators; the last line of building, so that nothing leaks."""
        # Held until close(): compiled code is guarded on these flags, so they must not flicker.
        with ExitStack() as held:
            held.enter_context(parts.precision.flags(cudnn_benchmark=parts.cudnn_benchmark))
            held.enter_context(self._compiled.limits(parts.model))
            self._cleanup = held.pop_all()
        # Dropout and stochastic depth draw from the process's generator while the step runs.
        torch.manual_seed(seed_of(parts.ranks.rank, parts.seed))

    def _next_batch(self) -> Batch:
        if self._cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # the last step's results may now be overwritten
        return next(self._source)

    def _run(self, body: Body) -> Any:  # noqa: ANN401 - what it returns
        """Call the body of a step with where its batches come from, or replay it."""
        batches = iter(self._next_batch, None)
        if self._replay is None:
            return body(batches)
        with self._explained():
            return self._replay(batches)

    @property
    def loads(self) -> bool:
        """Whether its batches come from a loader, and not from the device's memory as they are."""
        return self._source.loads

    @property
    def buffered(self) -> int:
        """Steps that may find their batch ready, whatever the rate of the loader."""
        return -(-self._source.buffered // self._micro_batches)

    @property
    def burst(self) -> int:
        """Steps whose batches come together: the rate is that of all of them."""
        return self._source.burst // math.gcd(self._source.burst, self._micro_batches)

    def load(self) -> None:
        """Take a batch and do nothing with it: what the loader does by itself."""
        with self._explained():
            for _ in range(self._micro_batches):
                next(self._source)

    @contextmanager
    def computing_only(self) -> Iterator[None]:
        """Let steps run on batches that lie ready on the device: what they do without a loader."""
        source = self._source
        with self._explained():
            self._source = RotatingSource([tree_map(torch.clone, next(source)) for _ in range(2)])
        try:
            yield
        finally:
            self._source = source

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self._explain(error)
            raise

    def _explain(self, error: RuntimeError) -> None:
        raise_if_out_of_memory(error, name=self.info.name, batch=self._batch, device=self.device)

    @property
    def facts(self) -> dict[str, str]:
        """What is true of a step here and may be otherwise after an upgrade: context of its figures, no part of what it is."""
        training = self._loss_function is not None
        backend = attention_backend(
            self._model, dtype=self._precision.dtype, device=self.device, training=training
        )
        return {} if backend is None else {"attention": backend}

    @property
    def flops_per_step(self) -> int | None:
        """The model's floating-point operations, backward ones of training too; None where they cannot be counted."""
        return self._counted().flops

    @property
    def least_flops_per_step(self) -> int | None:
        """Those that no algorithm saves: what an alarm may be raised for."""
        return self._counted().least_flops

    @property
    def bytes_per_step(self) -> int | None:
        """What it moves through the device's memory at the least; None where a cache could hold that."""
        return self._counted().bytes_moved

    def _counted(self) -> Demand:
        if self.varied:  # the plan has one shape of several: MFU would be too high, and an alarm false
            return Demand()
        if self._demand is None and self._model is not None:
            self._demand = demand_of(
                self._model,
                count(self._model, self._plan, loss=self._loss_function, known_as=self._known_as),
                input_bytes=self._input_bytes,
                compute=self._precision.dtype.itemsize,
                states=self._states,
                cache_bytes=cache_bytes(self.device),
                micro_batches=self._micro_batches,
            )
        return self._demand or Demand()

    def close(self) -> None:
        """Free the model, its batches and what was compiled, and put the backend flags back."""
        self._cleanup.close()
        self._source.close()
        self._forget()
        if self._compiled.mode is not None:
            torch.compiler.reset()
        gc.collect()  # modules and compiled code hold each other in circles
        if self.device.type != "cpu":
            torch.get_device_module(self.device).empty_cache()

    def _forget(self) -> None:
        if self._replay is not None:
            self._replay.close()
        self._model = self._replay = None
        self._source = RotatingSource(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
