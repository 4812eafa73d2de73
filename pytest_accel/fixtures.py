"""Fixtures of a benchmark: `accel`, `train`, `infer` and `converge`, and parts for steps of one's own.

The same test runs on one device and on every rank of a process group: `process_group`, `rank`, `world_size` and `ddp`
work in both. pytest imports this module wherever the plugin is installed, so each fixture imports what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_accel.options import SETTINGS, data_root, settings_of

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from pytest_benchmark.fixture import BenchmarkFixture

    from pytest_accel.measure.rounds import Ranks
    from pytest_accel.session.accel import Accel
    from pytest_accel.workloads.measured_step import Converge, Infer, Train
    from pytest_accel.workloads.precision import Precision

Built = Callable[..., Any]


def _measuring(kind: str, accel: Accel) -> Iterator[Any]:
    """Yield what builds a step and measures it; fail without a traceback where torch is not installed."""
    if find_spec("torch") is None:
        pytest.fail(
            f"{kind.lower()}: it builds models with torch, which is not installed here. "
            "pip install torch torchvision, or take an image that has torch; `accel.measure` works without.",
            pytrace=False,
        )
    from pytest_accel.workloads import measured_step

    with getattr(measured_step, kind)(accel) as measure:
        yield measure


@pytest.fixture
def process_group(request: pytest.FixtureRequest) -> Ranks:
    """The ranks that run this benchmark: `rank`, `size`, `barrier()`, `slowest(x)`, `agree(x)`, `gather(x)`.

    On several devices it is torch's default process group, and torch.distributed works. On one device it has one rank.
    """
    from pytest_accel.session.worker_process import ranks_of

    item = cast("pytest.Item", request.node)
    return ranks_of(item, settings_of(item))


@pytest.fixture
def rank(process_group: Ranks) -> int:
    """The rank of this process; 0 on one device."""
    return process_group.rank


@pytest.fixture
def world_size(process_group: Ranks) -> int:
    """The number of processes of this benchmark; 1 on one device."""
    return process_group.size


@pytest.fixture
def ddp(process_group: Ranks) -> Callable[[Any], Any]:
    """`ddp(model)`: the model in DistributedDataParallel; on one device the model itself."""
    from pytest_accel.workloads.parallel import data_parallel

    return partial(data_parallel, ranks=process_group)


@pytest.fixture
def accel(
    request: pytest.FixtureRequest, process_group: Ranks, benchmark: BenchmarkFixture
) -> Iterator[Accel]:
    """Measure a step of your own: `accel.measure(step, work=..., unit=...)`."""
    from pytest_accel.session.accel import Accel
    from pytest_accel.session.device import open_device
    from pytest_accel.session.selection import TIMER

    item = cast("pytest.Item", request.node)
    # Else it warns that it was not used, where a test ended with its own message.
    request.addfinalizer(lambda: setattr(benchmark, "skipped", True))  # noqa: PT021 - also where this set-up fails
    if TIMER not in item.stash:
        pytest.fail("take `accel` as an argument of the test: it is a benchmark by that", pytrace=False)
    settings = settings_of(item)
    platform, device, hardware = open_device(item, settings)
    try:
        yield Accel(
            platform=platform,
            settings=settings,
            device_=device,
            hardware=hardware,
            item=item,
            benchmark=benchmark,
            timer=item.stash[TIMER],
            ranks=process_group,
        )
    finally:
        device.restore()


@pytest.fixture
def train(accel: Accel) -> Iterator[Train]:
    """Build a training step and measure it.

    `train("resnet50", data="imagenet", batch_size=256, precision="bf16")`: the model by name (torchvision's,
    `timm/NAME`, `zoo/NAME`) or any callable, on the device of the benchmark's platform, with random weights. It fails
    unless the loss is finite and the parameters moved.

    Batches are synthetic, unless --accel-data has the data set; `source=`, `workers=`, `prefetch=` and `decode=` configure
    the input pipeline. A step with a loader is measured with it; then both are measured alone, and with
    `min_loader_efficiency=0.9` it fails where less than that part of the device's own rate is left. `epoch_size=` reports
    the time of so many images. `may_not_fit=True` makes running out of memory an outcome of its own, for sweeps.

    In a process group every rank trains on its own batches, in DistributedDataParallel; with `ddp=False` the ranks are
    independent jobs, and with `sharding="fsdp"` each has a part of the model. `batch_size` is one rank's;
    `global_batch_size` is that of all ranks. `micro_batch_size=` accumulates gradients over parts of a batch.
    """
    yield from _measuring("Train", accel)


@pytest.fixture
def infer(accel: Accel) -> Iterator[Infer]:
    """Build an inference step and measure it: as `train`, in eval mode, with weights in the precision.

    `latency=True` also reports percentiles of single steps, each synchronized.
    """
    yield from _measuring("Infer", accel)


@pytest.fixture
def converge(accel: Accel) -> Iterator[Converge]:
    """Train for epochs, evaluate the model after each, and then measure its step.

    `converge("zoo/wide_resnet", data="cifar100", batch_size=256, epochs=10, target=0.5)`: the keywords are those of
    `train`. The accuracy after the last epoch is gated as throughput is: a loss of more than `accuracy_tolerance` of it
    is a regression. Not to reach `target` fails. Synthetic data has no accuracy, and needs `epoch_size`, the images that
    count as one epoch.
    """
    yield from _measuring("Converge", accel)


@pytest.fixture
def accel_device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The device of the benchmark's platform, as a torch.device; on the CPU, torch's threads are pinned."""
    import torch

    from pytest_accel.session.device import open_device

    _, device, _ = open_device(request.node, request.config.stash[SETTINGS])
    device.prepare()
    try:
        yield torch.device(device.name)
    finally:
        device.restore()


