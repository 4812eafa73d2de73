"""Platform catalogue: built-in devices, a project's own devices and aliases, and selection by capability."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pytest_accel.platforms import names as grammar
from pytest_accel.platforms.names import PlatformName

PYPROJECT_TABLE = "tool.pytest-accel.platforms"
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")

# Memory that a driver reports, as a share of the nominal size, both in GiB: HBM parts report .98 to 1.0
# (H100: 81559 MiB of 80 GB), GDDR6 parts with ECC .92 to .95 (T4: 15360 MiB, L4: 23034 MiB).
MEMORY_REPORTED = (0.88, 1.03)

# A platform's name becomes a marker and a word in `-m`; these are taken.
RESERVED = frozenset(
    {"accel", "and", "benchmark", "filterwarnings", "not", "or", "parametrize", "skip", "skipif", "slow"}
    | {"accelerators", "on", "usefixtures", "xfail"}
)

_GIB = 1 << 30


class CatalogueError(ValueError):
    """An entry of the catalogue is wrong; the message names the place and the valid values."""


class UnknownPlatform(ValueError):  # noqa: N818 -- shown to users, who read what happened
    """No platform has this name; the message names similar ones and how to add one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One product of a device; the product with an empty key has baselines without a suffix."""

    key: str = ""  # suffix of the folder of its baselines, such as sxm4-80gb
    title: str = ""  # name for people
    patterns: tuple[str, ...] = ()  # regular expressions of the full device name, letter case ignored
    memory_gb: float | None = None  # nominal size, as in the data sheet
    dtypes: tuple[str, ...] = ()  # precisions that it computes in (default: those of `peaks_tflops`)
    peaks_tflops: Mapping[str, float] = field(
        default_factory=dict, hash=False
    )  # dense peaks, not sparse ones
    bandwidth_gb_s: float | None = None  # of the device's memory
    tdp_w: float | None = None  # maximum power
    interconnect: str = ""  # link to the other devices, for people
    source: str = ""  # source of these figures

    def __post_init__(self) -> None:
        if not self.dtypes:
            object.__setattr__(self, "dtypes", tuple(self.peaks_tflops))

    def peak_tflops(self, precision: str) -> float | None:
        """Return the dense peak in TFLOP/s, matrix units included; None if the hardware lacks the precision."""
        return self.peaks_tflops.get(precision)

    def matches(self, device_name: str, memory_bytes: int | None) -> bool:
        low, high = MEMORY_REPORTED
        if memory_bytes and self.memory_gb and not low <= memory_bytes / _GIB / self.memory_gb <= high:
            return False
        return any(
            re.fullmatch(pattern, device_name, re.IGNORECASE)
            for pattern in self.patterns
            # A broad pattern (.*H100.*) must not match a MIG slice of the device.
            if " mig " not in device_name.lower() or "mig" in pattern.lower()
        )


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
        if not self.title:
            object.__setattr__(self, "title", self.key)

    @property
    def memory_gb(self) -> float:
        """Memory that every product has; 0 if one does not say."""
        return min((variant.memory_gb or 0.0 for variant in self.variants), default=0.0)

    @property
    def dtypes(self) -> frozenset[str]:
        """Precisions that every product computes in."""
        sets = [frozenset(variant.dtypes) for variant in self.variants]
        return frozenset.intersection(*sets) if sets else frozenset()

    def names(self) -> list[str]:
        return [self.key, *(self.key + shape for shape in self.shapes)]

    def variant(self, key: str) -> Variant:
        return next(variant for variant in self.variants if variant.key == key)

    def extended_by(self, other: DeviceKind) -> DeviceKind:
        """Return this device with what `other` adds; variants of `other` are matched first."""
        added = {variant.key for variant in other.variants}
        return replace(
            self,
            title=other.title if other.title != other.key else self.title,
            vendor=other.vendor or self.vendor,
            architecture=other.architecture or self.architecture,
            shapes=tuple(dict.fromkeys((*self.shapes, *other.shapes))),
            variants=(*other.variants, *(old for old in self.variants if old.key not in added)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """What a benchmark needs: every registered platform of accelerators that has it runs the benchmark."""

    memory_gb: float = 0.0  # of each device
    dtypes: tuple[str, ...] = ()  # all of them
    devices: tuple[int, ...] = (1,)  # in total; one of these counts
    nodes: int = 1
    vendor: str = ""  # where only one vendor's library will do

    def __post_init__(self) -> None:
        for dtype in self.dtypes:
            if dtype not in PRECISIONS:
                raise ValueError(f"accelerators: dtype {dtype!r} is not one of {', '.join(PRECISIONS)}.")
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
            and kind.dtypes.issuperset(self.dtypes)
            and self.vendor in ("", kind.vendor)
        )

    def __str__(self) -> str:
        counts = " or ".join(map(str, self.devices))
        words = [f"{counts} x {self.vendor or 'accelerator'}"]
        words += [f"on {self.nodes} nodes"] if self.nodes > 1 else []
        words += [f"with {self.memory_gb:g} GB"] if self.memory_gb else []
        words += [f"and {', '.join(self.dtypes)}"] if self.dtypes else []
        return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Devices by name, and aliases of platforms."""

    devices: Mapping[str, DeviceKind]
    aliases: Mapping[str, PlatformName] = field(default_factory=dict)

    def device(self, name: str) -> DeviceKind:
        """Return the device behind the name of a device, an alias or a platform."""
        kind = self.devices.get(name)
        return kind if kind is not None else self.devices[self.parse(name).device]

    def names(self) -> list[str]:
        """Return every registered marker: devices, their shapes, aliases."""
        return [name for kind in self.devices.values() for name in kind.names()] + list(self.aliases)

    def matching(self, needs: Accelerators) -> list[str]:
        """Return the registered names of the platforms that meet the needs."""
        parsed = ((name, self.parse(name)) for name in self.names())
        found = [name for name, each in parsed if needs.met_by(self.devices[each.device], each)]
        if not found:  # without a marker, the benchmark would run on any device
            raise UnknownPlatform(f"no platform of the catalogue has {needs}.")
        return found

    def find(self, name: str) -> PlatformName | None:
        """Return the platform of that name; None for any other word."""
        if name in self.aliases:
            return self.aliases[name]
        try:
            return self._resolve(grammar.parse(name, self._heads()))
        except grammar.PlatformNameError:
            return None

    def parse(self, name: str) -> PlatformName:
        """Return any platform of a known device, registered or not; an alias is resolved."""
        if name in self.aliases:
            return self.aliases[name]
        try:
            return self._resolve(grammar.parse(name, self._heads()))
        except grammar.UnknownDeviceError as error:
            similar = [head + error.counts for head in grammar.closest(error.device, self._heads())]
            similar = similar or grammar.closest(name, self.names())
            hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
            raise UnknownPlatform(
                f"{error}.{hint} `pytest --markers` lists every platform; add your own in"
                f" pyproject.toml: [{PYPROJECT_TABLE}.{error.device}] with patterns = ['…']."
            ) from None
        except grammar.PlatformNameError as error:
            raise UnknownPlatform(str(error)) from None

    def identify(self, device_name: str, memory_bytes: int | None) -> tuple[str, Variant] | None:
        """Return the key and the variant of a device, from the name and memory that its driver reports."""
        for kind in self.devices.values():
            for variant in kind.variants:
                if variant.matches(device_name, memory_bytes):
                    return kind.key, variant
        return None

    def with_devices(self, kinds: Iterable[DeviceKind], where: str = "a hook's platforms") -> Catalogue:
        """Return this catalogue with these devices; one of a known name extends it."""
        added: dict[str, DeviceKind] = {}
        for kind in kinds:
            place = f"{where}.{kind.key}"
            known = added.get(kind.key) or self.devices.get(kind.key)
            check_kind(kind, place, extends=known is not None)
            if kind.key in self.aliases:
                raise CatalogueError(f"{place}: this name is an alias of {self.aliases[kind.key]} already.")
            added[kind.key] = kind if known is None else known.extended_by(kind)
        # A project's devices are tried first: their patterns may be narrower than the built-in ones.
        rest = {key: kind for key, kind in self.devices.items() if key not in added}
        return _unambiguous(replace(self, devices=added | rest), where)

    def with_aliases(self, aliases: Mapping[str, str], where: str = "a hook's aliases") -> Catalogue:
        """Return this catalogue with further names for its platforms."""
        resolved = dict(self.aliases)
        for name, target in aliases.items():
            place = f"{where}.{name}.alias"
            _check_name(name, place)
            if name in self.devices:
                raise CatalogueError(f"{place}: {name} is a device of its own. Choose another name.")
            try:
                resolved[name] = self.parse(target)
            except UnknownPlatform as error:
                raise CatalogueError(f"{place}: {error}") from None
        return _unambiguous(replace(self, aliases=resolved), where)

    def _heads(self) -> list[str]:
        # An alias of a bare device takes counts like the device; an alias of `gh200x4` takes none.
        return [*self.devices, *(name for name, target in self.aliases.items() if not target.counts)]

    def _resolve(self, name: PlatformName) -> PlatformName:
        alias = self.aliases.get(name.device)
        return name if alias is None else replace(name, device=alias.device)


