"""One step of training or of inference, as a plain callable that a benchmark times.

Inside `__call__` nothing waits for the device: no `.item()`, no print; a loader's batches cross beside the steps.
What reads results (`loss_value`, `check`) is called outside the timed rounds.
"""

from __future__ import annotations

import gc
import logging
import math
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils._pytree import tree_map

from pytest_accel.data.sources import Rotation, Source
from pytest_accel.workloads.assembly import (
    CUDA_GRAPH_MODES,
    Choices,
    Configuration,
    Model,
    Parts,
    assemble,
    explained_out_of_memory,
    raise_if_out_of_memory,
)
from pytest_accel.workloads.errors import StepError
from pytest_accel.workloads.evidence import sample, sample_tensors, tensors_in
from pytest_accel.workloads.flops import count
from pytest_accel.workloads.judging import Judge
from pytest_accel.workloads.optimisers import (
    OPTIMISERS,
    OptimiserFactory,
    build_optimiser,
    callable_name,
    check_optimiser,
)
from pytest_accel.workloads.parallel import data_parallel
from pytest_accel.workloads.plan import Loss, NamedLoss, seed_of
from pytest_accel.workloads.traffic import Demand, cache_bytes, demand_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn


class Step:
    """What both kinds of step have: what they are, how much they do, how they end."""

    def __init__(self, parts: Parts) -> None:
        self.configuration: Configuration = parts.configuration
        self.work: int = parts.plan.work
        self.unit: str = parts.plan.unit
        self.device: torch.device = parts.device
        self.info = parts.info
        self.steps = 0  # called so far
        self._plan = parts.plan
        self._model: Any = parts.model
        self._source: Source = parts.feed.source
        self._compile = parts.compile
        self._cuda_graphs = parts.compile in CUDA_GRAPH_MODES and parts.device.type == "cuda"
        self._precision = parts.precision
        self._input_bytes = parts.destination.dtype.itemsize  # an element
        self._known_as = parts.known_as
        self._loss_function: Loss | None = None  # of training
        self._states: int | None = None  # of an optimiser that surely updates every parameter
        self._demand: Demand | None = None
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
        self._cleanup.enter_context(parts.precision.flags(cudnn_benchmark=parts.cudnn_benchmark))
        # Dropout and stochastic depth draw from the process's generator while the step runs.
        torch.manual_seed(seed_of(parts.ranks.rank, parts.seed))

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self._compile is None:
            return function
        # It logs every graph at level DEBUG whatever is asked for: pytest would show it all with a failure.
        logging.getLogger("torch.__trace").propagate = False
        options = torch._inductor.list_mode_options(self._compile)  # noqa: SLF001 - its documentation names it
        if self.device.type == "cuda" and self.info.convolutional:
            # Half of a ResNet's step is normalising, and its shapes differ from layer to layer: 2 % (H200, fp16).
            options |= {"max_autotune_pointwise": True}
        return torch.compile(function, options=options, dynamic=False)

    def _compiled_where_fixed(self, function: Callable[..., Any], model: Any) -> Callable[..., Any]:  # noqa: ANN401 - a module
        """Compile what a step calls; of a model whose shapes follow from its data, only what it says has fixed ones."""
        fixed: list[nn.Module] | None = getattr(model, "fixed_shapes", None)
        if fixed is None:
            return self._compiled(function)
        for module in fixed:
            module.forward = self._compiled(module.forward)
        return function

    def _next_batch(self) -> tuple[Any, Any]:
        self.steps += 1
        if self._cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # the last step's results may now be overwritten
        return next(self._source)

    @property
    def loads(self) -> bool:
        """Whether its batches come from a loader, and not from the device's memory as they are."""
        return self._source.loads

    @property
    def buffered(self) -> int:
        """Steps that may find their batch ready, whatever the rate of the loader."""
        return self._source.buffered

    def load(self) -> None:
        """Take a batch and do nothing with it: what the loader does by itself."""
        with self._explained():
            next(self._source)

    @contextmanager
    def computing_only(self) -> Iterator[None]:
        """Let steps run on batches that lie ready on the device: what they do without a loader."""
        source = self._source
        with self._explained():
            self._source = Rotation([tree_map(torch.clone, next(source)) for _ in range(2)])
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
        raise_if_out_of_memory(
            error, name=self.info.name, batch_size=self._plan.batch_size, device=self.device
        )

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
        if self._demand is None and self._model is not None:
            self._demand = demand_of(
                self._model,
                count(self._model, self._plan, loss=self._loss_function, known_as=self._known_as),
                input_bytes=self._input_bytes,
                compute=self._precision.dtype.itemsize,
                states=self._states,
                cache_bytes=cache_bytes(self.device),
            )
        return self._demand or Demand()

    def close(self) -> None:
        """Free the model, its batches and what was compiled, and put the backend flags back."""
        self._cleanup.close()
        self._source.close()
        self._forget()
        if self._compile is not None:
            torch.compiler.reset()
        gc.collect()  # modules and compiled code hold each other in circles
        if self.device.type != "cpu":
            torch.get_device_module(self.device).empty_cache()

    def _forget(self) -> None:
        self._model = None
        self._source = Rotation(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TrainStep(Step):
    """Forward, loss, backward, update: one batch of training."""

    def __init__(
        self,
        parts: Parts,
        *,
        optimiser: str | OptimiserFactory,
        lr: float | None,
        loss: Loss | None,
        label_smoothing: float,
        ddp: bool,
    ) -> None:
        super().__init__(parts)
        model, precision, device = parts.model, parts.precision, parts.device
        trainable = {
            name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        if not trainable:
            raise StepError(f"{self.info.name}: no parameter requires a gradient. {NO_BENCHMARK}")
        if optimiser == "auto":  # what the papers of these families train with
            optimiser = "sgd" if self.info.convolutional else "adamw"
        self._optimiser, described = build_optimiser(optimiser, trainable.values(), device=device, lr=lr)
        self._scaler = precision.scaler(device)
        reconstructs = parts.plan.reconstructs
        named = parts.plan.loss(label_smoothing) if loss is None else NamedLoss(callable_name(loss), loss)
        loss_function = named.function
        self._loss_function = loss_function
        if loss is not None:
            self._known_as = None  # it may have products of its own
        if isinstance(optimiser, str) and not precision.scales_loss:  # a scaler skips updates
            self._states = OPTIMISERS[optimiser].states
        self.configuration |= described | {"loss": named.name, "label_smoothing": label_smoothing}
        if not ddp:
            self.configuration["ddp"] = False
        # Compiled from outside DDP: dynamo then cuts the graph at DDP's buckets, and reducing gradients
        # still overlaps the backward pass.
        wrapped = data_parallel(model, parts.ranks) if ddp else model

        def forward_loss(inputs: Any, targets: Any) -> Any:  # noqa: ANN401 - torch is untyped here
            with precision.autocast(device):
                return loss_function(wrapped(inputs), inputs if reconstructs else targets)

        # Forward and loss in one graph: the softmax over a vocabulary fuses with its upcast. The optimiser
        # stays out: it is one fused kernel already.
        self._forward_loss: Any = self._compiled_where_fixed(forward_loss, model)
        self.judge: Judge | None = Judge(
            model=model,
            feed=parts.feed,
            feeding=parts.feeding,
            plan=parts.plan,
            destination=parts.destination,
            precision=precision,
            ranks=parts.ranks,
        )
        self._trainable = tuple(trainable.values())
        self._sampled = sample_tensors(trainable)
        self._before = {name: sample(parameter) for name, parameter in self._sampled.items()}
        self.loss: Any = None  # of the last step, on the device
        self._begin(parts)

    @classmethod
    def build(
        cls,
        model: Model,
        *,
        optimiser: str | OptimiserFactory = "auto",
        lr: float | None = None,
        loss: Loss | None = None,
        label_smoothing: float = 0.0,
        ddp: bool = True,
        **choices: Any,  # noqa: ANN401 - the fields of Choices, listed once there
    ) -> Self:
        """Build a training step; what is wrong with an argument is said before anything is built.

        `loss` takes what the model returned and the targets; by default it is the cross entropy.
        In a gang the ranks train one model, in DistributedDataParallel; with `ddp=False` each trains its
        own, side by side. All other arguments are those of `Choices`.
        """
        if optimiser != "auto":
            check_optimiser(optimiser, lr=lr)
        chosen = Choices.of(model, choices)
        with explained_out_of_memory(chosen):
            return cls._of(
                assemble(chosen, task="train"),  # not held here: a traceback would keep the model alive
                optimiser=optimiser,
                lr=lr,
                loss=loss,
                label_smoothing=label_smoothing,
                ddp=ddp,
            )

    def __call__(self) -> None:
        self._optimiser.zero_grad(set_to_none=True)
        inputs = targets = loss = None
        try:
            inputs, targets = self._next_batch()
            loss = self._forward_loss(inputs, targets)
            # Disabled (all but fp16), the scaler passes the loss and the step straight on. Enabled, it
            # skips steps that overflowed; with a fused optimiser that too is decided on the device.
            self._scaler.scale(loss).backward()
            self._scaler.step(self._optimiser)
            self._scaler.update()
        except RuntimeError as error:
            inputs = targets = loss = None  # the traceback keeps this frame, and with it a whole graph
            self._explain(error)
            raise
        self.loss = loss.detach()

    def loss_value(self) -> float:
        """Return the last loss. Waits for the device: call it outside timed rounds."""
        if self.loss is None:
            raise StepError(f"{self.info.name}: no step has run yet. Call the step before reading its loss.")
        return float(self.loss)

    def parameters_moved(self) -> bool:
        """Say whether training changed any sampled parameter since the step was built."""
        return any(
            not torch.equal(sample(self._sampled[name]), before) for name, before in self._before.items()
        )

    def check(self) -> None:
        """Raise StepError unless the loss is finite, a gradient arrived and the parameters moved."""
        value, name = self.loss_value(), self.info.name
        if not math.isfinite(value):
            raise StepError(
                f"{name}: the loss is {value} after {self.steps} steps. "
                "Lower lr=, or choose a precision with a wider range (bf16, fp32)."
            )
        # Weight decay moves parameters without any gradient, so moving alone does not prove training.
        gradients = (parameter.grad for parameter in self._trainable)
        if not any(gradient is not None and bool(gradient.any()) for gradient in gradients):
            raise StepError(f"{name}: every gradient is zero after {self.steps} steps. {NO_BENCHMARK}")
        if self.parameters_moved():
            return
        scale = self._scaler.get_scale()
        if self._scaler.is_enabled() and scale < self._scaler._init_scale:  # noqa: SLF001 - it has no getter
            raise StepError(
                f"{name}: all {self.steps} steps overflowed in fp16 and were skipped (loss scale now {scale:g}). "
                "Run more steps, or choose precision='bf16'."
            )
        raise StepError(
            f"{name}: the parameters did not move in {self.steps} steps; is lr zero? {NO_BENCHMARK}"
        )

    def _forget(self) -> None:
        super()._forget()
        self._optimiser = self._scaler = self._forward_loss = self.loss = self.judge = None
        self._trainable, self._sampled, self._before = (), {}, {}


class InferStep(Step):
    """One batch through a model in eval mode, in inference mode, with weights in the precision itself."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._forward: Any = self._compiled_where_fixed(parts.model, parts.model)
        self.output: Any = None  # of the last step, on the device
        self._begin(parts)

    @classmethod
    def build(cls, model: Model, **choices: Any) -> Self:  # noqa: ANN401 - the fields of Choices
        """Build an inference step; the arguments are those of `Choices`."""
        chosen = Choices.of(model, choices)
        with explained_out_of_memory(chosen):
            return cls._of(assemble(chosen, task="infer"))

    def __call__(self) -> None:
        inputs = None
        try:
            inputs, _ = self._next_batch()
            with torch.inference_mode():
                self.output = self._forward(inputs)
        except RuntimeError as error:
            inputs = None  # as above
            self._explain(error)
            raise

    def check(self) -> None:
        """Raise StepError unless every number of the last output is finite. Waits for the device."""
        if self.output is None:
            raise StepError(f"{self.info.name}: no step has run yet. Call the step before checking it.")
        for tensor in tensors_in(self.output):
            if not bool(torch.isfinite(tensor).all()):
                precision = self.configuration["precision"]
                raise StepError(
                    f"{self.info.name}: the output has numbers that are not finite in {precision}. "
                    "Choose a precision with a wider range (bf16, fp32)."
                )

    def _forget(self) -> None:
        super()._forget()
        self._forward = self.output = None


NO_BENCHMARK = "A step that trains nothing is not a benchmark."
