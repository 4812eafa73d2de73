"""Platforms: the grammar of their names, the catalogue of devices, selection by capability, and devices as drivers report them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from sys import float_info
from typing import Any, TypeVar

from pytest_accel.stats.quantities import did_you_mean

_DEVICE = re.compile(r"[a-z][a-z0-9_]*")  # an identifier in lower case, so that it can be a marker
_COUNTS = re.compile(r"(?:x(\d{1,3}))?(?:n(\d{1,9}))?")  # four digits after an x are a model number (rtx6000)


class PlatformNameError(ValueError):
    """There is no such platform; the message says what to write instead, and how to add one."""


@dataclass(frozen=True, slots=True)
class PlatformName:
    """A hardware configuration by name; `str()` gives the one canonical spelling."""

    device: str
    per_node: int = 1
    nodes: int = 1

    def __str__(self) -> str:
        return self.device + self.counts

    @property
    def counts(self) -> str:
        per_node = f"x{self.per_node}" if self.per_node > 1 else ""
        return per_node + (f"n{self.nodes}" if self.nodes > 1 else "")

    @property
    def devices(self) -> int:
        return self.per_node * self.nodes


def parse_name(text: str, devices: Collection[str]) -> PlatformName:
    """Parse a platform's name; `devices` are the known ones, which make the reading unambiguous."""
    for device in sorted(filter(text.startswith, devices), key=len, reverse=True):
        if counts := _COUNTS.fullmatch(text, len(device)):
            per_node, nodes = (int(digits or 1) or 1 for digits in counts.groups())
            name = PlatformName(device, per_node, nodes)
            if str(name) != text:
                raise PlatformNameError(f"platform {text!r} is not spelled as the platform is. Write {name}.")
            return name
    raise PlatformNameError(f"platform {text!r}: there is no such platform.")


PYPROJECT_TABLE = "tool.pytest-accel.platforms"
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")
# Names for one of several precisions: the first that a device computes in.
ALTERNATIVES: Mapping[str, tuple[str, ...]] = {"half": ("bf16", "fp16"), "single": ("tf32", "fp32")}
VENDORS = ("nvidia", "amd", "graphcore")

# Memory that a driver reports, as a share of the nominal size, both in GiB: HBM parts report .98 to 1.0
# (H100: 81559 MiB of 80 GB), GDDR6 parts with ECC .92 to .95 (T4: 15360 MiB, L4: 23034 MiB).
MEMORY_REPORTED = (0.88, 1.03)

# A platform's name becomes a marker and a word in `-m`; these are taken.
RESERVED = frozenset(
    {"accel", "and", "benchmark", "filterwarnings", "not", "or", "parametrize", "skip", "skipif", "slow"}
    | {"accelerators", "on", "usefixtures", "xfail"}
)

_T = TypeVar("_T", "Variant", "DeviceKind")


