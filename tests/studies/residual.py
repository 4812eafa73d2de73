"""What would a GPT win with its residual stream in bf16? `python -m tests.studies.residual [--device cuda]`.

Under autocast the embedding is fp32, and so is all that blocks add to it: norms read and write twice the bytes. Megatron-LM, with
which CARAML trains, keeps the stream in the half type unless asked otherwise. This trains both, in turn (ABBA), and prints the ratio of
their step times and the losses of both after the same steps.
"""

from __future__ import annotations

import argparse
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from pytest_accel.workloads.steps import TrainStep
from tests.studies.alternating import in_turn, prepared
from tests.support.steps import losses

WORKLOADS: dict[str, dict[str, Any]] = {
    "cuda": {"model": "zoo/gpt-800m", "batch_size": 16},
    "cpu": {"model": "zoo/gpt-tiny", "batch_size": 2},
}
STEPS = 20


class Half(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).to(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=sorted(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    asked = {**WORKLOADS[arguments.device], "device": torch.device(device.name), "precision": "bf16"}
    model = asked.pop("model")
    with patch("torch.nn.Embedding", Half):
        half = TrainStep.build(model, **asked)
    with half, TrainStep.build(model, **asked) as whole:
        found, expected = losses(half, STEPS), losses(whole, STEPS)
        print(f"losses after {STEPS} steps: bf16 {found[-1]:.5f}, fp32 {expected[-1]:.5f}", flush=True)
        print(in_turn(half, whole, device, pairs=arguments.pairs, steps=arguments.steps), flush=True)


if __name__ == "__main__":
    main()
