"""Olivia's investigation: a WideResNet on CIFAR-100, from one GH200 to two nodes of four. docs/suites/wide_resnet.md"""

from __future__ import annotations

import os

import pytest

from pytest_accel import accelerators, cpu, cpux2, on

FP16 = accelerators(memory_gb=8, dtype="fp16", devices=(1, 4))
FP16_TWO_NODES = accelerators(memory_gb=8, dtype="fp16", devices=8, nodes=2)
HALF = accelerators(memory_gb=8, dtype="half", devices=(1, 4))
HALF_FOUR = accelerators(memory_gb=8, dtype="half", devices=4)
DTYPES = {
    dtype: on(accelerators(memory_gb=8, dtype=dtype, devices=(1, 4))) for dtype in ("tf32", "bf16", "fp16")
}
IMAGES = 50_000  # of an epoch

SINGLE = {
    # FP32 in the study, as we read it: torch uses TF32 in convolutions by default.
    # Replayed: launched one by one, the step waits for its host, and hosts differ (18 % between sessions on H200s).
    "baseline": {"precision": "single", "workers": 0, "compile": None, "replay": True},
    "optimised": {"precision": "half", "workers": 32, "prefetch": 4},
}
DDP = {"data": "cifar100", "batch_size": 256, "precision": "fp16", "workers": 8}


@cpu
def test_small_wide_resnet(train):
    train("zoo/wide_resnet-tiny", data="cifar100", batch_size=32, workers=1)


@cpu
def test_small_accuracy(converge):
    """Real images that come with scikit-learn."""
    converge(
        "zoo/wide_resnet-tiny", data="digits", batch_size=32, lr=0.05, epochs=4, target=0.8, augment=False
    )


@cpux2
@pytest.mark.parametrize("jobs", ["one", "independent"])
def test_small_jobs(train, jobs):
    train("zoo/wide_resnet-tiny", data="cifar100", batch_size=32, ddp=jobs == "one")


@on(accelerators(memory_gb=8, dtype=("single", "half")))
@pytest.mark.accel(reference="olivia/single/{variant}")
@pytest.mark.parametrize("variant", SINGLE)
def test_single(train, variant):
    """Tests 1 and 4: as the guide has it, and optimised."""
    train("zoo/wide_resnet", data="cifar100", batch_size=32, millions=17.2, **SINGLE[variant])


@on(FP16, FP16_TWO_NODES)
@pytest.mark.accel(reference="olivia/ddp")
def test_ddp(train):
    """Tests 2 and 3; on one device too, so that scaling compares runs that differ in their devices alone."""
    train("zoo/wide_resnet", **DDP)


@pytest.mark.sweep
@pytest.mark.accel(reference="olivia/workers/{precision}/{workers}")
@pytest.mark.parametrize("workers", [4, 8, 16, 32, 48])
@pytest.mark.parametrize(
    "precision", [pytest.param(dtype, marks=platforms) for dtype, platforms in DTYPES.items()]
)
def test_workers(train, precision, workers):
    """Tests 5 and 8 to 12: processes of the loader, a device."""
    train("zoo/wide_resnet", **{**DDP, "precision": precision, "workers": workers})


@pytest.mark.sweep
@on(HALF)
@pytest.mark.accel(reference="olivia/cpus/{cpus}")
@pytest.mark.parametrize("cpus", [4, 18, 72])
def test_cpus(train, cpus):
    """Test 6: the CPUs that a device's loader may use."""
    if cpus > len(os.sched_getaffinity(0)):
        pytest.skip(f"needs {cpus} CPUs")
    train("zoo/wide_resnet", **{**DDP, "precision": "half", "workers": 16, "cpus": cpus})


@on(HALF_FOUR)
@pytest.mark.accel(reference="olivia/binding/{binding}")
@pytest.mark.parametrize(
    "binding",
    [
        pytest.param("bound", marks=pytest.mark.accel(bind="auto")),
        pytest.param("unbound", marks=pytest.mark.accel(bind="none")),
    ],
)
def test_binding(train, binding):  # noqa: ARG001 - its mark says it
    """Test 7: ranks bound to the CPUs and the memory of their device, or left to the kernel."""
    train("zoo/wide_resnet", **{**DDP, "precision": "half", "workers": 32})


@on(HALF_FOUR)
@pytest.mark.accel(reference="olivia/jobs/{jobs}")
@pytest.mark.parametrize("jobs", ["one", "independent"])
def test_jobs(train, jobs):
    """Test 13: one DDP job over all devices, or as many jobs side by side."""
    train("zoo/wide_resnet", **{**DDP, "precision": "half", "ddp": jobs == "one"})


@on(FP16, FP16_TWO_NODES)
@pytest.mark.accel(reference="olivia/ddp/accuracy")
def test_accuracy(converge):
    """The accuracy after ten epochs; of real CIFAR-100 alone (--accel-data), else only their time."""
    converge(
        "zoo/wide_resnet", data="cifar100", batch_size=256, precision="fp16", epochs=10, epoch_size=IMAGES
    )
