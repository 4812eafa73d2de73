"""Callables behind the fixtures `train`, `infer` and `converge`: build a step, measure it, report its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from statistics import median
from typing import Any, Unpack, cast

import numpy as np
import torch

from pytest_accel.measure.arguments import OutOfMemory, StepError, check_whole
from pytest_accel.measure.device import Device
from pytest_accel.measure.rounds import Ranks, latencies, seconds_per_call
from pytest_accel.options import data_root
from pytest_accel.session.accel import Accel
from pytest_accel.session.device import CONFIGURATION, STEP_FACTS, does_not_fit, fail_plainly, live_progress
from pytest_accel.stats.measurement import Measurement
from pytest_accel.workloads.config import Model, StepOptions, TrainOptions
from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.precision import PRECISIONS
from pytest_accel.workloads.step import InferStep, Step, TrainStep
from pytest_accel.workloads.tasks.images import ImagePlan

PERCENTILES = (50, 90, 99)


class Fixture(ExitStack):
    """A fixture's callable; its steps are closed at the end of the test."""

    def __init__(self, accel: Accel) -> None:
        super().__init__()
        self._accel = accel

    def _build(self, kind: type[Step], model: Model, options: Mapping[str, Any], **counts: int | None) -> Any:
        accel, hardware = self._accel, self._accel.hardware
        if hardware is not None and hardware.vendor == "graphcore":
            from pytest_accel.workloads.ipu import IPU_STEPS

            kind = IPU_STEPS[kind.task]
        defaults: dict[str, Any] = {}
        if accel.benchmark.disabled:
            defaults["cudnn_benchmark"] = False  # one step is taken: a search does not pay
        if accel.settings.compile != "auto":
            defaults["compile"] = None if accel.settings.compile == "off" else accel.settings.compile
        try:
            for name, value in counts.items():
                check_whole(name, value)
            step = kind.build(
                model,
                device=accel.device,
                ranks=accel.ranks,
                memory_gb=hardware.variant.memory_gb if hardware and hardware.variant else None,
                data_root=data_root(accel.settings, accel.item.config),
                data_required=accel.settings.require and accel.settings.data is not None,
                **cast("Any", {**defaults, **options}),
            )
        except ValueError as error:
            fail_plainly(str(error))
        self.callback(step.close)
        accel.item.stash[CONFIGURATION] = step.configuration
        accel.item.stash[STEP_FACTS] = step.facts
        return step

    @contextmanager
    def _plain_failures(self, *, may_not_fit: bool = False) -> Iterator[None]:
        """Report errors of keywords, data and memory without a traceback of ours."""
        try:
            yield
        except OutOfMemory as error:
            if may_not_fit:
                does_not_fit(self._accel.item, str(error))
            fail_plainly(str(error))
        except (StepError, DataError) as error:
            fail_plainly(str(error))

    def _measured(
        self,
        step: Any,  # TrainStep | InferStep
        *,
        loss: Callable[[], float] | None = None,
        min_loader_efficiency: float | None = None,
        epoch_size: int | None = None,
        latency: bool = False,
        learned: Mapping[str, float] | None = None,
        accuracy_tolerance: float | None = None,
    ) -> Measurement | None:
        accel, comparable = self._accel, step.loads and not step.varied
        if min_loader_efficiency is not None and not comparable:
            raise StepError(
                f"min_loader_efficiency: {step.configuration['data']} is synthetic and on the device, or its batches differ "
                "in shape: a loader has no efficiency here. Write source='loader', give real data with --accel-data, or "
                "give all images one shape with image_size=."
            )
        gates: dict[str, float | None] = {"loader_efficiency": None} if comparable else {}
        if learned and "accuracy" in learned:
            gates["accuracy"] = accuracy_tolerance

        def parts(step_s: float) -> dict[str, float]:
            budget_s, metrics = accel.settings.budget_s / 4, dict(learned or {})
            with live_progress(accel.item.config, accel.item.name) as progress:
                if step.loads or latency:
                    progress.phase("measuring loader and latency", None)
                metrics |= loader_metrics(step, accel.device_, accel.ranks, step_s=step_s, budget_s=budget_s)
                if latency:
                    metrics |= latency_metrics(step, accel.device_, accel.ranks, budget_s=budget_s)
            if epoch_size is not None:
                metrics |= {
                    "epoch_size": epoch_size,
                    "epoch_s": step_s * epoch_size / (step.work * accel.ranks.size),
                }
            return metrics

        found = accel.measure(
            step,
            work=step.work,
            unit=step.unit,
            configuration=step.configuration,
            **asdict(step.demand),
            precision=str(step.configuration["precision"]),
            loss=loss,
            check=step.check,
            metrics=parts,
            gates=gates,
            warmup_steps=step.buffered,
            burst=1 if step.varied else step.burst,  # varied steps show no rhythm of a loader
        )
        if (
            found is not None and min_loader_efficiency is not None
        ):  # of all ranks, so that all of them fail or none
            check_loader_efficiency(found, min_loader_efficiency)
        return found


