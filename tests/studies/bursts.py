"""Do workers of a loader hand over together, and which rounds see through it? `python -m tests.studies.bursts`.

A torch loader whose samples take their time (they sleep: no CPU is needed), and a step that is shorter. Printed are, for rounds of so many steps, the
median of their mean step times, as a run has it, and how far their quickest and slowest lie from it. The mean of all steps is the truth.
"""

from __future__ import annotations

import argparse
import time
import warnings
from statistics import fmean, median

from torch.utils.data import DataLoader, Dataset

STEP_S = 0.02
SAMPLE_S = 0.02
BATCH_SIZE = 16


class Sleeping(Dataset[int]):
    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> int:
        time.sleep(SAMPLE_S)
        return index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    arguments = parser.parse_args()
    workers = arguments.workers
    warnings.filterwarnings("ignore", "This DataLoader will create")
    batches = iter(DataLoader(Sleeping(), batch_size=BATCH_SIZE, num_workers=workers))
    for _ in range(4 * workers):  # what lay ready
        next(batches)
    steps_s = [_step(batches) for _ in range(arguments.steps)]
    print(f"{workers} workers; all steps: {fmean(steps_s) * 1e3:.0f} ms")
    for steps in sorted({1, 4, 10, workers, 2 * workers, 4 * workers}):
        starts = range(0, len(steps_s) - steps + 1, steps)
        rounds_s = [fmean(steps_s[start : start + steps]) for start in starts]
        middle = median(rounds_s)
        apart = " to ".join(f"{end / middle - 1:+.0%}" for end in (min(rounds_s), max(rounds_s)))
        whole = ", whole bursts" if steps % workers == 0 else ""
        print(f"rounds of {steps:3}: median {middle * 1e3:4.0f} ms, {apart}{whole}")


def _step(batches: object) -> float:
    begun = time.perf_counter()
    next(batches)  # type: ignore[call-overload]
    time.sleep(STEP_S)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
