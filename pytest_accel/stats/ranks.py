"""One run out of what its ranks measured: the slowest one's time, the work of all, each device counted once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from pytest_accel.stats.metrics import OF_ANY_STEP, is_cost
from pytest_accel.stats.runs import log_step_time

ENERGY_SUFFIX = "_j"  # of metrics that belong to a device and not to a process: joules
HIGHEST = frozenset({"power_peak_w", "temperature_c"})  # of all devices, and no mean of them


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What one rank of a gang measured, by its own clock."""

    rank: int  # from 0
    host: str  # the name of its node
    device: str  # the same text for ranks of one host that share a device
    rounds_s: tuple[float, ...]  # mean step time of each round
    work: float  # of this rank, per step
    first_step_s: float | None = None  # which compiles and allocates
    warmup_s: float | None = None  # until steps were steady
    peak_memory_bytes: int | None = None  # on its device
    loss: float | None = None  # of its own batches
    binding: str = ""  # to which CPUs, or why not
    metrics: Mapping[str, float] = field(default_factory=dict)  # its own
    invalid: str = ""  # why its figures mean nothing
    notes: tuple[str, ...] = ()  # what should be known of them
    no_energy: str = ""  # why its energy is not known

    @property
    def step_time_s(self) -> float:
        return math.exp(log_step_time(self.rounds_s))

    def to_plain(self) -> dict[str, Any]:
        lists = {"rounds_s": list(self.rounds_s), "notes": list(self.notes)}
        return asdict(self) | lists | {"metrics": dict(self.metrics)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> RankResult:
        tuples = {"rounds_s": tuple(plain["rounds_s"]), "notes": tuple(plain.get("notes", ()))}
        return cls(**{**plain, **tuples})


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What the gang as a whole measured."""

    rounds_s: tuple[float, ...]
    work: float
    first_step_s: float | None
    warmup_s: float | None
    peak_memory_bytes: int | None
    loss: float | None
    metrics: Mapping[str, float]
    rank_step_s: tuple[float, ...]  # empty for one rank, whose time is the run's
    invalid: str = ""
    notes: tuple[str, ...] = ()
    no_energy: str = ""


def merge(results: Iterable[RankResult]) -> Merged:
    """Put the ranks of one gang together; the order in which they come changes nothing.

    A round is over when its slowest rank is: throughput is the work of all over that time. The loss is
    the mean, as each rank saw batches of its own. Peak memory is that of the fullest device: the one
    which decides whether a batch fits.
    """
    ranks = sorted(results, key=lambda result: result.rank)
    _check(ranks)
    return Merged(
        rounds_s=tuple(map(max, zip(*(result.rounds_s for result in ranks), strict=True))),
        work=math.fsum(result.work for result in ranks),
        first_step_s=_of(max, (result.first_step_s for result in ranks)),
        warmup_s=_of(max, (result.warmup_s for result in ranks)),
        peak_memory_bytes=_of(max, (result.peak_memory_bytes for result in ranks)),
        loss=_of(fmean, (result.loss for result in ranks)),
        metrics=_merge_metrics(ranks),
        rank_step_s=tuple(result.step_time_s for result in ranks) if len(ranks) > 1 else (),
        # One disturbed rank holds up all of them.
        invalid="; ".join(_said(ranks, lambda result: (result.invalid,))),
        notes=tuple(_said(ranks, lambda result: result.notes)),
        no_energy="; ".join(_said(ranks, lambda result: (result.no_energy,))),
    )


def merge_facts(facts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Facts of all ranks as one: a gang whose devices differ is not the gang whose devices are alike."""
    names = {name: None for each in facts for name in each}  # in their order
    values = {name: {each.get(name, "unknown") for each in facts} for name in names}
    return {name: " | ".join(sorted(found)) for name, found in values.items()}


def _check(ranks: Sequence[RankResult]) -> None:
    if not ranks:
        raise ValueError("no rank to merge")
    numbers = [result.rank for result in ranks]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"a rank came twice: {numbers}")
    if len({len(result.rounds_s) for result in ranks}) > 1:
        counts = ", ".join(f"rank {result.rank}: {len(result.rounds_s)}" for result in ranks)
        raise ValueError(f"ranks measured different numbers of rounds ({counts})")


def _said(ranks: Sequence[RankResult], words: Callable[[RankResult], Iterable[str]]) -> list[str]:
    """What ranks say, each text once, with the ranks that say it where others do not."""
    said: dict[str, list[int]] = {}
    for result in ranks:
        for text in filter(None, words(result)):
            said.setdefault(text, []).append(result.rank)
    return [
        text if len(numbers) == len(ranks) else f"rank {', '.join(map(str, numbers))}: {text}"
        for text, numbers in said.items()
    ]


def _of(summary: Callable[[list[Any]], Any], values: Iterable[float | None]) -> Any:  # noqa: ANN401 - int or float
    known = [value for value in values if value is not None]
    return summary(known) if known else None


def _merge_metrics(ranks: Sequence[RankResult]) -> dict[str, float]:
    names = sorted({name for result in ranks for name in result.metrics})
    told = {name: [result for result in ranks if name in result.metrics] for name in names}
    return {name: _merge_metric(name, those) for name, those in told.items() if _is_whole(name, those, ranks)}


def _is_whole(name: str, those: Sequence[RankResult], ranks: Sequence[RankResult]) -> bool:
    """Whether a sum of energies has all its parts: that of one node of two is no figure of the gang."""
    ours = name in OF_ANY_STEP and name.endswith(ENERGY_SUFFIX)  # one rank of each node reads all its devices
    return not ours or {each.host for each in those} == {each.host for each in ranks}


def _merge_metric(name: str, ranks: Sequence[RankResult]) -> float:
    if name in HIGHEST:
        return max(result.metrics[name] for result in ranks)
    if not (name.endswith(ENERGY_SUFFIX) and is_cost(name)):
        return fmean(result.metrics[name] for result in ranks)
    devices: dict[tuple[str, str], float] = {}
    for result in ranks:  # by rank: where ranks share a device, the lowest one's reading counts
        devices.setdefault((result.host, result.device), result.metrics[name])
    return math.fsum(devices.values())
