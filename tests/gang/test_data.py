"""Two ranks fed by real data: each takes its own samples, and what they learn and measure comes back as one."""

from __future__ import annotations

import pytest

from tests.gang.test_benchmarks import Project
from tests.support.data_sets import write_cifar_binary

SUITE = """
@cpux2
def test_loaded(train, rank):
    train("zoo/wide_resnet-tiny", data="cifar100", batch_size=4, workers=1)
    pathlib.Path(f"done-{rank}").touch()


@cpux2
def test_learnt(converge):
    converge("zoo/wide_resnet-tiny", data="digits", batch_size=32, lr=0.05, augment=False, epochs=2)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("fed"))
    write_cifar_binary(project.path / "data", train=21)
    project.write(SUITE)
    status, output = project.run("-m", "cpux2", "--accel-data=data", "--benchmark-json=out.json")
    assert status == 0, output
    return project


@pytest.fixture(scope="module")
def info(ran):
    return {name: each["extra_info"]["accel"] for name, each in ran.benchmarks().items()}


def test_both_ranks_come_to_the_end_and_no_worker_is_left(ran):
    assert {path.name for path in ran.path.glob("done-*")} == {"done-0", "done-1"}
    assert not ran.left_behind()


def test_every_rank_measured_its_loader_and_its_arithmetic(info):
    found = info["test_loaded"]
    assert found["configuration"]["data_source"] == "arrays"
    assert found["work_per_step"] == 8
    for rank in found["ranks"]:
        assert {"loader_step_s", "compute_step_s", "fed_share"} <= set(rank["metrics"])


def test_the_accuracy_is_that_of_the_whole_test_set(info):
    accuracies = {rank["metrics"]["accuracy"] for rank in info["test_learnt"]["ranks"]}
    assert len(accuracies) == 1  # counted over both ranks, the same on both
    right = accuracies.pop() * 360
    assert right == pytest.approx(round(right))
    assert right > 36  # more than chance
