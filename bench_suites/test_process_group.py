"""Cost of a process group: DDP with a single rank, and scaling over two processes of one CPU. docs/suites/process_group.md"""

from __future__ import annotations

import pytest

from pytest_accel import accelerators, cpu, cpux2, on

# Weak: every device keeps its batch. Strong: the devices share one.
SMALL = {"weak": {"batch_size": 8}, "strong": {"global_batch_size": 16}}


@cpu
@cpux2
@pytest.mark.parametrize("scaling", SMALL)
def test_small_scaling(train, scaling):
    train("resnet18", data="cifar100", image_size=64, **SMALL[scaling])


@on(accelerators(memory_gb=16, dtype="half"))
@pytest.mark.accel(process_group=True)
@pytest.mark.parametrize("ddp", [True, False], ids=["ddp", "plain"])
def test_single_rank(train, ddp):
    train("resnet50", data="imagenet", batch_size=256, precision="half", ddp=ddp)
