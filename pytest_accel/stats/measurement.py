"""One measurement: a run with its workload and its machine, of one rank or merged from all ranks; its roofline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from pytest_accel.stats.environment import Environment
from pytest_accel.stats.metric_gates import OF_ANY_STEP, is_cost
from pytest_accel.stats.quantities import seconds
from pytest_accel.stats.run import Run, Scalar

HIGHEST = frozenset({"power_peak_w", "temperature_c"})  # merged by their maximum, not by their mean
NO_ENVIRONMENT = Environment(identity={}, context={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A run, what was measured, and where. Workers send it to the session as it is."""

    run: Run
    work_per_step: float  # of all ranks together, once merged
    unit: str  # of the work: images, tokens
    configuration: Mapping[str, Scalar] = field(default_factory=dict)  # what exactly was measured
    environment: Environment = NO_ENVIRONMENT
    steady: bool = True  # step times had stopped drifting
    # Gated metrics with their tolerated loss; None: the tolerance of the throughput. Not part of the configuration,
    # so that another tolerance makes no baseline stale.
    gates: Mapping[str, float | None] = field(default_factory=dict)
    invalid: str = ""  # why it must not be judged: the device was disturbed
    notes: tuple[str, ...] = ()
    no_energy: str = ""  # why its energy is unknown
    missed: tuple[str, ...] = ()  # metrics that should be judged and were not measured, as sentences
    rank: int = 0
    host: str = ""  # name of the node
    device: str = ""  # equal for ranks of one host that share a device
    binding: str = ""  # CPUs that the process is bound to
    ranks: tuple[Measurement, ...] = ()  # by rank, where there were several


def merge(measurements: Iterable[Measurement]) -> Measurement:
    """Merge what the ranks of one process group measured; their order changes nothing.

    A round is over when its slowest rank is. The fullest device decides whether a batch fits. The environment is rank 0's, with
    the identity of all ranks: one capped device of four is another machine.
    """
    ranks = sorted(measurements, key=lambda each: each.rank)
    if len({len(each.run.rounds_s) for each in ranks}) > 1:
        counts = ", ".join(f"rank {each.rank}: {len(each.run.rounds_s)}" for each in ranks)
        raise ValueError(f"ranks measured different numbers of rounds ({counts})")
    first, runs = ranks[0], [each.run for each in ranks]
    identity = merge_facts([each.environment.identity for each in ranks])
    environment = replace(first.environment, identity=identity)
    return replace(
        first,
        run=replace(
            first.run,
            rounds_s=tuple(map(max, zip(*(run.rounds_s for run in runs), strict=True))),
            environment=environment.key,
            first_step_s=_of(max, (run.first_step_s for run in runs)),
            warmup_s=_of(max, (run.warmup_s for run in runs)),
            peak_memory_bytes=_of(max, (run.peak_memory_bytes for run in runs)),
            loss=_of(fmean, (run.loss for run in runs)),
            metrics=_merge_metrics(ranks),
            rank_step_s=tuple(run.step_time_s for run in runs) if len(runs) > 1 else (),
        ),
        work_per_step=math.fsum(each.work_per_step for each in ranks),
        environment=environment,
        invalid="; ".join(_merge_texts(ranks, lambda each: (each.invalid,))),
        notes=tuple(_merge_texts(ranks, lambda each: each.notes)),
        no_energy="; ".join(_merge_texts(ranks, lambda each: (each.no_energy,))),
        ranks=tuple(replace(each, configuration={}, environment=NO_ENVIRONMENT) for each in ranks)
        if len(ranks) > 1
        else (),
    )


