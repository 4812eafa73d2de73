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

from pytest_accel.measure.device import Device
from pytest_accel.measure.errors import OutOfMemory, StepError
from pytest_accel.measure.measurement import Measurement
from pytest_accel.measure.pacing import steady_rounds
from pytest_accel.measure.question import Question, QuestionError, check_demand, check_steps
from pytest_accel.measure.ranks import Alone, Ranks
from pytest_accel.measure.steps import Step, Timed, garbage_spared, launching_s, settle, time_rounds
from pytest_accel.measure.timer import SynchronisingTimer
from pytest_accel.platforms.machine import Device as Hardware
from pytest_accel.platforms.names import PlatformName
from pytest_accel.session.binding import BINDING
from pytest_accel.session.environment import environment_of
from pytest_accel.session.exclusivity import alone_on_devices
from pytest_accel.session.failing import fail_plainly
from pytest_accel.session.observing import Observation, Observed
from pytest_accel.session.own_metrics import check_gated, checked_gates, checked_metrics, gates_asked
from pytest_accel.session.rates import rates
from pytest_accel.session.terminal import live_progress
from pytest_accel.settings import Settings
from pytest_accel.stats.environment import Environment, fingerprint
from pytest_accel.stats.keys import Scalar
from pytest_accel.stats.ranks import RankResult, merge, merge_facts
from pytest_accel.stats.runs import Run

if TYPE_CHECKING:
    import torch
    from pytest_benchmark.fixture import BenchmarkFixture

MEASUREMENT = pytest.StashKey[Measurement]()
EXTRA_INFO = pytest.StashKey[dict[str, Any]]()  # what pytest-benchmark's JSON will hold of it
MEASURING_OFF = pytest.StashKey[bool]()  # by --benchmark-disable
SESSION_ID = pytest.StashKey[str]()
CALL_MEASURE = "call accel.measure(step, work=..., unit=...)"  # what a benchmark must do


