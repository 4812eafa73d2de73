"""What `train`, `infer` and `converge` share: a step is built, measured with its figures, and ends plainly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_accel.measure.arguments import ArgumentError, check_tolerance
from pytest_accel.measure.errors import CannotFit, OutOfMemory, StepError
from pytest_accel.options import data_root
from pytest_accel.session.accel import Accel
from pytest_accel.session.environment import STEP_FACTS
from pytest_accel.session.fitting import CONFIGURATION, does_not_fit, fail_plainly
from pytest_accel.session.terminal import live_progress
from pytest_accel.stats.measurement import Measurement
from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.rates import check_loader_efficiency, latency, rates_apart
from pytest_accel.workloads.steps import InferStep, TrainStep

Built = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is measured of a built step beside its time."""

    accel: Accel
    step: TrainStep | InferStep
    min_loader_efficiency: float | None = None
    epoch_size: int | None = None
    latency: bool = False
    learnt: Mapping[str, float] = field(default_factory=dict)
    accuracy_tolerance: float = 0.02

    def check(self) -> None:
        """Refuse what cannot be answered, before anything is timed; StepError."""
        for name, value in (
            ("epoch_size", self.epoch_size),
            ("min_loader_efficiency", self.min_loader_efficiency),
        ):
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise StepError(f"{name}: {value!r} is not a positive number.")
        if self.min_loader_efficiency is not None and not self.step.loads:
            raise StepError(
                f"min_loader_efficiency: nothing is loaded here, {self.step.configuration['data']} is synthetic and on the device. "
                "Write source='loader', or give real data with --accel-data."
            )
        if self.min_loader_efficiency is not None and self.step.varied:
            raise StepError(
                f"min_loader_efficiency: the batches of {self.step.configuration['data']} differ in shape, and no few of them say what the "
                "device computes alone. Leave it out, or give all images one shape with image_size=."
            )
        try:
            check_tolerance("accuracy", self.accuracy_tolerance)
        except ArgumentError:
            raise StepError(
                f"accuracy_tolerance: {self.accuracy_tolerance!r} is not a fraction between 0 and 1. Write 0.02."
            ) from None

    @property
    def gates(self) -> dict[str, float | None]:
        apart = self.step.loads and not self.step.varied
        gates: dict[str, float | None] = {"loader_efficiency": None} if apart else {}
        return gates | ({"accuracy": self.accuracy_tolerance} if "accuracy" in self.learnt else {})

    def measure(self, step_s: float) -> dict[str, float]:
        accel, step = self.accel, self.step
        device, ranks, budget_s = accel.device_, accel.ranks, accel.settings.budget_s / 4
        figures: dict[str, float] = {}
        if step.loads or self.latency:
            with live_progress(accel.item.config, accel.item.name) as progress:
                progress.phase("measuring its parts", None)
                figures |= rates_apart(step, device, ranks, step_s=step_s, budget_s=budget_s)
                if self.latency:
                    figures |= latency(step, device, ranks, budget_s=budget_s)
        if self.epoch_size is not None:
            figures["epoch_size"] = self.epoch_size
            figures["epoch_s"] = step_s * self.epoch_size / (step.work * accel.ranks.size)
        return {**figures, **self.learnt}


@contextmanager
def plain_ends(accel: Accel, *, may_not_fit: bool) -> Iterator[None]:
    """What is wrong with arguments, data or memory is said without our traceback."""
    try:
        yield
    except OutOfMemory as error:
        if may_not_fit:
            does_not_fit(accel.item, str(error), nothing_built=isinstance(error, CannotFit))
        fail_plainly(str(error))
    except (StepError, DataError) as error:
        fail_plainly(str(error))


def build_step(
    accel: Accel,
    steps: ExitStack,
    build: Callable[..., Any],
    model: str | Built,
    **choices: Any,  # noqa: ANN401 - of the step
) -> Any:  # noqa: ANN401 - a TrainStep or an InferStep
    """A step on the item's device, of the session's data, that is freed at the end."""
    asked: dict[str, Any] = {
        "data_root": data_root(accel.settings, accel.item.config),
        "data_required": accel.settings.require and accel.settings.data is not None,
    }
    if accel.benchmark.disabled:
        # One step is taken, and what a search found would go with the process.
        asked["cudnn_benchmark"] = False
    if accel.settings.compile != "auto":
        asked["compile"] = None if accel.settings.compile == "off" else accel.settings.compile
    try:
        step = build(model, device=accel.device, ranks=accel.ranks, **{**asked, **choices})
    except ValueError as error:
        fail_plainly(str(error))
    steps.callback(step.close)
    accel.item.stash[CONFIGURATION] = step.configuration
    accel.item.stash[STEP_FACTS] = step.facts
    return step


def measure_step(
    accel: Accel, step: TrainStep | InferStep, figures: Figures, *, loss: Callable[[], float] | None
) -> Measurement | None:
    figures.check()
    found = accel.measure(
        step,
        work=step.work,
        unit=step.unit,
        configuration=step.configuration,
        flops=step.flops_per_step,
        least_flops=step.least_flops_per_step,
        bytes_moved=step.bytes_per_step,
        precision=str(step.configuration["precision"]),
        loss=loss,
        check=step.check,
        metrics=figures.measure,
        gates=figures.gates,
        warmup_steps=step.buffered,
        burst=1 if step.varied else step.burst,  # steps that differ by themselves say nothing of a loader
    )
    if found is not None:  # of all ranks, so that all of them fail or none
        check_loader_efficiency(
            found.run.metrics,
            figures.min_loader_efficiency,
            work=found.work_per_step,
            unit=step.unit,
            resident=found.configuration["data_source"] == "resident",
        )
    return found
