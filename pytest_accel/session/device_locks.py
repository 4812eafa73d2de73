"""Locks of all devices of a benchmark: on each node one rank locks all of them, node after node in one order.

A session waits for its devices before it orders ranks to measure, whose timeout is for measuring.
"""

from __future__ import annotations

import platform as host
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_accel.measure.locks import LockedError, lock_devices
from pytest_accel.session.device import RANK_END
from pytest_accel.session.fitting import fail_plainly
from pytest_accel.session.progress import live_progress, write_log

if TYPE_CHECKING:
    from pytest_accel.measure.ranks import Ranks
    from pytest_accel.options import Settings
    from pytest_accel.platforms.machine import DetectedDevice
    from pytest_accel.report.terminal import Progress

WAITED_S = pytest.StashKey[float]()  # spent by this session waiting for its devices
IN_RANK = 0.9  # of --accel-timeout, within which a rank has to answer


@contextmanager
def exclusive_devices(
    item: pytest.Item, settings: Settings, ranks: Ranks, hardware: DetectedDevice | None
) -> Iterator[None]:
    """Hold the locks of all devices that measure together; the host has none.

    If each rank locked its own device, two process groups could deadlock.
    """
    if settings.lock == "off":
        yield
        return
    found = ranks.gather((host.node(), hardware.uuid if hardware else ""))
    with ExitStack() as held:
        for leader, uuids in by_leader(dict(enumerate(found))).items():
            problem = _locked(item, settings, uuids, held) if ranks.rank == leader else ""
            if problems := [each for each in ranks.gather(problem) if each]:
                fail_plainly(problems[0])
        yield


def by_leader(ranks: Mapping[int, tuple[str, str]]) -> dict[int, frozenset[str]]:
    """Return the lowest rank of each node, in the order of node names, with the devices of the node."""
    nodes = sorted({node for node, uuid in ranks.values() if uuid})
    return {
        min(rank for rank, (where, _) in ranks.items() if where == node): frozenset(
            uuid for where, uuid in ranks.values() if where == node and uuid
        )
        for node in nodes
    }


def wait_until_free(
    config: pytest.Config, settings: Settings, uuids: Iterable[str], progress: Progress, *, label: str
) -> str:
    """Wait until these devices are free; return why they are not, or nothing.

    Nothing is held afterwards: the ranks lock the devices themselves, and wait for whoever was faster.
    """
    waiting = _report_waiting(config, progress, label)
    try:
        with (
            _counted(config),
            lock_devices(
                uuids, mode=settings.lock, waiting=waiting, unlocked=None, timeout_s=settings.timeout_s
            ),
        ):
            return ""
    except LockedError as error:
        return str(error)


def _locked(item: pytest.Item, settings: Settings, uuids: frozenset[str], held: ExitStack) -> str:
    """Lock devices until `held` is closed; return why that failed, or nothing."""
    # A rank reports its wait before its session takes it for a hang.
    patience = IN_RANK if RANK_END in item.config.stash else 1.0
    with live_progress(item.config, item.name) as progress, _counted(item.config):
        try:
            held.enter_context(
                lock_devices(
                    uuids,
                    mode=settings.lock,
                    waiting=_report_waiting(item.config, progress, item.name),
                    unlocked=lambda text: warnings.warn(pytest.PytestWarning(text), stacklevel=1),
                    timeout_s=patience * settings.timeout_s,
                )
            )
        except LockedError as error:
            return str(error)
    return ""


@contextmanager
def _counted(config: pytest.Config) -> Iterator[None]:
    begun_s = time.monotonic()
    try:
        yield
    finally:
        config.stash[WAITED_S] = config.stash.get(WAITED_S, 0.0) + time.monotonic() - begun_s


def _report_waiting(config: pytest.Config, progress: Progress, label: str) -> Callable[[str], None]:
    reported: set[str] = set()

    def waiting(text: str) -> None:
        if text not in reported:  # once in a log
            write_log(config, f"{label}: {text}")
        reported.add(text)
        progress.phase(text, None)

    return waiting
