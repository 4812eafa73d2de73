"""Is it still as fast, and as exact? Judged against the baseline of the machine that it runs on."""

import math

import torch
from pytest_accel import on

from rowwise import masked_softmax

ROWS, SCALE = 256, 0.125


@on("cpu a100 h100 h200")
def test_masked_softmax(accel, attention):
    scores, mask = attention(ROWS, accel.device)
    traffic = 2 * scores.numel() * scores.element_size()  # read once, written once

    def figures(step_s):
        return {
            "correct_digits": correct_digits(scores, mask),
            "gigabytes_per_second": traffic / step_s / 1e9,
        }

    accel.measure(
        lambda: masked_softmax(scores, mask, SCALE),
        work=scores.numel() / 1e6,
        unit="Mscores",
        configuration={"rows": ROWS, "dtype": str(scores.dtype)},
        metrics=figures,
        gates={"correct_digits": 0.05},
    )


def correct_digits(scores, mask):
    """Digits that agree with the same softmax in double precision, at the worst score."""
    exact = torch.softmax(torch.where(mask, scores.double() * SCALE, -math.inf), -1)
    error = (masked_softmax(scores, mask, SCALE) - exact).abs() / exact.clamp_min(1e-30)
    return -math.log10(error.max().item())
