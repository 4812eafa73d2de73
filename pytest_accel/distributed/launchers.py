"""Ranks as processes of this machine: one for itself, or a gang of them.

A rank's folder is `FOLDER/RANK`: its output goes there, its stacks, and what its pytest may write.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_accel.distributed.launch import GangError, Launch, Remains
from pytest_accel.distributed.processes import (
    dump_no_core,
    end_processes,
    ended_words,
    exit_words,
    kernel_view,
    send_group,
)
from pytest_accel.options import GANG_ID_VARIABLE, GANG_VARIABLE

STACKS = "stacks"  # of a rank's folder: made when the rank can write them, filled when it is asked to
LOOPBACK = "127.0.0.1"
OUTPUTS = ("stdout", "stderr")  # of a rank's folder
_STACKS_S = 5.0  # for ranks to write where they are
_POLL_S = 0.02
_BY_US = {-signal.SIGTERM, -signal.SIGABRT, -signal.SIGKILL}  # exit statuses of ranks that are ended here
NO_STACKS = f"No stacks: it did not react to signals within {_STACKS_S:g} s. The kernel says of it:"
_TAIL_BYTES = 2**16
_TAIL_LINES = 40

# The variables of pytest in this process: a rank has its own, and its options come as arguments.
_PYTEST_VARIABLES = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "PYTEST_VERSION"})
# What makes a process a rank of somebody else's launcher.
_RANK_VARIABLES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    }
)


def rank_environment(
    launch: Launch, folder: Path, *, gang_id: str, variables: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Of a process that is to call this session: no other launcher's rank, and no child of this pytest's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _PYTEST_VARIABLES | _RANK_VARIABLES and not name.startswith("TORCHELASTIC_")
    }
    return {**kept, GANG_VARIABLE: _told(launch, folder), GANG_ID_VARIABLE: gang_id, **(variables or {})}


def _told(launch: Launch, folder: Path) -> str:
    return json.dumps(
        {
            "gang": launch.gang,
            "host": launch.host,
            "port": launch.port,
            "token": launch.token,
            "folder": str(folder),
            "rendezvous_s": launch.rendezvous_s,
            "bind": launch.bind,
            "process_group": launch.process_group,
        }
    )


def rank_command(launch: Launch, rank_folder: Path) -> list[str]:
    """The interpreter of this session, with its path.

    Unbuffered, so that last words are not lost; faulthandler speaks also before the rank has called.
    """
    flags = ["-u", "-X", "faulthandler", *path_flag(launch.directory)]
    return [sys.executable, *flags, "-m", "pytest", *launch.arguments(rank_folder)]


def path_flag(directory: Path) -> list[str]:
    """`python -m pytest` puts the current directory on the path, `pytest` does not: do as this session did."""
    return [] if {"", str(directory)} & set(sys.path) else ["-P"]


@contextmanager
def _new_folder(rank: int) -> Iterator[Path]:
    """The folder of a rank that is being started; it is gone where that fails."""
    folder = Path(tempfile.mkdtemp(prefix="pytest-accel-gang-"))
    try:
        (folder / str(rank)).mkdir()
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _said() -> Iterator[None]:
    """No room, no memory, too many processes, a directory that is gone."""
    try:
        yield
    except OSError as error:
        raise GangError(f"no process could be started: {error}") from None


class RankProcess:
    """One rank as a child of this process: the whole of a gang of one, or what a seat starts."""

    def __init__(self, launch: Launch, *, rank: int = 0, variables: Mapping[str, str] | None = None) -> None:
        self.rank = rank
        self.gang_id = f"{launch.gang}.{rank}"  # other seats of this machine have ranks of the same gang
        with _said(), _new_folder(rank) as self.folder:
            own = self.folder / str(rank)
            stdout, stderr = (own / name for name in OUTPUTS)
            with stdout.open("wb") as output, stderr.open("wb") as errors:
                self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own arguments
                    rank_command(launch, own),
                    cwd=launch.directory,
                    env=rank_environment(launch, self.folder, gang_id=self.gang_id, variables=variables),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                )
        dump_no_core(self.process.pid)

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self.process.poll()


class RankProcesses:
    """Ranks that are children of this process, as what a launcher launched."""

    def __init__(self, ranks: Sequence[RankProcess], port: Port | None = None) -> None:
        self._ranks = ranks
        self._port = port  # at which they meet
        self._remains: dict[int, Remains] | None = None

    def ended(self) -> str | None:
        for rank in self._ranks:
            if rank.status is not None:
                return f"rank {rank.rank} {ended_words(exit_words(rank.status))}"
        return None

    def left(self) -> bool:
        return all(rank.status is not None for rank in self._ranks)

    def end(self, *, stacks: bool) -> Mapping[int, Remains]:
        if self._remains is None:
            remains = {}
            folders = {rank.rank: rank.folder / str(rank.rank) for rank in self._ranks}
            running = {rank.rank: rank.process for rank in self._ranks if rank.status is None}
            silent = ask_for_stacks(running, folders) if stacks else {}
            for rank in self._ranks:
                send_group(rank.process.pid, signal.SIGKILL)
            for rank in self._ranks:
                end_processes(rank.gang_id)
                with suppress(subprocess.TimeoutExpired):  # in the kernel's hands for good
                    rank.process.wait(5.0)
                status = rank.status
                if rank.rank in running and status in _BY_US:  # any other is of one that was about to end
                    status = None
                remains[rank.rank] = read_remains(
                    folders[rank.rank],
                    status="" if status is None else exit_words(status),
                    silent=silent.get(rank.rank, ""),
                )
                shutil.rmtree(rank.folder, ignore_errors=True)
            if self._port is not None:
                self._port.close()
            self._remains = remains
        return self._remains


def ask_for_stacks(
    running: Mapping[int, subprocess.Popen[bytes]], folders: Mapping[int, Path]
) -> dict[int, str]:
    """Have ranks write down where they are, and end by it; what is known of those that do not.

    A rank that has called the session answers SIGTERM from a C handler, also inside native code. One that
    has not come so far has faulthandler for SIGABRT. Both end the process, so its end says that all is written.
    """
    for rank, process in running.items():
        process.send_signal(signal.SIGTERM if (folders[rank] / STACKS).exists() else signal.SIGABRT)
    deadline = time.monotonic() + _STACKS_S
    left = set(running)
    while (left := {rank for rank in left if running[rank].poll() is None}) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return {rank: f"{NO_STACKS}\n{kernel_view(running[rank].pid)}".rstrip() for rank in left}


class OneProcess:
    """A fresh process for a benchmark of one device: no torch, no process group, nobody else's rank."""

    def start(self, launch: Launch) -> RankProcesses:
        assert launch.size == 1, "one process is one rank"
        return RankProcesses([RankProcess(launch)])