def load_catalogue(
    extra: Mapping[str, Any] | None = None,
    kinds: Iterable[DeviceKind] = (),
    *,
    where: str = f"pyproject.toml: {PYPROJECT_TABLE}",
) -> Catalogue:
    """Return the built-in catalogue with a project's tables (`extra`) and the devices of hooks (`kinds`).

    A table is a device (`patterns`, `memory_gb`, `shapes`, …, or `variants`), an extension of a known
    device, or `alias = "gh200x4"`.
    """
    catalogue = _builtin()
    if kinds := list(kinds):
        catalogue = catalogue.with_devices(kinds)
    if not extra:
        return catalogue
    added, aliases = [], {}
    for name, table in extra.items():
        place = f"{where}.{name}"
        if isinstance(table, Mapping) and "alias" in table:
            aliases[name] = _alias(table, place)
        else:
            added.append(read_kind(name, table, place))
    return catalogue.with_devices(added, where).with_aliases(aliases, where)


def user_platforms(pyproject: Path) -> Mapping[str, Any]:
    """Return the tables below `[tool.pytest-accel.platforms]`; empty without such a file."""
    try:
        text = pyproject.read_bytes()
    except FileNotFoundError:
        return {}
    if b"pytest-accel" not in text:  # most projects: nothing to parse
        return {}
    try:
        table = _parse_toml(text.decode())
    except ValueError as error:
        raise CatalogueError(f"{pyproject}: {error}") from None
    for key in PYPROJECT_TABLE.split("."):
        table = table.get(key, {})
        if not isinstance(table, Mapping):
            raise CatalogueError(f"{pyproject}: {PYPROJECT_TABLE}: {table!r} is not a table of platforms.")
    return table


