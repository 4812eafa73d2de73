"""A process group of one rank over NCCL: collectives, DDP, killed and hanging ranks."""

from tests.support.waiting import eventually


def test_collectives_run_over_nccl(group):
    import torch
    import torch.distributed as dist

    assert (dist.get_backend(), group.size, group.device) == ("nccl", 1, torch.device("cuda", 0))
    group.barrier()
    assert group.slowest(0.1) == 0.1
    assert group.agree((3, 7)) == (3, 7)
    assert group.gather({"rank": 0}) == [{"rank": 0}]
    summed = torch.ones(1024, device=group.device)
    dist.all_reduce(summed)
    assert summed.sum().item() == 1024


def test_barrier_waits_for_the_device(group):
    import torch

    done = torch.cuda.Event()
    torch.cuda._sleep(200_000_000)  # a tenth of a second
    done.record()
    group.barrier()
    assert done.query()


def test_ddp_step_trains_and_frees_its_memory(group):
    import torch

    from pytest_accel.workloads.step import TrainStep

    chosen = {"data": "cifar100", "image_size": 64, "batch_size": 64, "precision": "bf16"}
    before = torch.cuda.memory_allocated()
    with TrainStep.build("resnet18", device=group.device, ranks=group, compile=None, **chosen) as step:
        for _ in range(5):
            step()
        step.check()

    def left_bytes():
        group.barrier()  # NCCL frees buckets at the next collective
        return torch.cuda.memory_allocated() - before

    # Workspaces of cuBLAS stay: 65 MiB on an H200.
    assert eventually(lambda: left_bytes() < 100 * 2**20, 10.0), left_bytes()


SUITE = """
    import os
    import signal

    import pytest
    import torch

    pytestmark = [pytest.mark.{platform}, pytest.mark.accel(process_group=True)]


    def measure(accel):
        a = torch.randn(4096, 4096, device=accel.device, dtype=torch.float16)
        accel.measure(lambda: a @ a, work=2 * 4096**3, unit="FLOP")


    def test_sound(accel, world_size):
        assert torch.distributed.get_backend() == "nccl"
        assert world_size == 1
        measure(accel)


    def test_killed(accel):
        torch.ones(1, device=accel.device)
        os.kill(os.getpid(), signal.SIGKILL)


    @pytest.mark.accel(timeout="15s")
    def test_hangs(accel):
        torch.ones(1, device=accel.device)
        for _ in range(1000):
            torch.cuda._sleep(2**31 - 1)  # a second each
        torch.cuda.synchronize()  # in native code, for a quarter of an hour


    def test_out_of_memory(accel):
        torch.empty(2**42, dtype=torch.uint8, device=accel.device)


    def test_next(accel):
        measure(accel)
"""


def test_killed_and_hanging_ranks_do_not_stop_the_session(pytester, platform):
    pytester.makepyfile(test_suite=SUITE.format(platform=platform))
    result = pytester.runpytest_subprocess(
        "--accel-budget=1s", "--benchmark-json=out.json", "-p", "no:randomly"
    )
    result.stdout.fnmatch_lines(["*= 2 no baseline, 3 failed*"])
    result.stdout.fnmatch_lines(
        [
            "the worker process was killed by SIGKILL*",
            "no answer within 15 s: the worker process hangs in test_suite.py:* test_hangs*",
            "*OutOfMemoryError*",
        ]
    )
