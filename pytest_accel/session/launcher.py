"""pytest under torchrun or srun, started once for every rank: rank 0 is the session, the others start its workers.

Launcher rank 0 collects, judges, prints and writes. The others never become a session: they start one
process for each process group when rank 0 orders it, and exit with its status.
"""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_accel.distributed import launcher
from pytest_accel.distributed.processes import RankCommand, WorkerError
from pytest_accel.distributed.worker import rank_arguments
from pytest_accel.markers import read_catalogue, wanted_platforms
from pytest_accel.options import LAUNCHER_VARIABLES, read_settings
from pytest_accel.platforms.catalogue import Catalogue, CatalogueError, DetectedDevice
from pytest_accel.platforms.host import allowed_cpus, format_list
from pytest_accel.platforms.machine import Machine, identified, probe

LAUNCHER_RANKS = pytest.StashKey[launcher.LauncherRanks]()  # on launcher rank 0 only
T = TypeVar("T")


def launcher_rank(config: pytest.Config) -> launcher.LauncherRank | None:
    """Return the launcher rank of this process, where `-m` names a platform of several devices.

    Called before pytest configures: `-m` is parsed, nothing is collected yet. A malformed launcher
    environment matters only where several devices are wanted: other projects merely have the plugin installed.
    """
    if LAUNCHER_VARIABLES.isdisjoint(os.environ):
        return None
    try:
        wanted = wanted_platforms(config.getoption("markexpr", ""), read_catalogue(config))
        several = any(platform.devices > 1 for platform in wanted)
        return launcher.launcher_rank_from(os.environ) if several else None
    except (launcher.LauncherError, CatalogueError) as error:
        raise pytest.UsageError(str(error)) from None


def refuse_launched(config: pytest.Config) -> None:
    """Refuse benchmarks of one device under a launcher: every rank would measure beside the others."""
    try:
        rank = None if launcher_rank(config) else launcher.launcher_rank_from(os.environ)
    except launcher.LauncherError as error:
        raise pytest.UsageError(str(error)) from None
    if rank is not None:
        raise pytest.UsageError(
            f"this is {rank.title}, and all ranks would measure side by side: name the platform of all ranks with -m, "
            "such as -m a100x4, or start one pytest."
        )


def worker_arguments(config: pytest.Config) -> Callable[[Path], list[str]]:
    """Return a function from a worker's folder to its pytest arguments: those of this session.

    Arguments of the ini file, the environment and the command line are joined, so that those which write
    files can be left out; the ini file's own are therefore emptied, and pytest's cache is put elsewhere.
    """
    in_ini = list(config.getini("addopts"))
    in_environment = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    given = rank_arguments([*in_ini, *in_environment, *map(str, config.invocation_params.args)])
    cached = config.pluginmanager.has_plugin("cacheprovider")
    end = given.index("--") if "--" in given else len(given)
    options, paths = given[:end], given[end:]

    def arguments(folder: Path) -> list[str]:
        cache = ["-o", f"cache_dir={folder / 'cache'}"] if cached else []
        # Last, because the last of two equal options counts. Output is captured into the report and written to the
        # log at once: of a worker that is killed, only the log remains.
        ours = ["-o", "addopts=", "-o", "log_file=", *cache, "--capture=tee-sys"]
        return [*options, *ours, *paths]

    return arguments


# --- launcher ranks other than 0 --------------------------------------------------------------------------


def serve_launcher_rank(config: pytest.Config) -> None:
    """Serve rank 0 until dismissed and exit with its status; return in a process that is a session."""
    rank = launcher_rank(config)
    if rank is None or rank.rank == 0:
        return
    status = launcher.serve(
        rank,
        command=RankCommand(arguments=worker_arguments(config), directory=config.invocation_params.dir),
        rendezvous_s=read_settings(config).rendezvous_s,
        cpus=format_list(allowed_cpus()),
        devices=probe().devices,
    )
    # All exit at the same moment, so that no launcher ends one for another's failure: torch would take its time.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# --- launcher rank 0 --------------------------------------------------------------------------------------


def hold_launcher_ranks(config: pytest.Config) -> Generator[None, T, T | int]:
    """Connect the other ranks before the session of rank 0, and dismiss them with its status after it.

    To be yielded from in a wrapper of `pytest_cmdline_main`; does nothing in every other process.
    """
    rank = launcher_rank(config)
    if rank is None or rank.rank != 0:
        return (yield)
    try:
        ranks = launcher.LauncherRanks(rank, rendezvous_s=read_settings(config).rendezvous_s)
    except WorkerError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[LAUNCHER_RANKS] = ranks
    status = 1
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        result = yield
        status = result if isinstance(result, int) else int(pytest.ExitCode.OK)
    except pytest.UsageError:
        status = int(pytest.ExitCode.USAGE_ERROR)
        raise
    finally:
        # A launcher that sees one rank exit ends the others.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ranks.dismiss(status, with_this_process=True)
    return result


def _interrupt(_number: int, _frame: object) -> None:
    """Treat SIGTERM, the end of a job's time, as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


# --- the machine of all launcher ranks --------------------------------------------------------------------


def bound_by_launcher(config: pytest.Config) -> bool:
    """Whether the launcher gave its ranks CPUs of their own: they are bound already, and stay so."""
    ranks = config.stash.get(LAUNCHER_RANKS, None)
    if ranks is None:
        return False
    by_node = {ranks.launched.node: {format_list(allowed_cpus())}}
    for seen in ranks.inventories():
        by_node.setdefault(seen.node, set()).add(seen.cpus)
    return any(len(given) > 1 for given in by_node.values())


def whole_machine(config: pytest.Config, own: Machine, catalogue: Catalogue) -> Machine:
    """Return the machine of all launcher ranks; without a launcher, the own one.

    Ranks that do not connect are not missing hardware: the first process group that needs them fails and names them.
    """
    ranks = config.stash.get(LAUNCHER_RANKS, None)
    if ranks is None:
        return own
    with suppress(WorkerError):
        ranks.wait()
    return merged_machine(own, ranks.launched, ranks.inventories(), catalogue)


def merged_machine(
    own: Machine, rank: launcher.LauncherRank, inventories: Iterable[launcher.Inventory], catalogue: Catalogue
) -> Machine:
    """Return the devices of all launcher ranks as one machine of several nodes; pure.

    The devices are those of rank 0's node, over its ranks: a task may see only its own. Other nodes should have the
    same; a rank that has no device fails. A rank stands for a core, however few this node has: the launcher decided.
    """
    here = [seen for seen in inventories if seen.node == rank.node]
    found: dict[object, DetectedDevice] = {}
    for device in itertools.chain(own.devices, *(seen.devices for seen in here)):
        found.setdefault(device.uuid or (device.vendor, device.name, device.index), device)
    return replace(
        own,
        cpu=replace(own.cpu, cores=max(own.cpu.cores, 1 + len(here))),
        # Numbered as if one process saw them all.
        devices=tuple(
            identified(replace(device, index=index), catalogue) for index, device in enumerate(found.values())
        ),
        nodes=rank.nodes,
    )
