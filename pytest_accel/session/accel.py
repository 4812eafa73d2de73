"""The `accel` fixture: one step in, one measurement out."""

from __future__ import annotations

import math
import platform as host
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_accel.measure import arguments, rounds
from pytest_accel.measure.arguments import OutOfMemory, Workload
from pytest_accel.measure.device import CudaDevice, Device
from pytest_accel.measure.profile import profile_step
from pytest_accel.measure.rounds import ALONE, Ranks, Step, SynchronizingTimer, Timed
from pytest_accel.measure.validity import Validity
from pytest_accel.options import Settings
from pytest_accel.platforms.catalogue import DetectedDevice, PlatformName
from pytest_accel.platforms.environment import compiled_counts
from pytest_accel.session.device import BINDING, environment_of, fail_plainly, live_progress
from pytest_accel.session.observation import Observation
from pytest_accel.stats.environment import fingerprint
from pytest_accel.stats.kernels import KernelTable
from pytest_accel.stats.measurement import Measurement, Roofline, merge
from pytest_accel.stats.run import Scalar
from pytest_accel.storage.codec import encode

if TYPE_CHECKING:
    import torch
    from pytest_benchmark.fixture import BenchmarkFixture

SCHEMA_VERSION = 1  # of `extra_info.accel` in pytest-benchmark's JSON
MEASUREMENT = pytest.StashKey[Measurement]()
SESSION_ID = pytest.StashKey[str]()
PROFILE_ABOVE_S = pytest.StashKey[float | None]()  # of the worker's order
MEASURED_NOTHING = "it takes `accel` and measured nothing: call accel.measure(step, work=..., unit=...)"

Metrics = Callable[[float], Mapping[str, float]] | Mapping[str, float] | None