class Train(Fixture):
    def __call__(
        self,
        model: Model,
        *,
        min_loader_efficiency: float | None = None,
        epoch_size: int | None = None,
        may_not_fit: bool = False,
        **options: Unpack[TrainOptions],
    ) -> Measurement | None:
        with self._plain_failures(may_not_fit=may_not_fit):
            step = self._build(TrainStep, model, options, epoch_size=epoch_size)
            return self._measured(
                step,
                loss=step.loss_value,
                min_loader_efficiency=min_loader_efficiency,
                epoch_size=epoch_size,
            )


class Infer(Fixture):
    def __call__(
        self,
        model: Model,
        *,
        min_loader_efficiency: float | None = None,
        epoch_size: int | None = None,
        latency: bool = False,
        may_not_fit: bool = False,
        **options: Unpack[StepOptions],
    ) -> Measurement | None:
        with self._plain_failures(may_not_fit=may_not_fit):
            step = self._build(InferStep, model, options, epoch_size=epoch_size)
            return self._measured(
                step, min_loader_efficiency=min_loader_efficiency, epoch_size=epoch_size, latency=latency
            )


class Converge(Fixture):
    def __call__(
        self,
        model: Model,
        *,
        epochs: int,
        target: float | None = None,
        accuracy_tolerance: float = 0.02,
        epoch_size: int | None = None,
        **options: Unpack[TrainOptions],
    ) -> Measurement | None:
        accel, found = self._accel, None
        with self._plain_failures():
            if not 0 < accuracy_tolerance < 1:  # before hours of training, not after
                raise StepError(
                    f"accuracy_tolerance: {accuracy_tolerance!r} is not a fraction between 0 and 1. Write 0.02."
                )
            if accel.ranks.size > 1 and (options.get("sharding") or not options.get("ddp", True)):
                raise StepError(
                    "ddp=False, sharding: converge evaluates one model that every rank has whole. Leave them out."
                )
            step = self._build(TrainStep, model, options, epochs=epochs, epoch_size=epoch_size)
            if not accel.benchmark.disabled:
                with live_progress(accel.item.config, accel.item.name) as progress:
                    found = train_epochs(
                        step,
                        epochs=epochs,
                        epoch_size=epoch_size,
                        target=target,
                        synchronize=accel.device_.synchronize,
                        report=lambda text: progress.phase(text, None),
                    )
                epoch_steps = steps_for_epochs(step, 1, epoch_size)
                step.configuration |= {"epochs": epochs, "epoch_steps": epoch_steps}
            # No loss: after epochs it is small, and differs by percents between runs that learned as much.
            return self._measured(step, learned=found, accuracy_tolerance=accuracy_tolerance)


def loader_metrics(
    step: TrainStep | InferStep, device: Device, ranks: Ranks, *, step_s: float, budget_s: float
) -> dict[str, float]:
    """Time the loader without the step and the step without the loader; nothing for a step without a loader.

    `loader_efficiency` is the part of the computing rate that is left with the loader, at most 1. Both are timed in one
    process, so that clocks and power limits cancel. Where batches differ in shape, only the loader has a rate.
    """
    if not step.loads:
        return {}
    computed: dict[str, float] = {}
    if not step.varied:
        with step.computing_only():
            compute_s = seconds_per_call(step, device, ranks, budget_s=budget_s)
        computed = {"compute_step_s": compute_s, "loader_efficiency": min(1.0, compute_s / step_s)}
    loader_s = seconds_per_call(
        step.load, device, ranks, budget_s=budget_s, untimed=step.buffered, burst=step.burst
    )
    return {"loader_step_s": loader_s, **computed}


