"""The object behind the `accel` fixture: one step in, one measurement out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_accel.core.environment import Environment
from pytest_accel.core.grammar import PlatformName
from pytest_accel.core.runs import Run
from pytest_accel.measure.device import Device
from pytest_accel.measure.measurement import Measurement, Scalar
from pytest_accel.measure.question import Question, QuestionError
from pytest_accel.measure.steps import Step, Timed, settle, time_rounds
from pytest_accel.measure.timer import SynchronisingTimer
from pytest_accel.options import Settings
from pytest_accel.platforms.environment import read_environment
from pytest_accel.platforms.machine import Device as Hardware
from pytest_accel.session.placement import PLACEMENT
from pytest_accel.session.terminal import live_progress

if TYPE_CHECKING:
    import torch
    from pytest_benchmark.fixture import BenchmarkFixture

MEASUREMENT = pytest.StashKey[Measurement]()
EXTRA_INFO = pytest.StashKey[dict[str, Any]]()  # what pytest-benchmark's JSON will hold of it
MEASURING_OFF = pytest.StashKey[bool]()  # by --benchmark-disable
SESSION_ID = pytest.StashKey[str]()
CALL_MEASURE = "call accel.measure(step, work=..., unit=...)"  # what a benchmark must do


@dataclass(slots=True, kw_only=True)
class Accel:
    """Measures one step of yours on the device of this item's platform."""

    platform: PlatformName
    settings: Settings
    device_: Device
    hardware: Hardware | None  # None on the host
    item: pytest.Item
    benchmark: BenchmarkFixture
    timer: SynchronisingTimer

    @property
    def device(self) -> torch.device:
        """Where to put models and data."""
        import torch

        self.device_.prepare()
        return torch.device(self.device_.name)

    def measure(
        self,
        step: Step,
        *,
        work: float,
        unit: str,
        configuration: Mapping[str, Scalar] | None = None,
        flops: float | None = None,
        precision: str | None = None,
        loss: Callable[[], float] | None = None,
        check: Callable[[], None] | None = None,
    ) -> Measurement | None:
        """Settle `step`, time rounds of it, and leave the result for the gate.

        `work` is what one step does, counted in `unit` (images, tokens, ...). `configuration` says what
        exactly is measured: a baseline of another configuration is stale. `flops` of a step give its
        rate, and with `precision` its share of the device's dense peak (MFU). `loss` is asked once, after
        a fixed number of steps, and `check` at the end: it raises if the step did no real work. None
        comes back where measuring is switched off by --benchmark-disable.
        """
        asked = self._checked(step, work, unit, configuration)
        if MEASUREMENT in self.item.stash:
            pytest.fail("a benchmark measures one step, and this one has: write a second test", pytrace=False)
        self.device_.prepare()
        if self.benchmark.disabled:
            self.item.stash[MEASURING_OFF] = True
            self.benchmark.pedantic(step)  # type: ignore[no-untyped-call]
            return None
        try:
            timed, loss_value = self._time(step, loss)
        except QuestionError as error:
            pytest.fail(f"accel.measure: {error}", pytrace=False)
        if check:
            check()
        if loss_value is not None and not math.isfinite(loss_value):
            pytest.fail(f"accel.measure: the loss is {loss_value}: this step trains nothing", pytrace=False)
        environment = self._environment()
        run = Run(
            session=self.item.config.stash[SESSION_ID],
            rounds_s=timed.rounds_s,
            steps_per_round=timed.steps_per_round,
            environment=environment.key,
            first_step_s=timed.settled.first_step_s,
            warmup_s=timed.settled.warmup_s,
            peak_memory_bytes=timed.peak_memory_bytes,
            loss=loss_value,
            metrics=self._metrics(timed, flops, precision),
        )
        measurement = Measurement(
            run=run,
            work_per_step=asked.work,
            unit=asked.unit,
            configuration=asked.configuration,
            environment=environment,
            steady=timed.steady,
        )
        extra_info = {"platform": str(self.platform), **measurement.to_plain()}
        self.benchmark.extra_info["accel"] = self.item.stash[EXTRA_INFO] = extra_info
        self.item.stash[MEASUREMENT] = measurement
        return measurement

    def _checked(self, step: object, work: object, unit: object, configuration: object) -> Question:
        try:
            return Question.of(step, work, unit, configuration)
        except QuestionError as error:
            pytest.fail(f"accel.measure: {error}", pytrace=False)

    def _time(self, step: Step, loss: Callable[[], float] | None) -> tuple[Timed, float | None]:
        losses: list[float] = []
        with live_progress(self.item.config, self.item.name) as progress:
            settled = settle(
                step,
                self.device_,
                progress,
                max_s=self.settings.warmup_s,
                after_pilot=lambda: losses.append(float(loss())) if loss else None,
            )
            timed = time_rounds(
                step,
                self.device_,
                self.benchmark,
                self.timer,
                progress,
                settled=settled,
                budget_s=self.settings.budget_s,
                slowdown=self.settings.slowdown,
            )
        return timed, losses[0] if losses else None

    def _metrics(self, timed: Timed, flops: float | None, precision: str | None) -> dict[str, float]:
        metrics = {"host_cpu_s_per_step": timed.host_cpu_s, **self._rates(timed, flops, precision)}
        if (
            self.settings.slowdown
        ):  # asked for; a device with idle time or a power limit gives some of it back
            metrics["slowdown_felt"] = 1 - timed.settled.step_s / timed.step_s
        return metrics

    def _rates(self, timed: Timed, flops: float | None, precision: str | None) -> dict[str, float]:
        """Arithmetic per second, and its share of the peak; a share above one is impossible, and said."""
        if not flops:
            return {}
        tflops = flops / min(timed.rounds_s) / 1e12
        variant = self.hardware.variant if self.hardware else None
        peak = variant.peak_tflops(precision) if variant and precision else None
        if peak and tflops > peak:
            pytest.fail(
                f"impossible: {tflops:.0f} TFLOP/s in the fastest round, where the dense {precision} peak of "
                f"{self.platform.device} is {peak:g}. Is the device synchronised, and does the step do its work?",
                pytrace=False,
            )
        rate = {"tflops": flops / timed.step_s / 1e12}
        return rate | ({"mfu": rate["tflops"] / peak} if peak else {})

    def _environment(self) -> Environment:
        cpu = self.item.config.stash[PLACEMENT].machine.cpu
        return read_environment(
            device=self.device_.name,
            device_index=self.hardware.index if self.hardware else 0,
            threads=self.settings.threads,
            device_count=self.platform.devices,
            uuid=(self.hardware.uuid or None) if self.hardware else None,
            cpu_model=f"{cpu.name} ({cpu.model})",
        )
