"""Both implementations of a comparison in one process: built, compiled, and timed in blocks that alternate."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import torch

from benchmarks.comparison.catalogue import Comparison
from benchmarks.comparison.implementations import Step, peer_step, title
from benchmarks.comparison.ratios import SIDES, Side, alternate, steps_for
from benchmarks.comparison.results import Log, Measured
from benchmarks.comparison.timing import backend_flags, free_memory, time_steps
from pytest_accel.workloads.step import InferStep, TrainStep

WARM_STEPS = 5  # the first compiles, the others are for cuDNN and the allocator
WARM_STEPS_SMALL = 2
TRIED_STEPS = 2  # to find the length of a step


def our_step(comparison: Comparison, device: torch.device) -> TrainStep | InferStep:
    """Build the step of the comparison's row as the fixtures of a suite do."""
    build = TrainStep.build if comparison.task == "train" else InferStep.build
    return build(
        comparison.model,
        batch_size=comparison.batch_size,
        precision=comparison.precision,
        device=device,
        **comparison.options,
    )


def measure(
    comparison: Comparison, device: torch.device, *, groups: int, block_s: float, log: Log
) -> Measured:
    """Build and warm up both steps, and time them."""
    steps: dict[Side, Step] = {}
    try:
        # Ours first: it sets flags of the process, and code compiled under other flags would be compiled again.
        with backend_flags(device), closing(our_step(comparison, device)) as ours:
            steps = {"ours": ours, "peer": peer_step(comparison, device)}
            warm_steps = WARM_STEPS_SMALL if device.type == "cpu" else WARM_STEPS
            for side in SIDES:
                took_s = warm_steps * time_steps(steps[side], device, warm_steps)
                log(f"first steps of {'ours' if side == 'ours' else title(comparison)} took {took_s:.1f} s")
            counts = {
                side: steps_for(block_s, time_steps(steps[side], device, TRIED_STEPS)) for side in SIDES
            }
            blocks = {side: partial(time_steps, steps[side], device, counts[side]) for side in SIDES}
            times = alternate(blocks, groups)
            if times.cut_off:
                ours()  # the interrupted step may have left no gradients
            ours.check()
            return Measured(
                against=title(comparison),
                times=times,
                our_steps=counts["ours"],
                peer_steps=counts["peer"],
                work=ours.work,
                unit=ours.unit,
            )
    finally:
        steps.clear()  # a traceback keeps this frame, and with it the peer's model
        free_memory(device)
