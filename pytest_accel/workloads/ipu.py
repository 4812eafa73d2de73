"""Steps on a Graphcore IPU through poptorch, which compiles a whole step and returns when the device has done it.

poptorch comes with the Poplar SDK. This was tried with a module that has its interface, and never on an IPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import poptorch  # type: ignore[import-not-found, unused-ignore]
import torch
from torch import nn

from pytest_accel.workloads.build import Parts, assemble, batch_configuration
from pytest_accel.workloads.config import Loss, OptimizerFactory, StepConfig, Task
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.optimizers import OPTIMIZERS, optimizer_options
from pytest_accel.workloads.step import InferStep, Step, TrainStep

# Compiled into the step: gradients of fp16 below 6e-8 are zero.
LOSS_SCALING = 128.0
NOT_HERE = ("compile", "lr_scale", "clip", "sharding", "replay")


class IpuStep(Step):
    """A step whose model and batches are on the host, from which poptorch copies them."""

    evaluates: ClassVar[bool] = False  # its weights are on the device, and inference would be compiled again
    _program: Any  # of poptorch

    @staticmethod
    def _assemble(config: StepConfig) -> Parts:
        """Build the model on the host, and whole batches: poptorch cuts them into micro-batches."""
        for name in NOT_HERE:
            value = getattr(config, name)
            if value and value != "auto":
                raise ValueError(f"{name}: {value!r} is not possible on an IPU. Leave it out.")
        host = replace(
            config,
            device=torch.device("cpu"),
            micro_batch_size=None,
            memory_format="contiguous",
            compile=None,
            autocast=False,
        )
        parts = assemble(host)
        own = {"runtime": "poptorch", **batch_configuration(config)}
        return replace(parts, configuration=parts.configuration | own)

    def _options(self) -> Any:
        options = poptorch.Options()
        options.randomSeed(self._config.seed)
        return options

    def _call(self, *tensors: Any) -> Any:
        try:
            return self._program(*tensors)
        except poptorch.Error as error:  # running out of memory, too
            raise RuntimeError(f"poptorch: {error}") from error

    def _release(self) -> None:
        self._program.destroy()
        super()._release()


class IpuTrainStep(IpuStep, TrainStep):
    """Forward, loss, backward and update in one call; gradients of micro-batches are added up on the device."""

    @staticmethod
    def _build_optimizer(
        config: StepConfig, optimizer: str | OptimizerFactory, named: Mapping[str, Any]
    ) -> tuple[Any, dict[str, str | float]]:
        if not isinstance(optimizer, str):
            raise ValueError(  # noqa: TRY004 - a benchmark's choice, not a caller's type
                f"optimizer: poptorch has {', '.join(OPTIMIZERS)} for an IPU. Write one of these names."
            )
        options = optimizer_options(optimizer, lr=config.lr, weight_decay=config.weight_decay)
        if config.precision == "fp16":
            options["loss_scaling"] = LOSS_SCALING
        built = getattr(poptorch.optim, OPTIMIZERS[optimizer].torch_name)([*named.values()], **options)
        return built, {"optimizer": optimizer, "optimizer_kernel": "poptorch", **options}

    def _compile_forward(self, parts: Parts, loss_function: Loss) -> Loss:
        options = self._options()
        micro_batch_size = parts.configuration.get("micro_batch_size") or parts.config.batch_size
        options.Training.gradientAccumulation(parts.config.batch_size // int(micro_batch_size))
        options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
        model = _WithLoss(parts.model, loss_function, reconstructs=parts.plan.reconstructs)
        self._program = poptorch.trainingModel(model, options=options, optimizer=self._optimizer)
        return self._call

    def _train(self, batches: Iterator[Batch]) -> Any:
        return self._call(*next(batches))

    def check(self) -> None:
        self._program.copyWeightsToHost()
        super().check()

    def _has_gradient(self) -> bool:
        return True  # they stay on the device: that the parameters move is what can be seen


class IpuInferStep(IpuStep, InferStep):
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._program = poptorch.inferenceModel(parts.model, options=self._options())

    def _infer(self, batches: Iterator[Batch]) -> Any:
        inputs, _ = next(batches)
        return self._call(inputs)


class _WithLoss(nn.Module):
    """A model that returns its loss, as poptorch trains it."""

    def __init__(self, model: nn.Module, loss: Loss, *, reconstructs: bool) -> None:
        super().__init__()
        self.model, self._loss, self._reconstructs = model, loss, reconstructs

    def forward(self, inputs: Any, targets: Any) -> Any:
        loss = self._loss(self.model(inputs), inputs if self._reconstructs else targets)
        return poptorch.identity_loss(loss, reduction="none")  # it is reduced already


IPU_STEPS: Mapping[Task, type[Step]] = {"train": IpuTrainStep, "infer": IpuInferStep}
