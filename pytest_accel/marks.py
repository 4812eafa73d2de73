"""Platforms as marks: registered with pytest, and importable by name."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pytest_accel.core.grammar import closest
from pytest_accel.platforms.catalogue import Catalogue, UnknownPlatform, load_catalogue, user_platforms
from pytest_accel.platforms.kinds import read_kind

CATALOGUE = pytest.StashKey[Catalogue]()
_configs: list[pytest.Config] = []  # pytest runs inside pytest in plugin tests: the innermost counts


def register_platforms(config: pytest.Config) -> Catalogue:
    """Read the catalogue with what the project and other plugins add, and register every platform."""
    hooked = {
        name: read_kind(name, table, f"pytest_accel_platforms.{name}")
        for tables in config.hook.pytest_accel_platforms(config=config)
        for name, table in (tables or {}).items()
    }
    catalogue = load_catalogue(user_platforms(config.rootpath / "pyproject.toml"), hooked.values())
    config.stash[CATALOGUE] = catalogue
    _register_names(config, catalogue, catalogue.names())
    _configs.append(config)
    return catalogue


def unregister_platforms(config: pytest.Config) -> None:
    if config in _configs:
        _configs.remove(config)


def platform_mark(name: str) -> pytest.MarkDecorator:
    """The mark of any platform, also of a shape that nobody registered yet: `gh200x4n16`."""
    config = _configs[-1] if _configs else None
    catalogue = config.stash[CATALOGUE] if config else load_catalogue()
    catalogue.parse(name)
    if config:
        _register_names(config, catalogue, [name])
    mark: pytest.MarkDecorator = getattr(pytest.mark, name)
    return mark


def resembles_platform(name: str) -> bool:
    """Whether a name is likely meant to be a platform's."""
    return bool(closest(name, known_names()))


def known_names() -> list[str]:
    catalogue = _configs[-1].stash[CATALOGUE] if _configs else load_catalogue()
    return catalogue.names()


def _register_names(config: pytest.Config, catalogue: Catalogue, names: Iterable[str]) -> None:
    for name in names:
        platform = catalogue.parse(name)
        title = catalogue.device(platform.device).title
        count = f"{platform.per_node} x {title}" if platform.per_node > 1 else title
        nodes = f" on each of {platform.nodes} nodes" if platform.nodes > 1 else ""
        config.addinivalue_line("markers", f"{name}: needs {count}{nodes}")


__all__ = [
    "CATALOGUE",
    "UnknownPlatform",
    "known_names",
    "platform_mark",
    "register_platforms",
    "resembles_platform",
    "unregister_platforms",
]
