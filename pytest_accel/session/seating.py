"""pytest started by torchrun or srun, once for every rank: one of them is the session, the others have seats.

LauncherRank 0 collects, judges, prints and writes. The others never become a session: they start one process for
each gang when seat 0 says so, and leave with its exit status.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any, TypeVar

import pytest

from pytest_accel.distributed.launch import RankCommand, WorkerError
from pytest_accel.distributed.launcher_rank import (
    LauncherError,
    LauncherRank,
    is_launched,
    launcher_rank_from,
)
from pytest_accel.distributed.launcher_session import Inventory, LauncherRanks, open_launcher_ranks, serve
from pytest_accel.markers import read_catalogue
from pytest_accel.options import read_settings
from pytest_accel.platforms.catalogue import Catalogue, CatalogueError
from pytest_accel.platforms.machine import Device, Machine, identified, probe
from pytest_accel.platforms.numa import allowed_cpus, format_list
from pytest_accel.session.arguments import arguments_for_ranks
from pytest_accel.session.items import wanted_platforms

SEATS = pytest.StashKey[LauncherRanks]()  # of seat 0 only
_SEAT = pytest.StashKey[LauncherRank | None]()
_NO_SESSION = (
    "collectonly",
    "help",
    "version",
    "markers",
    "showfixtures",
    "show_fixtures_per_test",
    "cacheshow",
)
_TERMINATED = 128 + signal.SIGTERM
T = TypeVar("T")


# --- the decision -----------------------------------------------------------------------------------------


def take_seat(config: pytest.Config) -> LauncherRank | None:
    """The seat of this process, where `-m` names a platform of several devices; else each pytest is its own.

    Asked before pytest configures: `-m` is parsed, nothing is collected yet.
    """
    if _SEAT not in config.stash:
        config.stash[_SEAT] = _decide(config)
    return config.stash[_SEAT]


def _decide(config: pytest.Config) -> LauncherRank | None:
    """A launcher's nonsense matters only to who asks for gangs: other projects merely have the plugin installed."""
    if not is_launched(os.environ):
        return None
    try:
        wanted = wanted_platforms(config.getoption("markexpr", ""), read_catalogue(config))
        return launcher_rank_from(os.environ) if any(platform.devices > 1 for platform in wanted) else None
    except (LauncherError, CatalogueError) as error:
        raise pytest.UsageError(str(error)) from None


def unseated(config: pytest.Config) -> str:
    """Why a benchmark must not run here: every rank would measure by itself, beside the others. Else empty."""
    if take_seat(config) is not None:
        return ""
    try:
        seat = launcher_rank_from(os.environ)
    except LauncherError as error:
        return str(error)
    return seat_refusal(seat) if seat is not None else ""


def seat_refusal(seat: LauncherRank) -> str:
    return (
        f"this is {seat.title}, and all ranks would measure side by side: name the platform of all ranks with -m, "
        "such as -m a100x4, or start one pytest"
    )


def _only_tells(config: pytest.Config) -> bool:
    """Whether this invocation only lists or explains something: seat 0 does that alone."""
    return any(config.getoption(name, default=False) for name in _NO_SESSION)


# --- the other seats --------------------------------------------------------------------------------------


def serve_seat(config: pytest.Config) -> int | None:
    """In every seat but 0: serve until dismissed, and the exit status to leave with. None where this is none."""
    seat = take_seat(config)
    if seat is None or seat.rank == 0:
        return None
    if _only_tells(config):
        return int(pytest.ExitCode.OK)
    status = serve(
        seat,
        command=RankCommand(arguments=arguments_for_ranks(config), directory=config.invocation_params.dir),
        rendezvous_s=read_settings(config).rendezvous_s,
        inventory=lambda: inventory(probe()),
    )
    # All leave in the same moment, so that no launcher ends one for another's failure: torch would take its time.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# --- seat 0 -----------------------------------------------------------------------------------------------


def hold_seats(config: pytest.Config) -> Generator[None, T, T | int]:
    """Around the session of seat 0: the others come before it, and leave with its status after it.

    To be yielded from in a wrapper of `pytest_cmdline_main`; does nothing in every other process.
    """
    seat = take_seat(config)
    if seat is None or seat.rank != 0 or _only_tells(config):
        return (yield)
    try:
        seats = open_launcher_ranks(seat, rendezvous_s=read_settings(config).rendezvous_s)
    except WorkerError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SEATS] = seats
    result: T | int = int(pytest.ExitCode.INTERNAL_ERROR)
    status = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        with _interrupted_by_sigterm() as told:
            result = yield
        status = _TERMINATED if told else _status(result)
    except BaseException as error:
        status = _status_after(error)
        raise
    finally:
        seats.dismiss(status, with_this_process=True)
    return status if told else result