@pytest.fixture
def accel_model(accel_device: torch.device) -> Built:
    """`accel_model("resnet50", seed=0)`: a model with random weights on the device; nothing is downloaded."""
    from pytest_accel.workloads.models.build import build_model

    def build(model: str | Built, **options: Any) -> Any:  # noqa: ANN401
        return build_model(model, device=accel_device, **options)[0]

    return build


@pytest.fixture
def accel_optimizer(accel_device: torch.device) -> Built:
    """`accel_optimizer("adamw", model.parameters())`: in the fastest implementation the device has."""
    from pytest_accel.workloads.optimizers import build_optimizer

    def build(optimizer: str | Built, parameters: Any, *, lr: float | None = None) -> Any:  # noqa: ANN401
        return build_optimizer(optimizer, parameters, device=accel_device, lr=lr)[0]

    return build


@pytest.fixture
def accel_precision(accel_device: torch.device) -> Iterator[Built]:
    """`accel_precision("bf16")`: set the backend flags until the test ends; `.autocast(device)` is its context."""
    from pytest_accel.workloads.precision import check_precision

    with ExitStack() as flags:

        def choose(name: str, *, cudnn_benchmark: bool = True) -> Precision:
            precision = check_precision(name, accel_device)
            flags.enter_context(precision.flags(cudnn_benchmark=cudnn_benchmark))
            return precision

        yield choose


@pytest.fixture
def accel_data(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """`accel_data("imagenet")`: the root of real data that holds the set; where none does, the test is skipped.

    With --accel-require and --accel-data it fails.
    """
    from pytest_accel.session.device import fail_plainly
    from pytest_accel.workloads.build import find_set
    from pytest_accel.workloads.data.files import DataError, DataMissing

    settings = request.config.stash[SETTINGS]

    def find(name: str) -> Path:
        root = data_root(settings, request.config)
        try:
            find_set(root, name)
        except DataError as error:
            if isinstance(error, DataMissing) and not (settings.require and root):
                pytest.skip(f"needs real data, with --accel-data: {error}".replace("\n", " "))
            fail_plainly(str(error))
        assert root is not None  # or it would be missing
        return root

    return find


@pytest.fixture
def accel_batch(accel_device: torch.device, process_group: Ranks) -> Built:
    """`accel_batch("imagenet", batch_size=32)`: a synthetic batch on the device, inputs and targets, for every rank its own."""
    from pytest_accel.workloads.build import make_batch

    return partial(make_batch, device=accel_device, rank=process_group.rank)
