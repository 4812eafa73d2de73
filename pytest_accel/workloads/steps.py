"""One step of training or of inference, as a plain callable that a benchmark times.

Inside `__call__` nothing of ours waits for the device: no `.item()`, no print; a loader's batches cross beside the steps.
Two models wait by themselves: DINO's loss for the host to match boxes, torchvision's detectors to learn how many boxes there are.
What reads results (`loss_value`, `check`) is called outside the timed rounds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import torch

from pytest_accel.measure.errors import StepError
from pytest_accel.workloads.accumulating import accumulate
from pytest_accel.workloads.assembly import Parts, assemble
from pytest_accel.workloads.choices import Choices, Model
from pytest_accel.workloads.compiling import compiled_apart
from pytest_accel.workloads.evidence import local, sample, sample_tensors, tensors_in
from pytest_accel.workloads.fitting import explained_out_of_memory
from pytest_accel.workloads.judging import Judge
from pytest_accel.workloads.optimizers import (
    OPTIMIZERS,
    OptimizerFactory,
    Updates,
    build_updates,
    callable_name,
    clip_gradients,
)
from pytest_accel.workloads.parallel import data_parallel
from pytest_accel.workloads.plan import Loss, NamedLoss
from pytest_accel.workloads.replaying import Replay, make_capturable
from pytest_accel.workloads.sharding import blocks_of, check_shardable, check_sharding, shard
from pytest_accel.workloads.stepping import Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_accel.workloads.data.sources import Batch


class TrainStep(Step):
    """Forward, loss, backward, update: one batch of training."""

    def __init__(
        self,
        parts: Parts,
        *,
        updates: Updates,
        loss: Loss | None,
        label_smoothing: float,
        ddp: bool,
        sharding: str | None,
    ) -> None:
        super().__init__(parts)
        model, precision, device = parts.model, parts.precision, parts.device
        named = parts.plan.loss(label_smoothing) if loss is None else NamedLoss(callable_name(loss), loss)
        loss_function = named.function
        self._loss_function = loss_function
        if loss is not None:
            self._known_as = None  # it may have products of its own
        if sharding is not None:
            check_shardable(model, self.info.task, precision)
            # While it is whole. What it moves is not known: weights come from other devices, in another type.
            self._demand = replace(self._counted(), bytes_moved=None)
            shard(model, parts.ranks, precision, device, seed=parts.seed)
        trainable = {
            name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        if not trainable:
            raise StepError(f"{self.info.name}: no parameter requires a gradient. {NO_BENCHMARK}")
        optimizer = updates.optimizer
        if optimizer == "auto":  # what the papers of these families train with
            optimizer = "sgd" if self.info.convolutional else "adamw"
        self._optimizer, described = build_updates(updates, optimizer, trainable, device=device)
        if parts.replay:
            make_capturable(self._optimizer)
            self._replay = Replay(self._train, batches=parts.micro_batches, device=device)
        self._clip = updates.clip
        self._scaler = precision.scaler(device)
        if isinstance(optimizer, str) and not precision.scales_loss:  # a scaler skips updates
            self._states = OPTIMIZERS[optimizer].states
        self.configuration |= described | {"loss": named.name, "label_smoothing": label_smoothing}
        if not ddp:
            self.configuration["ddp"] = False
        if sharding is not None:
            self.configuration["sharding"] = sharding
        self._wrapped: Any = data_parallel(model, parts.ranks) if ddp and sharding is None else model
        self._forward_loss: Any = self._forward_with(loss_function, parts, sharded=sharding is not None)
        self.judge: Judge | None = Judge(
            model=model,
            feed=parts.feed,
            feeding=parts.feeding,
            plan=parts.plan,
            destination=parts.destination,
            precision=precision,
            ranks=parts.ranks,
            micro_batches=parts.micro_batches,
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
        optimizer: str | OptimizerFactory = "auto",
        lr: float | None = None,
        weight_decay: float | None = None,
        lr_scale: Mapping[str, float] | None = None,
        clip: float | None = None,
        loss: Loss | None = None,
        label_smoothing: float = 0.0,
        micro_batch_size: int | None = None,
        ddp: bool = True,
        sharding: str | None = None,
        **choices: Any,  # noqa: ANN401 - the fields of Choices, listed once there
    ) -> Self:
        """Build a training step; what is wrong with an argument is said before anything is built.

        `loss` takes what the model returned and the targets; by default it is the task's own. `lr_scale` multiplies
        the learning rate of parameters by the beginning of their names, the longest that fits: `{"backbone.": 0.1}`.
        `clip` is the largest norm of all gradients together. With `micro_batch_size` a step takes its batch in so
        large parts, adds up their gradients and updates once.
        In a gang the ranks train one model, in DistributedDataParallel; with `ddp=False` each trains its
        own, side by side; with `sharding="fsdp"` each has a part of it, for what does not fit one device. All other arguments are those of `Choices`.
        """
        updates = Updates(optimizer=optimizer, lr=lr, weight_decay=weight_decay, lr_scale=lr_scale, clip=clip)
        updates.check()
        chosen = Choices.of(model, choices)
        check_sharding(sharding, ranks=chosen.ranks, ddp=ddp, precision=chosen.precision)
        with explained_out_of_memory(chosen, micro_batch_size):
            return cls._of(
                # Not held here: a traceback would keep the model alive.
                assemble(
                    chosen,
                    task="train",
                    micro_batch_size=micro_batch_size,
                    states=updates.states,
                    sharded=sharding is not None,
                    foreign=loss is not None or not isinstance(optimizer, str),
                ),
                updates=updates,
                loss=loss,
                label_smoothing=label_smoothing,
                ddp=ddp,
                sharding=sharding,
            )

    def _forward_with(self, loss_function: Loss, parts: Parts, *, sharded: bool) -> Loss:
        """Return what a step calls with inputs and targets: the model and its loss, compiled."""
        wrapped, precision, device = self._wrapped, parts.precision, parts.device
        reconstructs, micro_batches = parts.plan.reconstructs, parts.micro_batches
        # Of shards, blocks one by one: between them weights are gathered and let go.
        apart = blocks_of(wrapped) if sharded else compiled_apart(parts.model)
        if apart is not None:
            self._compiled.apart(apart)
            loss_function = self._compiled(loss_function)

        def loss_of(output: Any, inputs: Any, targets: Any) -> Any:  # noqa: ANN401 - torch is untyped here
            loss = loss_function(output, inputs if reconstructs else targets)
            return loss if micro_batches == 1 else loss / micro_batches

        def in_shards(inputs: Any, targets: Any) -> Any:  # noqa: ANN401 - as above
            output = wrapped(inputs)  # its weights come in the right type
            with precision.autocast(device):
                return loss_of(output, inputs, targets)

        def forward_loss(inputs: Any, targets: Any) -> Any:  # noqa: ANN401 - as above
            with precision.autocast(device):
                return loss_of(wrapped(inputs), inputs, targets)

        if sharded:
            return in_shards
        # Forward and loss in one graph: the softmax over a vocabulary fuses with its upcast. The optimizer
        # stays out: it is one fused kernel already. Compiled from outside DDP: dynamo then cuts the graph at
        # DDP's buckets, and reducing gradients still overlaps the backward pass.
        return forward_loss if apart is not None else self._compiled(forward_loss)

    def __call__(self) -> None:
        self.steps += 1
        self.loss = self._run(self._train)

    def _train(self, batches: Iterator[Batch]) -> Any:  # noqa: ANN401 - a tensor
        self._optimizer.zero_grad(set_to_none=True)
        loss = accumulate(lambda: self._backward(batches), self._micro_batches, self._wrapped)
        with self._explained():
            self._update()
        return loss

    def _backward(self, batches: Iterator[Batch]) -> Any:  # noqa: ANN401 - as above
        """One batch, or micro-batch, forward and backward; return its part of the loss."""
        inputs = targets = loss = None
        try:
            inputs, targets = next(batches)
            loss = self._forward_loss(inputs, targets)
            # Disabled (all but fp16), the scaler passes the loss and the step straight on. Enabled, it
            # skips steps that overflowed; with a fused optimizer that too is decided on the device.
            self._scaler.scale(loss).backward()
        except RuntimeError as error:
            inputs = targets = loss = None  # the traceback keeps this frame, and with it a whole graph
            self._explain(error)
            raise
        return loss.detach()

    def _update(self) -> None:
        if self._clip is not None:
            self._scaler.unscale_(self._optimizer)
            clip_gradients(self._trainable, self._clip)
        self._scaler.step(self._optimizer)
        self._scaler.update()

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
        if not any(gradient is not None and bool(local(gradient).any()) for gradient in gradients):
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
        self._optimizer = self._scaler = self._forward_loss = self._wrapped = self.loss = self.judge = None
        self._trainable, self._sampled, self._before = (), {}, {}


class InferStep(Step):
    """One batch through a model in eval mode, in inference mode, with weights in the precision itself."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        apart = compiled_apart(parts.model)
        self._compiled.apart(apart or ())
        self._forward: Any = parts.model if apart is not None else self._compiled(parts.model)
        self.output: Any = None  # of the last step, on the device
        if parts.replay:
            self._replay = Replay(self._infer, batches=1, device=parts.device)
        self._begin(parts)

    @classmethod
    def build(cls, model: Model, **choices: Any) -> Self:  # noqa: ANN401 - the fields of Choices
        """Build an inference step; the arguments are those of `Choices`."""
        chosen = Choices.of(model, choices)
        with explained_out_of_memory(chosen):
            return cls._of(assemble(chosen, task="infer"))

    def __call__(self) -> None:
        self.steps += 1
        self.output = self._run(self._infer)

    def _infer(self, batches: Iterator[Batch]) -> Any:  # noqa: ANN401 - what the model returns
        inputs = None
        try:
            inputs, _ = next(batches)
            with torch.inference_mode():
                return self._forward(inputs)
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