def _status(result: object) -> int:
    return result if isinstance(result, int) else int(pytest.ExitCode.OK)


def _status_after(error: BaseException) -> int:
    """The exit status that pytest, or the interpreter, gives for an exception."""
    match error:
        case pytest.UsageError():
            return int(pytest.ExitCode.USAGE_ERROR)
        case SystemExit(code=int(code)):
            return code
        case SystemExit(code=None):
            return 0
        case KeyboardInterrupt():
            return 128 + signal.SIGINT
    return 1


@contextmanager
def _interrupted_by_sigterm() -> Iterator[list[int]]:
    """A job's time limit ends the session as Ctrl-C does: what was measured is kept; the list says it came."""
    told: list[int] = []
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield told
        return

    def interrupt(number: int, _: object) -> None:
        if not told:  # once: the session is ending already
            told.append(number)
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield told
    finally:
        # A launcher that sees one rank leave ends the others: this one is leaving by itself.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


# --- the machine of all seats -----------------------------------------------------------------------------


def inventory(machine: Machine) -> dict[str, Any]:
    """What a seat tells of its machine, in plain values."""
    return {
        "cores": machine.cpu.cores,
        "cpus": format_list(allowed_cpus()),
        "cpu": machine.cpu.name,
        "devices": [
            {name: value for name, value in asdict(device).items() if name not in {"key", "variant"}}
            for device in machine.devices
        ],
        "problems": list(machine.problems),
    }


def bound_by_launcher(config: pytest.Config) -> bool:
    """Whether the launcher gave its ranks CPUs of their own: then they are bound already, and stay so."""
    seats = config.stash.get(SEATS, None)
    if seats is None:
        return False
    by_node = {seats.launched.node: {format_list(allowed_cpus())}}
    for seen in seats.inventories().values():
        by_node.setdefault(seen.node, set()).add(seen.sees.get("cpus", ""))
    return any(len(given) > 1 for given in by_node.values())


def whole_machine(config: pytest.Config, own: Machine, catalogue: Catalogue) -> Machine:
    """The machine of all seats, once they have come; in every other process its own.

    LauncherRanks that do not come are not missing hardware: the first gang that needs them fails and names them.
    """
    seats = config.stash.get(SEATS, None)
    if seats is None:
        return own
    with suppress(WorkerError):
        seats.wait()
    return merged_machine(own, seats.launched, seats.inventories(), catalogue)


def merged_machine(
    own: Machine, seat: LauncherRank, inventories: Mapping[int, Inventory], catalogue: Catalogue
) -> Machine:
    """What the launcher gave to all seats together, as one machine of several nodes; pure.

    The devices are those of seat 0's node, over its seats: a task may see its own only. A node that has
    fewer of them does not count, and is named in `problems`; one that has not told anything does. A seat
    stands for a core, however few this node has: the launcher decided.
    """
    by_node: dict[int, list[Inventory]] = {}
    for _, seen in sorted(inventories.items()):
        by_node.setdefault(seen.node, []).append(seen)
    devices = _united([own.devices, *(_devices(seen, catalogue) for seen in by_node.get(seat.node, ()))])
    here = _kinds(devices)
    lesser = []
    for node, seats in sorted(by_node.items()):
        there = _kinds(_united([_devices(seen, catalogue) for seen in seats]))
        if node != seat.node and here - there:
            lesser.append(f"{seats[0].host} has {_in_words(there)}, seat 0's node {_in_words(here)}")
    return replace(
        own,
        cpu=replace(own.cpu, cores=max(own.cpu.cores, seat.local_size)),
        devices=devices,
        nodes=seat.nodes - len(lesser),
        problems=(*own.problems, *lesser),
    )


def _devices(seen: Inventory, catalogue: Catalogue) -> list[Device]:
    return [identified(Device(**plain), catalogue) for plain in seen.sees.get("devices", ())]


def _united(lists: Iterable[Iterable[Device]]) -> tuple[Device, ...]:
    """Every device once, counted as if one process saw them all."""
    found: dict[object, Device] = {}
    for device in itertools.chain.from_iterable(lists):
        found.setdefault(device.uuid or (device.vendor, device.name, device.index), device)
    return tuple(replace(device, index=index) for index, device in enumerate(found.values()))


def _kinds(devices: Iterable[Device]) -> Counter[str]:
    return Counter(device.key or device.name for device in devices)


def _in_words(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "no accelerator"
