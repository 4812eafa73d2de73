"""One step of training or inference, as a callable that a benchmark times.

Inside `__call__` nothing of ours waits for the device: no `.item()`, no print. Two models wait by themselves: DINO's loss
for the host to match boxes, torchvision's detectors for the number of boxes. `loss_value` and `check` read results, and
are called outside the timed rounds.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import torch
from torch.utils._pytree import tree_leaves, tree_map

from pytest_accel.measure.arguments import StepError
from pytest_accel.measure.rounds import Alone, Ranks
from pytest_accel.workloads.build import Parts, assemble
from pytest_accel.workloads.compile import (
    CUDA_GRAPH_MODES,
    Compiler,
    GraphReplay,
    StepBody,
    compiled_apart,
    make_capturable,
)
from pytest_accel.workloads.config import (
    Configuration,
    Loss,
    Model,
    StepConfig,
    Task,
    TrainOptions,
    callable_name,
)
from pytest_accel.workloads.data.sources import Batch, BatchSource, RotatingSource
from pytest_accel.workloads.demand import Demand, count, explained_out_of_memory
from pytest_accel.workloads.input_pipeline import rank_seed
from pytest_accel.workloads.models.gpt import attention_backend
from pytest_accel.workloads.optimizers import build_step_optimizer
from pytest_accel.workloads.parallel import blocks_of, data_parallel, local, shard
from pytest_accel.workloads.precision import PRECISIONS, check_precision

SAMPLED_TENSORS, SAMPLED_ELEMENTS = 16, 1024  # of the parameters, to see that they move
NO_BENCHMARK = "A step that trains nothing is not a benchmark."


class Step:
    """A built step: its configuration, work, batches and end."""

    task: ClassVar[Task]
    evaluates: ClassVar[bool] = True  # its model can be evaluated where it is
    _assemble = staticmethod(assemble)

    def __init__(self, parts: Parts) -> None:
        self.parts: Any = parts  # None: closed
        self.configuration: Configuration = parts.configuration
        self.work: int = parts.plan.work * parts.config.micro_batches
        self.unit: str = parts.plan.unit
        self.device: torch.device = parts.config.device
        self.info = parts.info
        self.steps = 0  # called so far
        self.varied: bool = parts.pipeline.varied  # batches differ in shape, and in cost
        self._config = parts.config
        self._precision = PRECISIONS[parts.config.precision]
        self._micro_batches = parts.config.micro_batches
        self._source: BatchSource = parts.pipeline.source
        self._compiler = Compiler(mode=parts.config.compile, tuned=parts.config.tuned)
        self._cuda_graphs = parts.config.compile in CUDA_GRAPH_MODES and self.device.type == "cuda"
        self._loss_function: Loss | None = None  # of training
        self._replay: GraphReplay | None = None
        self._cleanup = ExitStack()

    @classmethod
    def build(
        cls,
        model: Model,
        *,
        device: torch.device | str = "cpu",
        ranks: Ranks | None = None,
        memory_gb: float | None = None,
        data_root: Path | None = None,
        data_required: bool = False,
        **options: Unpack[TrainOptions],
    ) -> Self:
        """Build the step; the keywords are the fields of `StepConfig`, those of `StepOptions` for inference.

        `memory_gb` is that of the device's data sheet: sizes that are given by memory are chosen by it.
        """
        config = StepConfig.of(
            cls.task,
            model,
            options,
            device=torch.device(device),
            ranks=ranks or Alone(),
            memory_gb=memory_gb,
            data_root=data_root,
            data_required=data_required,
        )
        check_precision(config.precision, config.device)
        with explained_out_of_memory(config):
            return cls._of(cls._assemble(config))  # not held here: a traceback would keep the model alive

    @classmethod
    def _of(cls, parts: Parts) -> Self:
        config = parts.config
        try:
            step = cls(parts)
            # Held until close(): compiled code is guarded on these flags.
            step._cleanup.enter_context(step._precision.flags(cudnn_benchmark=config.cudnn_benchmark))
            step._cleanup.enter_context(step._compiler.limits(parts.model))
        except BaseException:
            parts.pipeline.source.close()
            raise
        # Dropout and stochastic depth draw from the process's generator while the step runs.
        torch.manual_seed(rank_seed(config.ranks.rank, config.seed))
        return step

    def _next_batch(self) -> Batch:
        if self._cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # the last step's results may now be overwritten
        return next(self._source)

    def _run(self, body: StepBody) -> Any:
        self.steps += 1
        with explained_out_of_memory(self._config):
            return (self._replay or body)(iter(self._next_batch, None))

    @property
    def loads(self) -> bool:
        """Whether its batches come from a loader."""
        return self._source.loads

    @property
    def buffered(self) -> int:
        """Steps whose batches may be ready, whatever the rate of the loader."""
        return -(-self._source.buffered // self._micro_batches)

    @property
    def burst(self) -> int:
        """Steps whose batches come together: the rate is that of all of them."""
        return self._source.burst // math.gcd(self._source.burst, self._micro_batches)

    def load(self) -> None:
        """Take the batches of one step from the loader, and drop them."""
        with explained_out_of_memory(self._config):
            for _ in range(self._micro_batches):
                next(self._source)

    @contextmanager
    def computing_only(self) -> Iterator[None]:
        """Run steps on batches that are on the device already, without the loader."""
        source = self._source
        with explained_out_of_memory(self._config):
            self._source = RotatingSource([tree_map(torch.clone, next(source)) for _ in range(2)])
        try:
            yield
        finally:
            self._source = source

    @property
    def facts(self) -> dict[str, str]:
        """What may change with an upgrade: context of the results, no part of the configuration."""
        backend = attention_backend(self.parts.model, self._precision.dtype, self.device)
        return {} if backend is None else {"attention": backend}

    @cached_property
    def demand(self) -> Demand:
        """Operations of one step; nothing where they cannot be counted."""
        return self._count()

    def _count(self) -> Demand:
        if self.varied:  # the plan has one shape of several
            return Demand()
        model, plan = self.parts.model, self.parts.plan
        return count(model, plan, loss=self._loss_function, batches=self._micro_batches)

    def close(self) -> None:
        """Free the model, its batches and compiled code, and restore the backend flags."""
        self._cleanup.close()
        self._source.close()
        self._release()
        if self._compiler.mode is not None:
            torch.compiler.reset()
        gc.collect()  # modules and compiled code reference each other
        if self.device.type != "cpu":
            torch.get_device_module(self.device).empty_cache()

    def _release(self) -> None:
        if self._replay is not None:
            self._replay.close()
        self.parts = self._replay = None
        self._source = RotatingSource(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TrainStep(Step):
    task = "train"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        config, model, precision = parts.config, parts.model, self._precision
        if config.loss is None:
            loss_name, loss = parts.plan.loss(config.label_smoothing)
        else:
            loss_name, loss = callable_name(config.loss), config.loss
        self._loss_function = loss
        if config.sharding is not None:
            self.demand = self._count()  # before sharding
            shard(model, self.info.task, config)
        trainable = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if not trainable:
            raise StepError(f"{self.info.name}: no parameter requires a gradient. {NO_BENCHMARK}")
        optimizer = config.optimizer
        if optimizer == "auto":  # as the papers of these families train
            optimizer = "sgd" if self.info.convolutional else "adamw"
        self._optimizer, described = self._build_optimizer(config, optimizer, trainable)
        if parts.config.replay:
            make_capturable(self._optimizer)
            self._replay = GraphReplay(self._train, batches=self._micro_batches, device=self.device)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=precision.scales_loss)
        self.configuration |= described | {"loss": loss_name, "label_smoothing": config.label_smoothing}
        self.configuration |= {} if config.ddp else {"ddp": False}
        self.configuration |= {"sharding": config.sharding} if config.sharding else {}
        parallel = config.ddp and config.sharding is None
        self._wrapped: Any = data_parallel(model, config.ranks) if parallel else model
        self._forward_loss: Any = self._compile_forward(parts, loss)
        self._trainable = tuple(trainable.values())
        every = -(-len(trainable) // SAMPLED_TENSORS)
        self._sampled = [(each, _sample(each)) for each in self._trainable[::every]]
        self.loss: Any = None  # of the last step, on the device

    _build_optimizer = staticmethod(build_step_optimizer)

    def _compile_forward(self, parts: Parts, loss_function: Loss) -> Loss:
        wrapped, precision, device = self._wrapped, self._precision, self.device
        reconstructs, micro_batches = parts.plan.reconstructs, self._micro_batches
        sharded = parts.config.sharding is not None
        # Shards block by block: between blocks weights are gathered and freed.
        apart = blocks_of(wrapped) if sharded else compiled_apart(parts.model)
        if apart is not None:
            self._compiler.apart(apart)
            loss_function = self._compiler(loss_function)

        def loss_of(output: Any, inputs: Any, targets: Any) -> Any:
            loss = loss_function(output, inputs if reconstructs else targets)
            return loss if micro_batches == 1 else loss / micro_batches

        def sharded_forward_loss(inputs: Any, targets: Any) -> Any:
            output = wrapped(inputs)  # FSDP casts its weights
            with precision.autocast(device):
                return loss_of(output, inputs, targets)

        def forward_loss(inputs: Any, targets: Any) -> Any:
            with precision.autocast(device):
                return loss_of(wrapped(inputs), inputs, targets)

        if sharded:
            return sharded_forward_loss
        # Forward and loss in one graph: the softmax over a vocabulary fuses with its upcast. The optimizer is one fused
        # kernel already. Compiled from outside DDP: dynamo then splits the graph at DDP's buckets, and reducing gradients
        # still overlaps the backward pass.
        return forward_loss if apart is not None else self._compiler(forward_loss)

    def __call__(self) -> None:
        self.loss = self._run(self._train)

    def _train(self, batches: Iterator[Batch]) -> Any:
        self._optimizer.zero_grad(set_to_none=True)
        total = None
        for index in range(self._micro_batches):
            # DDP reduces with the last. FSDP reduces every time: unreduced gradients would be whole on every device.
            unreduced = hasattr(self._wrapped, "no_sync") and index < self._micro_batches - 1
            with self._wrapped.no_sync() if unreduced else nullcontext():
                loss = self._backward(batches)
            total = loss if total is None else total + loss
        self._update()
        return total

    def _backward(self, batches: Iterator[Batch]) -> Any:
        """Run one batch, or micro-batch, forward and backward; return its part of the loss."""
        loss = self._forward_loss(*next(batches))
        # Disabled (all but fp16), the scaler passes the loss and the step on. Enabled, it skips steps that overflowed;
        # with a fused optimizer that too is decided on the device.
        self._scaler.scale(loss).backward()
        return loss.detach()

    def _update(self) -> None:
        if self._config.clip is not None:
            self._scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self._trainable, self._config.clip, foreach=True)
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def loss_value(self) -> float:
        """Return the last loss. Waits for the device: call it outside timed rounds."""
        return float(self.loss)

    def check(self) -> None:
        """Raise StepError unless the loss is finite, a gradient is not zero and the parameters moved."""
        value, name = self.loss_value(), self.info.name
        if not math.isfinite(value):
            raise StepError(
                f"{name}: the loss is {value} after {self.steps} steps. "
                "Lower lr=, or choose a precision with a wider range (bf16, fp32)."
            )
        # Weight decay moves parameters without any gradient, so moving alone does not prove training.
        if not self._has_gradient():
            raise StepError(f"{name}: every gradient is zero after {self.steps} steps. {NO_BENCHMARK}")
        if any(not torch.equal(_sample(parameter), before) for parameter, before in self._sampled):
            return
        raise StepError(
            f"{name}: the parameters did not move in {self.steps} steps. Is lr zero, or did every step overflow in fp16? "
            f"{NO_BENCHMARK}"
        )

    def _has_gradient(self) -> bool:
        gradients = (parameter.grad for parameter in self._trainable)
        return any(gradient is not None and bool(local(gradient).any()) for gradient in gradients)

    def _release(self) -> None:
        super()._release()
        self._optimizer = self._scaler = self._forward_loss = self._wrapped = self.loss = None
        self._trainable, self._sampled = (), []


class InferStep(Step):
    """One batch through a model in eval and inference mode, with weights in the precision itself."""

    task = "infer"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        apart = compiled_apart(parts.model)
        self._compiler.apart(apart or ())
        self._forward: Any = parts.model if apart is not None else self._compiler(parts.model)
        self.output: Any = None  # of the last step, on the device
        if parts.config.replay:
            self._replay = GraphReplay(self._infer, batches=1, device=self.device)

    def __call__(self) -> None:
        self.output = self._run(self._infer)

    def _infer(self, batches: Iterator[Batch]) -> Any:
        inputs, _ = next(batches)
        with torch.inference_mode():
            return self._forward(inputs)

    def check(self) -> None:
        """Raise StepError unless every number of the last output is finite. Waits for the device."""
        for tensor in tree_leaves(self.output):
            if isinstance(tensor, torch.Tensor) and not bool(torch.isfinite(tensor).all()):
                raise StepError(
                    f"{self.info.name}: the output has numbers that are not finite in {self._config.precision}. "
                    "Choose a precision with a wider range (bf16, fp32)."
                )

    def _release(self) -> None:
        super()._release()
        self._forward = self.output = None


def _sample(parameter: Any) -> torch.Tensor:
    """Copy the first elements of a parameter to the host; of a sharded one, those of this rank."""
    return local(parameter.detach()).flatten()[:SAMPLED_ELEMENTS].to("cpu", torch.float32, copy=True)
