"""Peers' own scripts from their source trees, and our step, in fresh processes that alternate.

timm's benchmark.py and nanoGPT's bench.py compile, warm up and time in their own process. To be fair ours runs in a fresh
process too: `python -m benchmarks.comparison.own_scripts NAME`. Both compile from torch's cache after the first, which is
not counted.
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
from typing import Any, ClassVar, TypeAlias

from benchmarks.comparison.catalogue import COMPARISONS, Comparison
from benchmarks.comparison.ratios import SIDES, Side, alternate, steps_for
from benchmarks.comparison.results import Log, Measured

ROOT = Path(__file__).resolve().parents[2]
WARM_STEPS = 10  # as both scripts
LEAST_STEPS = 5  # timm's script reports progress every fifth of its steps, and divides by that
TIMEOUT_S = 1800.0
TAIL = 2000  # characters of a failed process's output

Run = Callable[[Sequence[str], Path], str]  # a command line and its folder -> its output
TRAINED_AT = 224  # pixels, all of timm's
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


def run(command: Sequence[str], folder: Path) -> str:
    """Run a command in a folder and return what it printed."""
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter, and the script that the user named
            list(command), cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProcessError(f"no end after {TIMEOUT_S / 60:.0f} minutes: {' '.join(command)}") from None
    if done.returncode:
        said = (done.stderr or done.stdout)[-TAIL:].strip()
        raise ProcessError(f"{command[1]} ended with status {done.returncode}. Its last output:\n{said}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class TimmScript:
    """benchmark.py of pytorch-image-models."""

    files: ClassVar = ("benchmark.py", "timm/version.py")  # by which a source tree is known
    title: ClassVar = "timm's benchmark.py, compiled"
    source: Path

    def measures(self, comparison: Comparison) -> bool:
        return comparison.peer == "timm"

    def version(self) -> str:
        text = (self.source / "timm/version.py").read_text("utf-8")
        found = re.search(r"""__version__\s*=\s*['"]([^'"]+)""", text)
        return f"timm {found.group(1) if found else 'unknown'}"

    def step_s(self, comparison: Comparison, device_type: str, steps: int, run: Run) -> float:
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results.json"
            run(self.command(comparison, device_type, steps, results), ROOT)
            try:
                content = json.loads(results.read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise ProcessError(f"benchmark.py left no results: {error}") from None
        return step_seconds(content, comparison)

    def command(self, comparison: Comparison, device_type: str, steps: int, results: Path) -> list[str]:
        options = model_options(comparison)
        return [
            sys.executable,
            str(self.source / "benchmark.py"),
            *("--model", timm_name(comparison), "--batch-size", str(comparison.batch_size)),
            *("--bench", "train" if comparison.task == "train" else "inference"),
            *("--img-size", str(pixels(comparison))),  # its default is the test size of its weights
            *(("--amp", "--amp-dtype", "bfloat16") if comparison.precision == "bf16" else ()),
            "--channels-last",
            *(() if device_type == "cpu" else ("--torchcompile",)),
            *(("--model-kwargs", *(f"{name}={value}" for name, value in options.items())) if options else ()),
            "--no-retry",  # or it would make the batch smaller
            *("--num-bench-iter", str(steps), "--device", device_type),
            *("--results-file", str(results), "--results-format", "json"),
        ]


@dataclass(frozen=True, slots=True)
class NanoGptScript:
    """bench.py of nanoGPT: GPT-2 of 124 M parameters, ten steps to warm up and twenty timed ones."""

    files: ClassVar = ("bench.py", "model.py", "configurator.py")
    title: ClassVar = "nanoGPT's bench.py, compiled"
    source: Path

    def measures(self, comparison: Comparison) -> bool:
        return comparison.peer == "nanogpt" and comparison.model == "zoo/gpt-117m"

    def version(self) -> str:
        return "nanoGPT"  # it has no versions

    def step_s(self, comparison: Comparison, device_type: str, steps: int, run: Run) -> float:  # noqa: ARG002 - its own
        printed = run(self.command(comparison, device_type), self.source)
        found = re.search(r"time per iteration: ([0-9.]+)ms", printed)
        if not found or not float(found.group(1)) > 0:
            raise ProcessError(f"bench.py printed no time per iteration: {printed[-TAIL:]}")
        return float(found.group(1)) / 1000

    def command(self, comparison: Comparison, device_type: str) -> list[str]:
        dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(comparison.precision, "float32")
        return [
            sys.executable,
            "bench.py",
            f"--batch_size={comparison.batch_size}",
            "--real_data=False",  # batches on the device, as on our side
            f"--dtype={dtype}",
            f"--device={device_type}",
            f"--compile={device_type != 'cpu'}",
        ]


Script: TypeAlias = TimmScript | NanoGptScript


def script_in(source: Path) -> Script:
    """Return the script of a source tree; ValueError where it is none that is known."""
    for script in (TimmScript, NanoGptScript):
        if all((source / file).is_file() for file in script.files):
            return script(source.resolve())
    raise ValueError(
        f"--source: {source} is no source tree of pytorch-image-models (benchmark.py, timm/) or of nanoGPT "
        "(bench.py, model.py). Give the root of a checkout."
    )


def our_result(comparison: Comparison, device_type: str, block_s: float, run: Run = run) -> dict[str, Any]:
    """Run our step in a fresh process; return its seconds per step, number of steps and work."""
    options = ["--device", device_type, "--block-seconds", str(block_s)]
    words = [sys.executable, "-m", "benchmarks.comparison.own_scripts", comparison.name, *options]
    result: dict[str, Any] = json.loads(run(words, ROOT).splitlines()[-1])
    return result


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


def measure_processes(
    comparison: Comparison, script: Script, device_type: str, *, groups: int, block_s: float, log: Log
) -> Measured:
    """Measure both in fresh processes that alternate; the first of each fills the caches and is not counted."""
    against = script.title + comparison.unlike
    log("first process of ours")
    ours = our_result(comparison, device_type, block_s)
    log(f"first process of {against}")
    first_s = script.step_s(comparison, device_type, LEAST_STEPS, run)
    steps = steps_for(block_s, first_s, least=LEAST_STEPS)

    def block(side: Side) -> float:
        if side == "ours":
            step_s = float(our_result(comparison, device_type, block_s)["step_s"])
        else:
            step_s = script.step_s(comparison, device_type, steps, run)
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
