"""Sessions under torchrun or srun: launcher rank 0 is the session, the others start ranks for it.

A launcher rank measures nothing itself. It starts one process for each group of ranks, and ends it, on an order of
launcher rank 0; what crashes or hangs is that process, and the launcher rank is there for the next group. No order
carries a command line or variables: a launcher rank runs its own pytest with its own arguments.

    launcher rank 0                 launcher rank n
            <-- hello: its inventory
    start: what the rank is given -->
    end: a group, stacks? -->
            <-- exit: what is left of its process, on this order or once it ended by itself
    leave: the exit status -->
            <-- dismissed
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from pytest_accel.distributed.group import name_ranks
from pytest_accel.distributed.messages import Connection, ConnectionLost, Listener, Message, call, ready
from pytest_accel.distributed.processes import (
    LOOPBACK,
    RankCommand,
    RankExit,
    RankProcesses,
    RankSpec,
    ReservedPort,
    WorkerError,
    signals_noted,
    tcp_store,
)
from pytest_accel.options import GROUP_ID_VARIABLE, SECRET_VARIABLE, WORKER_VARIABLE
from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.stats.quantities import counted
from pytest_accel.storage.codec import INTEGER_DIGITS, decode, encode, loads

Launcher = Literal["torchrun", "srun"]

_POLL_S = 0.2
_END_S = 30.0  # for a launcher rank to end its process and report it
_LATE_S = 30.0  # for launcher ranks that have not come yet when the session is over already
_LEAVE_S = 10.0  # for launcher ranks to confirm that they leave
_LINGER_S = 10.0  # for an interrupted launcher rank to be dismissed with the session's own status
_PARTING_S = 20.0  # for launcher rank 0 to end once it has dismissed the others
_KEY = "pytest-accel/ranks/{}"  # of the address of launcher rank 0, by attempt
_PORTS = range(20000, 32000)  # below the ports that Linux gives to outgoing connections (from 32768)
_STEP_STRIDE = 101  # so that following jobs and following steps of one job do not meet at one port
_SECRET = ".pytest-accel-secret-"  # noqa: S105 - of its file's name
_SECRET_S = 3600.0  # after which every rendezvous is over
_SECRET_CHARACTERS = 1000
_SECRET_REMEDY = (
    "Ranks show by a secret that they belong together: start them in a folder that all nodes share, or set "
    f"{SECRET_VARIABLE} to one secret in the environment of all ranks."
)
_LIKE_TORCHRUN = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}


# --- the launcher's variables -----------------------------------------------------------------------------


class LauncherError(ValueError):
    """A launcher's variable is missing or wrong; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherRank:
    """One of the processes that a launcher started, and where all of them meet."""

    rank: int
    world_size: int
    node: int
    nodes: int
    launcher: Launcher
    master_host: str  # the node of rank 0
    master_port: int
    agent_store: bool = False  # the launcher itself serves a store there
    attempt: int = 0  # torchrun starts its ranks anew after a failure, and keeps the store
    node_list: str = ""  # as Slurm writes it

    @property
    def title(self) -> str:
        return f"rank {self.rank} of {self.world_size} ({self.launcher})"


def launcher_rank_from(environ: Mapping[str, str]) -> LauncherRank | None:
    """Return the rank of this process; None where it was started alone, or by a session of ours.

    torchrun goes first: srun may have started it, once a node. Variables of a Slurm job count only inside a step: a batch
    script has SLURM_PROCID and SLURM_NTASKS too, and is no rank.
    """
    if WORKER_VARIABLE in environ or GROUP_ID_VARIABLE in environ:
        return None
    if "TORCHELASTIC_RUN_ID" in environ and "RANK" in environ:
        return _from_torchrun(environ)
    if "SLURM_STEP_NUM_TASKS" in environ:
        return _from_srun(environ)
    return _from_torchrun(environ) if environ.keys() >= _LIKE_TORCHRUN else None


