"""Selection of benchmarks: the platform each item runs as, missing hardware, and benchmarks that vanished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from pytest_accel.markers import CATALOGUE, is_benchmark, wanted_platforms
from pytest_accel.measure.rounds import SynchronizingTimer
from pytest_accel.options import SETTINGS
from pytest_accel.platforms.catalogue import Catalogue, PlatformName
from pytest_accel.platforms.machine import Machine, detect
from pytest_accel.session.launcher import whole_machine
from pytest_accel.stats.run import node_id_of

if TYPE_CHECKING:
    from pytest_accel.storage.baselines import BaselineStore

SELECTION = pytest.StashKey["PlatformSelection"]()
TIMER = pytest.StashKey[SynchronizingTimer]()
# Options that leave items out on purpose: under any of them nothing can be said to have vanished.
_NARROWING_OPTIONS = ("keyword", "lf", "ignore", "ignore_glob", "deselect", "stepwise")


class PlatformSelection:
    """The plugin object that skips, or fails, what this machine cannot run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings = config.stash[SETTINGS]
        self.catalogue = config.stash[CATALOGUE]
        self.ordered = ""  # in a worker: the platform that the session chose
        self.unmet: dict[str, str] = {}  # what this machine lacks for a benchmark, by node id

    @cached_property
    def machine(self) -> Machine:
        return whole_machine(self.config, detect(self.catalogue), self.catalogue)

    @cached_property
    def wanted(self) -> set[PlatformName]:
        return wanted_platforms(self.config.getoption("markexpr", ""), self.catalogue)

    def choose(self, item: pytest.Item) -> PlatformName | None:
        """Return the platform an item runs as: the largest that this machine satisfies; None where it satisfies none."""
        if self.ordered:
            return self.catalogue.parse(self.ordered)
        candidates = self._candidates(item)
        if not candidates:
            accelerators = (device.key for device in self.machine.devices if device.key)
            return PlatformName(next(accelerators, "cpu"))
        present = filter(self.machine.satisfies, candidates)
        # An accelerator before the host: `cpu` is satisfied everywhere.
        return max(present, key=lambda name: (name.device != "cpu", name.devices), default=None)

    def _candidates(self, item: pytest.Item) -> list[PlatformName]:
        """Return an item's platforms; where `-m` names some of them, only those.

        On a node of four A100, `-m a100` measures one of them and `-m a100x4` all.
        """
        marked = platforms_of(item, self.catalogue)
        return [platform for platform in marked if platform in self.wanted] or marked

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip or fail where hardware is missing; refuse xdist workers, which would slow each other."""
        benchmark = is_benchmark(item)
        if not benchmark and not platforms_of(item, self.catalogue):
            return
        if benchmark and hasattr(self.config, "workerinput"):
            pytest.fail(
                "pytest-accel does not measure under xdist: workers side by side would slow each other. "
                "Run benchmarks with -n 0.",
                pytrace=False,
            )
        if self.choose(item) is None:
            missing = self.machine.missing(self._candidates(item), self.catalogue)
            if benchmark or self.settings.require:
                self.unmet[item.nodeid] = missing
            if self.settings.require:
                pytest.fail(f"{missing} (--accel-require)", pytrace=False)
            # The skip is shown at the test and not at this line.
            raise pytest.skip.Exception(missing, _use_item_location=True)


def select_platforms(config: pytest.Config, items: Iterable[pytest.Item]) -> PlatformSelection:
    """Start the selection, of a session or of a worker, once benchmarks were collected."""
    selection = config.stash[SELECTION] = PlatformSelection(config)
    for item in filter(is_benchmark, items):
        # pytest-benchmark times it by a clock that waits for the device. A mark is the public way; only the closest one counts,
        # so that the user's own values are kept in it.
        marked = item.get_closest_marker("benchmark")
        timer = item.stash[TIMER] = SynchronizingTimer()
        options = {**(marked.kwargs if marked else {}), "timer": timer}
        item.add_marker(pytest.mark.benchmark(**options), append=False)
    config.pluginmanager.register(selection, "accel-selection")
    return selection


def platforms_of(item: pytest.Item, catalogue: Catalogue) -> list[PlatformName]:
    """Return the platforms that an item is marked with, each once."""
    names = (catalogue.find(mark.name) for mark in item.iter_markers())
    return list(dict.fromkeys(name for name in names if name is not None))


# --- benchmarks that vanished ---------------------------------------------------------------------


def find_vanished(
    config: pytest.Config,
    store: BaselineStore,
    machine: Machine,
    platforms: Iterable[PlatformName],
    collected: Mapping[str, list[PlatformName]],
) -> list[str]:
    """Return node ids that baselines of these platforms hold and that no collected item has any more.

    `collected` are all items before deselection, with the platforms they are marked with. Only
    arguments that are whole files or folders count: `file.py::test_x` asks for nothing else.
    """
    if any(config.getoption(name, default=None) for name in _NARROWING_OPTIONS):
        return []
    gone = set[str]()
    for platform in platforms:
        name = machine.disk_name(platform)
        # A bad file is of a suite that was not selected: collection has refused the others.
        files = filter(None, (store.read_usable(name, suite) for _, suite in store.suites(name)))
        stored = {node_id_of(key) for file in files for key in file.benchmarks}
        gone |= {
            each
            for each in stored
            if each not in collected or platform not in (collected[each] or [platform])
        }
    paths = [(config.invocation_params.dir / each).resolve() for each in config.args if "::" not in each]
    root = Path(config.rootpath)
    folders = [path.relative_to(root).as_posix() for path in paths if path.is_relative_to(root)]
    paths_of = {node_id: PurePosixPath(node_id.partition("::")[0]) for node_id in gone}
    return sorted(node_id for node_id, path in paths_of.items() if any(map(path.is_relative_to, folders)))
