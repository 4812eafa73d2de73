"""What an item asks for: its platforms, its suite, and the names in the `-m` expression."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from pytest_accel.markers import is_benchmark, takes_device, takes_process_group, wanted_words
from pytest_accel.platforms.catalogue import Catalogue
from pytest_accel.platforms.machine import Machine
from pytest_accel.platforms.names import PlatformName
from pytest_accel.stats.run import suite_of as suite_of_path

__all__ = [
    "Place",
    "is_benchmark",
    "is_of_wheel",
    "path_of",
    "place",
    "platforms_of",
    "refuse_shared_ids",
    "suite_of",
    "takes_device",
    "takes_process_group",
    "wanted_platforms",
]

_WHEEL_SUITES = Path(__file__).parents[1] / "suites"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an item runs, or what is missing for it to run."""

    platform: PlatformName | None
    missing: str = ""


def suite_of(item: pytest.Item) -> str:
    """The baseline file of an item: the name of its module without the prefix that pytest needs."""
    return suite_of_path(item.path.as_posix())


def is_of_wheel(item: pytest.Item) -> bool:
    """Whether it is of the suites that the wheel brought; `suites/conftest.py` gives those their names."""
    return item.path.is_relative_to(_WHEEL_SUITES)


def path_of(node_id: str) -> PurePosixPath:
    return PurePosixPath(node_id.partition("::")[0])


def platforms_of(item: pytest.Item, catalogue: Catalogue) -> list[PlatformName]:
    """The platforms that an item is marked with, each once."""
    names = (catalogue.find(mark.name) for mark in item.iter_markers())
    return list(dict.fromkeys(name for name in names if name is not None))


def wanted_platforms(expression: str, catalogue: Catalogue) -> set[PlatformName]:
    """The platforms among the names that a `-m` expression asks for."""
    names = (catalogue.find(word) for word in wanted_words(expression))
    return {name for name in names if name is not None}


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
    # An accelerator before the host: `cpu` is satisfied everywhere.
    return Place(platform=max(present, key=lambda name: (name.device != "cpu", name.devices)))


def refuse_shared_ids(benchmarks: Iterable[pytest.Item], root: Path) -> None:
    """A baseline is found by its node id: it must name one benchmark, and do so from the root directory."""
    seen: set[str] = set()
    for item in benchmarks:
        if item.nodeid in seen:
            raise pytest.UsageError(
                f"two benchmarks have the id {item.nodeid}: a baseline cannot tell them apart."
            )
        if not item.path.is_relative_to(root) and not is_of_wheel(item):
            raise pytest.UsageError(
                f"{item.path} lies outside the root directory {root}, from which baselines name their benchmarks. "
                "Choose another with --rootdir."
            )
        seen.add(item.nodeid)


def _primary(machine: Machine) -> PlatformName:
    """Where an item without platforms runs: on the first accelerator, else on the host."""
    known = (device.key for device in machine.devices if device.key and not device.mig)
    return PlatformName(next(known, "cpu"))
