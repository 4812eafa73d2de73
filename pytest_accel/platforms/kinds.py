"""What the catalogue knows of a kind of device, and how that is read from TOML and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_accel.platforms import names as grammar

PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")

# The memory that a driver reports against the nominal one, both in GiB: HBM parts report .98 to 1.0
# (H100 81559 MiB of 80 GB), GDDR6 parts with ECC on .92 to .95 (T4 15360 MiB, L4 23034 MiB).
MEMORY_REPORTED = (0.88, 1.03)

# A platform's name becomes a marker and a word in `-m`; these are taken.
RESERVED = frozenset(
    {"accel", "and", "benchmark", "filterwarnings", "not", "or", "parametrize", "skip", "skipif", "slow"}
    | {"usefixtures", "xfail"}
)

_GIB = 1 << 30
_DEVICE_FIELDS = ("title", "vendor", "architecture", "shapes", "variants")
_VARIANT_FIELDS = (
    "key", "title", "patterns", "memory_gb", "memory_range_gb", "peaks_tflops", "bandwidth_gb_s", "tdp_w",
    "interconnect", "source",
)  # fmt: skip


class CatalogueError(ValueError):
    """An entry of the catalogue is wrong; the message names the place and what is valid there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One product of a kind of device; the empty key is the one whose baselines need no suffix."""

    key: str = ""  # the suffix of the folder of its baselines, such as sxm4-80gb
    title: str = ""  # as people call it
    patterns: tuple[str, ...] = ()  # of the whole device name, letter case ignored
    memory_gb: float | None = None  # nominal, as the data sheet says it
    memory_range_gb: tuple[float, float] | None = None  # reported, in GiB; where the nominal one misleads
    peaks_tflops: Mapping[str, float] = field(default_factory=dict, hash=False)  # dense, never sparse
    bandwidth_gb_s: float | None = None  # of the device's memory
    tdp_w: float | None = None  # the most that it may draw
    interconnect: str = ""  # what joins it to its neighbours, for people
    source: str = ""  # where these figures come from

    def peak_tflops(self, precision: str) -> float | None:
        """Dense peak in TFLOP/s, matrix units included; None where the hardware has no such units."""
        return self.peaks_tflops.get(precision)

    def matches(self, device_name: str, memory_bytes: int | None) -> bool:
        return self._fits_memory(memory_bytes) and any(
            re.fullmatch(pattern, device_name, re.IGNORECASE)
            for pattern in self.patterns
            # A broad pattern (.*H100.*) must not take a slice of the device for the device.
            if " mig " not in device_name.lower() or "mig" in pattern.lower()
        )

    def _fits_memory(self, memory_bytes: int | None) -> bool:
        if not memory_bytes:
            return True
        if self.memory_range_gb is not None:
            low, high = self.memory_range_gb
        elif self.memory_gb is not None:
            low, high = (self.memory_gb * share for share in MEMORY_REPORTED)
        else:
            return True
        return low <= memory_bytes / _GIB <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """A kind of device: the name that platforms start with, and the products behind it."""

    key: str  # what the names of its platforms start with
    title: str = ""  # as people call it; the key, if it says none
    vendor: str = ""  # `nvidia`, `amd` or `graphcore`
    architecture: str = ""  # for people
    shapes: tuple[str, ...] = ()  # counts that are registered as markers beside the bare name
    variants: tuple[Variant, ...] = ()  # its products, where they differ

    def __post_init__(self) -> None:
        if not self.title:
            object.__setattr__(self, "title", self.key)

    def names(self) -> list[str]:
        return [self.key, *(self.key + shape for shape in self.shapes)]

    def variant(self, key: str) -> Variant:
        return next(variant for variant in self.variants if variant.key == key)

    def extended_by(self, other: DeviceKind) -> DeviceKind:
        """This kind with what `other` adds: its variants come first, so that they win."""
        added = {variant.key for variant in other.variants}
        return replace(
            self,
            title=other.title if other.title != other.key else self.title,
            vendor=other.vendor or self.vendor,
            architecture=other.architecture or self.architecture,
            shapes=tuple(dict.fromkeys((*self.shapes, *other.shapes))),
            variants=(*other.variants, *(old for old in self.variants if old.key not in added)),
        )


def read_kind(key: str, entry: object, where: str) -> DeviceKind:
    """A kind of device from a TOML table at `where`; types are checked here, sense in `check_kind`.

    Fields of a variant at the table's top hold for all its variants, or make the only one.
    """
    table = _table(entry, where, _DEVICE_FIELDS + _VARIANT_FIELDS[2:])
    shared = {name: value for name, value in table.items() if name in _VARIANT_FIELDS[2:]}
    listed = table.get("variants", [])
    if not isinstance(listed, list):
        raise CatalogueError(f"{where}.variants: {listed!r} is not an array of tables.")
    variants = [
        _read_variant(shared, _table(item, f"{where}.variants[{index}]", _VARIANT_FIELDS), where, index)
        for index, item in enumerate(listed)
    ]
    if not listed and shared:
        variants = [_read_variant(shared, {}, where)]
    return DeviceKind(
        key=key,
        title=_text(table, "title", where),
        vendor=_text(table, "vendor", where),
        architecture=_text(table, "architecture", where),
        shapes=tuple(_strings(table, "shapes", where)),
        variants=tuple(variants),
    )


def check_kind(kind: DeviceKind, where: str, *, extends: bool = False) -> None:
    """What holds for a kind from any source, a file or a hook; one that extends another needs no pattern."""
    check_name(kind.key, where)
    for shape in kind.shapes:
        _check_shape(kind.key, shape, f"{where}.shapes")
    keys = [variant.key for variant in kind.variants]
    for key in keys:
        if key and not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key):
            raise CatalogueError(
                f"{where}.variants: the key {key!r} cannot be part of a directory's name. Use lower case letters,"
                " digits and single hyphens between them, such as sxm4-80gb."
            )
        if keys.count(key) > 1:
            raise CatalogueError(
                f"{where}.variants: the key {key!r} is there twice; each variant has its own."
            )
    patterns = [pattern for variant in kind.variants for pattern in variant.patterns]
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise CatalogueError(
                f"{where}.patterns: {pattern!r} is not a regular expression: {error}."
            ) from None
    if not patterns and not extends and kind.key != "cpu":
        raise CatalogueError(
            f"{where}.patterns: missing, so that no device would ever match. Write the name that the driver"
            " reports (see `pytest-accel platform`) as a regular expression: patterns = ['NVIDIA L40'];"
            ' or name another platform: alias = "gh200x4".'
        )


def check_name(name: str, where: str) -> None:
    """A platform's name is a marker's: an identifier that is not taken."""
    if not grammar.is_device_name(name) or name in RESERVED:
        raise CatalogueError(
            f"{where}: {name!r} cannot name a platform. Use lower case letters, digits and underscores, a letter"
            f" first, and none of {', '.join(sorted(RESERVED))}."
        )


def _check_shape(key: str, shape: str, where: str) -> None:
    valid = "Valid: counts such as x4, n2, x4n2; the bare name is always there."
    try:
        name = grammar.parse(key + shape, [key])
    except grammar.PlatformNameError as error:
        raise CatalogueError(f"{where}: {shape!r}: {error} {valid}") from None
    if not name.counts:
        raise CatalogueError(f"{where}: {shape!r} is no count. {valid}")


def _read_variant(
    shared: Mapping[str, Any], own: Mapping[str, Any], where: str, index: int | None = None
) -> Variant:
    table = {**shared, **own}
    if index is not None:
        where = f"{where}.variants[{index}]"
    return Variant(
        key=_text(table, "key", where),
        title=_text(table, "title", where),
        patterns=tuple(_strings(table, "patterns", where)),
        memory_gb=_number(table, "memory_gb", where),
        memory_range_gb=_range(table, "memory_range_gb", where),
        peaks_tflops=_peaks(table, where),
        bandwidth_gb_s=_number(table, "bandwidth_gb_s", where),
        tdp_w=_number(table, "tdp_w", where),
        interconnect=_text(table, "interconnect", where),
        source=_text(table, "source", where),
    )


def _table(entry: object, where: str, valid: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise CatalogueError(f"{where}: {entry!r} is not a table. Valid fields: {', '.join(valid)}.")
    for name in entry:
        if name not in valid:
            alike = grammar.closest(str(name), valid, limit=1)
            hint = f" Did you mean {alike[0]}?" if alike else ""
            raise CatalogueError(f"{where}.{name}: no such field.{hint} Valid: {', '.join(valid)}.")
    return entry


def _text(table: Mapping[str, Any], name: str, where: str) -> str:
    value = table.get(name, "")
    if not isinstance(value, str):
        raise CatalogueError(f"{where}.{name}: {value!r} is not a string.")
    return value


def _strings(table: Mapping[str, Any], name: str, where: str) -> list[str]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CatalogueError(f"{where}.{name}: {value!r} is not a list of strings. Write {name} = ['…'].")
    return value


def _number(table: Mapping[str, Any], name: str, where: str) -> float | None:
    value = table.get(name)
    return None if value is None else _positive(value, f"{where}.{name}")


def _positive(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise CatalogueError(f"{where}: {value!r} is not a positive number.")
    return float(value)


def _range(table: Mapping[str, Any], name: str, where: str) -> tuple[float, float] | None:
    value = table.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise CatalogueError(f"{where}.{name}: {value!r} is not [least, most] in GiB.")
    low, high = (_positive(bound, f"{where}.{name}") for bound in value)
    if low > high:
        raise CatalogueError(f"{where}.{name}: {value!r} has its least above its most.")
    return low, high


def _peaks(table: Mapping[str, Any], where: str) -> dict[str, float]:
    place = f"{where}.peaks_tflops"
    peaks = _table(table.get("peaks_tflops", {}), place, PRECISIONS)
    return {name: _positive(value, f"{place}.{name}") for name, value in peaks.items()}
