"""Ranks as processes of this machine: one plain process, or a gang under torch's elastic launcher.

A rank's folder is `FOLDER/RANK`: its output goes there, its stacks, and what its pytest may write.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_accel.options import GANG_ID_VARIABLE, GANG_VARIABLE
from pytest_accel.spmd.elastic import REPORTED
from pytest_accel.spmd.launch import GangError, Launch, Remains
from pytest_accel.spmd.processes import (
    Process,
    dump_no_core,
    end_processes,
    ended_words,
    exit_words,
    kernel_view,
    processes_of,
    runs,
    send,
    send_group,
)

STACKS = "stacks"  # of a rank's folder: made when the rank can write them, filled when it is asked to
GROUP = "group"  # the process group that a rank leads, by its number
OUTPUTS = ("stdout", "stderr")  # of a rank's folder
_STACKS_S = 5.0  # for ranks to write where they are
_REPORT_S = 5.0  # for the elastic launcher to say how its ranks ended, once they have
_POLL_S = 0.02
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


def new_folder(ranks: Iterable[int]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="pytest-accel-gang-"))
    for rank in ranks:
        (folder / str(rank)).mkdir()
    return folder


@contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # no memory, too many processes, a directory that is gone
        shutil.rmtree(folder, ignore_errors=True)
        raise GangError(f"no process could be started: {error}") from None


class RankProcess:
    """One rank as a child of this process: the whole of a gang of one, or what a seat starts."""

    def __init__(self, launch: Launch, *, rank: int = 0, variables: Mapping[str, str] | None = None) -> None:
        self.rank = rank
        self.gang_id = f"{launch.gang}.{rank}"  # other seats of this machine have ranks of the same gang
        self.folder = new_folder([rank])
        environ = rank_environment(launch, self.folder, gang_id=self.gang_id, variables=variables)
        own = self.folder / str(rank)
        stdout, stderr = (own / name for name in OUTPUTS)
        with _removed_on_failure(self.folder), stdout.open("wb") as output, stderr.open("wb") as errors:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own arguments
                rank_command(launch, own),
                cwd=launch.directory,
                env=environ,
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

    def __init__(self, ranks: Sequence[RankProcess]) -> None:
        self._ranks = ranks
        self._remains: dict[int, Remains] | None = None

    def ended(self) -> str | None:
        for rank in self._ranks:
            if rank.status is not None:
                return f"rank {rank.rank} {ended_words(exit_words(rank.status))}"
        return None

    def end(self, *, stacks: bool) -> Mapping[int, Remains]:
        if self._remains is None:
            remains = {}
            ended = {rank.rank: exit_words(rank.status) for rank in self._ranks if rank.status is not None}
            folders = {rank.rank: rank.folder / str(rank.rank) for rank in self._ranks}
            silent = ask_for_stacks(self._reach(), folders) if stacks else {}
            for rank in self._ranks:
                send_group(rank.process.pid, signal.SIGKILL)
            for rank in self._ranks:
                end_processes(rank.gang_id)
                with suppress(subprocess.TimeoutExpired):  # in the kernel's hands for good
                    rank.process.wait(5.0)
                remains[rank.rank] = read_remains(
                    folders[rank.rank], status=ended.get(rank.rank, ""), silent=silent.get(rank.rank, "")
                )
                shutil.rmtree(rank.folder, ignore_errors=True)
            self._remains = remains
        return self._remains

    def _reach(self) -> dict[int, Reach]:
        return {
            rank.rank: Reach(
                pid=rank.process.pid,
                send=rank.process.send_signal,
                runs=lambda process=rank.process: process.poll() is None,  # type: ignore[misc]
            )
            for rank in self._ranks
            if rank.status is None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How a running rank is reached: by its parent, or through /proc."""

    pid: int
    send: Callable[[signal.Signals], object]
    runs: Callable[[], bool]


def _by_proc(processes: Mapping[int, Process], sent: Mapping[int, set[int]]) -> dict[int, Reach]:
    """Another process's children; `sent` learns which signals were ours."""

    def reach(rank: int, process: Process) -> Reach:
        def send_to(number: signal.Signals) -> None:
            sent[rank].add(-number)
            send(process, number)

        return Reach(pid=process.pid, send=send_to, runs=lambda: runs(process))

    return {rank: reach(rank, process) for rank, process in processes.items()}


def ask_for_stacks(running: Mapping[int, Reach], folders: Mapping[int, Path]) -> dict[int, str]:
    """Have ranks write down where they are, and end by it; what is known of those that do not.

    A rank that has called the session answers SIGTERM from a C handler, also inside native code. One that
    has not come so far has faulthandler for SIGABRT. Both end the process, so its end says that all is written.
    """
    for rank, reach in running.items():
        reach.send(signal.SIGTERM if (folders[rank] / STACKS).exists() else signal.SIGABRT)
    deadline = time.monotonic() + _STACKS_S
    left = set(running)
    while (left := {rank for rank in left if running[rank].runs()}) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return {rank: f"{NO_STACKS}\n{kernel_view(running[rank].pid)}".rstrip() for rank in left}