@dataclass(slots=True, kw_only=True, repr=False)
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

    def __repr__(self) -> str:  # as tracebacks show it
        return f"<accel on {self.platform}>"

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
        metrics: Callable[[float], Mapping[str, float]] | Mapping[str, float] | None = None,
        gates: Mapping[str, float | None] | None = None,
        settling_steps: int = 0,
        burst: int = 1,
    ) -> Measurement | None:
        """Settle `step`, time rounds of it, and leave the result for the gate.

        `work` is what one step does, counted in `unit` (images, tokens, ...); in a gang, what this rank's
        step does: the work of all ranks is summed. `configuration` says what
        exactly is measured: a baseline of another configuration is stale. `flops` of a step give its
        rate, and with `precision` its share of the device's dense peak (MFU); `bytes_moved`, which it moves
        through the device's memory at the least, how near it is to the roofline. More than the device can do
        is an error of measuring, and fails; `least_flops` are those that no algorithm saves, where `flops` are
        more. `loss` is asked once, after a fixed number of steps, and `check` at the end: it raises if the step
        did no real work. None comes back where measuring is switched off by --benchmark-disable.

        `metrics` are further figures by name, such as an accuracy: a mapping, or a function that is asked for it
        once after that, on every rank, with the seconds of a step. Their mean over the ranks is stored with the
        run, or the sum over devices of a name that ends in `_j`. `gates` names those that are judged as
        throughput is, with the relative loss that is tolerated: `gates={"accuracy": 0.02}`; None: as much as of
        the throughput, and never less than the default unless the session says so. A gated metric is
        positive, and more of it is better, but for times (`_s`) and energies (`_j`), of which an increase is
        tolerated. `settling_steps` are taken before the timed ones at the least: as many as may find their work
        done already, because a loader had it ready. `burst` is how many may find it done together: as many as a loader
        has workers, which hand over at once. Where they do, rounds are whole bursts.
        """
        with self._failing_together():
            asked, gated = self._checked(step, work, unit, configuration, gates)
            with _plain_questions():
                check_demand(flops=flops, least_flops=least_flops, bytes_moved=bytes_moved)
                check_steps(settling_steps=(settling_steps, 0), burst=(burst, 1))
        self._check_agreement(asked, gated)
        if MEASUREMENT in self.item.stash:
            pytest.fail("a benchmark measures one step, and this one has: write a second test", pytrace=False)
        self.device_.prepare()
        if self.benchmark.disabled:
            self.item.stash[MEASURING_OFF] = True
            self.benchmark.pedantic(step)  # type: ignore[no-untyped-call]
            return None
        with alone_on_devices(self.item, self.settings, self.ranks, self.hardware):
            with _plain_questions():
                timed, observed, loss_value = self._time(step, loss, settling_steps, burst)
            with self._failing_together():
                if check:
                    check()
                if loss_value is not None and not math.isfinite(loss_value):
                    pytest.fail(
                        f"accel.measure: the loss is {loss_value}: this step trains nothing", pytrace=False
                    )
                arithmetic = self._rates(timed, flops, least_flops, bytes_moved, precision)
            figures = {**self._metrics(step, timed), **arithmetic, **observed.metrics}
            # Not together: they may wait for all ranks themselves. One that fails leaves, and the gang is ended.
            figures |= self._own_metrics(metrics, timed)
        measurement = self._merged(asked, timed, loss_value, replace(observed, metrics=figures), gated)
        extra_info = {"platform": str(self.platform), **measurement.to_plain()}
        self.benchmark.extra_info["accel"] = self.item.stash[EXTRA_INFO] = extra_info
        self.item.stash[MEASUREMENT] = measurement
        return measurement

    def _merged(
        self,
        asked: Question,
        timed: Timed,
        loss: float | None,
        observed: Observed,
        own_gates: Mapping[str, float | None],
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
            metrics=observed.metrics,
            invalid=observed.invalid,
            notes=observed.notes,
            no_energy=observed.no_energy,
        )
        results = tuple(RankResult.from_plain(plain) for plain in self.ranks.gather(mine.to_plain()))
        merged = merge(results)
        gates, missed = gates_asked(
            self.settings, merged.metrics, own_gates, {"energy_per_step_j": merged.no_energy}
        )
        with _plain_questions():  # of the merged metrics: the same on every rank
            check_gated(gates, merged.metrics)
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
            gates=gates,
            invalid=merged.invalid,
            notes=merged.notes,
            no_energy=merged.no_energy,
            missed=tuple(missed),
        )

    @contextmanager
    def _failing_together(self) -> Iterator[None]:
        """Let what fails on one rank fail on all: alone it would leave the others in the next collective."""
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            fail_where_one_does(self.ranks, _words(error), out_of_memory=isinstance(error, OutOfMemory))
            raise
        fail_where_one_does(self.ranks, "")

    def _check_agreement(self, asked: Question, gates: Mapping[str, float | None]) -> None:
        """One measurement has one unit, one configuration and one set of gates."""
        told = self.ranks.gather(
            [asked.unit, fingerprint(dict(asked.configuration)), fingerprint(dict(gates))]
        )
        other = next((rank for rank, each in enumerate(told) if each != told[0]), None)
        if other is not None:
            pytest.fail(
                f"accel.measure: unit, configuration or gates differ between rank 0 and rank {other}. They say what "
                "all ranks measure together: leave out what is one rank's own.",
                pytrace=False,
            )

    def _checked(
        self, step: object, work: object, unit: object, configuration: object, gates: object
    ) -> tuple[Question, dict[str, float | None]]:
        with _plain_questions():
            return Question.of(step, work, unit, configuration), checked_gates(gates)

    def _time(
        self, step: Step, loss: Callable[[], float] | None, settling_steps: int, burst: int
    ) -> tuple[Timed, Observed, float | None]:
        losses: list[float] = []
        observation = Observation.of(self.item.config, self.device_, self.hardware, self.ranks)
        with (
            observation,
            live_progress(self.item.config, self.item.name) as progress,
            garbage_spared() as spare,
        ):
            settled = settle(
                step,
                self.device_,
                progress,
                max_s=self.settings.warmup_s,
                after_pilot=lambda: losses.append(float(loss())) if loss else None,
                pause=spare,  # before the rounds it would have a loader's workers run ahead, and a device cool down
                at_least=settling_steps,
                burst=burst,
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
                window=observation,
                ranks=self.ranks,
            )
            observed = observation.observed(timed.steps)
        return timed, observed, losses[0] if losses else None

    def _metrics(self, step: Step, timed: Timed) -> dict[str, float]:
        metrics = {"host_cpu_s_per_step": timed.host_cpu_s}
        if self.platform.device != "cpu":  # which launches nothing
            step_s, budget_s = timed.settled.step_s, self.settings.budget_s / 4
            metrics["launch_s"] = launching_s(step, self.device_, step_s=step_s, budget_s=budget_s)
        if self.settings.slowdown:
            # What was asked for; a device with idle time or a power limit gives some of it back.
            metrics["slowdown_felt"] = 1 - timed.settled.step_s / timed.step_s
        return metrics

    def _own_metrics(
        self, ask: Callable[[float], Mapping[str, float]] | Mapping[str, float] | None, timed: Timed
    ) -> dict[str, float]:
        # A delay on purpose is no part of what is measured beside the rounds.
        step_s = timed.settled.step_s if self.settings.slowdown else timed.step_s
        with _plain_questions():
            return checked_metrics(ask(step_s) if callable(ask) else ask or {})

    def _rates(
        self,
        timed: Timed,
        flops: float | None,
        least_flops: float | None,
        bytes_moved: float | None,
        precision: str | None,
    ) -> dict[str, float]:
        """Arithmetic and traffic a second, and their shares of what the device can do; the impossible is said."""
        found, impossible = rates(
            timed_step_s=timed.step_s,
            fastest_step_s=min(timed.rounds_s),
            flops=flops,
            bytes_moved=bytes_moved,
            precision=precision,
            variant=self.hardware.variant if self.hardware else None,
            least_flops=least_flops,
            device=self.platform.device,
        )
        if impossible:
            fail_plainly(impossible)
        return found

    def _shared_environment(self) -> Environment:
        """Rank 0's, with the identity of all: one capped device of four makes another gang."""
        mine = environment_of(self.item, self.settings, self.platform, self.device_, self.hardware)
        told = self.ranks.gather([dict(mine.identity), dict(mine.context)])
        return Environment(identity=merge_facts([identity for identity, _ in told]), context=told[0][1])


@contextmanager
def _plain_questions() -> Iterator[None]:
    """What no measurement can answer to is said without our traceback."""
    try:
        yield
    except QuestionError as error:
        fail_plainly(f"accel.measure: {error}")


def fail_where_one_does(ranks: Ranks, problem: str, *, out_of_memory: bool = False) -> None:
    """Exchange problems, and fail in the same words on every rank if any has one; a single rank is left to itself.

    Where it is memory that ran out, and nothing else, it ran out on all of them.
    """
    told = ranks.gather((problem, out_of_memory))
    problems = {rank: text for rank, (text, _) in enumerate(told) if text}
    if not problems or ranks.size == 1:
        return
    everywhere = len(problems) == ranks.size and len(set(problems.values())) == 1
    named = "\n".join(f"rank {rank}: {text}" for rank, text in problems.items())
    words = problems[0] if everywhere else named
    if all(told[rank][1] for rank in problems):
        raise OutOfMemory(words)
    fail_plainly(words)


def _words(error: BaseException) -> str:
    """An error that was written for users as it is; any other with its traceback, which the other ranks show too."""
    if isinstance(error, pytest.fail.Exception | StepError):
        return str(error)
    return "".join(traceback.format_exception(error))