@dataclass(slots=True, kw_only=True, repr=False)
class Accel:
    """Measures one step of yours on the device of this item's platform."""

    platform: PlatformName
    settings: Settings
    device_: Device
    hardware: DetectedDevice | None  # None on the host
    item: pytest.Item
    benchmark: BenchmarkFixture
    timer: SynchronizingTimer
    ranks: Ranks = field(default=ALONE)  # that measure this step together

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
        least_flops: float | None = None,
        bytes_moved: float | None = None,
        precision: str | None = None,
        loss: Callable[[], float] | None = None,
        check: Callable[[], None] | None = None,
        metrics: Metrics = None,
        gates: Mapping[str, float | None] | None = None,
        warmup_steps: int = 0,
        burst: int = 1,
    ) -> Measurement | None:
        """Warm `step` up, time rounds of it, and leave the result for the gate.

        work, unit: what one step of this rank does, such as 256 images; the work of all ranks is summed.
        configuration: what exactly is measured. A baseline of another configuration is stale.
        flops, precision: operations of a step give its rate and, with the precision, its share of the dense peak (MFU).
        least_flops: operations that no algorithm saves, where `flops` are more. A faster step than these allow is an
            error of measurement, and fails.
        bytes_moved: bytes that a step moves through the device's memory at least, for the roofline.
        loss: called once after a fixed number of steps. check: called at the end; raises if the step did no real work.
        metrics: further figures by name, or a function that returns them for the seconds of a step, on every rank. Their mean
            over ranks is stored with the run; a name that ends in `_j` is summed over devices.
        gates: metrics judged as throughput is, with the tolerated relative loss: `gates={"accuracy": 0.02}`; None: the
            tolerance of the throughput. More is better, except for times (`_s`) and energies (`_j`).
        warmup_steps: least number of steps before the timed ones, such as those whose batch a loader has ready.
        burst: how many steps may find their batch ready together; where they do, rounds are whole bursts.

        Returns None where measuring is switched off by --benchmark-disable.
        """
        with self._failing_together(), _plain_arguments():
            workload = arguments.check_arguments(
                step,
                work=work,
                unit=unit,
                configuration=configuration,
                gates=gates,
                demands={"flops": flops, "least_flops": least_flops, "bytes_moved": bytes_moved},
                counts={"warmup_steps": (warmup_steps, 0), "burst": (burst, 1)},
            )
        self._check_agreement(workload)
        if MEASUREMENT in self.item.stash:
            pytest.fail("a benchmark measures one step, and this one has: write a second test", pytrace=False)
        self.device_.prepare()
        if self.benchmark.disabled:
            self.benchmark.pedantic(step)  # type: ignore[no-untyped-call]
            return None
        with _plain_arguments():
            timed, observed, loss_value = self._time(step, workload, loss, warmup_steps, burst)
        with self._failing_together():
            if check:
                check()
            if loss_value is not None and not math.isfinite(loss_value):
                fail_plainly(f"accel.measure: the loss is {loss_value}: this step trains nothing")
            rates = self._rates(timed, flops, least_flops, bytes_moved, precision)
        figures = {**timed.run.metrics, **self._metrics(step, timed), **rates, **observed.figures}
        # An injected slowdown is no part of what is measured beside the rounds.
        step_s = timed.warm_up.step_s if self.settings.slowdown else timed.step_s
        # Not failing together: they may use collectives. A rank that fails ends the group.
        with _plain_arguments():
            figures |= arguments.check_metrics(metrics(step_s) if callable(metrics) else metrics or {})
        kernels, note = self._profiled(timed)
        run = replace(timed.run, loss=loss_value, metrics=figures, kernels=kernels)
        observed = replace(observed, notes=(*observed.notes, note)) if note else observed
        measurement = self._merged(workload, replace(timed, run=run), observed)
        self.benchmark.extra_info["accel"] = extra_info(self.platform, measurement)
        self.item.stash[MEASUREMENT] = measurement
        return measurement

    def _time(
        self, step: Step, workload: Workload, loss: Callable[[], float] | None, warmup_steps: int, burst: int
    ) -> tuple[Timed, Validity, float | None]:
        losses: list[float] = []
        compiled = compiled_counts()
        observation = Observation(self.item.config, self.hardware, self.ranks)
        with (
            observation,
            live_progress(self.item.config, self.item.name) as progress,
            rounds.frozen_garbage() as freeze,
        ):
            warm = rounds.warm_up(
                step,
                self.device_,
                progress,
                max_s=self.settings.warmup_s,
                after_pilot=lambda: losses.append(float(loss())) if loss else None,
                pause=freeze,  # right before the rounds a loader would run ahead, and a device cool down
                at_least=warmup_steps,
                burst=burst,
                first=rounds.COMPILING if workload.configuration.get("compile") else rounds.FIRST_STEP,
                ranks=self.ranks,
            )
            timed = rounds.time_rounds(
                step,
                self.device_,
                self.benchmark,
                self.timer,
                progress,
                warm_up=warm,
                budget_s=self.settings.budget_s,
                session=self.item.config.stash[SESSION_ID],
                slowdown=self.settings.slowdown,
                window=observation,
                ranks=self.ranks,
            )
            observed = observation.observed(timed.steps)
        counts = {name: count - compiled.get(name, 0.0) for name, count in compiled_counts().items()}
        # No graph is a fact, unless another benchmark of this process may have compiled the step.
        is_known = not compiled.get("compiled_graphs")
        counts = {
            name: count for name, count in counts.items() if count or (name == "compiled_graphs" and is_known)
        }
        timed = replace(timed, run=replace(timed.run, metrics={**timed.run.metrics, **counts}))
        return timed, observed, losses[0] if losses else None

    def _merged(self, workload: Workload, timed: Timed, observed: Validity) -> Measurement:
        """Return what all ranks measured as one measurement, the same on every rank."""
        mine = Measurement(
            run=timed.run,
            work_per_step=workload.work,
            unit=workload.unit,
            configuration=workload.configuration,
            environment=environment_of(self.item, self.settings, self.platform, self.device_, self.hardware),
            steady=timed.warm_up.steady,
            invalid="; ".join(observed.invalid),
            notes=observed.notes,
            no_energy=observed.no_energy,
            rank=self.ranks.rank,
            host=host.node(),
            device=(self.hardware and self.hardware.uuid) or self.device_.name,
            binding=self.item.config.stash.get(BINDING, ""),
        )
        merged = merge(self.ranks.gather(mine))
        gates, missed = arguments.select_gates(
            self.settings.gate,
            workload.gates,
            merged.run.metrics,
            tolerance=self.settings.fixed_tolerance,
            origin=self.settings.origin("gate"),
            reasons={"energy_per_step_j": merged.no_energy},
        )
        with _plain_arguments():  # of the merged metrics: the same on every rank
            arguments.check_gated(gates, merged.run.metrics)
        steady = merged.steady and rounds.steady_rounds(merged.run.rounds_s)
        return replace(merged, steady=steady, gates=gates, missed=tuple(missed))

    def _metrics(self, step: Step, timed: Timed) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if isinstance(self.device_, CudaDevice):  # others launch nothing, or wait for it
            step_s, budget_s = timed.warm_up.step_s, self.settings.budget_s / 4
            metrics["launch_s"] = rounds.launch_time_s(step, self.device_, step_s=step_s, budget_s=budget_s)
        if self.settings.slowdown:
            # As measured; a device with idle time or a power limit gives some of the delay back.
            metrics["slowdown_felt"] = 1 - timed.warm_up.step_s / timed.step_s
        return metrics

    def _profiled(self, timed: Timed) -> tuple[KernelTable | None, str]:
        """Return the kernel table of the timed step, or why there is none, where the session wants one."""
        above_s = self.item.config.stash.get(PROFILE_ABOVE_S, None)
        if above_s is None or self.ranks.slowest(timed.run.step_time_s) <= above_s:
            return None, ""
        with live_progress(self.item.config, self.item.name) as progress:
            progress.phase("profiling", None)
            return profile_step(
                timed.timed_step,
                self.device_,
                self.ranks,
                step_s=timed.run.step_time_s,
                burst=timed.warm_up.burst,
            )

    def _rates(
        self,
        timed: Timed,
        flops: float | None,
        least_flops: float | None,
        bytes_moved: float | None,
        precision: str | None,
    ) -> dict[str, float]:
        """Return operations and bytes a second with their shares of the device's peaks; fail where they are impossible."""
        variant = self.hardware.variant if self.hardware else None
        roofline = Roofline(
            peak_tflops=variant.peaks_tflops.get(precision) if variant and precision else None,
            bandwidth_gb_s=variant.bandwidth_gb_s if variant else None,
        )
        impossible = roofline.impossible(
            min(timed.run.rounds_s), flops if least_flops is None else least_flops, bytes_moved
        )
        if impossible:
            fail_plainly(impossible)
        return roofline.rates(timed.step_s, flops, bytes_moved)

    @contextmanager
    def _failing_together(self) -> Iterator[None]:
        """Let what fails on one rank fail on all: otherwise the others wait in the next collective."""
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            # Errors that were written for users are shown as they are.
            is_plain = isinstance(error, pytest.fail.Exception | arguments.StepError)
            text = str(error) if is_plain else "".join(traceback.format_exception(error))
            fail_where_one_does(self.ranks, text, out_of_memory=isinstance(error, OutOfMemory))
            raise
        fail_where_one_does(self.ranks, "")

    def _check_agreement(self, workload: Workload) -> None:
        """Fail unless all ranks have one unit, one configuration and one set of gates."""
        mine = [workload.unit, fingerprint(dict(workload.configuration)), fingerprint(dict(workload.gates))]
        found = self.ranks.gather(mine)
        other = next((rank for rank, each in enumerate(found) if each != found[0]), None)
        if other is not None:
            fail_plainly(
                f"accel.measure: unit, configuration or gates differ between rank 0 and rank {other}. They say what "
                "all ranks measure together: leave out what is one rank's own."
            )