def merge_facts(facts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Merge facts of all ranks: where they differ, all values are named."""
    names = {name: None for each in facts for name in each}  # in their order
    values = {name: {each.get(name, "unknown") for each in facts} for name in names}
    return {name: " | ".join(sorted(found)) for name, found in values.items()}


def _merge_texts(ranks: Sequence[Measurement], texts: Callable[[Measurement], Iterable[str]]) -> list[str]:
    """Return each text once, with its ranks where not all of them have it."""
    found: dict[str, list[int]] = {}
    for each in ranks:
        for text in filter(None, texts(each)):
            found.setdefault(text, []).append(each.rank)
    return [
        text if len(numbers) == len(ranks) else f"rank {', '.join(map(str, numbers))}: {text}"
        for text, numbers in found.items()
    ]


def _of(summary: Callable[[list[Any]], Any], values: Iterable[float | None]) -> Any:  # noqa: ANN401 - int or float
    known = [value for value in values if value is not None]
    return summary(known) if known else None


def _merge_metrics(ranks: Sequence[Measurement]) -> dict[str, float]:
    found: dict[str, float] = {}
    hosts = {each.host for each in ranks}
    for name in sorted({name for each in ranks for name in each.run.metrics}):
        having = [each for each in ranks if name in each.run.metrics]
        values = [each.run.metrics[name] for each in having]
        if name in HIGHEST:
            found[name] = max(values)
        elif not (name.endswith("_j") and is_cost(name)):
            found[name] = fmean(values)
        # Joules are a device's, and a sum has all its parts: one rank of each node reads all devices of the node.
        elif name not in OF_ANY_STEP or {each.host for each in having} == hosts:
            # Where ranks share a device, the lowest rank's reading counts.
            devices = {(each.host, each.device): each.run.metrics[name] for each in reversed(having)}
            found[name] = math.fsum(devices.values())
    return found


# --- roofline ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """What a device can do at most; None where the catalogue does not say it."""

    peak_tflops: float | None  # dense, at one precision
    bandwidth_gb_s: float | None  # of its memory

    def compute_s(self, flops: float | None) -> float:
        """Return the arithmetic alone; 0 where nothing is known."""
        return flops / (self.peak_tflops * 1e12) if flops and self.peak_tflops else 0.0

    def memory_s(self, bytes_moved: float | None) -> float:
        """Return the transfers alone; 0 where nothing is known."""
        return bytes_moved / (self.bandwidth_gb_s * 1e9) if bytes_moved and self.bandwidth_gb_s else 0.0

    def least_s(self, flops: float | None, bytes_moved: float | None) -> float:
        """Return the time of both where they overlap fully; 0 where nothing is known."""
        return max(self.compute_s(flops), self.memory_s(bytes_moved))

    def rates(self, step_s: float, flops: float | None, bytes_moved: float | None) -> dict[str, float]:
        """Return the metrics of a step: operations and bytes a second, and their shares of the peaks."""
        found: dict[str, float] = {}
        if flops:
            found["tflops"] = flops / step_s / 1e12
            if self.peak_tflops:
                found["mfu"] = found["tflops"] / self.peak_tflops
        if bytes_moved:
            found["memory_gb_per_s"] = bytes_moved / step_s / 1e9
            if self.bandwidth_gb_s:  # without bytes it would be MFU under another name
                found["roofline_share"] = self.least_s(flops, bytes_moved) / step_s
        return found

    def impossible(self, step_s: float, flops: float | None, bytes_moved: float | None) -> str:
        """Describe why a step of the fastest round is impossible; empty where it is possible."""
        least_s = self.least_s(flops, bytes_moved)
        if step_s >= least_s:
            return ""
        found = []
        if flops and step_s < self.compute_s(flops):
            found.append(f"{flops / step_s / 1e12:.0f} TFLOP/s of at most {self.peak_tflops:g}")
        if bytes_moved and step_s < self.memory_s(bytes_moved):
            found.append(f"{bytes_moved / step_s / 1e9:.0f} GB/s of at most {self.bandwidth_gb_s:g}")
        return (
            f"impossible: {' and '.join(found)} in the fastest round: a step of {seconds(step_s)} cannot take less than "
            f"{seconds(least_s)}. Is the device synchronized, is the precision the one that was named, and does the step do its work?"
        )
