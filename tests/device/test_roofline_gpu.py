"""MFU of a large matrix product on a real GPU: near what the device can do, and never above it."""

from __future__ import annotations

import json

import pytest

from pytest_accel import b200, gb200, gh200, h100, h200
from pytest_accel.platforms.machine import detect

pytestmark = [b200, gb200, gh200, h100, h200]  # a product of 1.1 TFLOP in bf16 fills them

SUITE = """
    import pytest
    import torch

    SIZE = 8192

    @pytest.mark.{platform}
    def test_product(accel):
        a, b = (torch.randn(SIZE, SIZE, device=accel.device, dtype=torch.bfloat16) for _ in range(2))
        accel.measure(lambda: a @ b, work={work}, unit="TFLOP", flops={flops}, precision="bf16")
"""
FLOPS = 2 * 8192**3


@pytest.fixture
def platform():
    return next(device.key for device in detect().devices if device.key and not device.mig)


def measured(pytester, platform, *, flops):
    pytester.makepyfile(test_bench=SUITE.format(platform=platform, work=FLOPS / 1e12, flops=flops))
    return pytester.runpytest_subprocess("-m", platform, "--accel-budget=2s", "--benchmark-json=b.json")


def test_a_large_product_is_near_the_ceiling_and_below_the_peak(pytester, platform):
    """An H200 reaches about 790 of its 989 TFLOP/s: .8."""
    measured(pytester, platform, flops=FLOPS).assert_outcomes(passed=1)
    (benchmark,) = json.loads((pytester.path / "b.json").read_text())["benchmarks"]
    assert 0.5 < benchmark["extra_info"]["accel"]["run"]["metrics"]["mfu"] < 1


def test_ten_times_the_operations_would_be_impossible(pytester, platform):
    result = measured(pytester, platform, flops=10 * FLOPS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*impossible: *TFLOP/s in the fastest round, where the dense bf16 peak of *"]
    )
