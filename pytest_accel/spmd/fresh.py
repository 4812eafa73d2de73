"""One fresh process that measures one benchmark: started, watched, never left behind.

The process runs pytest with the arguments of this session, less those that write files or change
the course of a session, and is told through one environment variable which item to measure and
where to put what it found.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pytest_accel.options import FRESH_VARIABLE

_POLL_S = 0.5
_GRACE_S = 3.0  # for stacks to be written after a deadline
_TAIL_LINES = 40
# The variables of pytest in this process: a child has its own, and its options come as arguments.
_OWN_VARIABLES = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "PYTEST_VERSION"})

# Options of this session that must not act in a fresh process, and whether they take a value; an
# optional value is, as argparse has it, the next word where that is no option.
Takes = Literal["none", "one", "optional"]
_DROPPED: Mapping[str, Takes] = {
    "--accel-record": "optional",
    "--accel-update": "none",
    "--accel-reason": "one",
    "--accel-require": "none",
    "--basetemp": "one",  # a process empties it when it starts
    "--benchmark-autosave": "none",
    "--benchmark-compare": "optional",
    "--benchmark-compare-fail": "one",
    "--benchmark-cprofile": "one",
    "--benchmark-cprofile-dump": "optional",
    "--benchmark-csv": "optional",
    "--benchmark-histogram": "optional",
    "--benchmark-json": "one",
    "--benchmark-save": "one",
    "--benchmark-save-data": "none",
    "--exitfirst": "none",
    "--failed-first": "none",
    "--ff": "none",
    "--html": "one",
    "--junit-prefix": "one",
    "--junit-xml": "one",
    "--junitprefix": "one",
    "--junitxml": "one",
    "--last-failed": "none",
    "--lf": "none",
    "--log-file": "one",
    "--maxfail": "one",
    "--new-first": "none",
    "--nf": "none",
    "--pastebin": "one",
    "--pdb": "none",
    "--report-log": "one",
    "--stepwise": "none",
    "--stepwise-reset": "none",
    "--stepwise-skip": "none",
    "--sw": "none",
    "--sw-reset": "none",
    "--sw-skip": "none",
    "--trace": "none",
    "-x": "none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a fresh process is told."""

    node_id: str
    session: str
    result: str
    parent: int  # process id of the session that gave it

    def to_variable(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a fresh process ended: what it wrote, or why it wrote nothing."""

    payload: Mapping[str, object] | None
    problem: str = ""
    log: str = ""


def fresh_arguments(arguments: Iterable[str]) -> list[str]:
    """The arguments of this session without those that write files or stop early."""
    return without_options(arguments, _DROPPED)


def without_options(arguments: Iterable[str], dropped: Mapping[str, Takes]) -> list[str]:
    """Arguments less some options and the values that these take."""
    kept: list[str] = []
    value: Takes = "none"  # what the option just dropped still takes
    for argument in arguments:
        taken = value == "one" or (value == "optional" and not argument.startswith("-"))
        value = "none"
        if taken:
            continue
        name, assigned, _ = argument.partition("=")
        if name not in dropped:
            kept.append(argument)
        elif not assigned:
            value = dropped[name]
    return kept


def measure_fresh(
    order: Order,
    *,
    arguments: Sequence[str],
    directory: Path,
    log: Path,
    timeout_s: float,
    waiting: Callable[[], None] = lambda: None,
) -> Answer:
    """Run one benchmark in a fresh process and read its answer; kill it and its children at the deadline."""
    environ = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    environ[FRESH_VARIABLE] = order.to_variable()
    command = [sys.executable, *_path_flag(directory), "-m", "pytest", *fresh_arguments(arguments)]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own arguments
            command,
            cwd=directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = _wait(process, timeout_s, waiting)
            if status is None:
                _ask_for_stacks(process)
        finally:
            _end(process)  # also when this session is interrupted
    if status is None:
        return Answer(payload=None, problem=f"no answer within {timeout_s:g} s: stopped", log=_tail(log))
    return _read(Path(order.result), log, status)


def _path_flag(directory: Path) -> list[str]:
    """`python -m pytest` puts the current directory on the path, `pytest` does not: do as this session did."""
    return [] if {"", str(directory)} & set(sys.path) else ["-P"]


def _wait(process: subprocess.Popen[bytes], timeout_s: float, waiting: Callable[[], None]) -> int | None:
    """The exit status, or None when the deadline has passed."""
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            return process.wait(min(left_s, _POLL_S))
        except subprocess.TimeoutExpired:
            waiting()
    return None


def _ask_for_stacks(process: subprocess.Popen[bytes]) -> None:
    """SIGABRT: faulthandler, which pytest enables, writes every thread's stack, also from native code."""
    process.send_signal(signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, and what it started and left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(result: Path, log: Path, status: int) -> Answer:
    try:
        payload = json.loads(result.read_text())
    except FileNotFoundError:
        return Answer(payload=None, problem=f"ended with status {status} and no measurement", log=_tail(log))
    except ValueError as error:
        return Answer(payload=None, problem=f"wrote an unreadable measurement: {error}", log=_tail(log))
    return Answer(payload=payload, log=_tail(log))


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


def take_order(environ: MutableMapping[str, str] = os.environ) -> Order:
    """In the fresh process: read the order, and make sure that this process leaves nothing behind.

    The order is taken out of the environment: a pytest that the benchmark starts is not meant. The kernel
    ends this process when its session is gone, also while it still imports. No core is dumped for the
    SIGABRT that asks for stacks: that of a CUDA process takes gigabytes.
    """
    import ctypes
    import resource

    order = Order(**json.loads(environ.pop(FRESH_VARIABLE)))
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    pr_set_pdeathsig = 1  # <linux/prctl.h>
    with suppress(OSError, AttributeError):  # not Linux: the deadline still ends it
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != order.parent:  # gone before the kernel was asked
        os._exit(1)
    return order
