"""Every platform that has a name: the built-in catalogue, and what a project adds to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_accel.platforms import names as grammar
from pytest_accel.platforms.kinds import (
    CatalogueError,
    DeviceKind,
    Variant,
    check_kind,
    check_name,
    read_kind,
)

if TYPE_CHECKING:
    from pytest_accel.platforms.names import PlatformName

__all__ = [
    "Catalogue",
    "CatalogueError",
    "DeviceKind",
    "UnknownPlatform",
    "Variant",
    "load_catalogue",
    "user_platforms",
]

PYPROJECT_TABLE = "tool.pytest-accel.platforms"


class UnknownPlatform(ValueError):  # noqa: N818 -- says what happened, and is raised at users
    """No platform has this name; the message says which are alike, and how to add one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The kinds of devices by name, and other names for platforms."""

    devices: Mapping[str, DeviceKind]
    aliases: Mapping[str, PlatformName] = field(default_factory=dict)

    def device(self, name: str) -> DeviceKind:
        """The kind of device behind a device's, an alias's or a whole platform's name."""
        kind = self.devices.get(name)
        return kind if kind is not None else self.devices[self.parse(name).device]

    def names(self) -> list[str]:
        """Every name that is a marker: devices, their usual shapes, aliases."""
        return [name for kind in self.devices.values() for name in kind.names()] + list(self.aliases)

    def find(self, name: str) -> PlatformName | None:
        """The platform of that name, None where it is any other word."""
        if name in self.aliases:
            return self.aliases[name]
        try:
            return self._resolve(grammar.parse(name, self._heads()))
        except grammar.PlatformNameError:
            return None

    def parse(self, name: str) -> PlatformName:
        """Any platform of a known device, registered as a marker or not; an alias is what it stands for."""
        if name in self.aliases:
            return self.aliases[name]
        try:
            return self._resolve(grammar.parse(name, self._heads()))
        except grammar.UnknownDeviceError as error:
            alike = [head + error.counts for head in grammar.closest(error.device, self._heads())]
            alike = alike or grammar.closest(name, self.names())
            hint = f" Did you mean {' or '.join(alike)}?" if alike else ""
            raise UnknownPlatform(
                f"{error}.{hint} `pytest-accel platform --all` lists every platform; add your own in"
                f" pyproject.toml: [{PYPROJECT_TABLE}.{error.device}] with patterns = ['…']."
            ) from None
        except grammar.PlatformNameError as error:
            raise UnknownPlatform(str(error)) from None

    def identify(self, device_name: str, memory_bytes: int | None) -> tuple[str, Variant] | None:
        """The kind and the variant of a device, from the name and the memory that its driver reports."""
        for kind in self.devices.values():
            for variant in kind.variants:
                if variant.matches(device_name, memory_bytes):
                    return kind.key, variant
        return None

    def with_devices(self, kinds: Iterable[DeviceKind], where: str = "a hook's platforms") -> Catalogue:
        """This catalogue and these kinds; one of a known name extends that one."""
        added: dict[str, DeviceKind] = {}
        for kind in kinds:
            place = f"{where}.{kind.key}"
            known = added.get(kind.key) or self.devices.get(kind.key)
            check_kind(kind, place, extends=known is not None)
            if kind.key in self.aliases:
                raise CatalogueError(f"{place}: this name is an alias of {self.aliases[kind.key]} already.")
            added[kind.key] = kind if known is None else known.extended_by(kind)
        # What a project adds is tried first: its pattern may be narrower than the built-in one.
        rest = {key: kind for key, kind in self.devices.items() if key not in added}
        return _unambiguous(replace(self, devices=added | rest), where)

    def with_aliases(self, aliases: Mapping[str, str], where: str = "a hook's aliases") -> Catalogue:
        """This catalogue and other names for platforms of it."""
        resolved = dict(self.aliases)
        for name, target in aliases.items():
            place = f"{where}.{name}.alias"
            check_name(name, place)
            if name in self.devices:
                raise CatalogueError(f"{place}: {name} is a device of its own. Choose another name.")
            try:
                resolved[name] = self.parse(target)
            except UnknownPlatform as error:
                raise CatalogueError(f"{place}: {error}") from None
        return _unambiguous(replace(self, aliases=resolved), where)

    def _heads(self) -> list[str]:
        # An alias of a bare device takes counts like the device; one of `gh200x4` stands for that alone.
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
    """The built-in catalogue, with a project's tables (`extra`) and what hooks gave (`kinds`).

    A table is a device (`patterns`, `memory_gb`, `shapes`, …, or `variants`), an extension where its
    name is known already, or `alias = "gh200x4"`.
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
    """The tables below `[tool.pytest-accel.platforms]`; none where there is no such file."""
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


@cache
def _builtin() -> Catalogue:
    tables = _parse_toml(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
    kinds = {key: read_kind(key, table, f"catalogue.toml: {key}") for key, table in tables.items()}
    return Catalogue(devices=kinds)


def _parse_toml(text: str) -> Mapping[str, Any]:
    import tomllib  # 3 ms that only a reader pays

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
