"""Start of ranks as processes of this machine, and what is left of them after their end.

The folder of a rank is `FOLDER/RANK`: its output goes there, its stacks, and what its pytest may write.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_accel.distributed.processes import (
    disable_core_dump,
    end_processes,
    exit_words,
    kernel_state,
    signal_group,
    with_verb,
)
from pytest_accel.options import GROUP_ID_VARIABLE, WORKER_VARIABLE
from pytest_accel.storage.codec import encode

STACKS = "stacks"  # of a rank's folder: made when the rank can write them, filled when it must
LOOPBACK = "127.0.0.1"
OUTPUTS = ("stdout", "stderr")  # of a rank's folder
_STACKS_S = 5.0  # for ranks to write their stacks
_POLL_S = 0.02
_OUR_SIGNALS = {-signal.SIGTERM, -signal.SIGABRT, -signal.SIGKILL}  # exit statuses of ranks ended here
NO_STACKS = f"No stacks: it did not react to signals within {_STACKS_S:g} s. The kernel says of it:"
_TAIL_BYTES = 2**16
_TAIL_LINES = 40

# Variables of this pytest: a rank has its own, and its options come as arguments.
_PYTEST_VARIABLES = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "PYTEST_VERSION"})
# Variables that make a process a rank of another launcher.
_RANK_VARIABLES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    }
)


class WorkerError(RuntimeError):
    """Ranks could not be started or did not connect; the message says which, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """Ranks to be started, and where they reach the session."""

    group: str  # id, unique on this machine and its nodes
    nodes: int
    per_node: int
    process_group: bool  # False: one plain process that does not even import torch
    host: str
    port: int
    token: str
    bind: str  # auto, none or launcher
    rendezvous_s: float

    @property
    def size(self) -> int:
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCommand:
    """The pytest of every rank."""

    arguments: Callable[[Path], Sequence[str]]  # for a rank that may write into this folder
    directory: Path

    def words(self, rank_folder: Path) -> list[str]:
        """Return the command line: the interpreter of this session, with its path.

        Unbuffered, so that the last output is not lost; faulthandler works also before the rank has connected.
        """
        flags = ["-u", "-X", "faulthandler"]
        if not {"", str(self.directory)} & set(
            sys.path
        ):  # `python -m pytest` has the current directory there
            flags += ["-P"]
        return [sys.executable, *flags, "-m", "pytest", *self.arguments(rank_folder)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """What is known of one rank after its end."""

    status: str = ""  # "killed by SIGKILL", "exit status 3"; empty if it was ended by us
    log: str = ""  # the last lines it wrote
    stacks: str = ""  # of all its threads, if requested


class StartedRanks(Protocol):
    """The processes of a group."""

    def ended(self) -> str | None:
        """Return which process has ended, or what else is gone; None while all of them run."""
        ...

    def left(self) -> bool:
        """Return whether all processes have ended by themselves, as far as is known here."""
        ...

    def end(self, *, stacks: bool) -> Mapping[int, RankExit]:
        """End every process of the group and its children; return what is left, by rank. Never raises, never hangs.

        With `stacks`, ranks first get a few seconds to write their stacks.
        """
        ...


class RankLauncher(Protocol):
    """Starts the processes of a group, here or on other nodes."""

    def start(self, spec: GroupSpec, command: RankCommand) -> StartedRanks: ...


# --- processes of this machine ----------------------------------------------------------------------------


def rank_environment(
    spec: GroupSpec, folder: Path, *, group_id: str, variables: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of a rank: without variables of other launchers and of this pytest."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _PYTEST_VARIABLES | _RANK_VARIABLES and not name.startswith("TORCHELASTIC_")
    }
    worker = json.dumps({**encode(spec), "folder": str(folder)})
    return {**kept, WORKER_VARIABLE: worker, GROUP_ID_VARIABLE: group_id, **(variables or {})}


def rank_variables(rank: int, spec: GroupSpec, master: tuple[str, int]) -> dict[str, str]:
    """Return the variables of a rank's place, as torchrun sets them."""
    host, port = master
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(spec.size),
        "LOCAL_RANK": str(rank % spec.per_node),
        "LOCAL_WORLD_SIZE": str(spec.per_node),
        "GROUP_RANK": str(rank // spec.per_node),
        "GROUP_WORLD_SIZE": str(spec.nodes),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


@contextmanager
def _new_folder(rank: int) -> Iterator[Path]:
    """Make the folder of a rank; remove it where starting the rank fails."""
    folder = Path(tempfile.mkdtemp(prefix="pytest-accel-ranks-"))
    try:
        (folder / str(rank)).mkdir()
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _os_errors_reported() -> Iterator[None]:
    """Report a full disk, no memory, too many processes, a directory that is gone."""
    try:
        yield
    except OSError as error:
        raise WorkerError(f"no process could be started: {error}") from None


class RankProcess:
    """One rank as a child of this process."""

    def __init__(
        self,
        spec: GroupSpec,
        command: RankCommand,
        *,
        rank: int = 0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.rank = rank
        # Other launcher ranks of this machine have ranks of the same group.
        self.group_id = f"{spec.group}.{rank}"
        with _os_errors_reported(), _new_folder(rank) as self.folder:
            own = self.folder / str(rank)
            stdout, stderr = (own / name for name in OUTPUTS)
            with stdout.open("wb") as output, stderr.open("wb") as errors:
                self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own arguments
                    command.words(own),
                    cwd=command.directory,
                    env=rank_environment(spec, self.folder, group_id=self.group_id, variables=variables),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                )
        disable_core_dump(self.process.pid)

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self.process.poll()


class RankProcesses:
    """Ranks that are children of this process."""

    def __init__(self, ranks: Sequence[RankProcess], port: ReservedPort | None = None) -> None:
        self._ranks = ranks
        self._port = port  # of their TCPStore
        self._exits: dict[int, RankExit] | None = None

    def ended(self) -> str | None:
        for rank in self._ranks:
            if rank.status is not None:
                return f"rank {rank.rank} {with_verb(exit_words(rank.status))}"
        return None

    def left(self) -> bool:
        return all(rank.status is not None for rank in self._ranks)

    def end(self, *, stacks: bool) -> Mapping[int, RankExit]:
        if self._exits is None:
            exits = {}
            folders = {rank.rank: rank.folder / str(rank.rank) for rank in self._ranks}
            running = {rank.rank: rank.process for rank in self._ranks if rank.status is None}
            silent = request_stacks(running, folders) if stacks else {}
            for rank in self._ranks:
                signal_group(rank.process.pid, signal.SIGKILL)
            for rank in self._ranks:
                end_processes(rank.group_id)
                with suppress(subprocess.TimeoutExpired):  # the kernel does not release it
                    rank.process.wait(5.0)
                by_us = (
                    rank.rank in running and rank.status in _OUR_SIGNALS
                )  # else it was about to end by itself
                status = "" if rank.status is None or by_us else exit_words(rank.status)
                exits[rank.rank] = read_exit(
                    folders[rank.rank], status=status, silent=silent.get(rank.rank, "")
                )
                shutil.rmtree(rank.folder, ignore_errors=True)
            if self._port is not None:
                self._port.close()
            self._exits = exits
        return self._exits


def request_stacks(
    running: Mapping[int, subprocess.Popen[bytes]], folders: Mapping[int, Path]
) -> dict[int, str]:
    """Have ranks write their stacks and end; return what the kernel says of those that do not.

    A connected rank handles SIGTERM in C, also inside native code. One that has not come so far has faulthandler for
    SIGABRT. Both end the process, so its end says that all is written.
    """
    for rank, process in running.items():
        process.send_signal(signal.SIGTERM if (folders[rank] / STACKS).exists() else signal.SIGABRT)
    deadline = time.monotonic() + _STACKS_S
    left = set(running)
    while (left := {rank for rank in left if running[rank].poll() is None}) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return {rank: f"{NO_STACKS}\n{kernel_state(running[rank].pid)}".rstrip() for rank in left}


class SingleProcessLauncher:
    """Starts one plain process, without torch and without a process group."""

    def start(self, spec: GroupSpec, command: RankCommand) -> RankProcesses:
        assert spec.size == 1
        return RankProcesses([RankProcess(spec, command)])


class LocalLauncher:
    """Starts all ranks of a process group on this machine."""

    def start(self, spec: GroupSpec, command: RankCommand) -> RankProcesses:
        assert spec.nodes == 1, "ranks on other nodes are started by their launcher ranks"
        ranks: list[RankProcess] = []
        started = RankProcesses(ranks, port := ReservedPort())
        name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"  # torchrun sets it unless the user does
        nccl = {name: os.environ.get(name, "1")}
        try:
            for rank in range(spec.size):
                variables = nccl | rank_variables(rank, spec, (LOOPBACK, port.number))
                ranks.append(RankProcess(spec, command, rank=rank, variables=variables))
        except BaseException:
            started.end(stacks=False)
            raise
        return started


class ReservedPort:
    """A port for rank 0's TCPStore, kept free until it listens there.

    Bound and not listened at: the kernel gives it to no other process that asks for any port, and lets rank 0 have it,
    whose store reuses addresses.
    """

    def __init__(self) -> None:
        with _os_errors_reported():
            self._socket = socket.socket()
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


def read_exit(rank_folder: Path, *, status: str, silent: str = "") -> RankExit:
    """Return what a rank left in its folder; `silent` stands for the stacks that it did not write."""
    stacks = tail(rank_folder / STACKS, lines=2000, size=2**20)
    log = "\n".join(filter(None, (tail(rank_folder / name) for name in OUTPUTS)))
    return RankExit(status=status, log=log, stacks=stacks or silent)


def tail(file: Path, *, lines: int = _TAIL_LINES, size: int = _TAIL_BYTES) -> str:
    """Return the last lines of a file of any size; nothing where there is none."""
    try:
        with file.open("rb") as source:
            source.seek(max(0, source.seek(0, os.SEEK_END) - size))
            text = source.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
