"""The command: which contests, on which device, for how long, and what is left of it. It imports torch only to measure."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.contests import Contest, UnknownContestError, chosen
from benchmarks.peers.interrupts import let_through
from benchmarks.peers.ratios import LEAST_GROUPS

if TYPE_CHECKING:
    from benchmarks.peers.measuring import Say
    from benchmarks.peers.results import Entry, Played, Session

    Play = Callable[[Contest, argparse.Namespace, Say], Played]

DESCRIPTION = """\
Our steps beside what people run otherwise: the same model, precision and batch, in one run, in blocks that
alternate. Prints both rates and their ratio with its 95 % interval. docs/peers.md says what is compared and why
it is fair. Progress is on standard error. Ctrl-C keeps what was measured.
Exit status: 0; 1 if a contest failed; 2 for a wrong option; 130 after Ctrl-C.

The first run compiles, which takes minutes a contest; a second one finds torch's caches and starts faster.
On a CPU everything is small and takes seconds: it shows that it works, and its ratios mean nothing.
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("names", nargs="*", metavar="NAME", help="contests, or globs of them; default: all")
    made.add_argument("--list", action="store_true", help="list the contests and do nothing else")
    made.add_argument("--device", default="cuda", help="cuda (default), cuda:1, cpu")
    made.add_argument(
        "--groups", type=_groups, default=5, help="of four blocks, two of each side (default: 5)"
    )
    made.add_argument(
        "--block-seconds", type=_seconds, default=1.0, metavar="S", help="length of a block (default: 1)"
    )
    made.add_argument(
        "--compile-only",
        action="store_true",
        help="build and compile both sides, and measure nothing: fills torch's caches, also in several processes at once",
    )
    made.add_argument(
        "--json", type=Path, metavar="FILE", help="write raw block times and versions, after each contest"
    )
    made.add_argument(
        "--timm-source",
        type=Path,
        metavar="DIR",
        help="timm's source tree: its own benchmark.py runs, in processes that alternate with ours",
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        contests = chosen(options.names)
        if options.list:
            from benchmarks.peers.printing import listing

            print(listing(contests))
            return 0
        _check(options)
    except (UnknownContestError, ValueError) as error:
        parser().error(str(error))
    return compile_all(contests, options) if options.compile_only else compete(contests, options, play_one)


def compile_all(contests: Sequence[Contest], options: argparse.Namespace) -> int:
    """Compile all of them; one that fails stops no other."""
    import torch

    from benchmarks.peers.measuring import compiled

    device, failed = torch.device(options.device), False
    for number, contest in enumerate(contests, start=1):
        say = _teller(f"[{number}/{len(contests)}] {contest.name}")
        try:
            with compiled(contest.on(device.type), device, say):
                say("both are compiled")
        except Exception as error:  # noqa: BLE001 - whatever it is, the other contests are compiled
            failed = True
            say(f"FAILED: {_told(error)}")
    return int(failed)


def compete(contests: Sequence[Contest], options: argparse.Namespace, play: Play) -> int:
    """Play all of them; one that fails is told at the end and stops no other."""
    from benchmarks.peers.printing import failures, in_one_line, table
    from benchmarks.peers.results import Entry

    session, entries = _session(options), list[Entry]()
    try:
        for number, contest in enumerate(contests, start=1):
            say = _teller(f"[{number}/{len(contests)}] {contest.name}")
            entry = _played(contest.on(session.device), options, play, say)
            entries.append(entry)
            _write(options.json, session, entries)
            say(in_one_line(entry))
            let_through()
    finally:  # Ctrl-C, too: what was measured is not lost
        with suppress(BrokenPipeError):  # it has ended whoever reads this, it may be
            if entries:
                print(table(session, entries), flush=True)
            if told := failures(entries):
                print(told, flush=True)
        let_through()
    return int(any(entry.played is None for entry in entries))


def _played(contest: Contest, options: argparse.Namespace, play: Play, say: Say) -> Entry:
    from benchmarks.peers.results import Entry

    try:
        return Entry(contest=contest, played=play(contest, options, say))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other contests are played
        return Entry(contest=contest, error=_told(error))


def _told(error: Exception) -> str:
    """Why a contest failed, in a line; of what is not known by name there is a traceback before it."""
    if isinstance(error, ImportError):
        return f"{error}. pip install 'pytest-accel[suites]'"
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


def play_one(contest: Contest, options: argparse.Namespace, say: Say) -> Played:
    """Play one contest: in this process, or timm's own script and ours in fresh ones."""
    import torch

    from benchmarks.peers.measuring import play
    from benchmarks.peers.timm_script import Processes, play_processes

    device = torch.device(options.device)
    if contest.way == "timm" and options.timm_source is not None:
        processes = Processes(
            contest=contest,
            source=options.timm_source.resolve(),
            device_type=device.type,
            block_s=options.block_seconds,
        )
        return play_processes(processes, groups=options.groups, say=say)
    return play(contest, device, groups=options.groups, block_s=options.block_seconds, say=say)


def _session(options: argparse.Namespace) -> Session:
    import torch

    from benchmarks.peers.results import Session, installed
    from benchmarks.peers.timm_script import source_version
    from pytest_accel.platforms.machine import describe_cpu

    device = torch.device(options.device)
    if device.type == "cpu":
        name = describe_cpu(Path("/proc/cpuinfo").read_text("utf-8"), 1).name
    else:
        name = torch.get_device_module(device).get_device_name(device)
    versions = installed()
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if options.timm_source is not None:
        versions["timm source"] = source_version(options.timm_source)
    return Session(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device.type,
        device_name=name,
        groups=options.groups,
        block_seconds=options.block_seconds,
        versions=versions,
    )


def _check(options: argparse.Namespace) -> None:
    """Refuse what cannot work before a model is built."""
    import torch

    from benchmarks.peers.timm_script import check_source

    try:
        device = torch.device(options.device)
    except RuntimeError:
        raise ValueError(f"--device: {options.device!r} is no device. Write cuda, cuda:1 or cpu.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: torch finds no CUDA device here. --device cpu plays everything small.")
    if options.timm_source is not None:
        if options.compile_only:
            raise ValueError(
                "--compile-only: benchmark.py compiles in its own processes. Leave one of the two out."
            )
        check_source(options.timm_source)
        if device.index:
            raise ValueError(
                f"--device: benchmark.py takes no number, as {options.device!r} has. Set CUDA_VISIBLE_DEVICES={device.index} "
                "and write --device cuda."
            )


def _write(path: Path | None, session: Session, entries: Sequence[Entry]) -> None:
    from benchmarks.peers.results import content
    from pytest_accel.storage.files import write_atomic

    if path is not None:
        write_atomic(path, json.dumps(content(session, entries), indent=1) + "\n")


def _teller(who: str) -> Say:
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{who}, {time.monotonic() - begun:.0f} s: {text}", file=sys.stderr, flush=True)

    return say


def _groups(text: str) -> int:
    if not text.isdecimal() or int(text) < LEAST_GROUPS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no whole number of {LEAST_GROUPS} or more: of one group there is no interval"
        )
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number of seconds")
    return value
