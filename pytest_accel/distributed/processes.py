"""Ranks as processes of this machine: what each is given, its start and its end, and what is left of it.

Each rank has a supervisor as its parent, which ends all that the rank started; the kernel ends the rank with it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from pytest_accel.options import GROUP_ID_VARIABLE, WORKER_VARIABLE
from pytest_accel.storage.codec import encode
from pytest_accel.storage.files import is_abandoned

LOOPBACK = "127.0.0.1"
STACKS = "stacks"  # of a rank's folder: made when the rank can write them, filled when it must
LOG = "log"  # of a rank's folder: its output
NO_STACKS = "No stacks: it did not react to signals. `dmesg` may say why."
_STACKS_S = 5.0  # for ranks to write their stacks
_KILL_S = 5.0  # for the kernel to end what was killed
_POLL_S = 0.02
# Exit statuses of ranks ended here.
_OUR_SIGNALS = {-signal.SIGTERM, -signal.SIGABRT, -signal.SIGKILL, -signal.SIGHUP}
_LOG_LINES, _STACK_LINES = 40, 2000
_TAIL_BYTES = 2**20
_PROC = Path("/proc")
_SUPERVISOR = (sys.executable, "-I", "-S", Path(__file__).with_name("supervisor.py"))
_FOLDER = "pytest-accel-rank-"
_UNLOCKED_S = 60.0  # age of a folder that its owner must have locked, if it lives

# Variables of this pytest, and those that make a process a rank of another launcher.
_NOT_INHERITED = frozenset(
    {
        *("PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "PYTEST_VERSION"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    }
)


class WorkerError(RuntimeError):
    """Ranks could not be started or did not connect; the message says which, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """All that a rank is given: its place in its group, and where it reaches its session."""

    group: str  # id, unique on this machine and its nodes
    rank: int = 0
    nodes: int
    per_node: int
    process_group: bool  # False: one plain process that does not even import torch
    host: str  # of the session
    port: int
    token: str
    bind: str  # auto, none or launcher
    rendezvous_s: float
    store_host: str = LOOPBACK  # of rank 0's TCPStore
    store_port: int = 0
    folder: str = ""  # for its output, its stacks, and what its pytest may write

    @property
    def size(self) -> int:
        return self.nodes * self.per_node

    @property
    def local_rank(self) -> int:
        return self.rank % self.per_node

    def environment(self) -> dict[str, str]:
        """Return the environment of the rank, with its place as torchrun sets it."""
        environ = {
            name: value
            for name, value in os.environ.items()
            if name not in _NOT_INHERITED and not name.startswith("TORCHELASTIC_")
        }
        environ[WORKER_VARIABLE] = json.dumps(encode(self))
        # Of this rank's processes: other launcher ranks of this machine have ranks of the same group.
        environ[GROUP_ID_VARIABLE] = f"{self.group}.{self.rank}"
        if self.process_group:
            environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
            environ |= {
                "RANK": str(self.rank),
                "WORLD_SIZE": str(self.size),
                "LOCAL_RANK": str(self.local_rank),
                "LOCAL_WORLD_SIZE": str(self.per_node),
                "GROUP_RANK": str(self.rank // self.per_node),
                "GROUP_WORLD_SIZE": str(self.nodes),
                "MASTER_ADDR": self.store_host,
                "MASTER_PORT": str(self.store_port),
            }
        return environ


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCommand:
    arguments: Callable[[Path], Sequence[str]]  # for a rank that may write into this folder
    directory: Path

    def words(self, rank_folder: Path) -> list[str]:
        """Return the command line: the interpreter of this session, with its path.

        Unbuffered, so that the last output is not lost; faulthandler works also before the rank has connected.
        """
        # `python -m pytest` has the current directory on its path; `pytest` has not.
        safe_path = [] if {"", str(self.directory)} & set(sys.path) else ["-P"]
        flags = ["-u", "-X", "faulthandler", *safe_path]
        return [sys.executable, *flags, "-m", "pytest", *self.arguments(rank_folder)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    status: str = ""  # "was killed by SIGKILL", "left with exit status 3"; empty if it was ended by us
    log: str = ""  # the last lines it wrote
    stacks: str = ""  # of all its threads, if requested


class StartedRanks(Protocol):
    def ended(self) -> Mapping[int, str]:
        """Return how processes have ended, by rank: "was killed by SIGKILL"."""
        ...

    def end(self, *, stacks: bool) -> Mapping[int, RankExit]:
        """End every process of the group and its children; return what is left, by rank. Never raises, never hangs.

        With `stacks`, ranks first get a few seconds to write their stacks.
        """
        ...


class RankLauncher(Protocol):
    @property
    def address(self) -> str: ...  # that the session listens on; empty: all of this machine's
    @property
    def host(self) -> str: ...  # under which ranks reach the session
    def start(self, spec: RankSpec, command: RankCommand) -> StartedRanks: ...


# --- start and end ----------------------------------------------------------------------------------------


@contextmanager
def _os_errors_reported() -> Iterator[None]:
    """Report a full disk, no memory, too many processes, a directory that is gone."""
    try:
        yield
    except OSError as error:
        raise WorkerError(f"no process could be started: {error}") from None


class RankProcesses:
    def __init__(self, specs: Sequence[RankSpec], command: RankCommand, port: ReservedPort | None) -> None:
        self._port = port  # of their TCPStore
        self._specs: dict[int, RankSpec] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # their supervisors
        self._locks: list[int] = []  # of the folders, held while this process lives
        self._exits: dict[int, RankExit] | None = None
        _remove_abandoned_folders(tempfile.gettempdir())
        try:
            for spec in specs:
                self._start(spec, command)
        except BaseException:
            self.end(stacks=False)
            raise

    def _start(self, spec: RankSpec, command: RankCommand) -> None:
        with _os_errors_reported(), ExitStack() as undo:
            folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            self._locks.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            spec = replace(spec, folder=str(folder))
            with (folder / LOG).open("wb") as log:
                process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own arguments
                    [*_SUPERVISOR, str(os.getpid()), folder, *command.words(folder)],
                    cwd=command.directory,
                    env=spec.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            undo.pop_all()
        self._specs[spec.rank], self._processes[spec.rank] = spec, process

    def ended(self) -> dict[int, str]:
        statuses = {rank: process.poll() for rank, process in self._processes.items()}
        return {rank: exit_words(status) for rank, status in statuses.items() if status is not None}

    def end(self, *, stacks: bool) -> Mapping[int, RankExit]:
        if self._exits is None:
            running = {rank: process for rank, process in self._processes.items() if process.poll() is None}
            silent = self._request_stacks(running) if stacks else {}
            for process in self._processes.values():
                process.send_signal(signal.SIGHUP)
                process.send_signal(signal.SIGCONT)
            exits = {}
            for rank, process in self._processes.items():
                try:
                    process.wait(_KILL_S)
                except subprocess.TimeoutExpired:  # the kernel does not release something
                    signal_group(process.pid, signal.SIGKILL)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_KILL_S)
                if process.returncode == -signal.SIGKILL:  # its supervisor may be what was killed
                    signal_group(process.pid, signal.SIGKILL)
                    _await_group(process.pid)
                # A running one that ended otherwise was about to end by itself.
                by_us = process.returncode is None or (rank in running and process.returncode in _OUR_SIGNALS)
                folder = Path(self._specs[rank].folder)
                exits[rank] = RankExit(
                    status="" if by_us else exit_words(process.returncode),
                    log=tail(folder / LOG, _LOG_LINES),
                    stacks=tail(folder / STACKS, _STACK_LINES) or silent.get(rank, ""),
                )
                remove_folder(folder)
            if self._port is not None:
                self._port.close()
            while self._locks:
                os.close(self._locks.pop())
            self._exits = exits
        return self._exits

    def _request_stacks(self, running: Mapping[int, subprocess.Popen[bytes]]) -> dict[int, str]:
        """Have ranks write their stacks and end; return a text for those that do not.

        A connected rank handles SIGTERM in C, also inside native code. One that has not come so far has faulthandler
        for SIGABRT. Both end the process, so its end says that all is written.
        """
        for rank, process in running.items():
            connected = Path(self._specs[rank].folder, STACKS).exists()
            process.send_signal(signal.SIGTERM if connected else signal.SIGABRT)
        deadline = time.monotonic() + _STACKS_S
        left = set(running)
        while (
            left := {rank for rank in left if running[rank].poll() is None}
        ) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return dict.fromkeys(left, NO_STACKS)


class LocalLauncher:
    address = host = LOOPBACK

    def start(self, spec: RankSpec, command: RankCommand) -> RankProcesses:
        assert spec.nodes == 1, "ranks on other nodes are started by their launcher ranks"
        port = ReservedPort() if spec.process_group else None
        spec = replace(spec, store_port=port.number if port else 0)
        return RankProcesses([replace(spec, rank=rank) for rank in range(spec.size)], command, port)


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


def tcp_store(host: str, port: int, *, hosting: bool, timeout_s: float, shared: bool = False) -> Any:  # noqa: ANN401 - torch is untyped here
    """Open a TCPStore; a `shared` one meets others of this process at its port.

    On the loopback it listens there alone: torch would listen on all interfaces.
    """
    from torch.distributed import TCPStore

    local = hosting and host == LOOPBACK
    return TCPStore(
        host,
        port,
        is_master=hosting,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,  # callers wait for ranks by name
        multi_tenant=shared,
        master_listen_fd=socket.create_server((LOOPBACK, port)).detach() if local else None,
    )


@cache  # once for each temporary folder
def _remove_abandoned_folders(temporary: str) -> None:
    """Remove folders of ranks whose session and supervisor were killed."""
    for folder in Path(temporary).glob(f"{_FOLDER}*"):
        with suppress(OSError):  # of another user, or removed meanwhile
            if time.time() - folder.stat().st_mtime > _UNLOCKED_S and is_abandoned(folder):
                remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove what a rank left, as far as that is possible."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # a thousand folders deep
        subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)  # noqa: S603, S607


