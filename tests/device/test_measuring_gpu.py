"""Measuring on a real GPU: record, judge, injected slowdown, timer, memory, launch time."""

import json
import math
import time
from statistics import median

import pytest

from pytest_accel.measure.device import CudaDevice
from pytest_accel.measure.rounds import launch_time_s, timed_block

SUITE = """
    import pytest
    import torch

    @pytest.mark.{platform}
    def test_product(accel):
        a = torch.randn(4096, 4096, device=accel.device, dtype=torch.float16)
        accel.measure(lambda: a @ a, work=2 * 4096**3, unit="FLOP", flops=2 * 4096**3, precision="fp16")
"""


@pytest.fixture
def bench(pytester, platform):
    pytester.makepyfile(test_bench=SUITE.format(platform=platform))

    def run(*arguments):
        return pytester.runpytest_subprocess(
            "-m", platform, "--accel-budget=1s", "--junitxml=junit.xml", *arguments
        )

    return run


def test_benchmark_is_recorded_judged_ok_and_regressed(bench, pytester, platform):
    recorded = bench("--accel-record=3")
    recorded.stdout.fnmatch_lines(["*= 1 recorded in *"])
    stored = json.loads((pytester.path / "baselines" / platform / "bench.json").read_text())
    (environment,) = stored["environments"].values()
    assert environment["identity"]["device_name"]
    assert {"driver", "cuda", "cudnn", "torch"} <= environment["context"].keys()
    (entry,) = stored["benchmarks"].values()
    assert 0 < entry["runs"][0]["metrics"]["mfu"] < 1
    assert entry["runs"][0]["peak_memory_bytes"] > 2 * 4096**2 * 2

    again = bench("--accel-tolerance=20%")
    assert again.ret == 0

    slowed = bench("--accel-tolerance=20%", "--accel-slowdown=50%")
    slowed.stdout.fnmatch_lines(["*= 1 regressed in *"])
    assert slowed.ret == 1
    slowed.stdout.fnmatch_lines(
        [
            "REGRESSED*test_product*% slower*",
            "*cause *--accel-slowdown delayed every step on purpose: explains *",
        ]
    )


def test_injected_delay_runs_on_the_device():
    import torch

    device = CudaDevice()
    device.prepare()
    asked_s = 2e-3
    delay = device.delay(asked_s)
    taken_s = []
    for _ in range(5):
        device.synchronize()
        begin = time.perf_counter()
        for _ in range(20):
            delay()
        launched_s = time.perf_counter() - begin
        device.synchronize()
        taken_s.append((time.perf_counter() - begin) / 20)
    assert launched_s < 20 * asked_s / 2  # the host ran ahead: it is the device that waits
    assert math.isclose(median(taken_s), asked_s, rel_tol=0.25)
    assert torch.cuda.current_device() == 0


def test_timer_waits_for_kernels(platform):
    import torch

    from pytest_accel.measure.rounds import SynchronizingTimer

    timer = SynchronizingTimer()
    timer.synchronize = CudaDevice().synchronize
    big = torch.randn(8192, 8192, device="cuda")
    big @ big
    begin = timer()
    for _ in range(10):
        big @ big
    launched_s = time.perf_counter() - begin
    taken_s = timer() - begin
    assert taken_s > 2 * launched_s  # launching is a small part of ten products of 1.1 TFLOP each


def test_memory_is_free_again_after_a_benchmark(pytester, platform):
    pytester.makepyfile(
        f"""
        import pytest
        import torch

        WORKSPACES = 100 * 2**20  # of cuBLAS, kept by the process: 65 MiB on an H200

        @pytest.mark.{platform}
        @pytest.mark.parametrize("time", [1, 2])
        def test_training(train, time):
            assert torch.cuda.memory_allocated() < WORKSPACES
            train("resnet18", data="cifar100", image_size=64, batch_size=512, precision="bf16", compile=None)
            assert torch.cuda.max_memory_allocated() > 4 * WORKSPACES

        def test_afterwards():
            assert torch.cuda.memory_allocated() < WORKSPACES
        """
    )
    result = pytester.runpytest_subprocess("--accel-budget=500ms", "-p", "no:randomly")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*= 2 no baseline, 1 passed*"])


def test_too_large_batch_fails_and_is_not_made_smaller(pytester, platform):
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.{platform}
        def test_too_big(train):
            train("resnet18", data="imagenet", batch_size=200_000, precision="bf16", compile=None)
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*a batch of 200000 did not fit*NOT made smaller*"])


def test_peak_memory_includes_graph_replays():
    import torch

    device, size = CudaDevice(), 256 << 20
    device.prepare()
    held = torch.ones(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = (held.repeat(size // 4) + 1).sum()
    device.reset_peak_memory()
    graph.replay()
    device.synchronize()

    assert torch.cuda.max_memory_allocated() < size
    assert 2 * size <= device.peak_memory_bytes() < 4 * size
    assert int(total) == 2 * (size // 4)
    del graph, total, held
    device.restore()
    device.reset_peak_memory()
    assert device.peak_memory_bytes() < size


def test_launch_time_dominates_small_kernels_only(record_property):
    import torch

    device = CudaDevice()
    large = torch.randn(8192, 8192, device=device.name, dtype=torch.float16)
    small = torch.ones(8, device=device.name)

    def one_large():
        for _ in range(4):
            torch.mm(large, large)

    def many_small():
        for _ in range(500):
            small.add_(1)

    shares = []
    for step in (one_large, many_small):
        timed_block(step, 3, device)
        step_s = timed_block(step, 5, device) / 5
        shares.append(launch_time_s(step, device, step_s=step_s, budget_s=1.0) / step_s)
    record_property("shares", shares)
    assert shares[0] < 0.5 < 0.8 < shares[1]
