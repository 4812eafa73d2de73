"""References: published figures of studies, and a site's own expectations in pyproject.toml."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pytest_accel.platforms.catalogue import project_table
from pytest_accel.stats.quantities import did_you_mean, percent, si
from pytest_accel.stats.run import LARGEST_METRIC, Scalar, is_real
from pytest_accel.storage.baselines import PUBLISHED
from pytest_accel.storage.codec import check_version, decode, loads
from pytest_accel.storage.files import StorageError, format_errors, read_text

SCHEMA_VERSION = 1
PYPROJECT_TABLE = "tool.pytest-accel.references"
OPEN = "none"  # for an absent bound: TOML has no null

# Metrics of figures, and which way is better; None for a property of a platform or a model, which is not measured.
METRICS: Mapping[str, Literal["more", "less"] | None] = {
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

RELATIVE_ONLY = "relative-only"
PER_DEVICE = "per-device"
DOUBTS = frozenset({"contradictory", "implausible"})


class PublishedError(StorageError):
    @staticmethod
    def default_remedy(file: str) -> str:
        return f"Correct it, or restore it from git (git checkout -- {shlex.quote(file)})."


# --- published figures ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    id: str  # a path: study, what was measured, platform
    table: str  # where in the study: table, figure or text
    row: str
    platform: str
    workload: str
    configuration: Mapping[str, Scalar]  # as far as the study gives it
    metric: str  # one of METRICS
    unit: str  # the study's own, so that it can be found there
    value: float
    flags: tuple[str, ...] = ()  # docs/references.md explains them
    note: str = ""

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"metric: {self.metric!r} is none of {', '.join(METRICS)}")
        if not 0 < self.value <= LARGEST_METRIC:
            raise ValueError(f"value: {self.value!r} is not positive or too large")

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
    key: str  # the first segment of its figures' ids
    title: str
    authors: str
    year: int
    venue: str
    kind: Literal["paper", "slides", "report"]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study: its source, its figures, and its claims about them, which the tests compute from the figures."""

    schema_version: int
    source: StudySource
    figures: tuple[Figure, ...]
    claims: tuple[Mapping[str, object], ...] = ()


def published_folder(baselines: Path) -> Path:
    """Return the folder of studies: beside the baselines, else those of the installed package or of its checkout."""
    package = Path(__file__).parents[1]
    folders = (baselines / PUBLISHED, package / PUBLISHED, package.parent / "baselines" / PUBLISHED)
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def read_published(folder: Path) -> tuple[Study, ...]:
    """Return every study in a folder, by the name of its file; none where there is no folder."""
    return tuple(map(read_study, sorted(folder.glob("[!.]*.json"))))


def read_study(path: Path) -> Study:
    """Return one study, or raise PublishedError with the place of the first fault."""
    text = read_text(path, PublishedError) or ""
    with format_errors(str(path), PublishedError):
        top = loads(text)
        check_version(top, SCHEMA_VERSION, "a study")
        return decode(Study, top)


def linked_figures(figures: Iterable[Figure], link: str) -> tuple[Figure, ...]:
    """Return the figure with that id, and those whose ids begin with it, by complete segments."""
    return tuple(figure for figure in figures if figure.id == link or figure.id.startswith(f"{link}/"))


def similar_links(figures: Iterable[Figure], link: str) -> str:
    """Return a hint at links that an unknown one may have meant."""
    segments = (figure.id.split("/") for figure in figures)
    beginnings = {"/".join(each[:length]) for each in segments for length in range(1, len(each) + 1)}
    return did_you_mean(link, sorted(beginnings))


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


def ratio_to(figure: Figure, measured: Mapping[tuple[str, str], float]) -> float | None:
    """Return a measurement of the same metric and unit over a figure, above 1 is better; None: not comparable."""
    mine = measured.get((figure.metric, figure.unit), 0.0)
    if not figure.is_absolute or not (math.isfinite(mine) and mine > 0):
        return None
    return figure.value / mine if METRICS[figure.metric] == "less" else mine / figure.value