class OneProcess:
    """A fresh process for a benchmark of one device: no torch, no process group, nobody else's rank."""

    def start(self, launch: Launch) -> RankProcesses:
        assert launch.size == 1, "one process is one rank"
        return RankProcesses([RankProcess(launch)])


class Elastic:
    """A gang on this machine, by torch.distributed's elastic launcher in a process of its own.

    In this process it would install signal handlers, and what it cannot end would stay in this process.
    """

    def start(self, launch: Launch) -> ElasticRanks:
        assert launch.nodes == 1, "ranks on other nodes are started by their seats"
        return ElasticRanks(launch)


class ElasticRanks:
    """The elastic launcher and its ranks."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._folder = new_folder(range(launch.size))
        self._remains: dict[int, Remains] | None = None
        told = self._folder / "launch.json"
        told.write_text(
            json.dumps(
                {
                    "parent": os.getpid(),
                    "gang": launch.gang,
                    "per_node": launch.per_node,
                    "rendezvous_s": launch.rendezvous_s,
                    "folder": str(self._folder),
                    "command": rank_commands(launch, self._folder),
                }
            )
        )
        command = [sys.executable, *path_flag(launch.directory), "-m", "pytest_accel.spmd.elastic", str(told)]
        with _removed_on_failure(self._folder), (self._folder / "launcher").open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own arguments
                command,
                cwd=launch.directory,
                env=rank_environment(launch, self._folder, gang_id=launch.gang),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ended(self) -> str | None:
        status = self._process.poll()
        if status is None:
            return None
        if failures := self._failures():
            rank, code = min(failures.items(), key=lambda failure: failure[1] == -signal.SIGTERM)
            return f"rank {rank} {ended_words(exit_words(code))}"
        if status == 0:
            return "all ranks left"
        words = f"the launcher of the ranks {ended_words(exit_words(status))}"
        last = tail(self._folder / "launcher") if status > 0 else ""
        return f"{words}: {last.splitlines()[-1]}" if last else words

    def end(self, *, stacks: bool) -> Mapping[int, Remains]:
        if self._remains is not None:
            return self._remains
        folders = {rank: self._folder / str(rank) for rank in range(self._launch.size)}
        before = self._found()
        sent: dict[int, set[int]] = {rank: set() for rank in folders}
        silent: dict[int, str] = {}
        if stacks:
            silent = ask_for_stacks(_by_proc(before, sent), folders)
        for rank, process in self._found().items():
            sent[rank].add(-signal.SIGKILL)
            send(process, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_REPORT_S if before or stacks else 0)
        launcher = self._process.poll()
        for group in (self._process.pid, *_groups(folders.values())):
            send_group(group, signal.SIGKILL)
        end_processes(self._launch.gang)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        failures = self._failures()
        first = _not_ours(failures, sent)
        self._remains = {
            rank: read_remains(
                folder,
                # It names ranks that failed; one that was gone and is not named left with 0.
                status=exit_words(first.get(rank, 0))
                if rank in first
                or (launcher in (0, REPORTED) and rank not in before and rank not in failures)
                else "",
                silent=silent.get(rank, ""),
            )
            for rank, folder in folders.items()
        }
        shutil.rmtree(self._folder, ignore_errors=True)
        return self._remains

    def _found(self) -> dict[int, Process]:
        """The ranks that run, by rank: the launcher's own children."""
        return {
            int(process.environ["RANK"]): process
            for process in processes_of(self._launch.gang)
            if process.parent == self._process.pid and process.environ.get("RANK", "").isdecimal()
        }

    def _failures(self) -> dict[int, int]:
        """Exit statuses by rank, as the launcher left them; none if it was killed itself."""
        try:
            plain = json.loads((self._folder / "failures.json").read_text())
        except (OSError, ValueError):
            return {}
        return {int(rank): int(code) for rank, code in plain.items()}


def rank_commands(launch: Launch, folder: Path) -> list[str]:
    """One command for all ranks, as the elastic launcher wants it: `${local_rank}` stands for the rank.

    It reads arguments as templates, so a dollar of the user's is doubled.
    """
    marker = f"rank-{launch.gang}"  # what no argument of the user's holds
    command = rank_command(launch, folder / marker)
    return [word.replace("$", "$$").replace(marker, "${local_rank}") for word in command]


def _not_ours(failures: Mapping[int, int], sent: Mapping[int, set[int]]) -> dict[int, int]:
    """Failures that came first: not by our signals, nor by those with which the launcher ends the others."""
    others = {rank: code for rank, code in failures.items() if code not in sent[rank]}
    first = {rank: code for rank, code in others.items() if code != -signal.SIGTERM}
    return first or others


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


def _groups(folders: Iterable[Path]) -> Iterator[int]:
    """The process groups of ranks: the kernel gives their numbers to nobody while one of their processes runs."""
    for folder in folders:
        with suppress(OSError, ValueError):
            yield int((folder / GROUP).read_text())
