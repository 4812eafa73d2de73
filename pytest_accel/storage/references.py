"""References: published figures of studies, and a site's own expectations in pyproject.toml."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast

from pytest_accel.platforms import names as grammar
from pytest_accel.stats.quantities import percent, si
from pytest_accel.stats.run import Scalar, is_real
from pytest_accel.storage.baselines import MAX_BYTES, PUBLISHED
from pytest_accel.storage.codec import FormatError, decode, loads, shown
from pytest_accel.storage.files import StorageError, format_errors, read_text

SCHEMA_VERSION = 1
PYPROJECT_TABLE = "tool.pytest-accel.references"
OPEN = "none"  # for an absent bound: TOML has no null
_SEGMENT = re.compile(r"[a-z0-9][a-z0-9_.-]*")

Better: TypeAlias = Literal["more", "less"]

# Metrics of figures, and which way is better; None for a property of a platform or a model, which is not measured.
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

# A figure keeps the unit of its study, so that it can be found there.
UNITS = (
    *("images/s", "tokens/s", "sequences/s", "images/Wh", "tokens/Wh", "sequences/Wh", "Wh/epoch", "Wh"),
    *("s", "min", "h", "%", "fraction", "x", "W", "GB", "GB/s", "Gbit/s", "count", "million"),
)

RELATIVE_ONLY = "relative-only"
PER_DEVICE = "per-device"
# Flags of a figure and their meaning, which the docs print.
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
    "set otherwise: we read it so, and an id that names the precision says tf32.",
}
DOUBTS = frozenset({"contradictory", "implausible"})


class PublishedError(StorageError):
    """A file of published figures that cannot be used."""

    kind: ClassVar[str] = "study"

    @staticmethod
    def default_remedy(file: str) -> str:
        return f"Correct it, or restore it from git (git checkout -- {shlex.quote(file)})."


class ExpectationError(ValueError):
    """An expectation in pyproject.toml that cannot be read; the message names the place and what to write."""


# --- published figures ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published number."""

    id: str  # a path: study, what was measured, platform
    table: str  # where in the study: table, figure or text
    row: str
    platform: str
    workload: str
    configuration: Mapping[str, Scalar]  # as far as the study gives it
    metric: str  # one of METRICS
    unit: str  # one of UNITS
    value: float
    flags: tuple[str, ...] = ()  # of FLAGS
    note: str = ""

    def __post_init__(self) -> None:
        _check_id(self.id)
        for name in ("table", "row", "workload"):
            _check_not_empty(name, getattr(self, name))
        _check_choice("metric", self.metric, METRICS)
        _check_choice("unit", self.unit, UNITS)
        if not 0 < self.value <= 1e30:
            raise ValueError(f"value: {self.value!r} is not positive or too large")
        for index, flag in enumerate(self.flags):
            _check_choice(f"flags[{index}]", flag, FLAGS)
        if len(set(self.flags)) < len(self.flags):
            raise ValueError("flags: a flag appears twice")
        try:
            grammar.parse(self.platform)
        except grammar.PlatformNameError as error:
            raise ValueError(f"platform: {error}") from None

    @property
    def is_absolute(self) -> bool:
        """Whether it can be compared with a measurement of another machine."""
        return not {RELATIVE_ONLY, PER_DEVICE} & set(self.flags) and METRICS[self.metric] is not None

    @property
    def is_doubtful(self) -> bool:
        """Whether it is known to be wrong: shown, and never gated on."""
        return not DOUBTS.isdisjoint(self.flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySource:
    """Where the figures of a study were published."""

    key: str  # the first segment of its figures' ids
    title: str
    authors: str
    year: int
    venue: str
    kind: Literal["paper", "slides", "report"]
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("title", "authors", "venue"):
            _check_not_empty(name, getattr(self, name))
        if not 1900 <= self.year <= 9999:
            raise ValueError(f"year: {self.year} is not a year")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study: its source, its figures, and its claims about them."""

    schema_version: int
    source: StudySource
    figures: tuple[Figure, ...]
    claims: tuple[
        Mapping[str, object], ...
    ] = ()  # numbers of its text; the tests compute them from the figures

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for index, figure in enumerate(self.figures):
            place, name = f"figures[{index}]", json.dumps(figure.id)
            if not figure.id.startswith(f"{self.source.key}/"):
                raise ValueError(
                    f"{place}.id: {name} does not begin with {json.dumps(self.source.key + '/')}"
                )
            if not figure.id.endswith(f"/{figure.platform}"):
                raise ValueError(f"{place}.id: {name} does not end with its platform, {figure.platform}")
            if figure.id in seen:
                raise ValueError(f"{place}.id: {name} appears twice")
            seen.add(figure.id)
            if figure.is_doubtful and not figure.note.strip():
                doubts = " and ".join(DOUBTS.intersection(figure.flags))
                raise ValueError(f"{place}.note: is missing; it is {doubts}, so say why")


def _check_id(text: str) -> None:
    if not all(_SEGMENT.fullmatch(segment) for segment in text.split("/")):
        raise ValueError(
            f"id: {json.dumps(text)} is no path of lower case segments such as olivia/single/baseline/gh200"
        )


def _check_choice(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: {json.dumps(value)} is none of {', '.join(choices)}")


def _check_not_empty(name: str, text: str) -> None:
    if not text.strip():
        raise ValueError(f"{name}: is empty")


def published_folder(baselines: Path) -> Path:
    """Return the folder of studies: beside the baselines, else those of the installed package or of its checkout."""
    package = Path(__file__).parents[1]
    folders = (baselines / PUBLISHED, package / PUBLISHED, package.parent / "baselines" / PUBLISHED)
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def read_published(folder: Path) -> tuple[Study, ...]:
    """Return every study in a folder, by the name of its file; none where there is no folder."""
    paths = sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))
    return tuple(read_study(path) for path in paths)


def read_study(path: Path) -> Study:
    """Return one study, or raise PublishedError with the place of the first fault."""
    where = str(path)
    text = read_text(path, PublishedError, MAX_BYTES)
    if text is None:
        raise PublishedError(where, "", "does not exist", "Name another.")
    with format_errors(where, PublishedError):
        top = loads(text)
        if isinstance(top, dict):
            _check_version(top)
            source = top.get("source")
            if isinstance(source, dict) and source.get("key", path.stem) != path.stem:
                problem = f"{shown(source['key'])} in a file named {json.dumps(path.stem + '.json')}"
                raise FormatError("source.key", problem)
        return decode(Study, top)


def _check_version(top: Mapping[str, object]) -> None:
    if "schema_version" not in top:
        raise FormatError("", 'the key "schema_version" is missing: this is not a file of published figures')
    version = decode(int, top["schema_version"], "schema_version")
    if version != SCHEMA_VERSION:
        problem = f"{version} is no schema that this pytest-accel reads ({SCHEMA_VERSION})"
        raise FormatError(
            "schema_version", problem, "Upgrade pytest-accel (pip install --upgrade pytest-accel)."
        )


def linked_figures(figures: Iterable[Figure], link: str) -> tuple[Figure, ...]:
    """Return the figure with that id, and those whose ids begin with it, by complete segments."""
    return tuple(figure for figure in figures if figure.id == link or figure.id.startswith(f"{link}/"))


def similar_links(figures: Iterable[Figure], link: str) -> list[str]:
    """Return links that an unknown one may have meant, best first."""
    segments = (figure.id.split("/") for figure in figures)
    beginnings = {"/".join(each[:length]) for each in segments for length in range(1, len(each) + 1)}
    return grammar.closest(link, sorted(beginnings))


# --- figures beside measurements --------------------------------------------------------------------

# Parts of a configuration that studies and our benchmarks name alike, and that make their rates differ.
_COMPARED = ("batch_size", "precision", "workers")


def configuration_differences(figure: Figure, configuration: Mapping[str, Scalar]) -> str:
    """Return what of a figure's configuration differs here, in words; empty where all that both name is equal."""
    found = []
    for name in _COMPARED:
        there, here = figure.configuration.get(name), configuration.get(name)
        same = there == here or ((there, here) == ("fp32", "tf32") and "read-as-tf32" in figure.flags)
        if there is not None and here is not None and not same:
            found.append(f"{name.replace('_', ' ')} {there} there, {here} here")
    if figure.configuration.get("data") not in (None, "synthetic") and not is_real(configuration):
        found.append("synthetic data here")
    return ", ".join(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFigure:
    """A measured number with the metric and unit of published figures."""

    metric: str
    value: float
    unit: str

    @property
    def is_comparable(self) -> bool:
        return math.isfinite(self.value) and self.value > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FigurePair:
    """A published figure and the measured one."""

    figure: Figure
    measured: MeasuredFigure

    @property
    def ratio(self) -> float:
        """Above 1 this machine is better, whether more or less of the metric is."""
        mine, theirs = self.measured.value, self.figure.value
        return theirs / mine if METRICS[self.figure.metric] == "less" else mine / theirs


def pair_figures(measured: Iterable[MeasuredFigure], figures: Iterable[Figure]) -> tuple[FigurePair, ...]:
    """Return each absolute figure with the measurement of the same metric and unit, in their order."""
    known = {(each.metric, each.unit): each for each in measured if each.is_comparable}
    return tuple(
        FigurePair(figure=figure, measured=known[figure.metric, figure.unit])
        for figure in figures
        if figure.is_absolute and (figure.metric, figure.unit) in known
    )


# --- expectations of a site -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A value and the tolerated deviation from it, in ReFrame's form: value, lower, upper, unit."""

    value: float
    lower: float | None  # a fraction of the value, at most 0; None is no bound
    upper: float | None  # a fraction of the value, at least 0; None is no bound
    unit: str
    origin: str  # a place in a file, or the id of a figure

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
    """A measurement outside an expectation; `str()` says by how much, and outside which bound."""

    expectation: Expectation
    measured: MeasuredFigure

    @property
    def bound(self) -> Literal["lower", "upper"]:
        return "lower" if self.measured.value < self.expectation.least else "upper"

    @property
    def relative(self) -> float:
        """The deviation from the value: -0.07 is 7 % less."""
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


def check_expectation(expectation: Expectation, measured: MeasuredFigure) -> Shortfall | None:
    """Return the shortfall of a measurement; None where it is within both bounds or on one."""
    if measured.unit != expectation.unit:
        raise ValueError(
            f"{expectation.origin} expects {expectation.unit}, and the measurement is in {measured.unit}. "
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
    """Return the expectation that a machine is no worse than a figure by more than the tolerance; None for a doubtful one."""
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
    """Return the expectation of a benchmark on a platform: by its node id, else by the first pattern that matches."""
    matching = [name for name in expectations if matches_pattern(name, node_id)]
    for name in sorted(matching, key=lambda each: each != node_id):
        if platform in expectations[name]:
            return expectations[name][platform]
    return None


def matches_pattern(name: str, node_id: str) -> bool:
    """Return whether the name of an expectation, a node id or a pattern, matches this benchmark."""
    # The brackets of a node id hold its parameters; `*` and `?` are wildcards, `[` is itself.
    return name == node_id or fnmatchcase(node_id, name.replace("[", "[[]"))


def read_expectations(pyproject: Path) -> Mapping[str, Mapping[str, Expectation]]:
    """Return `[tool.pytest-accel.references]`: by node id or pattern, then by platform; empty without such a table."""
    tables = _tables(pyproject)
    return {
        name: _expectations(table, pyproject, f"{PYPROJECT_TABLE}.{json.dumps(name, ensure_ascii=False)}")
        for name, table in tables.items()
    }


def _tables(pyproject: Path) -> Mapping[str, Any]:
    try:
        data = pyproject.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ExpectationError(f"{pyproject}: cannot be read: {error.strerror}. Make it readable.") from None
    if b"references" not in data:  # most projects: nothing to parse
        return {}
    import tomllib  # 3 ms, paid only by projects with such a table

    try:
        table: Any = tomllib.loads(data.decode())
    except RecursionError:
        raise ExpectationError(f"{pyproject}: nested too deeply. Correct the file.") from None
    except ValueError as error:
        raise ExpectationError(f"{pyproject}: {error}. Correct the file.") from None
    for key in PYPROJECT_TABLE.split("."):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise ExpectationError(
                f"{pyproject}: {PYPROJECT_TABLE}: {table!r} is not a table of expectations. {_EXAMPLE}"
            )
    return cast("Mapping[str, Any]", table)


_EXAMPLE = (
    f'Write [{PYPROJECT_TABLE}."bench_suites/test_wide_resnet.py::test_single[optimised]"] and below it '
    'gh200 = [4200, -0.05, 0.10, "images/s"].'
)


_NO_FOLDER = (
    "this is no platform. Write the name of a marker, such as cpu or gh200, not of a folder of baselines."
)


def _expectations(table: object, pyproject: Path, where: str) -> Mapping[str, Expectation]:
    if not isinstance(table, dict) or not table:
        raise ExpectationError(f"{pyproject}: {where}: {table!r} is not a table of platforms. {_EXAMPLE}")
    found = {}
    for platform, entry in table.items():
        place = f"{pyproject}: {where}.{platform}"
        if "-" in platform:  # a folder of baselines is named so
            raise ExpectationError(f"{place}: {_NO_FOLDER}")
        try:
            grammar.parse(platform)
            # Only the name of the file: the id must not change with the folder of a checkout.
            found[platform] = _expectation(entry, f"{pyproject.name}: {where}.{platform}")
        except ValueError as error:
            raise ExpectationError(f"{place}: {error}") from None
    return found


def _expectation(entry: object, origin: str) -> Expectation:
    if not isinstance(entry, list) or len(entry) != 4:
        raise ValueError(
            f'{entry!r} is not a list of value, lower, upper and unit. Write [4200, -0.05, 0.10, "images/s"].'
        )
    value, lower, upper, unit = entry
    if not isinstance(unit, str):
        problem = f'the unit {unit!r} is not text. Write it last, such as "images/s".'
        raise ValueError(problem)  # noqa: TRY004 - a user's text, not a caller's type
    return Expectation(
        value=_number("value", value),
        lower=None if lower == OPEN else _number("lower bound", lower),
        upper=None if upper == OPEN else _number("upper bound", upper),
        unit=unit,
        origin=origin,
    )


def _number(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        example = "4200" if what == "value" else f'-0.05 or 0.1, or "{OPEN}" for no bound'
        problem = f"the {what} {value!r} is not a number. Write one, such as {example}."
        raise ValueError(problem)  # noqa: TRY004 - a user's text, not a caller's type
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"the {what} has too many digits for a number.") from None
