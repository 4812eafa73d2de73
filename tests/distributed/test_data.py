"""Two ranks with real data: each takes its own samples, and the results are merged."""

import pytest

from tests.distributed.test_benchmarks import Project
from tests.support.data_sets import write_cifar_binary

# One session of two ranks that load, of half a minute; each part has tests of its own.
pytestmark = pytest.mark.rehearsal

SUITE = """
@cpux2
def test_loaded(train, rank):
    train("zoo/wide_resnet-tiny", data="cifar100", batch_size=4, workers=1)
    pathlib.Path(f"done-{rank}").touch()


@cpux2
def test_uneven(train, rank, monkeypatch):
    import pytest_accel.workloads.input_pipeline

    monkeypatch.setattr(pytest_accel.workloads.input_pipeline, "spare_cpus", lambda: 1 + 2 * rank)
    train("zoo/wide_resnet-tiny", data="cifar100", source="loader", batch_size=4)


@cpux2
def test_judged_alike(accel, process_group):
    from pytest_accel.workloads.measured_step import evaluate
    from pytest_accel.workloads.step import TrainStep

    step = TrainStep.build("zoo/wide_resnet-tiny", data="digits", batch_size=8, ranks=process_group)
    with step:
        for _ in range(5):
            step()
        model = step.parts.model
        before = process_group.gather(float(sum(each.double().sum() for each in model.buffers())))
        evaluate(step)
        after = process_group.gather(float(sum(each.double().sum() for each in model.buffers())))
        assert before[0] != before[1]  # each rank normalised its own batches
        assert after[0] == after[1] == before[0]
    measure(accel, "judged")


@cpux2
def test_learnt(converge):
    converge("zoo/wide_resnet-tiny", data="digits", batch_size=32, lr=0.05, augment=False, epochs=2)


# Last: its failure ends the group that served the others.
@cpux2
def test_loader_too_slow(train):
    train("zoo/wide_resnet-tiny", data="cifar100", batch_size=4, workers=1, min_loader_efficiency=1000)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("data"))
    write_cifar_binary(project.path / "data", train=21)
    project.write(SUITE)
    status, output = project.run("-m", "cpux2", "--accel-data=data", "--benchmark-json=out.json")
    assert status == 1, output
    assert "4 no baseline, 1 failed" in output, output
    return project, output


@pytest.fixture(scope="module")
def info(ran):
    return {name: each["extra_info"]["accel"] for name, each in ran[0].benchmarks().items()}


def test_both_ranks_come_to_the_end_and_no_worker_is_left(ran):
    project, _ = ran
    assert {path.name for path in project.path.glob("done-*")} == {"done-0", "done-1"}
    assert not project.left_behind()


def test_low_loader_efficiency_fails_once(ran):
    _, output = ran
    assert "min_loader_efficiency: " in output
    assert "were required: the loader alone gives" in output
    assert "waits in" not in output


def test_every_rank_measured_its_loader_and_its_arithmetic(info):
    found = info["test_loaded"]
    assert found["configuration"]["data_source"] == "arrays"
    assert found["work_per_step"] == 8
    for rank in found["ranks"]:
        assert {"loader_step_s", "compute_step_s", "loader_efficiency"} <= set(rank["run"]["metrics"])


def test_the_accuracy_is_that_of_the_whole_test_set(info):
    accuracies = {rank["run"]["metrics"]["accuracy"] for rank in info["test_learnt"]["ranks"]}
    assert len(accuracies) == 1  # counted over both ranks, the same on both
    right = accuracies.pop() * 360
    assert right == pytest.approx(round(right))
    assert right > 36  # more than chance
