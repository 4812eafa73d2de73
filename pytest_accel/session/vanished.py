"""Benchmarks that stand in a baseline, were selected, and are gone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_accel.session.cases import Case
from pytest_accel.session.items import path_of
from pytest_accel.store.baselines import BaselineStore
from pytest_accel.store.schema import BaselineError


def find_vanished(
    config: pytest.Config,
    session: pytest.Session,
    store: BaselineStore,
    cases: Iterable[Case],
    collected: set[str],
) -> list[str]:
    """Node ids of the measured platforms' baselines that no collected item has.

    Only what the arguments cover whole counts: `file.py::test_x` asks for nothing else, and what
    `-k` would have chosen among items that do not exist cannot be known.
    """
    if config.getoption("keyword", default=""):
        return []
    covered = [_relative(argument, config) for argument in session.config.args if "::" not in argument]
    platforms = {case.disk_name for case in cases}
    stored = {node_id for platform in platforms for node_id in _stored(store, platform)}
    return sorted(
        node_id
        for node_id in stored - collected
        if any(path_of(node_id).is_relative_to(folder) for folder in covered if folder is not None)
    )


def _stored(store: BaselineStore, platform: str) -> set[str]:
    found: set[str] = set()
    for path in sorted((store.root / platform).glob("*.json")):
        try:
            file = store.read(platform, path.stem)
        except BaselineError:
            continue  # a suite that nobody selected; `read` at collection has refused the others
        found |= set(file.benchmarks) if file else set()
    return found


def _relative(argument: str, config: pytest.Config) -> str | None:
    path = (config.invocation_params.dir / argument).resolve()
    root = Path(config.rootpath)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else None