# --- expectations of a site -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A throughput and the tolerated deviation from it, in ReFrame's form: value, lower, upper, unit."""

    value: float
    lower: float | None = None  # a fraction of the value, at most 0; None is no bound
    upper: float | None = None  # a fraction of the value, at least 0; None is no bound
    unit: str
    origin: str  # a place in a file, or the id of a figure

    def shortfall(self, measured: float, unit: str) -> str:
        """Return by how much a measurement is outside which bound; empty where it is within both or on one."""
        if unit != self.unit:
            return (
                f"{self.origin} expects {self.unit}, and the measurement is in {unit}. "
                f'Write the value in "{unit}".'
            )
        least = -math.inf if self.lower is None else self.value * (1 + self.lower)
        most = math.inf if self.upper is None else self.value * (1 + self.upper)
        if least <= measured <= most:
            return ""
        side, limit = (
            ("below", f"at least {si(least)}") if measured < least else ("above", f"at most {si(most)}")
        )
        return (
            f"{si(measured)} {unit} is {percent(abs(measured / self.value - 1))} {side} the {si(self.value)} of "
            f"{self.origin}, outside its bounds ({limit})"
        )


def expectation_of(figure: Figure, tolerance: float) -> Expectation | None:
    """Return the expectation of a published throughput less the tolerance; None for a doubtful one."""
    if not figure.is_absolute or figure.is_doubtful:
        return None
    return Expectation(value=figure.value, lower=-tolerance, unit=figure.unit, origin=figure.id)


def expected_for(
    expectations: Mapping[str, Mapping[str, Expectation]], node_id: str, platform: str
) -> Expectation | None:
    """Return the expectation of a benchmark on a platform: by its node id, else by the first pattern that matches."""
    matching = (name for name in expectations if matches_pattern(name, node_id))
    found = (expectations[name].get(platform) for name in sorted(matching, key=lambda each: each != node_id))
    return next(filter(None, found), None)


def matches_pattern(name: str, node_id: str) -> bool:
    """Return whether the name of an expectation, a node id or a pattern, matches this benchmark."""
    # The brackets of a node id hold its parameters; `*` and `?` are wildcards, `[` is itself.
    return name == node_id or fnmatchcase(node_id, name.replace("[", "[[]"))


def read_expectations(pyproject: Path) -> Mapping[str, Mapping[str, Expectation]]:
    """Return `[tool.pytest-accel.references]`: by node id or pattern, then by platform; empty without such a table."""
    found: dict[str, dict[str, Expectation]] = {}
    for name, table in project_table(pyproject, PYPROJECT_TABLE).items():
        # Only the name of the file: the id must not change with the folder of a checkout.
        place = f'{pyproject.name}: {PYPROJECT_TABLE}."{name}"'
        if not isinstance(table, dict):
            raise ValueError(  # noqa: TRY004 - a user's text, not a caller's type
                f'{place}: {table!r} is not a table of platforms. Write gh200 = [4200, -0.05, 0.10, "images/s"].'
            )
        found[name] = {
            platform: _expectation(entry, f"{place}.{platform}") for platform, entry in table.items()
        }
    return found


def _expectation(entry: Any, origin: str) -> Expectation:  # noqa: ANN401 - whatever TOML holds
    try:
        value, *bounds, unit = entry
        lower, upper = (None if each == OPEN else float(each) for each in bounds)
        is_sound = 0 < float(value) < math.inf and -1 <= (lower or 0.0) <= 0 <= (upper or 0.0) < math.inf
        if is_sound and isinstance(unit, str) and unit:
            return Expectation(value=float(value), lower=lower, upper=upper, unit=unit, origin=origin)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(
        f"{origin}: {entry!r} is not [value, lower, upper, unit]: a positive number, a fraction from -1 to 0, a fraction "
        f'of at least 0 (or "{OPEN}" for no bound), and a text. Write [4200, -0.05, 0.10, "images/s"].'
    )
