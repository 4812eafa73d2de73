"""What others published and what a site expects: figures that a measurement can stand beside."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, TypeAlias

from pytest_accel.platforms import names as grammar
from pytest_accel.stats.quantities import percent, si
from pytest_accel.stats.run import Scalar, is_real

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_accel.storage.claims import Claim

Better: TypeAlias = Literal["more", "less"]

# What a figure can be of, and which way is better; None for what describes a platform or a model, and is not measured.
METRICS: Mapping[str, Better | None] = {
    "throughput": "more",
    "first_epoch_throughput": "more",
    "accuracy": "more",
    "work_per_energy": "more",
    "training_time": "less",
    "epoch_time": "less",
    "compile_time": "less",
    "energy": "less",
    "tdp": None,
    "memory": None,
    "bandwidth": None,
    "links": None,
    "cores": None,
    "parameters": None,
}

# A figure keeps the unit of its study: none is converted, so that it can be found there.
UNITS = (
    "images/s",
    "tokens/s",
    "sequences/s",
    "images/Wh",
    "tokens/Wh",
    "sequences/Wh",
    "Wh/epoch",
    "Wh",
    "s",
    "min",
    "h",
    "%",
    "fraction",
    "x",
    "W",
    "GB",
    "GB/s",
    "Gbit/s",
    "count",
    "million",
)

RELATIVE_ONLY = "relative-only"
PER_DEVICE = "per-device"
# Every flag, and what it says of a figure.
FLAGS: Mapping[str, str] = {
    "contradictory": "Other figures of the study, or the code that it describes, disagree with it. It is shown, and "
    "nothing is gated on it.",
    "implausible": "The hardware or the workload can hardly have given it. It is shown, and nothing is gated on it.",
    PER_DEVICE: "It is of one of the platform's devices, and what we measure is of all of them: it stands beside nothing.",
    RELATIVE_ONLY: "Only its ratio to the same study's figure on another platform can be compared: it is a ratio "
    "itself, or the study does not say how much work it stands for.",
    "approximate": "The study gives it as about so much.",
    "read-as-sequences": "The study counts tokens or items; the number is one of sequences, and so is the unit here.",
    "read-as-tf32": "The study says FP32 and names no setting of convolutions, which torch computes in TF32 unless "
    "told not to: we read it so, and an id that names the precision says tf32.",
}
DOUBTS = frozenset({"contradictory", "implausible"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number that somebody published."""

    id: str  # a path: source, then what was measured, then the platform
    table: str  # where in the source: table, figure or text
    row: str
    platform: str
    workload: str
    configuration: Mapping[str, Scalar]  # what the study says of it, and no more
    metric: str  # one of METRICS
    unit: str  # one of UNITS
    value: float
    flags: tuple[str, ...] = ()  # of FLAGS
    note: str = ""

    @property
    def is_absolute(self) -> bool:
        """Whether it can be compared with what another machine measured."""
        return not {RELATIVE_ONLY, PER_DEVICE} & set(self.flags) and METRICS[self.metric] is not None

    @property
    def is_doubtful(self) -> bool:
        """Whether it is known to be wrong somehow: shown, and never gated on."""
        return not DOUBTS.isdisjoint(self.flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A study: where its figures come from, and what it claims of them."""

    key: str  # the first segment of its figures' ids
    title: str
    authors: str
    year: int
    venue: str
    kind: str
    note: str
    figures: tuple[Figure, ...]
    claims: tuple[Claim, ...]


def linked(figures: Iterable[Figure], link: str) -> tuple[Figure, ...]:
    """The figure whose id the link is, and those whose ids begin with it, by whole segments."""
    return tuple(figure for figure in figures if figure.id == link or figure.id.startswith(f"{link}/"))


def similar_links(figures: Iterable[Figure], link: str) -> list[str]:
    """For a link that leads nowhere: those that it may have meant, best first."""
    segments = (figure.id.split("/") for figure in figures)
    beginnings = {"/".join(each[:length]) for each in segments for length in range(1, len(each) + 1)}
    return grammar.closest(link, sorted(beginnings))


# What a study and a benchmark of ours name alike, and what makes their rates differ.
_COMPARED = ("batch_size", "precision", "workers")


def differences(figure: Figure, configuration: Mapping[str, Scalar]) -> str:
    """What of a figure's configuration is another one here, in words; empty where all that both name is equal."""
    told = []
    for name in _COMPARED:
        there, here = figure.configuration.get(name), configuration.get(name)
        same = there == here or ((there, here) == ("fp32", "tf32") and "read-as-tf32" in figure.flags)
        if there is not None and here is not None and not same:
            told.append(f"{name.replace('_', ' ')} {there} there, {here} here")
    if figure.configuration.get("data") not in (None, "synthetic") and not is_real(configuration):
        told.append("synthetic data here")
    return ", ".join(told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A number of this machine, in the words that figures use."""

    metric: str
    value: float
    unit: str

    @property
    def is_comparable(self) -> bool:
        return math.isfinite(self.value) and self.value > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A published figure beside a measured one."""

    figure: Figure
    measured: Measured

    @property
    def ratio(self) -> float:
        """Above 1 this machine is better, whichever way better lies."""
        mine, theirs = self.measured.value, self.figure.value
        return theirs / mine if METRICS[self.figure.metric] == "less" else mine / theirs


def beside(measured: Iterable[Measured], figures: Iterable[Figure]) -> tuple[Beside, ...]:
    """Each figure that is absolute, with what was measured of the same metric in the same unit; in their order."""
    known = {(each.metric, each.unit): each for each in measured if each.is_comparable}
    return tuple(
        Beside(figure=figure, measured=known[figure.metric, figure.unit])
        for figure in figures
        if figure.is_absolute and (figure.metric, figure.unit) in known
    )


# --- what a site expects ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A value and how far a measurement may lie from it, as ReFrame writes it: value, lower, upper, unit."""

    value: float
    lower: float | None  # a fraction of the value, at most 0; None is no bound
    upper: float | None  # a fraction of the value, at least 0; None is no bound
    unit: str
    origin: str  # who expects it: a place in a file, or the id of a figure

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise ValueError(f"the value {self.value!r} is not a positive number. Write one, such as 4200.")
        if self.lower is not None and not -1 <= self.lower <= 0:
            raise ValueError(
                f"the lower bound {self.lower!r} is not a fraction between -1 and 0. Write -0.05 for 5 % less."
            )
        if self.upper is not None and not (self.upper >= 0 and math.isfinite(self.upper)):
            raise ValueError(
                f"the upper bound {self.upper!r} is not a fraction of at least 0. Write 0.1 for 10 % more."
            )
        if not self.unit.strip():
            raise ValueError('the unit is empty. Write it as the table shows it, such as "images/s".')

    @property
    def least(self) -> float:
        return -math.inf if self.lower is None else self.value * (1 + self.lower)

    @property
    def most(self) -> float:
        return math.inf if self.upper is None else self.value * (1 + self.upper)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A measurement outside what was expected; `str()` says by how much, and outside which bound."""

    expectation: Expectation
    measured: Measured

    @property
    def bound(self) -> Literal["lower", "upper"]:
        return "lower" if self.measured.value < self.expectation.least else "upper"

    @property
    def relative(self) -> float:
        """How far from the value: -0.07 is 7 % less."""
        return self.measured.value / self.expectation.value - 1

    def __str__(self) -> str:
        expected = self.expectation
        if self.bound == "lower":
            assert expected.lower is not None
            side, allowed, limit = "below", expected.lower, f"at least {si(expected.least)}"
        else:
            assert expected.upper is not None
            side, allowed, limit = "above", expected.upper, f"at most {si(expected.most)}"
        return (
            f"{si(self.measured.value)} {expected.unit} is {percent(abs(self.relative))} {side} the "
            f"{si(expected.value)} of {expected.origin}, outside its {self.bound} bound of {percent(abs(allowed))} "
            f"({limit})"
        )


def check(expectation: Expectation, measured: Measured) -> Shortfall | None:
    """None where the measurement lies within both bounds, which belong to what is allowed."""
    if measured.unit != expectation.unit:
        raise ValueError(
            f"{expectation.origin} expects {expectation.unit}, and what was measured is in {measured.unit}. "
            f'Write the value in "{measured.unit}".'
        )
    if not math.isfinite(measured.value):
        raise ValueError(
            f"{measured.metric}: {measured.value!r} is not a finite number, and cannot be checked."
        )
    if expectation.least <= measured.value <= expectation.most:
        return None
    return Shortfall(expectation=expectation, measured=measured)


def expectation_of(figure: Figure, tolerance: float) -> Expectation | None:
    """That a machine is no worse than a figure by more than the tolerance; None for one that nothing is gated on."""
    if not figure.is_absolute or figure.is_doubtful:
        return None
    worse_is_less = METRICS[figure.metric] == "more"
    return Expectation(
        value=figure.value,
        lower=-tolerance if worse_is_less else None,
        upper=None if worse_is_less else tolerance,
        unit=figure.unit,
        origin=figure.id,
    )


def expected_for(
    expectations: Mapping[str, Mapping[str, Expectation]], node_id: str, platform: str
) -> Expectation | None:
    """The expectation of a benchmark on a platform: by its node id, else by the first pattern that fits."""
    fitting = [name for name in expectations if fits(name, node_id)]
    for name in sorted(fitting, key=lambda each: each != node_id):
        if platform in expectations[name]:
            return expectations[name][platform]
    return None


def fits(name: str, node_id: str) -> bool:
    """Whether an expectation of that name, a node id or a pattern of some, is of this benchmark."""
    # The brackets of a node id hold its parameters; `*` and `?` are wildcards, `[` is itself.
    return name == node_id or fnmatchcase(node_id, name.replace("[", "[[]"))
