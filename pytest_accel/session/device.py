"""The device of an item: opening it, its environment, its lock, running out of its memory; progress meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import pytest

from pytest_accel.distributed.worker import RankConnection, bind_rank
from pytest_accel.markers import is_benchmark
from pytest_accel.measure.device import (
    CpuDevice,
    CudaDevice,
    Device,
    IpuDevice,
    torch_index,
    widen_device_queues,
)
from pytest_accel.measure.locks import lock_devices
from pytest_accel.options import Settings, settings_of
from pytest_accel.platforms.catalogue import DetectedDevice, PlatformName
from pytest_accel.platforms.environment import read_environment
from pytest_accel.platforms.machine import Machine, missing_poplar
from pytest_accel.report.terminal import Progress
from pytest_accel.session.selection import SELECTION
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.run import Scalar

RANK_END = pytest.StashKey[RankConnection]()  # set in a worker process only
BINDING = pytest.StashKey[str]()  # in words, for the environment of a measurement
# When the log had its last line of progress: runs may be shorter than its interval.
LOGGED_S = pytest.StashKey[float]()
STEP_FACTS = pytest.StashKey[dict[str, str]]()  # of the built step: what an upgrade may change


def open_device(item: pytest.Item, settings: Settings) -> tuple[PlatformName, Device, DetectedDevice | None]:
    """Return the platform of an item, its device for measuring and, beyond the host, the driver's view of it.

    Each rank of a process group has its own device, by its number on its node.
    """
    selection = item.config.stash[SELECTION]
    platform = selection.choose(item)
    assert platform is not None  # set-up has skipped or failed the others
    if platform.device == "cpu":
        return platform, CpuDevice(threads=settings.threads), None
    rank = item.config.stash.get(RANK_END, None)
    hardware = hardware_of(selection.machine, platform, rank.place.local_rank if rank else 0)
    if hardware is None:
        pytest.fail(f"{platform}: this rank sees {selection.machine.summary()}", pytrace=False)
    if hardware.vendor == "graphcore":
        if why := missing_poplar():
            (fail_plainly if settings.require else pytest.skip)(f"{platform}: {why}")
        return platform, IpuDevice(), hardware
    widen_device_queues()
    return platform, CudaDevice(index=torch_index(hardware.uuid, hardware.index)), hardware


def hardware_of(machine: Machine, platform: PlatformName, local_rank: int) -> DetectedDevice | None:
    """Return the device of a rank: by its number among those of the node, or the only visible one."""
    fitting = machine.devices_for(platform)
    return fitting[local_rank] if local_rank < len(fitting) else fitting[0] if len(fitting) == 1 else None


def bind_worker(config: pytest.Config, platform: PlatformName) -> None:
    """Bind a worker process, for its lifetime, to the CPUs near its device."""
    place, machine = config.stash[RANK_END].place, config.stash[SELECTION].machine
    devices = [hardware_of(machine, platform, rank) for rank in range(place.per_node)]
    uuids = [device.uuid if device else None for device in devices]
    config.stash[BINDING] = bind_rank(mode=place.bind, device_uuids=uuids, local_rank=place.local_rank)


def environment_of(
    item: pytest.Item,
    settings: Settings,
    platform: PlatformName,
    device: Device,
    hardware: DetectedDevice | None,
) -> Environment:
    """Return the environment that this process sees, with facts of the step that was built in it."""
    cpu = item.config.stash[SELECTION].machine.cpu
    binding = item.config.stash.get(BINDING, "")
    read = read_environment(
        None if device.name == "cpu" else hardware,
        threads=settings.threads,
        device_count=platform.devices,
        cpu_model=f"{cpu.name} ({cpu.model})",
    )
    facts = item.stash.get(STEP_FACTS, {})
    if binding and (platform.devices > 1 or not binding.startswith("none")):
        facts = {"binding": binding, **facts}
    return replace(read, context={**read.context, **facts})


def is_measuring_off(config: pytest.Config) -> bool:
    """Return whether pytest-benchmark only calls each step once, by --benchmark-disable."""
    return config.getoption("benchmark_disable", default=False) and not config.getoption("benchmark_enable")


# --- failures ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """What did not fit, and where; the session decides whether it did before."""

    text: str
    environment: Environment
    configuration: Mapping[str, Scalar] | None = None  # None: it was not built


UNFIT = pytest.StashKey[Unfit]()
CONFIGURATION = pytest.StashKey[Mapping[str, Scalar]]()  # of the step that was built, before it is measured


def fail_plainly(text: str) -> NoReturn:
    """Fail a test with these words alone, without a traceback."""
    raise pytest.fail.Exception(text, pytrace=False) from None


def does_not_fit(item: pytest.Item, text: str) -> NoReturn:
    """End the test of a benchmark; `text` says what did not fit in which memory.

    For fixtures, from any rank of a process group.
    """
    settings = settings_of(item)
    here = environment_of(item, settings, *open_device(item, settings))
    built = item.stash.get(CONFIGURATION, None)
    item.stash[UNFIT] = Unfit(text=text, environment=here, configuration=built)
    raise pytest.skip.Exception(text, _use_item_location=True) from None


# --- progress ---------------------------------------------------------------------------------------


@contextmanager
def live_progress(config: pytest.Config, label: str, *, left_s: float | None = None) -> Iterator[Progress]:
    """Show progress on the terminal behind pytest's own line, or in the log.

    A worker has none: it sends its phases to the session.
    """
    rank = config.stash.get(RANK_END, None)
    if rank is not None:
        yield _WorkerProgress(rank)
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    # The writer knows how much of the line is taken.
    shown = reporter._tw if reporter is not None and _is_live(reporter) else None  # noqa: SLF001
    log = None if shown else partial(write_log, config)
    logged_s = config.stash.get(LOGGED_S, None)
    progress = Progress(label, shown, lambda: _uncaptured(config), log=log, left_s=left_s, logged_s=logged_s)
    try:
        yield progress
    finally:
        progress.close()
        config.stash[LOGGED_S] = progress.logged_s


def _is_live(reporter: pytest.TerminalReporter) -> bool:
    """Whether a line can be shown and erased again."""
    return bool(reporter.isatty and reporter.hasmarkup)


def write_log(config: pytest.Config, text: str) -> None:
    """Write a line at once where output is a log; on a terminal the live line shows it."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or _is_live(reporter) or config.getoption("verbose") < 0:
        return
    with _uncaptured(config):
        reporter.ensure_newline()
        reporter.write_line(text)
        reporter.flush()  # what stays in the buffer of a pipe would be captured with the item's output