def extra_info(platform: PlatformName, measurement: Measurement) -> dict[str, Any]:
    """Return `extra_info.accel` of pytest-benchmark's JSON: the measurement, and what readers would compute first."""
    return {
        **encode(measurement),
        "schema_version": SCHEMA_VERSION,
        "platform": str(platform),
        "throughput": measurement.run.throughput(measurement.work_per_step),
        "unit": f"{measurement.unit}/s",
        "work_unit": measurement.unit,
        "steady": measurement.steady,
        "step_time_s": measurement.run.step_time_s,
        "stall_share": measurement.run.stall_share,
    }


@contextmanager
def _plain_arguments() -> Iterator[None]:
    """Fail without a traceback where an argument is wrong."""
    try:
        yield
    except arguments.ArgumentError as error:
        fail_plainly(f"accel.measure: {error}")


def fail_where_one_does(ranks: Ranks, problem: str, *, out_of_memory: bool = False) -> None:
    """Exchange problems, and fail with the same text on every rank if any has one; a single rank fails by itself.

    Where nothing but memory ran out, it ran out on all of them.
    """
    found = ranks.gather((problem, out_of_memory))
    problems = {rank: text for rank, (text, _) in enumerate(found) if text}
    if not problems or ranks.size == 1:
        return
    everywhere = len(problems) == ranks.size and len(set(problems.values())) == 1
    by_rank = "\n".join(f"rank {rank}: {text}" for rank, text in problems.items())
    text = problems[0] if everywhere else by_rank
    if all(found[rank][1] for rank in problems):
        raise OutOfMemory(text)
    fail_plainly(text)
