"""What an item asks for: its platforms, its suite, and the names in the `-m` expression."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

import pytest

from pytest_accel.core.grammar import PlatformName, closest
from pytest_accel.platforms.catalogue import Catalogue, UnknownPlatform
from pytest_accel.platforms.machine import Machine

FIXTURE = "accel"  # whoever takes it, directly or through `train` and `infer`, is a benchmark
NO_GANGS = "this version does not start: it measures one device"
_WORDS = re.compile(r"\b(not\s+)?([A-Za-z_]\w*)(?!\w*\s*\()")
_OPERATORS = frozenset({"and", "or", "not"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an item runs, or what is missing for it to run."""

    platform: PlatformName | None
    missing: str = ""


def is_benchmark(item: pytest.Item) -> bool:
    return FIXTURE in getattr(item, "fixturenames", ())


def suite_of(item: pytest.Item) -> str:
    """The baseline file of an item: the name of its module without the prefix that pytest needs."""
    return item.path.stem.removeprefix("test_").removesuffix("_test")


def path_of(node_id: str) -> PurePosixPath:
    return PurePosixPath(node_id.partition("::")[0])


def platforms_of(item: pytest.Item, catalogue: Catalogue) -> list[PlatformName]:
    """The platforms that an item is marked with, each once."""
    found: dict[PlatformName, None] = {}
    for mark in item.iter_markers():
        with suppress(UnknownPlatform):  # any other marker
            found[catalogue.parse(mark.name)] = None
    return list(found)


def wanted_names(expression: str) -> set[str]:
    """The names that a `-m` expression asks for; what it negates is not asked for."""
    return {word for negated, word in _WORDS.findall(expression) if not negated and word not in _OPERATORS}


def wanted_platforms(expression: str, catalogue: Catalogue) -> set[PlatformName]:
    """The platforms among the names that a `-m` expression asks for."""
    found = set()
    for name in wanted_names(expression):
        with suppress(UnknownPlatform):
            found.add(catalogue.parse(name))
    return found


def place(
    item: pytest.Item, catalogue: Catalogue, machine: Machine, wanted: Collection[PlatformName]
) -> Place:
    """Choose the platform an item runs as: the largest that this machine satisfies.

    Where `-m` names some of the item's platforms, only those count: on a node of four A100,
    `-m a100` measures one of them and `-m a100x4` all.
    """
    marked = platforms_of(item, catalogue)
    if not marked:
        return Place(platform=_primary(machine))
    asked = [platform for platform in marked if platform in wanted] or marked
    present = [platform for platform in asked if machine.satisfies(platform)]
    if not present:
        return Place(platform=None, missing=machine.missing(asked, catalogue))
    satisfied = [platform for platform in present if platform.devices == 1]
    if not satisfied:
        return Place(platform=None, missing=f"needs a gang of processes ({present[0]}), which {NO_GANGS}")
    # An accelerator before the host: `cpu` is satisfied everywhere.
    return Place(platform=max(satisfied, key=lambda name: (name.device != "cpu", name.devices)))


def _primary(machine: Machine) -> PlatformName:
    """Where an item without platforms runs: on the first accelerator, else on the host."""
    known = (device.key for device in machine.devices if device.key and not device.mig)
    return PlatformName(next(known, "cpu"))


def refuse_unknown_names(
    expression: str, items: Iterable[pytest.Item], registered: Iterable[str], catalogue: Catalogue
) -> None:
    """A `-m` name that no marker has and that resembles a platform is a slip of the finger."""
    known = set(registered) | {mark.name for item in items for mark in item.iter_markers()}
    for name in wanted_names(expression) - known:
        try:
            catalogue.parse(name)
        except UnknownPlatform as error:
            if closest(name, catalogue.names()):
                raise pytest.UsageError(f"-m {expression!r}: {error}") from None