def _uncaptured(config: pytest.Config) -> AbstractContextManager[None]:
    capture = config.pluginmanager.get_plugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else nullcontext()


class _WorkerProgress(Progress):
    """Sends phases to the session, which shows those of rank 0."""

    def __init__(self, rank: RankConnection) -> None:
        super().__init__("", None)
        self._rank = rank

    def phase(self, text: str, remaining_s: float | None) -> None:
        self._rank.say(text, remaining_s)


# --- locks ------------------------------------------------------------------------------------------


@contextmanager
def hold_devices(
    item: pytest.Item, settings: Settings, platform: PlatformName, progress: Progress
) -> Iterator[None]:
    """Hold the locks of this node's devices while a benchmark runs, its set-up included; raise LockedError if another session does.

    Devices of other nodes are not locked: a scheduler gives whole nodes to a job that has several.
    """
    config = item.config
    off = not is_benchmark(item) or is_measuring_off(config)
    devices = () if off else config.stash[SELECTION].machine.devices_for(platform)
    reported: set[str] = set()

    def waiting(text: str) -> None:
        if text in reported:  # once in a log
            progress.tick()
            return
        reported.add(text)
        write_log(config, f"{item.name}: {text}")
        progress.phase(text, None)

    with lock_devices(
        [device.uuid for device in devices if device.uuid],
        mode=settings.lock,
        waiting=waiting,
        unlocked=lambda text: write_log(config, f"{item.name}: {text}"),
        timeout_s=settings.timeout_s,
    ):
        yield
