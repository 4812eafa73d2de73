"""timm's own benchmark.py from its source tree, and ours, in fresh processes that alternate.

The script is a process of its own: it starts, compiles, warms up and times. To be fair ours is a fresh process then, too
(once.py). Both compile from torch's cache after the first, which is not counted.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.contests import Contest
from benchmarks.peers.interrupts import hold_back
from benchmarks.peers.measuring import Say
from benchmarks.peers.ratios import SIDES, Side, alternate, steps_for
from benchmarks.peers.results import Played
from benchmarks.peers.timm_names import model_options, pixels, timm_name

ROOT = Path(__file__).resolve().parents[2]
TITLE = "timm's benchmark.py, compiled"
LEAST_STEPS = 5  # it reports progress every fifth of its steps, and divides by that
TIMEOUT_S = 1800.0
TAIL = 2000  # characters of what a failed process said last

Run = Callable[[Sequence[str]], str]  # a command line -> what it printed


class ProcessError(RuntimeError):
    """A process that failed, or did not say what it measured."""


def run(command: Sequence[str]) -> str:
    """Run a command in the repository and return what it printed."""
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter, and the script that the user named
            list(command), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProcessError(f"no end after {TIMEOUT_S / 60:.0f} minutes: {' '.join(command)}") from None
    if done.returncode:
        said = (done.stderr or done.stdout)[-TAIL:].strip()
        raise ProcessError(f"{command[1]} left with status {done.returncode}. It said last:\n{said}")
    return done.stdout


def check_source(source: Path) -> None:
    """Refuse a folder that is not timm's source tree, before anything is measured."""
    for part in ("benchmark.py", "timm/version.py"):
        if not (source / part).is_file():
            raise ValueError(
                f"--timm-source: {source} has no {part}. Give the root of a checkout of pytorch-image-models."
            )


def source_version(source: Path) -> str:
    found = re.search(r"""__version__\s*=\s*['"]([^'"]+)""", (source / "timm/version.py").read_text("utf-8"))
    return found.group(1) if found else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The two command lines of a contest."""

    contest: Contest
    source: Path
    device_type: str
    block_s: float
    run: Run = run

    def of_timm(self, steps: int) -> float:
        """Run its script; return its seconds a step."""
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results.json"
            self.run(self.timm_command(steps, results))
            try:
                content = json.loads(results.read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise ProcessError(f"benchmark.py left no results: {error}") from None
        return step_seconds(content, self.contest)

    def of_ours(self) -> dict[str, Any]:
        """Run ours; return seconds a step and what a step is."""
        said: dict[str, Any] = json.loads(self.run(self.our_command()).splitlines()[-1])
        return said

    def our_command(self) -> list[str]:
        options = ["--device", self.device_type, "--block-seconds", str(self.block_s)]
        return [sys.executable, "-m", "benchmarks.peers.once", self.contest.name, *options]

    def timm_command(self, steps: int, results: Path) -> list[str]:
        contest = self.contest
        options = model_options(contest)
        return [
            sys.executable,
            str(self.source / "benchmark.py"),
            *("--model", timm_name(contest), "--batch-size", str(contest.batch_size)),
            *("--bench", "train" if contest.task == "train" else "inference"),
            *(
                "--img-size",
                str(pixels(contest)),
            ),  # unasked it would take the size that its weights are tested at
            *(("--amp", "--amp-dtype", "bfloat16") if contest.precision == "bf16" else ()),
            "--channels-last",
            *(() if self.device_type == "cpu" else ("--torchcompile",)),
            *(("--model-kwargs", *(f"{name}={value}" for name, value in options.items())) if options else ()),
            "--no-retry",  # a batch that does not fit is not made smaller
            *("--num-bench-iter", str(steps), "--device", self.device_type),
            *("--results-file", str(results), "--results-format", "json"),
        ]


def step_seconds(content: dict[str, Any], contest: Contest) -> float:
    """Read the result of its script: the batch over its images a second, which are by the clock of its whole run."""
    if "error" in content:
        raise ProcessError(f"benchmark.py: {content['error']}")
    kind = "train" if contest.task == "train" else "infer"
    try:
        batch, size, rate = (
            content[f"{kind}_{part}"] for part in ("batch_size", "img_size", "samples_per_sec")
        )
    except KeyError as missing:
        raise ProcessError(f"benchmark.py: its result has no {missing}: {content}") from None
    if (batch, size) != (contest.batch_size, pixels(contest)):
        raise ProcessError(
            f"benchmark.py took batches of {batch} at {size} pixels, and was told {contest.batch_size} at {pixels(contest)}: "
            "that is no comparison."
        )
    if not rate > 0:
        raise ProcessError(f"benchmark.py: {rate} samples a second are no rate.")
    return float(batch / rate)


def play_processes(processes: Processes, *, groups: int, say: Say) -> Played:
    """Measure both in fresh processes, in turn; the first of each fills the caches and is not counted."""
    against = TITLE + processes.contest.unlike
    say("first process of ours (minutes, where it compiles for the first time)")
    ours = processes.of_ours()
    say(f"first process of {against}")
    steps = steps_for(processes.block_s, processes.of_timm(LEAST_STEPS), least=LEAST_STEPS)
    say(f"{groups} groups of four processes: {ours['steps']} steps of ours, {steps} of timm's")

    def told(side: Side) -> float:
        step_s = float(processes.of_ours()["step_s"]) if side == "ours" else processes.of_timm(steps)
        say(f"a process of {'ours' if side == 'ours' else against}: {1000 * step_s:.2f} ms a step")
        return step_s

    times = alternate({side: partial(told, side) for side in SIDES}, groups)
    hold_back(came=times.cut_off)
    counts = (ours["steps"], steps)
    return Played(against=against, times=times, steps=counts, work=ours["work"], unit=ours["unit"])