class CatalogueError(ValueError):
    """An entry of the catalogue is wrong; the message names the place and the valid values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One product of a device; the product with an empty key has baselines without a suffix."""

    key: str = ""  # suffix of the folder of its baselines, such as sxm4-80gb
    title: str = ""  # name for people
    patterns: tuple[str, ...] = ()  # regular expressions of the full device name, letter case ignored
    memory_gb: float | None = None  # nominal size, as in the data sheet
    dtypes: tuple[str, ...] = ()  # precisions that it computes in (default: those of `peaks_tflops`)
    # Dense peaks, not sparse ones.
    peaks_tflops: Mapping[str, float] = field(default_factory=dict, hash=False)
    bandwidth_gb_s: float | None = None  # of the device's memory
    tdp_w: float | None = None  # maximum power
    interconnect: str = ""  # link to the other devices, for people
    source: str = ""  # source of these figures

    def __post_init__(self) -> None:
        if self.key != (usable := folder_part(self.key)):
            raise ValueError(f"key: {self.key!r} cannot be part of a directory's name. Write {usable!r}.")
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"patterns: {pattern!r} is not a regular expression: {error}.") from None
        for name in (*self.dtypes, *self.peaks_tflops):
            if name not in PRECISIONS:
                raise ValueError(f"dtypes: {name!r} is not one of {', '.join(PRECISIONS)}.")
        if not self.dtypes:
            object.__setattr__(self, "dtypes", tuple(self.peaks_tflops))

    def matches(self, device_name: str, memory_bytes: int | None) -> bool:
        low, high = MEMORY_REPORTED
        if memory_bytes and self.memory_gb and not low <= memory_bytes / 2**30 / self.memory_gb <= high:
            return False
        return any(re.fullmatch(pattern, device_name, re.IGNORECASE) for pattern in self.patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """A device of the catalogue: the first part of its platforms' names, and its products."""

    key: str  # first part of the names of its platforms
    title: str = ""  # name for people (default: the table's name)
    vendor: str = ""  # `nvidia`, `amd` or `graphcore`
    architecture: str = ""  # for people
    shapes: tuple[str, ...] = ()  # counts that are registered as markers beside the bare name
    variants: tuple[Variant, ...] = ()  # products, if there are several

    def __post_init__(self) -> None:
        if not _DEVICE.fullmatch(self.key) or self.key in RESERVED:
            raise ValueError(
                f"key: {self.key!r} cannot name a platform. Use lower case letters, digits and underscores, a letter"
                f" first, and none of {', '.join(sorted(RESERVED))}."
            )
        if self.vendor and self.vendor not in VENDORS:
            raise ValueError(f"vendor: {self.vendor!r} is not one of {', '.join(VENDORS)}.")
        for shape in self.shapes:
            with suppress(PlatformNameError):
                if parse_name(self.key + shape, [self.key]).counts:
                    continue
            raise ValueError(
                f"shapes: {shape!r} is no count. Write counts such as x4, n2, x4n2; the bare name is always there."
            )

    @property
    def memory_gb(self) -> float:
        """Memory that every product has; 0 if one does not say."""
        return min((variant.memory_gb or 0.0 for variant in self.variants), default=0.0)

    @property
    def dtypes(self) -> frozenset[str]:
        """Precisions that every product computes in."""
        sets = [frozenset(variant.dtypes) for variant in self.variants]
        return frozenset.intersection(*sets) if sets else frozenset()

    def extended_by(self, other: DeviceKind) -> DeviceKind:
        """Return this device with what `other` adds; variants of `other` are matched first."""
        added = {variant.key for variant in other.variants}
        variants = (*other.variants, *(old for old in self.variants if old.key not in added))
        shapes = tuple(dict.fromkeys((*self.shapes, *other.shapes)))
        names = ("title", "vendor", "architecture")
        given = {name: text for name in names if (text := getattr(other, name))}
        return replace(self, shapes=shapes, variants=variants, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """What a benchmark needs: every registered platform of accelerators that has it runs the benchmark."""

    memory_gb: float = 0.0  # of each device
    dtypes: tuple[str, ...] = ()  # all of them; `half` and `single` are met by either
    devices: tuple[int, ...] = (1,)  # in total; one of these counts
    nodes: int = 1
    vendor: str = ""  # where only one vendor's library will do

    def __post_init__(self) -> None:
        for dtype in self.dtypes:
            if dtype not in (valid := (*PRECISIONS, *ALTERNATIVES)):
                raise ValueError(f"accelerators: dtype {dtype!r} is not one of {', '.join(valid)}.")
        if not self.devices or self.nodes < 1 or any(each < 1 or each % self.nodes for each in self.devices):
            counts = ", ".join(map(str, self.devices))
            raise ValueError(
                f"accelerators: devices={counts} do not divide evenly over nodes={self.nodes}."
                " `devices` counts those of all nodes."
            )

    def met_by(self, kind: DeviceKind, platform: PlatformName) -> bool:
        return (
            kind.key != "cpu"
            and platform.devices in self.devices
            and platform.nodes == self.nodes
            and kind.memory_gb >= self.memory_gb
            and all(kind.dtypes & {*ALTERNATIVES.get(dtype, (dtype,))} for dtype in self.dtypes)
            and self.vendor in ("", kind.vendor)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    devices: Mapping[str, DeviceKind]

    def names(self) -> list[str]:
        return [kind.key + shape for kind in self.devices.values() for shape in ("", *kind.shapes)]

    def matching(self, needs: Accelerators) -> list[str]:
        parsed = map(self.parse, self.names())
        found = [str(each) for each in parsed if needs.met_by(self.devices[each.device], each)]
        if not found:  # without a marker, the benchmark would run on any device
            raise PlatformNameError(
                f"no platform of the catalogue has {needs}. Ask for less, or add your own in pyproject.toml: "
                f"[{PYPROJECT_TABLE}.NAME] with memory_gb and dtypes."
            )
        return found

    def find(self, name: str) -> PlatformName | None:
        with suppress(PlatformNameError):
            return parse_name(name, self.devices)
        return None

    def parse(self, name: str) -> PlatformName:
        """Return any platform of a known device, registered or not."""
        try:
            return parse_name(name, self.devices)
        except PlatformNameError as error:
            if name == "gpu":  # not a misspelt cpu
                raise PlatformNameError(
                    "there is no platform 'gpu' for any GPU: leave the marker out, or name platforms such as h200, a100."
                ) from None
            raise PlatformNameError(
                f"{error}{did_you_mean(name, self.names())} `pytest --markers` lists every platform; add your own in"
                f" pyproject.toml: [{PYPROJECT_TABLE}.NAME] with patterns = ['…']."
            ) from None

    def identify(self, device_name: str, memory_bytes: int | None) -> tuple[str, Variant] | None:
        products = ((kind.key, variant) for kind in self.devices.values() for variant in kind.variants)
        return next((each for each in products if each[1].matches(device_name, memory_bytes)), None)

    def extended(self, tables: Mapping[str, Any], where: str) -> Catalogue:
        """Return this catalogue with the devices of these tables; one of a known name extends it."""
        added: dict[str, DeviceKind] = {}
        for name, table in tables.items():
            kind = _read_kind(name, table, f"{where}.{name}")
            if known := self.devices.get(name):
                kind = known.extended_by(kind)
            elif not any(variant.patterns for variant in kind.variants):
                raise CatalogueError(
                    f"{where}.{name}.patterns: missing, so that no device would ever match. Write the name that the"
                    " driver reports (see `pytest-accel doctor`) as a regular expression: patterns = ['NVIDIA L40']."
                )
            added[name] = replace(kind, title=kind.title or name)
        # A project's devices are tried first: their patterns may be narrower than the built-in ones.
        devices = added | {key: kind for key, kind in self.devices.items() if key not in added}
        for name in devices:
            with suppress(PlatformNameError):
                other = parse_name(name, devices.keys() - {name})
                raise CatalogueError(
                    f"{where}: the name {name!r} also reads as {other.counts} of {other.device!r}, so that one name"
                    " would mean two platforms. Choose another name."
                )
        return Catalogue(devices=devices)


def load_catalogue(
    project: Mapping[str, Any] | None = None, hooked: Sequence[Mapping[str, Any]] = ()
) -> Catalogue:
    """Return the built-in catalogue with a project's tables and those of hooks.

    A table is a device (`patterns`, `memory_gb`, `shapes`, …, or `variants`), or an extension of a known one.
    """
    catalogue = _builtin()
    for tables in hooked:
        catalogue = catalogue.extended(tables, "pytest_accel_platforms")
    return catalogue.extended(project, f"pyproject.toml: {PYPROJECT_TABLE}") if project else catalogue


def project_table(pyproject: Path, name: str = PYPROJECT_TABLE) -> Mapping[str, Any]:
    """Return a table of ours in pyproject.toml by its dotted name; empty without it."""
    try:
        table = tomllib.loads(pyproject.read_text(encoding="utf-8"))
        repr(table)  # refuses what is nested too deep to be shown in an error
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CatalogueError(f"{pyproject}: {error}. Correct the file.") from None
    for key in name.split("."):
        table = table.get(key, {})
        if not isinstance(table, Mapping):
            raise CatalogueError(f"{pyproject}: {name}: {table!r} is not a table.")
    return table


def folder_part(text: str) -> str:
    """Return the text as part of a folder's name: `intel-xeon-processor-6-207`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


VARIANT_FIELDS = tuple(each.name for each in fields(Variant))
DEVICE_FIELDS = tuple(each.name for each in fields(DeviceKind) if each.name != "key")
# Fields of a variant at the top of a table hold for all its variants, or make the only one.
_SHARED = tuple(name for name in VARIANT_FIELDS if name not in ("key", "title"))


@cache
def _builtin() -> Catalogue:
    tables = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
    kinds = {key: _read_kind(key, table, f"catalogue.toml: {key}") for key, table in tables.items()}
    return Catalogue(devices=kinds)


def _read_kind(key: str, entry: object, where: str) -> DeviceKind:
    table = _table(entry, where, (*DEVICE_FIELDS, *_SHARED))
    shared = {name: value for name, value in table.items() if name in _SHARED}
    listed = table.get("variants", [shared] if shared else [])
    if not isinstance(listed, list):
        raise CatalogueError(f"{where}.variants: {listed!r} is not an array of tables.")
    variants = []
    for index, item in enumerate(listed):
        place = f"{where}.variants[{index}]" if "variants" in table else where
        variants.append(_build(Variant, {**shared, **_table(item, place, VARIANT_FIELDS)}, place))
    own = {name: table[name] for name in DEVICE_FIELDS if name in table}
    return _build(DeviceKind, {**own, "key": key, "variants": tuple(variants)}, where)


def _build(cls: type[_T], table: Mapping[str, Any], where: str) -> _T:
    types = {each.name: str(each.type) for each in fields(cls)}
    values = {name: _value(value, types[name], f"{where}.{name}") for name, value in table.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise CatalogueError(f"{where}.{error}") from None


def _value(value: Any, kind: str, where: str) -> Any:  # noqa: ANN401 -- as the file has it
    match kind:
        case "str" if not isinstance(value, str):
            raise CatalogueError(f"{where}: {value!r} is not a string.")
        case "float | None" if type(value) not in (int, float) or not 0 < value <= float_info.max:
            raise CatalogueError(f"{where}: {value!r} is not a positive number.")
        case "tuple[str, ...]" if not isinstance(value, list):
            raise CatalogueError(f"{where}: {value!r} is not a list of strings.")
        case "tuple[str, ...]":
            return tuple(_value(each, "str", where) for each in value)
        case "Mapping[str, float]":
            table = _table(value, where, PRECISIONS)
            return {name: _value(each, "float | None", f"{where}.{name}") for name, each in table.items()}
    return value


def _table(entry: object, where: str, valid: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise CatalogueError(f"{where}: {entry!r} is not a table. Valid fields: {', '.join(valid)}.")
    for name in entry:
        if name not in valid:
            hint = did_you_mean(str(name), valid)
            raise CatalogueError(f"{where}.{name}: no such field.{hint} Valid: {', '.join(valid)}.")
    return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedDevice:
    """One accelerator that this process may use, as its driver and the catalogue describe it."""

    index: int  # as the framework counts: cuda:0 is the first visible one
    name: str = ""
    vendor: str = "nvidia"
    uuid: str = ""
    memory_bytes: int | None = None
    key: str | None = None  # of the catalogue; None for an unknown device
    variant: Variant | None = None


def select_visible(spec: str | None, uuids: Sequence[str]) -> list[int]:
    """Return the indices of the devices that a *_VISIBLE_DEVICES variable selects, in its order.

    The rules of the CUDA programming guide and of torch.cuda: unset selects all; entries are ordinals
    (text after the digits is ignored, as by strtol) or beginnings of UUIDs that fit exactly one device;
    the first invalid entry ends the list; a device that is named twice empties it.
    """
    if spec is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in map(str.strip, spec.split(",")):
        if ordinal := re.match(r"[+-]?\d+", entry):
            fitting = [index for index in range(len(uuids)) if index == int(ordinal[0])]
        else:
            is_uuid = entry.startswith("GPU-")
            fitting = [index for index, uuid in enumerate(uuids) if is_uuid and uuid.startswith(entry)]
        if len(fitting) != 1:
            break
        if fitting[0] in chosen:
            return []
        chosen += fitting
    return chosen
