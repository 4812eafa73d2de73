"""timm's own benchmark.py from its source tree, and ours, in fresh processes that alternate.

The script compiles, warms up and times in its own process. To be fair ours runs in a fresh process too:
`python -m benchmarks.comparison.timm_script NAME`. Both compile from torch's cache after the first, which is not counted.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.comparison.catalogue import COMPARISONS, Comparison
from benchmarks.comparison.ratios import SIDES, Side, alternate, steps_for
from benchmarks.comparison.results import Log, Measured

ROOT = Path(__file__).resolve().parents[2]
TITLE = "timm's benchmark.py, compiled"
LEAST_STEPS = 5  # it reports progress every fifth of its steps, and divides by that
WARM_STEPS = 10  # as benchmark.py
TIMEOUT_S = 1800.0
TAIL = 2000  # characters of a failed process's output

Run = Callable[[Sequence[str]], str]  # a command line -> its output
TRAINED_AT = 224  # pixels, all of these
NAMES = {"resnet18": "resnet18", "resnet50": "resnet50", "swin_t": "swin_tiny_patch4_window7_224"}


def timm_name(comparison: Comparison) -> str:
    return NAMES[comparison.model]


def pixels(comparison: Comparison) -> int:
    """Return the image size of the peer: ours, unless the comparison says otherwise."""
    return comparison.peer_pixels or int(comparison.options.get("image_size", TRAINED_AT))


def model_options(comparison: Comparison) -> dict[str, Any]:
    """Return options of timm's builder: a Swin needs the image size."""
    swin, size = timm_name(comparison).startswith("swin"), pixels(comparison)
    return {"img_size": size} if swin and size != TRAINED_AT else {}


class ProcessError(RuntimeError):
    """A process that failed or left no result."""


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
        raise ProcessError(f"{command[1]} ended with status {done.returncode}. Its last output:\n{said}")
    return done.stdout


def check_source(source: Path) -> None:
    """Raise ValueError where a folder is not timm's source tree."""
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
    """The two processes of a comparison."""

    comparison: Comparison
    source: Path
    device_type: str
    block_s: float
    run: Run = run

    def of_timm(self, steps: int) -> float:
        """Run timm's script and return its seconds per step."""
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results.json"
            self.run(self.timm_command(steps, results))
            try:
                content = json.loads(results.read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise ProcessError(f"benchmark.py left no results: {error}") from None
        return step_seconds(content, self.comparison)

    def of_ours(self) -> dict[str, Any]:
        """Run ours and return seconds per step and the work of a step."""
        result: dict[str, Any] = json.loads(self.run(self.our_command()).splitlines()[-1])
        return result

    def our_command(self) -> list[str]:
        options = ["--device", self.device_type, "--block-seconds", str(self.block_s)]
        return [sys.executable, "-m", "benchmarks.comparison.timm_script", self.comparison.name, *options]

    def timm_command(self, steps: int, results: Path) -> list[str]:
        comparison = self.comparison
        options = model_options(comparison)
        return [
            sys.executable,
            str(self.source / "benchmark.py"),
            *("--model", timm_name(comparison), "--batch-size", str(comparison.batch_size)),
            *("--bench", "train" if comparison.task == "train" else "inference"),
            *("--img-size", str(pixels(comparison))),  # its default is the test size of its weights
            *(("--amp", "--amp-dtype", "bfloat16") if comparison.precision == "bf16" else ()),
            "--channels-last",
            *(() if self.device_type == "cpu" else ("--torchcompile",)),
            *(("--model-kwargs", *(f"{name}={value}" for name, value in options.items())) if options else ()),
            "--no-retry",  # or it would make the batch smaller
            *("--num-bench-iter", str(steps), "--device", self.device_type),
            *("--results-file", str(results), "--results-format", "json"),
        ]


def step_seconds(content: dict[str, Any], comparison: Comparison) -> float:
    """Return seconds per step from the result of timm's script; refuse another batch or image size."""
    if "error" in content:
        raise ProcessError(f"benchmark.py: {content['error']}")
    kind = "train" if comparison.task == "train" else "infer"
    try:
        batch, size, rate = (
            content[f"{kind}_{part}"] for part in ("batch_size", "img_size", "samples_per_sec")
        )
    except KeyError as missing:
        raise ProcessError(f"benchmark.py: its result has no {missing}: {content}") from None
    if (batch, size) != (comparison.batch_size, pixels(comparison)):
        raise ProcessError(
            f"benchmark.py took batches of {batch} at {size} pixels instead of {comparison.batch_size} at {pixels(comparison)}."
        )
    if not rate > 0:
        raise ProcessError(f"benchmark.py: {rate} samples per second is no rate.")
    return float(batch / rate)


def measure_processes(processes: Processes, *, groups: int, log: Log) -> Measured:
    """Measure both in fresh processes that alternate; the first of each fills the caches and is not counted."""
    against = TITLE + processes.comparison.unlike
    log("first process of ours")
    ours = processes.of_ours()
    log(f"first process of {against}")
    steps = steps_for(processes.block_s, processes.of_timm(LEAST_STEPS), least=LEAST_STEPS)

    def block(side: Side) -> float:
        step_s = float(processes.of_ours()["step_s"]) if side == "ours" else processes.of_timm(steps)
        log(f"{'ours' if side == 'ours' else against}: {1000 * step_s:.2f} ms per step")
        return step_s

    times = alternate({side: partial(block, side) for side in SIDES}, groups)
    return Measured(
        against=against,
        times=times,
        our_steps=ours["steps"],
        peer_steps=steps,
        work=ours["work"],
        unit=ours["unit"],
    )


def main() -> None:
    """Measure one block of ours in this process; the last line of the output is JSON."""
    import torch

    from benchmarks.comparison.measure import TRIED_STEPS, our_step
    from benchmarks.comparison.timing import backend_flags, time_steps

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("name", choices=COMPARISONS)
    parser.add_argument("--device", required=True)
    parser.add_argument("--block-seconds", type=float, required=True)
    options = parser.parse_args()
    device = torch.device(options.device)
    with backend_flags(device), closing(our_step(COMPARISONS[options.name].on(device.type), device)) as step:
        time_steps(step, device, WARM_STEPS)
        steps = steps_for(options.block_seconds, time_steps(step, device, TRIED_STEPS))
        step_s = time_steps(step, device, steps)
        step.check()
        print(json.dumps({"step_s": step_s, "steps": steps, "work": step.work, "unit": step.unit}))


if __name__ == "__main__":
    main()
