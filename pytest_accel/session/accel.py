"""The object behind the `accel` fixture: one step in, one measurement out."""

from __future__ import annotations

import math
import platform as host
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_accel.core.environment import Environment, fingerprint
from pytest_accel.core.grammar import PlatformName
from pytest_accel.core.pacing import steady_rounds
from pytest_accel.core.ranks import RankResult, merge, merge_facts
from pytest_accel.core.runs import Run
from pytest_accel.measure.device import Device
from pytest_accel.measure.measurement import Measurement, Scalar
from pytest_accel.measure.question import Question, QuestionError
from pytest_accel.measure.ranks import Alone, Ranks
from pytest_accel.measure.steps import Step, Timed, settle, time_rounds
from pytest_accel.measure.timer import SynchronisingTimer
from pytest_accel.options import Settings
from pytest_accel.platforms.environment import read_environment
from pytest_accel.platforms.machine import Device as Hardware
from pytest_accel.session.binding import BINDING
from pytest_accel.session.failing import fail_plainly
from pytest_accel.session.placement import PLACEMENT
from pytest_accel.session.terminal import live_progress
from pytest_accel.workloads.errors import StepError

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
    ranks: Ranks = field(default_factory=Alone)  # those that measure this step together

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

        `work` is what one step does, counted in `unit` (images, tokens, ...); in a gang, what this rank's
        step does: the work of all ranks is summed. `configuration` says what
        exactly is measured: a baseline of another configuration is stale. `flops` of a step give its
        rate, and with `precision` its share of the device's dense peak (MFU). `loss` is asked once, after
        a fixed number of steps, and `check` at the end: it raises if the step did no real work. None
        comes back where measuring is switched off by --benchmark-disable.
        """
        with self._failing_together():
            asked = self._checked(step, work, unit, configuration)
        self._check_agreement(asked)
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
            fail_plainly(f"accel.measure: {error}")
        with self._failing_together():
            if check:
                check()
            if loss_value is not None and not math.isfinite(loss_value):
                pytest.fail(
                    f"accel.measure: the loss is {loss_value}: this step trains nothing", pytrace=False
                )
            metrics = self._metrics(timed, flops, precision)
        measurement = self._merged(asked, timed, loss_value, metrics)
        extra_info = {"platform": str(self.platform), **measurement.to_plain()}
        self.benchmark.extra_info["accel"] = self.item.stash[EXTRA_INFO] = extra_info
        self.item.stash[MEASUREMENT] = measurement
        return measurement

    def _merged(
        self, asked: Question, timed: Timed, loss: float | None, metrics: Mapping[str, float]
    ) -> Measurement:
        """What all ranks measured as one, the same on every rank."""
        mine = RankResult(
            rank=self.ranks.rank,
            host=host.node(),
            device=(self.hardware and self.hardware.uuid) or self.device_.name,
            rounds_s=timed.rounds_s,
            work=asked.work,
            first_step_s=timed.settled.first_step_s,
            warmup_s=timed.settled.warmup_s,
            peak_memory_bytes=timed.peak_memory_bytes,
            loss=loss,
            binding=self.item.config.stash.get(BINDING, ""),
            metrics=metrics,
        )
        results = tuple(RankResult.from_plain(plain) for plain in self.ranks.gather(mine.to_plain()))
        merged = merge(results)
        environment = self._shared_environment()
        return Measurement(
            run=Run(
                session=self.item.config.stash[SESSION_ID],
                rounds_s=merged.rounds_s,
                steps_per_round=timed.steps_per_round,
                environment=environment.key,
                first_step_s=merged.first_step_s,
                warmup_s=merged.warmup_s,
                peak_memory_bytes=merged.peak_memory_bytes,
                loss=merged.loss,
                metrics=merged.metrics,
                rank_step_s=merged.rank_step_s,
            ),
            work_per_step=merged.work,
            unit=asked.unit,
            configuration=asked.configuration,
            environment=environment,
            steady=timed.settled.steady and steady_rounds(merged.rounds_s),
            ranks=results if len(results) > 1 else (),
        )

    @contextmanager
    def _failing_together(self) -> Iterator[None]:
        """Let what fails on one rank fail on all: alone it would leave the others in the next collective."""
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            fail_where_one_does(self.ranks, _words(error))
            raise
        fail_where_one_does(self.ranks, "")

    def _check_agreement(self, asked: Question) -> None:
        """One measurement has one unit and one configuration."""
        told = self.ranks.gather([asked.unit, fingerprint(dict(asked.configuration))])
        other = next((rank for rank, each in enumerate(told) if each != told[0]), None)
        if other is not None:
            pytest.fail(
                f"accel.measure: unit or configuration differ between rank 0 and rank {other}. They say what "
                "all ranks measure together: leave out what is one rank's own.",
                pytrace=False,
            )

    def _checked(self, step: object, work: object, unit: object, configuration: object) -> Question:
        try:
            return Question.of(step, work, unit, configuration)
        except QuestionError as error:
            fail_plainly(f"accel.measure: {error}")

    def _time(self, step: Step, loss: Callable[[], float] | None) -> tuple[Timed, float | None]:
        losses: list[float] = []
        with live_progress(self.item.config, self.item.name) as progress:
            settled = settle(
                step,
                self.device_,
                progress,
                max_s=self.settings.warmup_s,
                after_pilot=lambda: losses.append(float(loss())) if loss else None,
                ranks=self.ranks,
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
                ranks=self.ranks,
            )
        return timed, losses[0] if losses else None

    def _metrics(self, timed: Timed, flops: float | None, precision: str | None) -> dict[str, float]:
        metrics = {"host_cpu_s_per_step": timed.host_cpu_s, **self._rates(timed, flops, precision)}
        if self.settings.slowdown:
            # What was asked for; a device with idle time or a power limit gives some of it back.
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

    def _shared_environment(self) -> Environment:
        """Rank 0's, with the identity of all: one capped device of four makes another gang."""
        mine = self._environment()
        told = self.ranks.gather([dict(mine.identity), dict(mine.context)])
        return Environment(identity=merge_facts([identity for identity, _ in told]), context=told[0][1])

    def _environment(self) -> Environment:
        cpu = self.item.config.stash[PLACEMENT].machine.cpu
        binding = self.item.config.stash.get(BINDING, "")
        read = read_environment(
            device=self.device_.name,
            device_index=self.hardware.index if self.hardware else 0,
            threads=self.settings.threads,
            device_count=self.platform.devices,
            uuid=(self.hardware.uuid or None) if self.hardware else None,
            cpu_model=f"{cpu.name} ({cpu.model})",
        )
        if self.ranks.size == 1 and binding.startswith("none"):
            return read
        return replace(read, context={**read.context, "binding": binding})


def fail_where_one_does(ranks: Ranks, problem: str) -> None:
    """Exchange problems, and fail in the same words on every rank if any has one; a single rank is left to itself."""
    problems = {rank: text for rank, text in enumerate(ranks.gather(problem)) if text}
    if not problems or ranks.size == 1:
        return
    everywhere = len(problems) == ranks.size and len(set(problems.values())) == 1
    named = "\n".join(f"rank {rank}: {text}" for rank, text in problems.items())
    fail_plainly(problems[0] if everywhere else named)


def _words(error: BaseException) -> str:
    """An error that was written for users as it is; any other with its traceback, which the other ranks show too."""
    if isinstance(error, pytest.fail.Exception | StepError):
        return str(error)
    return "".join(traceback.format_exception(error))
