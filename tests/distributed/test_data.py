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
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("data"))
    write_cifar_binary(project.path / "data", train=21)
    project.write(SUITE)
    status, output = project.run("-m", "cpux2", "--accel-data=data", "--benchmark-json=out.json")
    assert status == 0, output
    assert "3 no baseline" in output, output
    return project, output


def test_both_ranks_come_to_the_end_and_no_worker_is_left(ran):
    project, _ = ran
    assert {path.name for path in project.path.glob("done-*")} == {"done-0", "done-1"}
    assert not project.left_behind()


def test_every_rank_measured_its_loader_and_its_arithmetic(ran):
    found = ran[0].benchmarks()["test_loaded"]["extra_info"]["accel"]
    assert found["configuration"]["data_source"] == "arrays"
    assert found["work_per_step"] == 8
    for rank in found["ranks"]:
        assert {"loader_step_s", "compute_step_s", "loader_efficiency"} <= set(rank["run"]["metrics"])
