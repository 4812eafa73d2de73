"""Our way: the step that the fixtures of a suite build for the contest's row."""

from __future__ import annotations

import torch

from benchmarks.peers.contests import Contest
from pytest_accel.workloads.step import InferStep, TrainStep


def our_step(contest: Contest, device: torch.device) -> TrainStep | InferStep:
    build = TrainStep.build if contest.task == "train" else InferStep.build
    return build(
        contest.model,
        batch_size=contest.batch_size,
        precision=contest.precision,
        device=device,
        **contest.choices,
    )
