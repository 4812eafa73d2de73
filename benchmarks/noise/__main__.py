"""`python -m benchmarks.noise gather ... -- PYTEST_ARGS`, `join FILE...` and `judge FILE...`; benchmarks/noise/README.md has the commands."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.noise import tables
from benchmarks.noise.gathering import Asked, gather, hold_devices
from benchmarks.noise.processes import GatherError, start
from benchmarks.noise.resampling import SLOWDOWNS, Figures, figures_of
from benchmarks.noise.streams import Plan, Stream, StreamError, joined, read, write
from pytest_accel.stats.quantities import counted
from pytest_accel.stats.verdict import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

STREAMS = Path("tests/streams")  # the committed ones
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return {"gather": _gather, "join": _join, "judge": _judge}[options.command](options)
    except (GatherError, StreamError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    gathering = commands.add_parser(
        "gather", help="measure a benchmark in fresh processes, one after another"
    )
    gathering.add_argument("--name", required=True, help="of the stream, such as h200-gpt")
    gathering.add_argument(
        "--out", type=Path, required=True, help="the file, such as tests/streams/h200-gpt.jsonl"
    )
    gathering.add_argument("--runs", type=_count, default=30, help="without a slowdown (default %(default)s)")
    gathering.add_argument(
        *("--slowdowns", "--slowdown"),
        type=_fraction,
        nargs="*",
        default=[],
        help=f"losses of throughput that are really injected, such as {' '.join(map(str, SLOWDOWNS))} (default: none)",
    )
    gathering.add_argument(
        "--slow-runs",
        type=_count,
        default=6,
        help="with each of them (default %(default)s; at least 5 fill all looks)",
    )
    gathering.add_argument(
        "--ahead",
        type=_count,
        default=0,
        help="build N processes at once, then measure them in turn (GPU only)",
    )
    gathering.add_argument("--resume", action="store_true", help="go on with a file that was interrupted")
    gathering.add_argument("--trial", action="store_true", help="no evidence: `judge --write` refuses it")
    gathering.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for one process (default 600)"
    )
    gathering.add_argument(
        "pytest", nargs="+", metavar="PYTEST_ARGS", help="after --: the benchmark and its options"
    )
    joining = commands.add_parser("join", help="streams of several occasions as one")
    joining.add_argument("files", type=Path, nargs="+", help="streams of one benchmark")
    joining.add_argument("--out", type=Path, required=True, help="the file, which must not be there yet")
    judging = commands.add_parser("judge", help="what the gate and pytest-benchmark's rules say of streams")
    judging.add_argument("files", type=Path, nargs="*", help=f"streams (default: all of {STREAMS})")
    judging.add_argument(
        "--write", type=Path, metavar="PAGE", help="also into the block of this page (docs/noise.md)"
    )
    return parser


def _gather(options: argparse.Namespace) -> int:
    slow_runs = options.slow_runs if options.slowdowns else 0
    asked = Asked(
        name=options.name,
        arguments=tuple(options.pytest),
        plan=Plan(runs=options.runs, slowdowns=tuple(sorted(set(options.slowdowns))), slow_runs=slow_runs),
        out=options.out,
        ahead=options.ahead,
        trial=options.trial,
        timeout_s=options.timeout,
    )
    if slow_runs and slow_runs < Policy().max_repeats:
        sys.stderr.write(
            f"{slow_runs} injected runs do not fill {Policy().max_repeats} looks: verdicts may stay open.\n"
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` and job schedulers end us so
    try:
        # What cannot be removed stays: to say so would hide why a gathering ended.
        with tempfile.TemporaryDirectory(prefix="noise-", ignore_cleanup_errors=True) as folder:
            launch = partial(start, asked.arguments, wait_s=asked.wait_s)
            stream = gather(asked, launch, hold_devices, Path(folder), resume=options.resume)
    except KeyboardInterrupt:
        sys.stderr.write(
            f"\nInterrupted; {asked.out} keeps what it has. Go on with the same command and --resume.\n"
        )
        return INTERRUPTED
    sys.stderr.write(f"{asked.out}: {len(stream.runs)} runs, {asked.out.stat().st_size / 1e3:.0f} kB\n")
    return 0


def _join(options: argparse.Namespace) -> int:
    stream = joined([read(file) for file in options.files])
    write(options.out, stream)
    sys.stderr.write(
        f"{options.out}: {len(stream.runs)} runs of {counted(len({*stream.occasions}), 'occasion')}\n"
    )
    return 0


def _judge(options: argparse.Namespace) -> int:
    files = options.files or sorted(STREAMS.glob("*.jsonl"))
    if not files:
        sys.stderr.write(f"There are no streams in {STREAMS}. Gather some: benchmarks/noise/README.md.\n")
        return 1
    streams = [read(file) for file in files]
    trials = [stream.head.name for stream in streams if stream.head.trial]
    if options.write and trials:
        sys.stderr.write(
            f"{', '.join(trials)}: a trial is no evidence, and is not written. Gather it without --trial.\n"
        )
        return 1
    judged = [(stream, judge_stream(stream)) for stream in streams]
    written = tables.block(judged)
    sys.stdout.write(f"{tables.how(judged)}\n\n{written}\n")
    if options.write:
        tables.write(options.write, written)
        sys.stderr.write(f"{options.write}: written\n")
    return 0


def judge_stream(stream: Stream) -> Figures:
    try:
        return figures_of(stream.of(0.0), {slowdown: stream.of(slowdown) for slowdown in stream.injected})
    except ValueError as error:
        raise StreamError(f"{stream.head.name}: {error}") from None


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count of 1 or more. Write 30.")
    return int(text)


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction between 0 and 1. Write 0.05.")
    return value


if __name__ == "__main__":
    sys.exit(main())
