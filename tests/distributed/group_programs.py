"""Programs of the ranks of test_process_group.py: each gets the open group and returns plain JSON."""

import gc
import os
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_accel.measure.device import CpuDevice
from pytest_accel.measure.rounds import MIN_WARMUP_S, SynchronizingTimer, time_rounds, warm_up
from pytest_accel.storage.codec import encode
from pytest_accel.workloads.step import InferStep, TrainStep
from tests.distributed import sharding_programs
from tests.support.pedantic import pedantic_benchmark


def talk(group):
    seconds = 0.1 * (group.rank + 1) + 1e-17
    return {
        "rank": group.rank,
        "size": group.size,
        "slowest": group.slowest(seconds).hex(),
        "agreed": group.agree({"rounds": 7 + group.rank, "words": ["a"]}),
        "gathered": group.gather({"rank": group.rank, "long": "x" * (1 + 5000 * group.rank)}),
    }


def listen(group):
    """Return the addresses at which the store of the group is listened for, as the kernel writes them."""
    port, listening = f"{int(os.environ['MASTER_PORT']):04X}", "0A"  # <net/tcp_states.h>
    rows = [
        line.split() for each in ("tcp", "tcp6") for line in Path("/proc/net", each).read_text().splitlines()
    ]
    return [row[1] for row in rows if row[3] == listening and row[1].endswith(f":{port}")]


def open_again(group):
    """Open a second group in the same process, as the next item does after a failure to open it."""
    from pytest_accel.distributed.process_group import open_process_group

    group.close()
    torch.distributed.init_process_group("gloo")  # as a test may that opens one itself
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    second = open_process_group(torch.device("cpu"), rendezvous_s=120, timeout_s=500)
    return second.gather(second.rank)


@dataclass
class Progress:
    events: list[str] = field(default_factory=list)

    def phase(self, text, remaining_s):
        self.events.append(text)

    def tick(self):
        self.events.append("tick")


def measure_with_a_slow_rank(group):
    """Measure a step that takes three times as long on rank 1 and has no collective."""
    steps = 0
    device, progress, timer = CpuDevice(threads=1), Progress(), SynchronizingTimer()

    def step():
        nonlocal steps
        steps += 1
        time.sleep(0.002 * (1 + 2 * group.rank))

    warm = warm_up(step, device, progress, max_s=2 * MIN_WARMUP_S, after_pilot=lambda: None, ranks=group)
    warmup_steps = steps
    fixture = pedantic_benchmark(timer)
    timed = time_rounds(
        step, device, fixture, timer, progress, warm_up=warm, budget_s=0.3, slowdown=0.5, ranks=group
    )
    return {
        "warmup_steps": warmup_steps,
        "steps": steps,
        "warm_step_s": warm.step_s.hex(),
        "steady": warm.steady,
        "rounds": len(timed.run.rounds_s),
        "steps_per_round": timed.run.steps_per_round,
        "step_s": timed.step_s,
    }


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 16), nn.ReLU(), nn.Linear(16, 10))


def with_dropout():
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(28 * 28, 16), nn.ReLU(), nn.Linear(16, 10))


def build(group, model=mlp, **options):
    return TrainStep.build(model, **{"data": "mnist", "batch_size": 8, "lr": 0.1, "ranks": group} | options)


def train_together(group):
    found = {}
    with build(group, ddp=False) as alone:
        alone()
        own = [parameter.grad.clone() for parameter in alone._trainable]
        found["own_loss"] = alone.loss_value()
    for gradient in own:
        dist.all_reduce(gradient)
        gradient.div_(group.size)
    with build(group) as step:
        found["first_inputs"] = [float(next(step._source)[0].flatten()[0]) for _ in range(4)]
    with build(group) as step:
        found["weight_before"] = float(step._trainable[0].flatten()[0])
        step()
        found["averaged"] = [
            torch.allclose(parameter.grad, mean, atol=1e-6)
            for parameter, mean in zip(step._trainable, own, strict=True)
        ]
        for _ in range(4):
            step()
        step.check()
        found["weights_after"] = [float(parameter.double().sum()) for parameter in step._trainable]
        found["loss"] = step.loss_value()
        found["work"] = step.work
        found["configuration"] = step.configuration
    return found


def train_apart(group):
    with build(group, ddp=False) as step:
        for _ in range(5):
            step()
        step.check()
        return {
            "weights_after": [float(parameter.double().sum()) for parameter in step._trainable],
            "configuration": step.configuration,
        }


def share_a_batch(group):
    with build(group, batch_size=None, global_batch_size=16) as step:
        step()
        work, configuration = step.work, step.configuration
    try:
        build(group, batch_size=None, global_batch_size=15)
    except ValueError as error:
        return {"work": work, "configuration": configuration, "refused": str(error)}
    return {"refused": ""}


def draw_dropout(group):
    with build(group, model=with_dropout):
        return {"drawn": torch.rand(4).tolist()}


def infer(group):
    with InferStep.build(mlp, data="mnist", batch_size=4, ranks=group) as step:
        step()
        step.check()
        wrapped = any(isinstance(each, DistributedDataParallel) for each in gc.get_objects())
        return {"output": step.output.flatten()[:3].tolist(), "wrapped": wrapped, "work": step.work}


def close_a_step(group):
    step = build(group)
    step()
    living = [weakref.ref(each) for each in gc.get_objects() if isinstance(each, DistributedDataParallel)]
    step.close()
    return {"before": len(living), "after": sum(each() is not None for each in living)}


def fail_on_one(group):
    import pytest

    from pytest_accel.session.accel import fail_where_one_does

    failures = []
    for problem in ("", "the loss is nan" if group.rank == 1 else "", "unit: wrong"):
        try:
            fail_where_one_does(group, problem)
            failures.append("")
        except pytest.fail.Exception as failure:
            failures.append(str(failure))
    return failures


def four_times(a, b, *, out, product=torch.matmul):
    for _ in range(4):  # far from what the noise of a shared host can undo
        product(a, b, out=out)


def check_devices(group):
    """Check the devices; rank 1 does its product four times."""
    from pytest_accel.distributed import device_check

    device_check.REPEATS = 5
    seeded = torch.random.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        if group.rank == 1:
            patch.setattr(torch, "matmul", four_times)
        report = device_check.check(group, torch.device("cpu"), label=f"device {group.rank}", host="n1")
    return encode(report) | {"same_seed": torch.equal(torch.random.get_rng_state(), seeded)}


def everything(group):
    """Run all programs in one pair of processes: importing torch takes most of the time."""
    programs = (
        check_devices,
        talk,
        listen,
        measure_with_a_slow_rank,
        train_together,
        train_apart,
        share_a_batch,
        draw_dropout,
        infer,
        close_a_step,
        fail_on_one,
        *sharding_programs.PROGRAMS,
        open_again,  # the last: it closes the group that the others have
    )
    return {program.__name__: program(group) for program in programs}