def _from_torchrun(environ: Mapping[str, str]) -> LauncherRank | None:
    world_size = _number(environ, "WORLD_SIZE", low=1)
    if world_size == 1:
        return None
    local_size = _number(environ, "LOCAL_WORLD_SIZE", low=1, high=world_size)
    rank = _number(environ, "RANK", high=world_size - 1)
    nodes = _number(environ, "GROUP_WORLD_SIZE", low=1, high=world_size, default=world_size // local_size)
    return LauncherRank(
        rank=rank,
        world_size=world_size,
        node=_number(environ, "GROUP_RANK", high=nodes - 1, default=rank // local_size),
        nodes=nodes,
        launcher="torchrun",
        master_host=_text(environ, "MASTER_ADDR"),
        master_port=_number(environ, "MASTER_PORT", low=1, high=65535),
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True",  # as torch itself reads it
        attempt=_number(environ, "TORCHELASTIC_RESTART_COUNT", default=0),
    )


def _from_srun(environ: Mapping[str, str]) -> LauncherRank | None:
    world_size = _number(environ, "SLURM_STEP_NUM_TASKS", low=1)
    if world_size == 1:
        return None
    nodes = _number(environ, "SLURM_STEP_NUM_NODES", low=1, high=world_size)
    job, step = _number(environ, "SLURM_JOB_ID"), _number(environ, "SLURM_STEP_ID")
    # Every task of a step derives the same port, and another step hardly.
    port = _PORTS[(job * _STEP_STRIDE + step) % len(_PORTS)]
    node_list = _text(environ, "SLURM_STEP_NODELIST")
    return LauncherRank(
        rank=_number(environ, "SLURM_PROCID", high=world_size - 1),
        world_size=world_size,
        node=_number(environ, "SLURM_NODEID", high=nodes - 1),
        nodes=nodes,
        launcher="srun",
        master_host=environ.get("MASTER_ADDR") or first_node(node_list),
        master_port=_number(environ, "MASTER_PORT", low=1, high=65535, default=port),
        node_list=node_list,
    )


def first_node(node_list: str) -> str:
    """Return the first name of a Slurm host list: gpu-a01 of `gpu-a[01-02,07],login`."""
    first = re.sub(r"\[(\d*)[^\]]*\]", r"\1", node_list)
    return first.partition(",")[0]


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise LauncherError(f"{name} is not set, though the launcher's other variables are. {_REMEDY}")
    return value


def _number(
    environ: Mapping[str, str],
    name: str,
    *,
    low: int = 0,
    high: int | None = None,
    default: int | None = None,
) -> int:
    if default is not None and not environ.get(name, "").strip():
        return default
    text = _text(environ, name)
    is_number = text.isascii() and text.isdecimal() and len(text) <= INTEGER_DIGITS
    if not (is_number and low <= int(text) and (high is None or int(text) <= high)):
        valid = f"at least {low}" if high is None else f"from {low} to {high}"
        raise LauncherError(f"{name}={text!r} is not a whole number {valid}. {_REMEDY}")
    return int(text)


_REMEDY = "Start pytest with torchrun or srun, which set it, or unset it to run without them."


# --- rendezvous -------------------------------------------------------------------------------------------


def open_store(launched: LauncherRank, rendezvous_s: float) -> Any:  # noqa: ANN401 - torch is not typed here
    """Open the key-value store of all launcher ranks: the launcher's own, else one that launcher rank 0 serves."""
    from torch.distributed import DistError

    hosting = launched.rank == 0 and not launched.agent_store
    host = LOOPBACK if launched.nodes == 1 and not launched.agent_store else launched.master_host
    try:
        return tcp_store(host, launched.master_port, hosting=hosting, timeout_s=rendezvous_s)
    except (DistError, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(". ")
        if hosting:
            raise WorkerError(
                f"rank 0 cannot meet the other ranks at port {launched.master_port}: {reason}. "
                "Choose a free port with MASTER_PORT=... in the environment of all ranks."
            ) from None
        where = f"{launched.master_host}:{launched.master_port}"
        raise WorkerError(
            f"{launched.title}: no store at {where} within {rendezvous_s:g} s: {reason}. If that is not the node of rank 0, "
            "set MASTER_ADDR in the environment of all ranks."
        ) from None


def secret_folder(launched: LauncherRank) -> Path:
    """Return the folder for the secret of a session: all ranks see it, as they see the same tests."""
    return Path(tempfile.gettempdir()) if launched.nodes == 1 else Path.cwd()


def write_secret(folder: Path, secret: str) -> Path:
    """Write a secret that only this user can read: whoever reaches the store can read what is in there."""
    path = folder / f"{_SECRET}{secrets.token_hex(8)}"
    for old in folder.glob(f"{_SECRET}*"):  # of killed sessions
        with suppress(OSError):  # of another user, or removed meanwhile
            if time.time() - old.stat().st_mtime > _SECRET_S:
                old.unlink()
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123 - a descriptor has no Path
            file.write(secret)
        read_secret(folder, path.name)
    except (OSError, WorkerError) as error:
        with suppress(OSError):
            path.unlink()
        if isinstance(error, WorkerError):
            raise
        raise WorkerError(f"{path}: {error.strerror}. {_SECRET_REMEDY}") from None
    return path


def read_secret(folder: Path, name: str) -> str:
    """Return the secret of launcher rank 0, whose name in the store anybody may have written."""
    if not name and os.environ.get(SECRET_VARIABLE):
        return os.environ[SECRET_VARIABLE]
    path, problem = folder / Path(name).name, "is not a file that this user alone can read"
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:  # noqa: PTH123 - as above
            facts = os.fstat(file.fileno())
            private = facts.st_uid == os.geteuid() and not stat.S_IMODE(facts.st_mode) & 0o077
            if name.startswith(_SECRET) and stat.S_ISREG(facts.st_mode) and private:
                return file.read(_SECRET_CHARACTERS)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", "") or problem
    raise WorkerError(f"{path}: {problem}. {_SECRET_REMEDY}")


# --- launcher rank 0 --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Address:
    """Where launcher rank 0 listens, and the name of the file with its secret."""

    host: str
    port: int
    secret: str  # empty: the secret itself is in SECRET_VARIABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    rank: int
    node: int
    host: str
    cpus: str = ""  # that it may run on, as the kernel writes them
    devices: tuple[DetectedDevice, ...] = ()  # not identified


@dataclass(slots=True, kw_only=True, eq=False)
class _OtherRank:
    """Another launcher rank, seen from launcher rank 0."""

    connection: Connection
    inventory: Inventory
    exits: dict[str, RankExit] = field(default_factory=dict)  # by group
    dismissed: bool = False

    @property
    def gone(self) -> str:
        return self.connection.end

    def send(self, message: Message) -> None:
        with suppress(ConnectionLost):  # `gone` says it
            self.connection.send(message)

    def receive(self) -> None:
        """Take in what has arrived; never waits."""
        for message in self.connection.arrived():
            match message:
                case {"exit": dict(plain), "group": str(group)}:
                    self.exits[group] = decode(RankExit, plain)
                case {"dismissed": True}:
                    self.dismissed = True

    def exit_of(self, group: str) -> RankExit | None:
        """Return what is left of its process of a group; None while that may run."""
        if self.gone and group not in self.exits:
            return RankExit(status=f"is gone with its pytest on {self.inventory.host}, which {self.gone}")
        return self.exits.get(group)


class LauncherRanks:
    """All launcher ranks, held by launcher rank 0: the RankLauncher of its session.

    It publishes its address at once; the others connect while the session goes on.
    """

    def __init__(self, launched: LauncherRank, *, rendezvous_s: float) -> None:
        self.launched = launched
        self.address = "" if launched.nodes > 1 else LOOPBACK
        self.host = launched.master_host if launched.nodes > 1 else LOOPBACK
        self.deadline = time.monotonic() + rendezvous_s  # for all to connect
        given = os.environ.get(SECRET_VARIABLE, "")
        self._listener = listener = Listener(self.address, given)
        self._secret: Path | None = None
        try:
            if not given:
                self._secret = write_secret(secret_folder(launched), listener.token)
            self._store = open_store(launched, rendezvous_s)  # serves latecomers as long as it lives
            name = self._secret.name if self._secret else ""
            address = encode(_Address(host=self.host, port=listener.port, secret=name))
            self._store.set(_KEY.format(launched.attempt), json.dumps(address))
        except BaseException:
            self._remove_secret()
            listener.close()
            raise
        self._others: dict[int, _OtherRank] = {}
        self._dismissed = False

    def wait(self, deadline: float | None = None) -> None:
        """Wait until all launcher ranks have connected; WorkerError names those that did not.

        The deadline is one for all calls: a rank that has not come once is not waited for again.
        """
        deadline = self.deadline if deadline is None else deadline
        while (missing := self._accept()) and (left_s := deadline - time.monotonic()) > 0:
            ready(self._listener.sources(), min(left_s, _POLL_S))
        if missing:
            launched, present = self.launched, self.by_node()
            ranks = name_ranks(missing[:8], launched.world_size) + (", …" if len(missing) > 8 else "")
            silent = [str(node) for node in range(launched.nodes) if node not in present]
            of = f" of {launched.node_list}" if launched.node_list else ""
            none = (
                f"; none connected from node {', '.join(silent[:8])}{of} (counted from 0)" if silent else ""
            )
            raise WorkerError(
                f"{ranks} of {launched.world_size} ({launched.launcher}) did not connect{none}. Did {launched.launcher} "
                "start on every node, with the same arguments, and does its output say why? accel_rendezvous sets how "
                "long to wait."
            )

    def inventories(self) -> list[Inventory]:
        """Return what the connected launcher ranks reported, by rank, without rank 0; never waits."""
        self._accept()
        return [other.inventory for _, other in sorted(self._others.items())]

    def by_node(self) -> dict[int, list[int]]:
        """Return the connected ranks of each node, rank 0 first."""
        nodes: dict[int, list[int]] = {self.launched.node: [0]}
        for seen in self.inventories():
            nodes.setdefault(seen.node, []).append(seen.rank)
        return dict(sorted(nodes.items()))

    def start(self, spec: RankSpec, command: RankCommand) -> _RemoteRanks:
        """Start a group with one process at each launcher rank that it needs."""
        self.wait()
        chosen = choose_ranks(self.by_node(), spec, self.launched.launcher)
        others = {rank: self._others[number] for rank, number in enumerate(chosen) if number != 0}
        return _RemoteRanks(spec, command, others, store_host=LOOPBACK if spec.nodes == 1 else self.host)

    def dismiss(self, status: int, *, with_this_process: bool = False) -> None:
        """Have every launcher rank leave with this exit status, at once or `with_this_process`. Never raises.

        A launcher that sees one rank fail first may end the others and print so; with this process they leave when the
        kernel closes its connections.
        """
        if self._dismissed:
            return
        self._dismissed = True
        # Latecomers too: they would wait for a session that is over.
        with suppress(OSError, WorkerError):
            self.wait(min(self.deadline, time.monotonic() + _LATE_S))
        others = self._others.values()
        for other in others:
            other.send({"leave": status})
        _wait_for(others, lambda other: other.dismissed, _LEAVE_S)
        for other in others:
            if with_this_process and not other.gone:
                os.dup(other.connection.fileno())  # never closed here
            other.connection.close()
        self._remove_secret()
        self._listener.close()
        self._store = None

    def _accept(self) -> list[int]:
        """Accept new connections; return the ranks that are missing."""
        for connection, hello in self._listener.arrived():
            inventory = decode(Inventory, hello)
            self._others[inventory.rank] = _OtherRank(connection=connection, inventory=inventory)
        missing = [rank for rank in range(1, self.launched.world_size) if rank not in self._others]
        if not missing:
            self._remove_secret()
        return missing

    def _remove_secret(self) -> None:
        secret, self._secret = self._secret, None
        if secret is not None:
            secret.unlink(missing_ok=True)


def choose_ranks(by_node: Mapping[int, Sequence[int]], spec: RankSpec, launcher: str) -> list[int]:
    """Return the launcher ranks of a group: the first ones of the first nodes, launcher rank 0 first."""
    first, *rest = (list(ranks) for _, ranks in sorted(by_node.items(), key=lambda pair: 0 not in pair[1]))
    fitting = [first, *(ranks for ranks in rest if len(ranks) >= spec.per_node)][: spec.nodes]
    if len(fitting) < spec.nodes or len(first) < spec.per_node:
        has = ", ".join(str(len(ranks)) for ranks in by_node.values())
        options = (
            f"srun --nodes={spec.nodes} --ntasks-per-node={spec.per_node}"
            if launcher == "srun"
            else f"torchrun --nnodes={spec.nodes} --nproc-per-node={spec.per_node}"
        )
        raise WorkerError(
            f"needs {counted(spec.per_node, 'rank')} on {counted(spec.nodes, 'node')}; {launcher} started {has}"
            f" on {counted(len(by_node), 'node')}. Start it with {options}."
        )
    return [rank for ranks in fitting for rank in ranks[: spec.per_node]]


class _RemoteRanks:
    """The processes of a group: rank 0 here, and one at each of some other launcher ranks."""

    def __init__(
        self, spec: RankSpec, command: RankCommand, others: Mapping[int, _OtherRank], *, store_host: str
    ) -> None:
        self._group = spec.group
        self._others = others
        self._exits: dict[int, RankExit] | None = None
        port = ReservedPort()
        spec = replace(spec, store_host=store_host, store_port=port.number)
        for rank, other in others.items():
            other.send({"start": encode(replace(spec, rank=rank))})
        try:
            self._own = RankProcesses([spec], command, port)
        except BaseException:
            for other in others.values():
                other.send({"end": spec.group, "stacks": False})
            raise

    def ended(self) -> dict[int, str]:
        ended = self._own.ended()
        for rank, other in self._others.items():
            other.receive()
            if (left := other.exit_of(self._group)) is not None:
                ended[rank] = left.status or "was ended"
        return ended

    def end(self, *, stacks: bool) -> Mapping[int, RankExit]:
        if self._exits is None:
            for other in self._others.values():
                other.send({"end": self._group, "stacks": stacks})
            exits = dict(self._own.end(stacks=stacks))
            _wait_for(self._others.values(), lambda other: other.exit_of(self._group) is not None, _END_S)
            for rank, other in self._others.items():
                late = f"is lost: its pytest on {other.inventory.host} did not answer within {_END_S:g} s"
                exits[rank] = other.exit_of(self._group) or RankExit(status=late)
                other.exits.pop(self._group, None)
            self._exits = exits
        return self._exits


def _wait_for(
    others: Collection[_OtherRank], condition: Callable[[_OtherRank], bool], patience_s: float
) -> None:
    """Receive until the condition holds for all launcher ranks that are there."""
    deadline = time.monotonic() + patience_s
    while True:
        for other in others:
            other.receive()
        waiting = [other.connection for other in others if not other.gone and not condition(other)]
        if not waiting or (left_s := deadline - time.monotonic()) <= 0:
            return
        ready(waiting, min(left_s, _POLL_S))


# --- every launcher rank but 0 ----------------------------------------------------------------------------


def serve(
    launched: LauncherRank,
    *,
    command: RankCommand,
    rendezvous_s: float,
    cpus: str,
    devices: tuple[DetectedDevice, ...],
) -> int:
    """Start and end processes on orders of launcher rank 0 until dismissed; return the exit status to leave with."""
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    seen = Inventory(rank=launched.rank, node=launched.node, host=name, cpus=cpus, devices=devices)
    try:
        connection = _connect(launched, rendezvous_s, seen)
    except WorkerError as error:
        return _complain(str(error))
    server = _Server(connection, command)
    try:
        # Ignored then: a launcher that sees one rank leave ends the others, and this one leaves with its own status.
        with signals_noted(signal.SIGTERM, signal.SIGINT, then=signal.SIG_IGN) as noted:
            status = server.serve(noted)
    finally:
        server.end_process()
        connection.close()
    if status is None:
        return _complain(f"{launched.title}: rank 0 is gone: it {connection.end}")
    return status


def _complain(text: str) -> int:
    sys.stderr.write(f"pytest-accel: {text}\n")
    return 1


def _connect(launched: LauncherRank, rendezvous_s: float, seen: Inventory) -> Connection:
    """Find launcher rank 0 and say hello. torch's store waits outside Python: meanwhile signals end this process."""
    from torch.distributed import DistError

    deadline = time.monotonic() + rendezvous_s
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        store = open_store(launched, rendezvous_s)
        key = _KEY.format(launched.attempt)
        store.wait([key], timedelta(seconds=max(deadline - time.monotonic(), 1.0)))
        address = decode(_Address, loads(store.get(key).decode()))
        token = read_secret(secret_folder(launched), address.secret)
    except DistError:
        raise WorkerError(f"{launched.title}: rank 0 did not come within {rendezvous_s:g} s") from None
    except ValueError as error:
        problem = f"the store's address of rank 0 was not written by pytest-accel: {error}"
        raise WorkerError(f"{launched.title}: {problem} Set another MASTER_PORT.") from None
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        return call(address.host, address.port, token=token, hello=encode(seen), timeout_s=rendezvous_s)
    except (ConnectionLost, ValueError, OverflowError) as error:  # a forged host or port
        raise WorkerError(f"{launched.title}: rank 0 cannot be reached: {error}") from None


class _Server:
    """The loop of a launcher rank: at most one process at a time."""

    def __init__(self, connection: Connection, command: RankCommand) -> None:
        self._connection = connection
        self._command = command
        self._group = ""
        self._process: RankProcesses | None = None

    def serve(self, noted: Sequence[int]) -> int | None:
        """Return the exit status once dismissed, or by a signal; None when launcher rank 0 is gone."""
        deadline: float | None = None  # after an interrupt
        while True:
            for message in self._connection.arrived():
                match message:
                    case {"leave": int(status)}:
                        self._wait_for_rank_0()
                        return status
                    case {"start": dict(plain)}:
                        self._start(decode(RankSpec, plain))
                    case {"end": self._group, "stacks": bool(stacks)}:
                        self.end_process(stacks=stacks)
            if self._connection.end:
                return None if not noted else 128 + noted[0]
            if noted and deadline is None:
                self.end_process()
                deadline = time.monotonic() + _LINGER_S
            if deadline is not None and time.monotonic() >= deadline:
                return 128 + noted[0]
            if self._process is not None and self._process.ended():
                self.end_process()
            ready([self._connection], _POLL_S)

    def end_process(self, *, stacks: bool = False) -> None:
        """End the process, if there is one, and report what is left of it."""
        process, self._process = self._process, None
        if process is not None:
            (left,) = process.end(stacks=stacks).values()
            self._send({"exit": encode(left), "group": self._group})

    def _start(self, spec: RankSpec) -> None:
        self.end_process()
        self._group = spec.group
        try:
            self._process = RankProcesses([spec], self._command, None)
        except WorkerError as error:
            left = RankExit(status=f"was not started: {error}")
            self._send({"exit": encode(left), "group": self._group})

    def _wait_for_rank_0(self) -> None:
        self.end_process()
        self._send({"dismissed": True})
        deadline = time.monotonic() + _PARTING_S
        while not self._connection.end and (left_s := deadline - time.monotonic()) > 0:
            ready([self._connection], left_s)
            self._connection.arrived()

    def _send(self, message: Message) -> None:
        with suppress(ConnectionLost):  # the loop notices
            self._connection.send(message)
