"""A gang alone on its devices: on each node one rank locks all of them, node after node in one order.

A session waits for its devices before it orders ranks to measure: their time to answer is for measuring.
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
    from pytest_accel.platforms.machine import Device as Hardware
    from pytest_accel.report.terminal import Progress

WAITED_S = pytest.StashKey[float]()  # of this session, for others to leave its devices
IN_RANK = 0.9  # of --accel-timeout, within which a rank has to answer


@contextmanager
def exclusive_devices(
    item: pytest.Item, settings: Settings, ranks: Ranks, hardware: Hardware | None
) -> Iterator[None]:
    """Hold the locks of all devices that measure together; the host has none.

    A rank that locked its own device alone could wait for one whose rank waits for ours.
    """
    if settings.lock == "off":
        yield
        return
    told = ranks.gather((host.node(), hardware.uuid if hardware else ""))
    with ExitStack() as held:
        for leader, uuids in by_leader(dict(enumerate(told))).items():
            problem = _locked(item, settings, uuids, held) if ranks.rank == leader else ""
            if problems := [each for each in ranks.gather(problem) if each]:
                fail_plainly(problems[0])
        yield


def by_leader(told: Mapping[int, tuple[str, str]]) -> dict[int, frozenset[str]]:
    """The lowest rank of each node, in the order of the nodes' names, with the devices of the node."""
    nodes = sorted({node for node, uuid in told.values() if uuid})
    return {
        min(rank for rank, (where, _) in told.items() if where == node): frozenset(
            uuid for where, uuid in told.values() if where == node and uuid
        )
        for node in nodes
    }


def wait_until_free(
    config: pytest.Config, settings: Settings, uuids: Iterable[str], progress: Progress, *, label: str
) -> str:
    """Before ranks are ordered to lock these devices: why they are not to be had; empty where they are free.

    Nothing is held afterwards. Whoever comes between is waited for by the ranks; and they say what cannot be locked.
    """
    waiting = _telling(config, progress, label)
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
    """Why they could not be locked; empty where they are, until `held` is closed."""
    # A rank says whom it waits for before the session that ordered it takes that for a hang.
    patience = IN_RANK if RANK_END in item.config.stash else 1.0
    with live_progress(item.config, item.name) as progress, _counted(item.config):
        try:
            held.enter_context(
                lock_devices(
                    uuids,
                    mode=settings.lock,
                    waiting=_telling(item.config, progress, item.name),
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


def _telling(config: pytest.Config, progress: Progress, label: str) -> Callable[[str], None]:
    told: set[str] = set()

    def waiting(text: str) -> None:
        if text not in told:  # a log need not know it every second
            write_log(config, f"{label}: {text}")
        told.add(text)
        progress.phase(text, None)

    return waiting