class OneMachine:
    """A gang on this machine: a process for each rank, told its place as torchrun would."""

    def start(self, launch: Launch) -> RankProcesses:
        assert launch.nodes == 1, "ranks on other nodes are started by their seats"
        ranks: list[RankProcess] = []
        launched = RankProcesses(ranks, port := Port())
        try:
            for rank in range(launch.size):
                where = place(rank, launch, (LOOPBACK, port.number))
                ranks.append(RankProcess(launch, rank=rank, variables=_as_torchrun() | where))
        except BaseException:
            launched.end(stacks=False)
            raise
        return launched


def _as_torchrun() -> dict[str, str]:
    """What else it has set for the processes that it starts, where nobody else has: how NCCL ends when it gives up."""
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    return {name: os.environ.get(name, "1")}


def place(rank: int, launch: Launch, master: tuple[str, int]) -> dict[str, str]:
    """What the environment of a rank says of its place, as torchrun would put it."""
    host, port = master
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(launch.size),
        "LOCAL_RANK": str(rank % launch.per_node),
        "LOCAL_WORLD_SIZE": str(launch.per_node),
        "GROUP_RANK": str(rank // launch.per_node),
        "GROUP_WORLD_SIZE": str(launch.nodes),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


class Port:
    """A port of this machine for rank 0 to listen at, which is kept free for it until then.

    Bound here, and not listened at: the kernel gives it to nobody who asks for any port, and lets rank 0 have it, whose store
    reuses addresses.
    """

    def __init__(self) -> None:
        with _said():
            self._socket = socket.socket()
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


def read_remains(rank_folder: Path, *, status: str, silent: str = "") -> Remains:
    """What a rank left in its folder; `silent` is what is known of one that did not write its stacks."""
    stacks = tail(rank_folder / STACKS, lines=2000, size=2**20)
    log = "\n".join(filter(None, (tail(rank_folder / name) for name in OUTPUTS)))
    return Remains(status=status, log=log, stacks=stacks or silent)


def tail(file: Path, *, lines: int = _TAIL_LINES, size: int = _TAIL_BYTES) -> str:
    """The last lines of a file that may be of any size, or not be there."""
    try:
        with file.open("rb") as source:
            source.seek(max(0, source.seek(0, os.SEEK_END) - size))
            text = source.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
