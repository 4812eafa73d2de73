"""The rank that torchrun or srun gave this pytest, read from the environment alone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from pytest_accel.options import GROUP_ID_VARIABLE, LAUNCHER_VARIABLES, WORKER_VARIABLE

T = TypeVar("T")
Launcher = Literal["torchrun", "srun"]

_PORTS = range(20000, 32000)  # below the ports that Linux gives to outgoing connections (from 32768)
_MAX_NODES = 100_000  # a list that names more is an error, and would fill the memory
_STEP_STRIDE = 101  # so that following jobs and following steps of one job do not meet at one port
_LIKE_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class LauncherError(ValueError):
    """A launcher's variables contradict each other; the message names the variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherRank:
    """One of the processes that a launcher started, and where all of them meet."""

    rank: int
    world_size: int
    local_size: int  # of this node; others may have another one
    node: int
    nodes: int
    launcher: Launcher
    master_host: str  # the node of rank 0
    master_port: int
    agent_store: bool = False  # the launcher itself serves a store there
    attempt: int = 0  # torchrun starts its ranks anew after a failure, and keeps the store
    node_names: tuple[str, ...] = ()  # by node, where the launcher tells them

    @property
    def title(self) -> str:
        return f"rank {self.rank} of {self.world_size} ({self.launcher})"

    def node_title(self, node: int) -> str:
        """Return the name of a node where it is known."""
        return self.node_names[node] if node < len(self.node_names) else f"node {node}"


def is_launched(environ: Mapping[str, str]) -> bool:
    """Return whether a launcher started this process; costs nothing."""
    return not LAUNCHER_VARIABLES.isdisjoint(environ)


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
    if all(name in environ for name in _LIKE_TORCHRUN):
        return _from_torchrun(environ)
    return None


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
        local_size=local_size,
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
    tasks = _parsed(environ, "SLURM_STEP_TASKS_PER_NODE", expand_counts)
    if sum(tasks) != world_size:
        raise _error(environ, "SLURM_STEP_TASKS_PER_NODE", f"do not add up to {world_size} tasks")
    names = _parsed(environ, "SLURM_STEP_NODELIST", expand_nodes)
    if len(names) != len(tasks):
        raise _error(environ, "SLURM_STEP_NODELIST", f"does not name {len(tasks)} nodes")
    node = _number(environ, "SLURM_NODEID", high=len(tasks) - 1)
    return LauncherRank(
        rank=_number(environ, "SLURM_PROCID", high=world_size - 1),
        world_size=world_size,
        local_size=tasks[node],
        node=node,
        nodes=len(tasks),
        launcher="srun",
        master_host=environ.get("MASTER_ADDR") or names[0],
        master_port=_number(environ, "MASTER_PORT", low=1, high=65535, default=_step_port(environ)),
        node_names=names,
    )


def _step_port(environ: Mapping[str, str]) -> int:
    """Return a port that every task of a step derives alike, and another step hardly."""
    job, step = _number(environ, "SLURM_JOB_ID"), _number(environ, "SLURM_STEP_ID")
    return _PORTS[(job * _STEP_STRIDE + step) % len(_PORTS)]


def _parsed(environ: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T:
    text = _text(environ, name)
    try:
        return parse(text)
    except ValueError as error:
        raise _error(environ, name, str(error)) from None


def expand_counts(text: str) -> list[int]:
    """Expand Slurm's counts by node: `4(x2),1` is 4, 4, 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([1-9]\d{0,6})(?:\(x([1-9]\d{0,6})\))?", part.strip(), re.ASCII)
        if match is None:
            raise ValueError("is not a list of counts such as 4(x2),1")
        times = int(match[2] or 1)
        if len(counts) + times > _MAX_NODES:
            raise ValueError(f"counts more than {_MAX_NODES} nodes")
        counts += [int(match[1])] * times
    return counts


def expand_nodes(text: str) -> tuple[str, ...]:
    """Expand a Slurm host list, in order: `gpu-a[01-02],login` is gpu-a01, gpu-a02, login."""
    return tuple(itertools.islice(_expand(text), _MAX_NODES))


def _expand(text: str) -> Iterator[str]:
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|,|.", text):
        if part == ",":
            continue
        pieces = re.findall(r"\[[^\[\]]*\]|[^,\[\]]+|.", part)
        choices = [
            _numbers(piece[1:-1]) if len(piece) > 1 and piece[0] == "[" else [piece] for piece in pieces
        ]
        if any(choice in (["["], ["]"]) for choice in choices):
            raise ValueError("has a bracket without its other half")
        yield from map("".join, itertools.product(*choices))


def _numbers(text: str) -> list[str]:
    """Expand the text in brackets: `01-03,7` is 01, 02, 03, 7; the width of the first is kept."""
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip(), re.ASCII)
        if match is None:
            raise ValueError(f"has [{text}], which is not a list of numbers and ranges")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < _MAX_NODES:
            raise ValueError(f"has the range {part}, which ends before it begins or has no end")
        numbers += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return numbers


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
    if not (text.isascii() and text.isdecimal() and low <= int(text) and (high is None or int(text) <= high)):
        valid = f"at least {low}" if high is None else f"from {low} to {high}"
        raise _error(environ, name, f"is not a whole number {valid}")
    return int(text)


def _error(environ: Mapping[str, str], name: str, what: str) -> LauncherError:
    return LauncherError(f"{name}={environ.get(name, '')!r} {what}. {_REMEDY}")


_REMEDY = "Start pytest with torchrun or srun, which set it, or unset it to run without them."
