"""Several devices: how training scales, one job against many, ranks bound to their CPUs or not."""

from __future__ import annotations

import pytest

from pytest_accel import (
    a100,
    a100x2,
    a100x4,
    a100x8,
    cpu,
    cpux2,
    gh200,
    gh200x2,
    gh200x4,
    gh200x4n2,
    h100,
    h100x2,
    h100x4,
    h100x8,
    h200,
    h200x2,
    h200x4,
    h200x8,
)

# Weak: every device keeps its batch. Strong: the devices share one.
SMALL = {"weak": {"batch_size": 8}, "strong": {"global_batch_size": 16}}
LARGE = {"weak": {"batch_size": 256}, "strong": {"global_batch_size": 1024}}


@cpu
@cpux2
@pytest.mark.parametrize("scaling", SMALL)
def test_small_scaling(train, scaling):
    train("resnet18", data="cifar100", image_size=64, **SMALL[scaling])


@a100
@a100x2
@a100x4
@a100x8
@gh200
@gh200x2
@gh200x4
@gh200x4n2
@h100
@h100x2
@h100x4
@h100x8
@h200
@h200x2
@h200x4
@h200x8
@pytest.mark.parametrize("scaling", LARGE)
def test_scaling(train, scaling):
    train("resnet50", data="imagenet", precision="bf16", **LARGE[scaling])


@cpux2
@pytest.mark.parametrize("jobs", ["one", "independent"])
def test_small_jobs(train, jobs):
    train("resnet18", data="cifar100", image_size=64, batch_size=8, ddp=jobs == "one")


@a100x4
@gh200x4
@h100x4
@h200x4
@pytest.mark.parametrize("jobs", ["one", "independent"])
def test_jobs(train, jobs):
    """One DDP job over all devices, or as many jobs side by side (Olivia's Test 13)."""
    train("resnet50", data="imagenet", batch_size=256, precision="bf16", ddp=jobs == "one")


@a100x4
@gh200x4
@h100x4
@h200x4
@pytest.mark.accel(bind="auto")
def test_bound(train):
    """Ranks bound to the CPUs and the memory of their device (Olivia's Test 7)."""
    train("resnet50", data="imagenet", batch_size=256, precision="bf16")


@a100x4
@gh200x4
@h100x4
@h200x4
@pytest.mark.accel(bind="none")
def test_unbound(train):
    """The same with ranks left to the kernel."""
    train("resnet50", data="imagenet", batch_size=256, precision="bf16")


@a100
@gh200
@h100
@h200
@pytest.mark.accel(gang=True)
@pytest.mark.parametrize("ddp", [True, False], ids=["ddp", "plain"])
def test_gang_of_one(train, ddp):
    """What DDP costs where there is nobody to talk to."""
    train("resnet50", data="imagenet", batch_size=256, precision="bf16", ddp=ddp)