def tail(file: Path, lines: int) -> str:
    """Return the last lines of a file of any size; nothing where there is none, or something else such as a FIFO."""
    try:
        # What a rank left at this path may be anything: a FIFO would wait for a writer.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as source:  # noqa: PTH123 - a descriptor has no Path
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                return ""
            source.seek(max(0, source.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = source.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def exit_words(status: int) -> str:
    """Describe an exit status of Popen: "was killed by SIGKILL", "left with exit status 3"."""
    if status >= 0:
        return f"left with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process group that we started; it may be gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


@contextmanager
def signals_noted(*numbers: signal.Signals, then: signal.Handlers | None = None) -> Iterator[list[int]]:
    """Note signals that ask to stop, to act on them later; `then` is their handling afterwards (that of before).

    By handlers, because subprocesses would inherit a mask.
    """
    noted: list[int] = []
    before = {number: signal.signal(number, lambda number, _: noted.append(number)) for number in numbers}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if then is None else then)


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends."""
    import ctypes

    pr_set_pdeathsig = 1  # <linux/prctl.h>
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL))


def disable_core_dump() -> None:
    """Disable core dumps of this process: those of a CUDA process take gigabytes and minutes."""
    import resource

    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


# --- /proc ------------------------------------------------------------------------------------------------


def _await_group(group: int) -> None:
    """Wait until the kernel has ended the processes of a group that was killed: they are not our children."""
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline and any(
        int(facts[2]) == group and facts[0] not in "ZX"
        for facts in map(_facts, _PROC.glob("[0-9]*"))
        if facts
    ):
        time.sleep(_POLL_S)


def ancestry(proc: Path = _PROC) -> list[int]:
    """Return this process and its ancestors: their memory on a device is not foreign."""
    pids = [os.getpid()]
    while (parent := _parent(proc / str(pids[-1]))) > 1 and parent not in pids:
        pids.append(parent)
    return pids


def descendants(pid: int, proc: Path = _PROC) -> frozenset[int]:
    """Return all children of a process and theirs, such as loader workers."""
    parents = {int(folder.name): _parent(folder) for folder in proc.glob("[0-9]*")}
    found: set[int] = set()
    while more := {each for each, parent in parents.items() if parent in {pid, *found}} - found:
        found |= more
    return frozenset(found)


def _parent(folder: Path) -> int:
    """Return the parent of a process from its folder in /proc; 0 if it is gone."""
    facts = _facts(folder)
    return int(facts[1]) if facts else 0


def _facts(folder: Path) -> list[str]:
    """Return state, parent, process group and more of a process from its folder in /proc; nothing if it is gone."""
    try:
        # `pid (name) state ppid pgrp ...`; the name may hold spaces and brackets.
        facts = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
    return facts if len(facts) > 2 else []
