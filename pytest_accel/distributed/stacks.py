"""Stacks as faulthandler writes them: where a rank hangs, in one line, and the frames worth printing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
# Frames of pytest, equal in every test, and of libraries.
_PYTEST = ("/_pytest/", "/pluggy/", "/pytest/__main__.py", "<frozen runpy>")
_OWN = tuple(f"/pytest_accel/{folder}/" for folder in ("measure", "session", "distributed", "workloads"))
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", *_OWN)
_COLLECTIVES = ("/torch/distributed/", "/torch/nn/parallel/distributed.py")
_WRAPPERS = frozenset({"wrapper", "_wrapper", "_fn", "__call__"})
_MAX_FRAMES = 20  # of one thread in a report
_MAX_LINES = 60  # of one rank in a report


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    file: str
    line: str
    name: str

    @property
    def place(self) -> str:
        return f"{PurePath(self.file).name}:{self.line} {self.name}"

    def inside(self, parts: Iterable[str]) -> bool:
        return any(part in self.file for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where the main thread of a rank is."""

    place: str  # test_x.py:12 step
    collective: str = ""  # all_reduce, where it waits for others


def locate(stacks: str) -> Location | None:
    """Return where the main thread is; None without stacks."""
    threads = _threads(stacks)
    frames = threads[-1] if threads else []  # faulthandler writes the oldest thread, the main one, last
    if not frames:
        return None
    own = next((at for at, frame in enumerate(frames) if not frame.inside(_LIBRARIES)), None)
    waits = [
        frame.name
        for frame in frames[: own if own is not None else len(frames)]
        if frame.inside(_COLLECTIVES) and frame.name not in _WRAPPERS
    ]
    place = frames[own if own is not None else 0].place
    return Location(place=place, collective=waits[0] if waits else "")


def describe_hang(stacks: Mapping[int, str]) -> str:
    """Say which ranks hang where, which wait in which collective, and which gave no stacks."""
    hang: dict[str, list[int]] = {}
    wait: dict[str, list[int]] = {}
    unknown = []
    for rank, text in sorted(stacks.items()):
        found = locate(text)
        if found is None:
            unknown.append(rank)
        elif found.collective:
            wait.setdefault(found.collective, []).append(rank)
        else:
            hang.setdefault(found.place, []).append(rank)
    parts = [f"{name_ranks(ranks)} {_verb('hang', ranks)} in {place}" for place, ranks in hang.items()]
    parts += [f"{name_ranks(ranks)} {_verb('wait', ranks)} in {name}" for name, ranks in wait.items()]
    parts += [f"{name_ranks(unknown)} gave no stacks"] if unknown else []
    return ", ".join(parts)


def name_ranks(ranks: Iterable[int]) -> str:
    """Return `rank 1` or `ranks 0, 2`."""
    names = [str(rank) for rank in ranks]
    return f"rank{'s' if len(names) != 1 else ''} {', '.join(names)}"


def shorten(stacks: str) -> str:
    """Return stacks without pytest's own frames, unless a thread is in one, and of limited length."""
    lines: list[str] = []
    kept = 0  # of the thread
    for line in stacks.splitlines():
        frame = _FRAME.match(line)
        if frame is None:
            kept = 0
            lines.append(_anonymous(line))
        elif kept == 0 or not any(part in frame["file"] for part in _PYTEST):
            kept += 1
            lines += [line] if kept <= _MAX_FRAMES else ["  ..."] if kept == _MAX_FRAMES + 1 else []
    if len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES // 2], "...", *lines[-_MAX_LINES // 2 :]]
    return "\n".join(lines).strip()


def _anonymous(line: str) -> str:
    """Return a thread's line without its address, so that equal stacks compare equal."""
    found = _THREAD.match(line)
    return f"{found[1]} (most recent call first):" if found else line


def _threads(stacks: str) -> list[list[Frame]]:
    threads: list[list[Frame]] = []
    for line in stacks.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif (found := _FRAME.match(line)) and threads:
            threads[-1].append(Frame(file=found["file"], line=found["line"], name=found["name"]))
    return threads


def _verb(verb: str, ranks: list[int]) -> str:
    return verb if len(ranks) > 1 else f"{verb}s"