def check_loader_efficiency(found: Measurement, least: float) -> None:
    efficiency = found.run.metrics.get("loader_efficiency", 1.0)
    if efficiency < least:
        loader, compute = (
            found.work_per_step / found.run.metrics[f"{part}_step_s"] for part in ("loader", "compute")
        )
        raise StepError(
            f"min_loader_efficiency: {efficiency:.1%} of what the device computes alone is left with its loader, and "
            f"{least:.0%} were required: the loader alone gives {loader:,.0f} {found.unit}/s, the device alone takes "
            f"{compute:,.0f}. More workers=, decode='device', data on a faster disk, or a larger batch."
        )


def latency_metrics(
    step: TrainStep | InferStep, device: Device, ranks: Ranks, *, budget_s: float
) -> dict[str, float]:
    found = latencies(step, device, ranks, budget_s=budget_s)
    values = np.percentile(found, PERCENTILES, method="inverted_cdf")
    return {f"latency_p{share}_s": float(value) for share, value in zip(PERCENTILES, values, strict=True)}


def train_epochs(
    step: TrainStep,
    *,
    epochs: int,
    epoch_size: int | None,
    target: float | None,
    synchronize: Callable[[], None],
    report: Callable[[str], None],
) -> dict[str, float]:
    """Train from the first step on, evaluate after every epoch, and return the metrics; `epoch_s` is the median after the first."""
    name, evaluates = step.info.name, has_test_set(step)
    if target is not None and not evaluates:  # before hours of training, not after
        raise StepError(
            f"{name}: target={target:g} needs a labelled test set, and {step.configuration['data']} is "
            f"{step.configuration['data_source']} here or is not classified. "
            "Give real data with --accel-data, or leave the target out."
        )
    times_s: list[float] = []  # of training, without evaluation; the first epoch compiles
    accuracies: list[float] = []
    taken = 0
    for epoch in range(1, epochs + 1):
        reached = f", accuracy {accuracies[-1]:.1%}" if accuracies else ""
        report(f"epoch {epoch} of {epochs}{reached}")
        until = steps_for_epochs(step, epoch, epoch_size)
        begin = time.perf_counter()
        for _ in range(until - taken):
            step()
        synchronize()
        times_s.append(time.perf_counter() - begin)
        taken = until
        if evaluates:
            accuracies.append(evaluate(step))
    metrics = {"first_epoch_s": times_s[0]}
    if epochs > 1:
        metrics["epoch_s"] = median(times_s[1:])
    if accuracies:
        metrics["accuracy"] = accuracies[-1]
    if target is not None:
        until = next((count for count, each in enumerate(accuracies, start=1) if each >= target), 0)
        if not until:
            raise StepError(
                f"{name}: an accuracy of {max(accuracies):.2%} in {epochs} epochs does not reach the target of {target:.2%}. "
                "Did numerics change, or is the learning rate wrong for this batch?"
            )
        metrics["time_to_target_s"] = sum(times_s[:until])
    return metrics


def has_test_set(step: Step) -> bool:
    plan, order = step.parts.plan, step.parts.pipeline.order
    return step.evaluates and order is not None and isinstance(plan, ImagePlan) and not plan.reconstructs


def steps_for_epochs(step: Step, epochs: int, epoch_size: int | None) -> int:
    """Return the steps that take all samples so many times; synthetic data has no end, and needs a size."""
    parts = step.parts
    if parts.pipeline.order is not None:
        return -(-parts.pipeline.order.steps_for_epochs(epochs) // parts.config.micro_batches)
    if epoch_size is None:
        raise StepError(
            f"epoch_size: data={parts.plan.name!r} is synthetic here and has no epochs. "
            "Say how many images count as one, or give real data with --accel-data."
        )
    return -(-epochs * epoch_size // (step.work * parts.config.ranks.size))


def evaluate(step: Step) -> float:
    """Return the accuracy of the model on the test set. Waits for the device.

    Eager, whatever the step does: it is not timed, and eval mode would be compiled again.
    """
    parts = step.parts
    model = parts.model
    ranks, device = parts.config.ranks, parts.config.device
    if ranks.size > 1 and torch.distributed.is_initialized():
        for buffer in model.buffers():  # running statistics: DDP shares them at the start of its next step
            torch.distributed.broadcast(buffer, 0)
    right, seen = torch.zeros((), device=device, dtype=torch.long), 0
    model.eval()
    try:
        with torch.inference_mode(), PRECISIONS[parts.config.precision].autocast(device):
            for inputs, labels in parts.plan.test_batches(parts.config):
                right += (model(inputs).argmax(-1) == labels).sum()
                seen += len(labels)
    finally:
        model.train()
    found = ranks.gather([int(right), seen])
    return sum(part[0] for part in found) / sum(part[1] for part in found)
