"""Figures of a built step beside its throughput: what its loader and its arithmetic do alone, and its latency."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_accel.measure.device import Device
from pytest_accel.measure.errors import StepError
from pytest_accel.measure.parts import latencies, percentile, seconds_per_call
from pytest_accel.measure.ranks import Ranks
from pytest_accel.workloads.steps import InferStep, TrainStep

PERCENTILES = (50, 90, 99)


def rates_apart(
    step: TrainStep | InferStep, device: Device, ranks: Ranks, *, step_s: float, budget_s: float
) -> dict[str, float]:
    """Time the loader without the step and the step without the loader; nothing for a step that loads nothing.

    `loader_efficiency` is the part of the rate of arithmetic that is left when batches have to be loaded: 1 where the
    loader hides behind the step, and never more: what is above is the noise of two timings. It pairs real data with data that lies ready, in one process, minutes apart at
    most: what slows both, a clock or a cap, is not in it. Where batches differ in shape, the few that lie ready cost what
    chance made them: only the loader has a rate then.
    """
    if not step.loads:
        return {}
    compute_s = None
    if not step.varied:
        with step.computing_only():
            compute_s = seconds_per_call(step, device, ranks, budget_s=budget_s)
    loader_s = seconds_per_call(
        step.load, device, ranks, budget_s=budget_s, untimed=step.buffered, burst=step.burst
    )
    if compute_s is None:
        return {"loader_step_s": loader_s}
    return {
        "loader_step_s": loader_s,
        "compute_step_s": compute_s,
        "loader_efficiency": min(1.0, compute_s / step_s),
    }


def check_loader_efficiency(
    rates: Mapping[str, float], least: float | None, *, work: float, unit: str, resident: bool
) -> None:
    """Raise StepError where less of the arithmetic's rate is left than was asked for."""
    share = rates.get("loader_efficiency")
    if least is None or share is None or share >= least:
        return
    loader, compute = (work / rates[f"{part}_step_s"] for part in ("loader", "compute"))
    raise StepError(
        f"min_loader_efficiency: {share:.1%} of what the device computes alone is left with its loader, and {least:.0%} were asked for: "
        f"the loader alone gives {loader:,.0f} {unit}/s, the device alone takes {compute:,.0f}. "
        + (
            "Its samples are picked and cut on the device itself: a larger batch, or augment=False."
            if resident
            else "More workers=, decode='device', or data on a faster disk."
        )
    )


def latency(
    step: TrainStep | InferStep, device: Device, ranks: Ranks, *, budget_s: float
) -> dict[str, float]:
    """Percentiles of single steps, each waited for."""
    found = latencies(step, device, ranks, budget_s=budget_s)
    return {f"latency_p{share}_s": percentile(found, share / 100) for share in PERCENTILES}
