"""Benchmarks that stand in a baseline, were selected, and are gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from pytest_accel.platforms.machine import Machine
from pytest_accel.platforms.names import PlatformName
from pytest_accel.session.items import path_of
from pytest_accel.stats.run import node_id_of
from pytest_accel.storage.baselines import BaselineError, BaselineStore

# Options that leave out what their owner knows to leave out; `-k` could choose among items that do not
# exist. Under any of them nothing can be said to have vanished.
_NARROWING = ("keyword", "lf", "ignore", "ignore_glob", "deselect", "stepwise")


def find_vanished(
    config: pytest.Config,
    store: BaselineStore,
    machine: Machine,
    platforms: Iterable[PlatformName],
    collected: Mapping[str, list[PlatformName]],
) -> list[str]:
    """Node ids that the baselines of these platforms hold, and that no item marked for them has any more.

    `collected` are all items before deselection, with the platforms they are marked with. Only what the
    arguments cover whole counts: `file.py::test_x` asks for nothing else.
    """
    if any(config.getoption(name, default=None) for name in _NARROWING):
        return []
    folders = [_relative(argument, config) for argument in config.args if "::" not in argument]
    gone = {
        node_id
        for platform in platforms
        for node_id in _stored(store, machine.disk_name(platform))
        if node_id not in collected or (collected[node_id] and platform not in collected[node_id])
    }
    return sorted(
        node_id
        for node_id in gone
        if any(path_of(node_id).is_relative_to(folder) for folder in folders if folder is not None)
    )


def _stored(store: BaselineStore, platform: str) -> set[str]:
    """The node ids of all benchmarks that are stored, whatever data fed them."""
    found: set[str] = set()
    for path in sorted((store.root / platform).glob("*.json")):
        try:
            file = store.read(platform, path.stem)
        except BaselineError:
            continue  # a suite that nobody selected; reading at collection has refused the others
        found |= set(map(node_id_of, file.benchmarks)) if file else set()
    return found


def _relative(argument: str, config: pytest.Config) -> str | None:
    path = (config.invocation_params.dir / argument).resolve()
    root = Path(config.rootpath)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else None
