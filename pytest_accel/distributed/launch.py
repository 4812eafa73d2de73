"""What starting a gang takes, and what is left of one: the values that launchers and gangs exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class GangError(RuntimeError):
    """A gang could not come together; the message says which rank, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A gang to be started: the same pytest on every rank, told where to call the session."""

    gang: str  # id, unique on this machine and in its nodes
    nodes: int
    per_node: int
    process_group: bool  # False: one plain process, torch is not even imported for it
    host: str  # where ranks call the session
    port: int
    token: str
    arguments: Callable[[Path], Sequence[str]]  # of pytest, for a rank that may write into this folder
    directory: Path
    bind: str  # auto or none
    rendezvous_s: float

    @property
    def size(self) -> int:
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What is left of one rank after its end."""

    status: str = ""  # how it ended, in words: "killed by SIGKILL", "exit status 3"; empty if ended by us
    log: str = ""  # the last lines it wrote
    stacks: str = ""  # of all its threads, when it was asked for them


class Launched(Protocol):
    """A gang's processes."""

    def ended(self) -> str | None:
        """Which process has ended, or what else is gone, in words; None while all of them run."""
        ...

    def left(self) -> bool:
        """Whether all processes have ended by themselves, as far as is known here."""
        ...

    def end(self, *, stacks: bool) -> Mapping[int, Remains]:
        """End every process of the gang, and what they started; by rank, what is left. Never raises, never hangs.

        With `stacks`, ranks first get a few seconds to write down where they are.
        """
        ...


class Launcher(Protocol):
    """Starts the processes of a gang, here or on other nodes."""

    def start(self, launch: Launch) -> Launched: ...
