"""Where items run: the machine, the platform each item runs as, and what is missing for those that cannot."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pytest

from pytest_accel.measure.device import CpuDevice, CudaDevice, Device, torch_index, widen_device_queues
from pytest_accel.measure.rounds import SynchronizingTimer
from pytest_accel.options import Settings
from pytest_accel.platforms.catalogue import Catalogue
from pytest_accel.platforms.machine import Device as Hardware
from pytest_accel.platforms.machine import Machine, detect
from pytest_accel.platforms.names import PlatformName
from pytest_accel.session import items as what
from pytest_accel.session.seating import unseated, whole_machine

if TYPE_CHECKING:
    from pytest_accel.distributed.worker import RankConnection  # noqa: F401 - in the string below: pytest evaluates it never

RANK_END = pytest.StashKey["RankConnection"]()  # set in a rank only
PLACEMENT = pytest.StashKey["Placement"]()
TIMER = pytest.StashKey[SynchronizingTimer]()


class Placement:
    """The plugin object that skips, or fails, what this machine cannot run."""

    def __init__(self, config: pytest.Config, settings: Settings, catalogue: Catalogue) -> None:
        self.config = config
        self.settings = settings
        self.catalogue = catalogue
        self.ordered = ""  # in a rank: the platform that the session chose for the item

    @cached_property
    def machine(self) -> Machine:
        return whole_machine(self.config, detect(self.catalogue), self.catalogue)

    @cached_property
    def wanted(self) -> set[PlatformName]:
        return what.wanted_platforms(self.config.getoption("markexpr", ""), self.catalogue)

    def place(self, item: pytest.Item) -> what.Place:
        if self.ordered:
            return what.Place(platform=self.catalogue.parse(self.ordered))
        return what.place(item, self.catalogue, self.machine, self.wanted)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Missing hardware skips, or fails where it is required; two workers never measure side by side."""
        benchmark = what.is_benchmark(item)
        if not benchmark and not what.platforms_of(item, self.catalogue):
            return
        if benchmark and is_xdist_worker(self.config):
            pytest.fail(
                "pytest-accel does not measure under xdist: workers side by side would slow each other. "
                "Run benchmarks with -n 0.",
                pytrace=False,
            )
        if benchmark and (why_not := unseated(self.config)):
            pytest.fail(why_not, pytrace=False)
        where = self.place(item)
        if where.platform is None:
            if self.settings.require:
                pytest.fail(f"{where.missing} (--accel-require)", pytrace=False)
            # Named so, the skip is shown at the test and not at this line.
            raise pytest.skip.Exception(where.missing, _use_item_location=True)


def give_timer(item: pytest.Item) -> None:
    """Have pytest-benchmark time this item by a clock that waits for the device.

    Its mark is the public way; the closest one alone counts, so what the user marked is kept in it.
    """
    marked = item.get_closest_marker("benchmark")
    timer = item.stash[TIMER] = SynchronizingTimer()
    options = {**(marked.kwargs if marked else {}), "timer": timer}
    item.add_marker(pytest.mark.benchmark(**options), append=False)


def open_device(item: pytest.Item, settings: Settings) -> tuple[PlatformName, Device, Hardware | None]:
    """The device of an item's platform, as measuring sees it and, beyond the host, as its driver does.

    In a gang each rank has its own, by its number on its node.
    """
    placement = item.config.stash[PLACEMENT]
    platform = placement.place(item).platform
    assert platform is not None  # set-up has skipped or failed the others
    if platform.device == "cpu":
        return platform, CpuDevice(threads=settings.threads), None
    rank = item.config.stash.get(RANK_END, None)
    hardware = hardware_of(placement.machine, platform, rank.place.local_rank if rank else 0)
    if hardware is None:
        pytest.fail(f"{platform}: this rank sees {placement.machine.summary()}", pytrace=False)
    if hardware.vendor not in {"nvidia", "amd"}:
        pytest.fail(f"{platform}: this version measures CPUs and CUDA or ROCm devices", pytrace=False)
    widen_device_queues()
    return platform, CudaDevice(index=torch_index(hardware.uuid, hardware.index)), hardware


def hardware_of(machine: Machine, platform: PlatformName, local_rank: int) -> Hardware | None:
    """The device of a rank: by its number among those of the node, or the only one that it was given to see."""
    fitting = machine.devices_for(platform)
    if not fitting:
        return None
    return fitting[local_rank] if local_rank < len(fitting) else fitting[0] if len(fitting) == 1 else None


def is_xdist_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
