"""Platform markers: registration, import by name, and names in `-m` expressions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import pytest

from pytest_accel.options import MARKER_KEYS
from pytest_accel.platforms.catalogue import (
    Accelerators,
    Catalogue,
    CatalogueError,
    PlatformName,
    load_catalogue,
    project_table,
)
from pytest_accel.stats.quantities import did_you_mean

Test = TypeVar("Test", bound=Callable[..., object])
CATALOGUE = pytest.StashKey[Catalogue]()
BENCHMARK_FIXTURE = "accel"  # an item that takes it, directly or through `train` and `infer`, is a benchmark
DEVICE_FIXTURE = "accel_device"
GROUP_FIXTURE = "process_group"  # an item that takes it runs on every rank
_configs: list[pytest.Config] = []  # pytest runs inside pytest in plugin tests: the innermost counts


def register_platforms(config: pytest.Config) -> None:
    """Read the catalogue with platforms of the project and of other plugins, and register every marker."""
    try:
        catalogue = config.stash[CATALOGUE] = read_catalogue(config)
    except CatalogueError as error:
        raise pytest.UsageError(str(error)) from None
    config.addinivalue_line(
        "markers", f"accel({', '.join(MARKER_KEYS)}): settings of one benchmark, before those of the session"
    )
    _register_names(config, catalogue, catalogue.names())
    _configs.append(config)
    config.add_cleanup(lambda: _configs.remove(config))


def read_catalogue(config: pytest.Config) -> Catalogue:
    hooked = config.hook.pytest_accel_platforms(config=config)
    for tables in hooked:
        if not isinstance(tables, Mapping):
            raise CatalogueError(f"pytest_accel_platforms: {tables!r} is not a mapping of names to fields.")
    return load_catalogue(project_table(config.rootpath / "pyproject.toml"), hooked)


def _register_names(config: pytest.Config, catalogue: Catalogue, names: Iterable[str]) -> None:
    for name in names:
        platform = catalogue.parse(name)
        title = catalogue.devices[platform.device].title
        count = f"{platform.per_node} x {title}" if platform.per_node > 1 else title
        nodes = f" on each of {platform.nodes} nodes" if platform.nodes > 1 else ""
        config.addinivalue_line("markers", f"{name}: needs {count}{nodes}")


class Marks(tuple[pytest.MarkDecorator, ...]):
    """Several marks: a decorator, and what `pytest.param(marks=...)` takes."""

    __slots__ = ()

    def __call__(self, test: Test) -> Test:
        for mark in self:
            test = mark(test)
        return test


def platform_marks(platforms: Iterable[str | Accelerators]) -> list[pytest.MarkDecorator]:
    """Return the marks of platforms that are named, several in one text, or selected by what they have."""
    names: list[str] = []
    for each in platforms:
        names += each.split() if isinstance(each, str) else _catalogue().matching(each)
    return [platform_mark(name) for name in dict.fromkeys(names)]


def platform_mark(name: str) -> pytest.MarkDecorator:
    """Return the marker of any platform, also of a shape that is not registered yet: `gh200x4n16`."""
    catalogue = _catalogue()
    catalogue.parse(name)
    if _configs and name not in catalogue.names():
        _register_names(_configs[-1], catalogue, [name])
    mark: pytest.MarkDecorator = getattr(pytest.mark, name)
    return mark


def known_names() -> list[str]:
    return _catalogue().names()


def _catalogue() -> Catalogue:
    return _configs[-1].stash[CATALOGUE] if _configs else load_catalogue()


def is_benchmark(item: pytest.Item) -> bool:
    return takes(item, BENCHMARK_FIXTURE)


def takes(item: pytest.Item, fixture: str) -> bool:
    """Whether an item takes a fixture of ours, not a parameter or a fixture of that name that hides it."""
    info = getattr(item, "_fixtureinfo", None)  # what pytest's own fixture reporting reads
    for definition in reversed(info.name2fixturedefs.get(fixture, ()) if info else ()):
        if getattr(definition.func, "__module__", "") == "pytest_accel.fixtures":
            return True
        if fixture not in definition.argnames:
            return False
    return False


def needs_hardware(config: pytest.Config, items: Iterable[pytest.Item]) -> bool:
    """Whether any item takes a fixture that needs a device or is marked with a platform, or `-m` names one."""
    catalogue = config.stash[CATALOGUE]
    ours = (BENCHMARK_FIXTURE, DEVICE_FIXTURE, GROUP_FIXTURE)
    if any(takes(item, fixture) for item in items for fixture in ours):
        return True
    names = {mark.name for item in items for mark in item.iter_markers()}
    return any(catalogue.find(name) for name in names | wanted_words(config.getoption("markexpr", "")))


def wanted_words(expression: str) -> set[str]:
    """Return the names that a `-m` expression selects; negated ones are left out.

    Its grammar is Python's for `and`, `or`, `not`, parentheses, names and calls; pytest refuses the rest.
    """
    try:
        return set(_selected(ast.parse(expression.strip(), mode="eval").body))
    except SyntaxError:  # of nothing, too
        return set()


def wanted_platforms(expression: str, catalogue: Catalogue) -> set[PlatformName]:
    return set(filter(None, map(catalogue.find, wanted_words(expression))))


def _selected(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                yield from _selected(part)
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            yield name


def refuse_unknown_names(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Refuse a name in `-m` that no marker has and that resembles a platform: it is misspelt."""
    expression, catalogue = config.getoption("markexpr", ""), config.stash[CATALOGUE]
    if not expression:
        return
    known = {line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}
    known |= {mark.name for item in items for mark in item.iter_markers()}
    for word in sorted(wanted_words(expression) - known):
        hint = did_you_mean(word, known_names())
        if hint and catalogue.find(word) is None:
            raise pytest.UsageError(f"-m {expression!r}: there is no platform {word!r}.{hint}")
