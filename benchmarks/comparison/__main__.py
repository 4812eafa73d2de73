"""The command `python -m benchmarks.comparison`. It imports torch only to measure."""

from __future__ import annotations

import argparse
import math
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.comparison.catalogue import Comparison, UnknownComparisonError, select
from benchmarks.comparison.ratios import LEAST_GROUPS
from benchmarks.comparison.results import Entry, Log, Session, installed_versions, listing, read, table, write

if TYPE_CHECKING:
    from benchmarks.comparison.results import Measured

DESCRIPTION = """\
Compare our steps with other implementations: the same model, precision and batch size, in one session, in blocks that
alternate. Prints both rates and their ratio with its 95 % interval. docs/peers.md describes what is compared.
Exit status: 0; 1 if a comparison failed; 2 for a wrong option; 130 after Ctrl-C, which keeps what was measured.

The first run compiles, which takes minutes per comparison. On a CPU all models are small: a check that everything works.
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.comparison",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("names", nargs="*", metavar="NAME", help="comparisons, or globs of them (default: all)")
    made.add_argument("--list", action="store_true", help="list the comparisons")
    made.add_argument("--show", type=Path, metavar="FILE", help="print the table of a file of --json")
    made.add_argument("--device", default="cuda", help="cuda (default), cuda:1, cpu")
    made.add_argument(
        "--groups", type=_groups, default=5, help="groups of four blocks, two of each side (default: 5)"
    )
    made.add_argument(
        "--block-seconds", type=_seconds, default=1.0, metavar="S", help="length of a block (default: 1)"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write raw times after each comparison")
    made.add_argument(
        "--source",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a checkout of pytorch-image-models or nanoGPT: run its own benchmark.py or bench.py, in processes that "
        "alternate with ours; repeatable",
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        comparisons = select(options.names)
        if options.list:
            print(listing(comparisons))
            return 0
        if options.show:
            print(table(read(options.show)))
            return 0
        _check(options)
    except (UnknownComparisonError, ValueError) as error:
        parser().error(str(error))
    return run(comparisons, options)


def run(comparisons: Sequence[Comparison], options: argparse.Namespace) -> int:
    """Measure all comparisons; one that fails stops no other, an interrupted one is the last."""
    session = _session(options)
    interrupted = False
    try:
        for number, comparison in enumerate(comparisons, start=1):
            log = _logger(f"[{number}/{len(comparisons)}] {comparison.name}")
            entry = _measured(comparison.on(session.device), options, log)
            session = replace(session, entries=(*session.entries, entry))
            if options.json is not None:
                write(options.json, session)
            if entry.measured is not None and entry.measured.times.cut_off:
                interrupted = True
                break
    except KeyboardInterrupt:
        interrupted = True
    print(table(session), flush=True)
    return 130 if interrupted else int(any(entry.measured is None for entry in session.entries))


def _measured(comparison: Comparison, options: argparse.Namespace, log: Log) -> Entry:
    try:
        return Entry.of(comparison, measured=_measure(comparison, options, log))
    except ImportError as error:
        return Entry.of(comparison, error=f"{error}. In the checkout: pip install '.[suites]'")
    except Exception as error:  # noqa: BLE001 - the other comparisons are measured
        traceback.print_exception(error)
        return Entry.of(comparison, error=f"{type(error).__name__}: {error}")


def _measure(comparison: Comparison, options: argparse.Namespace, log: Log) -> Measured:
    import torch

    from benchmarks.comparison.measure import measure
    from benchmarks.comparison.own_scripts import measure_processes, script_in

    device = torch.device(options.device)
    for script in map(script_in, options.source):
        if script.measures(comparison):
            return measure_processes(
                comparison, script, device.type, groups=options.groups, block_s=options.block_seconds, log=log
            )
    return measure(comparison, device, groups=options.groups, block_s=options.block_seconds, log=log)


def _session(options: argparse.Namespace) -> Session:
    import torch

    from benchmarks.comparison.own_scripts import script_in
    from pytest_accel.platforms.machine import describe_cpu

    device = torch.device(options.device)
    if device.type == "cpu":
        name = describe_cpu(Path("/proc/cpuinfo").read_text("utf-8"), 1).name
    else:
        name = torch.get_device_module(device).get_device_name(device)
    versions = installed_versions()
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if options.source:
        versions["sources"] = ", ".join(script_in(source).version() for source in options.source)
    return Session(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device.type,
        device_name=name,
        groups=options.groups,
        block_seconds=options.block_seconds,
        versions=versions,
    )


def _check(options: argparse.Namespace) -> None:
    """Raise ValueError for options that cannot work, before a model is built."""
    import torch

    from benchmarks.comparison.own_scripts import script_in

    try:
        device = torch.device(options.device)
    except RuntimeError:
        raise ValueError(f"--device: {options.device!r} is no device. Write cuda, cuda:1 or cpu.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: torch finds no CUDA device. --device cpu runs small models.")
    for source in options.source:
        script_in(source)
        if device.index:
            raise ValueError(
                f"--device: the peers' scripts take no device number. Set CUDA_VISIBLE_DEVICES={device.index} "
                "and write --device cuda."
            )


def _logger(name: str) -> Log:
    begin = time.monotonic()

    def log(text: str) -> None:
        print(f"{name}, {time.monotonic() - begin:.0f} s: {text}", file=sys.stderr, flush=True)

    return log


def _groups(text: str) -> int:
    if not text.isdecimal() or int(text) < LEAST_GROUPS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no whole number of {LEAST_GROUPS} or more: one group has no interval"
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


if __name__ == "__main__":
    sys.exit(main())