def misplaced(folder: str, identity: Mapping[str, str], catalogue: Catalogue) -> str:
    """Return the hardware of a run that is not of its folder's platform; empty if it is, or is unknown."""
    name, _, variant = folder.partition("-")
    platform = catalogue.find(name)
    if platform is None:
        return ""
    device, cpu = identity.get("device_name", ""), identity.get("cpu_model", "")
    if platform.device == "cpu":
        is_other = bool(variant and cpu) and folder_part(cpu) != variant
        return device or (cpu if is_other else "")
    if not device:
        return cpu
    count = identity.get("device_count", "")
    if count and count != str(platform.devices):
        return f"{count} x {device}"
    try:
        memory_bytes = int(float(identity["device_memory_gb"]) * _GIB)
    except (KeyError, ValueError, OverflowError):
        memory_bytes = None
    found = catalogue.identify(device, memory_bytes)
    if found is None or "mig_profile" in identity:  # a slice has another name than its device
        return ""
    kind, product = found
    # The folder of a node with several products has all their keys in its name.
    fits = variant == product.key or bool(product.key and product.key in variant)
    return "" if kind == platform.device and fits else device


def folder_part(text: str) -> str:
    """Return the text as part of a folder's name: `intel-xeon-processor-6-207`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


# --- reading and checking tables --------------------------------------------------------------------


def read_kind(key: str, entry: object, where: str) -> DeviceKind:
    """Read a device from a TOML table at `where` and check types; `check_kind` checks values.

    Fields of a variant at the top of the table hold for all its variants, or make the only one.
    """
    table = _table(entry, where, (*DEVICE_FIELDS, *VARIANT_FIELDS[2:]))
    shared = {name: value for name, value in table.items() if name in VARIANT_FIELDS[2:]}
    listed = table.get("variants", [])
    if not isinstance(listed, list):
        raise CatalogueError(f"{where}.variants: {listed!r} is not an array of tables.")
    variants = []
    for index, item in enumerate(listed):
        place = f"{where}.variants[{index}]"
        own = _table(item, place, VARIANT_FIELDS)
        variants.append(Variant(**_read({**shared, **own}, _VARIANT_READERS, place)))
    if not listed and shared:
        variants = [Variant(**_read(shared, _VARIANT_READERS, where))]
    return DeviceKind(key=key, variants=tuple(variants), **_read(table, _DEVICE_READERS, where))


def check_kind(kind: DeviceKind, where: str, *, extends: bool = False) -> None:
    """Check the values of a device from a file or a hook; one that extends another needs no pattern."""
    _check_name(kind.key, where)
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
            " reports (see `pytest-accel doctor`) as a regular expression: patterns = ['NVIDIA L40'];"
            ' or name another platform: alias = "gh200x4".'
        )


@cache
def _builtin() -> Catalogue:
    tables = _parse_toml(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
    kinds = {key: read_kind(key, table, f"catalogue.toml: {key}") for key, table in tables.items()}
    return Catalogue(devices=kinds)


def _parse_toml(text: str) -> Mapping[str, Any]:
    import tomllib  # 3 ms, only where a file is read

    return tomllib.loads(text)


def _alias(table: Mapping[str, Any], where: str) -> str:
    others = sorted(set(table) - {"alias"})
    if others or not isinstance(table["alias"], str):
        raise CatalogueError(
            f"{where}.{(others or ['alias'])[0]}: an alias is one string and nothing else, such as"
            ' alias = "gh200x4". A device of its own has patterns instead.'
        )
    return table["alias"]


def _unambiguous(catalogue: Catalogue, where: str) -> Catalogue:
    for name, other in grammar.clashes([*catalogue.devices, *catalogue.aliases]):
        raise CatalogueError(
            f"{where}: the name {name!r} also reads as {name.removeprefix(other)} of {other!r}, so that one name"
            " would mean two platforms. Choose another name."
        )
    return catalogue


def _check_name(name: str, where: str) -> None:
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


def _read(
    table: Mapping[str, Any], readers: Mapping[str, Callable[[Any, str], Any]], where: str
) -> dict[str, Any]:
    return {name: read(table[name], f"{where}.{name}") for name, read in readers.items() if name in table}


def _table(entry: object, where: str, valid: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise CatalogueError(f"{where}: {entry!r} is not a table. Valid fields: {', '.join(valid)}.")
    for name in entry:
        if name not in valid:
            similar = grammar.closest(str(name), valid, limit=1)
            hint = f" Did you mean {similar[0]}?" if similar else ""
            raise CatalogueError(f"{where}.{name}: no such field.{hint} Valid: {', '.join(valid)}.")
    return entry


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise CatalogueError(f"{where}: {value!r} is not a string.")
    return value


def _strings(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        name = where.rpartition(".")[2]
        raise CatalogueError(f"{where}: {value!r} is not a list of strings. Write {name} = ['…'].")
    return tuple(value)


def _dtypes(value: object, where: str) -> tuple[str, ...]:
    for dtype in (found := _strings(value, where)):
        if dtype not in PRECISIONS:
            raise CatalogueError(f"{where}: {dtype!r} is not one of {', '.join(PRECISIONS)}.")
    return found


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise CatalogueError(f"{where}: {value!r} is not a positive number.")
    return float(value)


def _peaks(value: object, where: str) -> dict[str, float]:
    return {name: _number(each, f"{where}.{name}") for name, each in _table(value, where, PRECISIONS).items()}


_DEVICE_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "title": _text, "vendor": _text, "architecture": _text, "shapes": _strings,
}  # fmt: skip
_VARIANT_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "key": _text, "title": _text, "patterns": _strings, "memory_gb": _number, "dtypes": _dtypes, "peaks_tflops": _peaks, "bandwidth_gb_s": _number, "tdp_w": _number,
    "interconnect": _text, "source": _text,
}  # fmt: skip
DEVICE_FIELDS = (*_DEVICE_READERS, "variants")
VARIANT_FIELDS = tuple(_VARIANT_READERS)
