"""One block of ours in a process of its own: `python -m benchmarks.peers.once NAME`. Its last line is JSON."""

from __future__ import annotations

import argparse
import json
from contextlib import closing

import torch

from benchmarks.peers.contests import CONTESTS
from benchmarks.peers.measuring import TRIED_STEPS
from benchmarks.peers.ours import our_step
from benchmarks.peers.ratios import steps_for
from benchmarks.peers.waiting import quiet, timed

WARM_STEPS = 10  # as many as timm's benchmark.py


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CONTESTS)
    parser.add_argument("--device", required=True)
    parser.add_argument("--block-seconds", type=float, required=True)
    options = parser.parse_args()
    device = torch.device(options.device)
    with quiet(device), closing(our_step(CONTESTS[options.name].on(device.type), device)) as step:
        timed(step, device, WARM_STEPS)
        steps = steps_for(options.block_seconds, timed(step, device, TRIED_STEPS))
        step_s = timed(step, device, steps)
        step.check()
        print(json.dumps({"step_s": step_s, "steps": steps, "work": step.work, "unit": step.unit}))


if __name__ == "__main__":
    main()
