"""Benchmarks on real data: metrics, the synthetic replacement, and errors of missing or torn data."""

import pytest
import torch  # noqa: F401 - before pytest runs inside pytest: it cannot be imported twice
import torchvision  # noqa: F401

import pytest_accel.workloads.measured_step  # noqa: F401
from tests.support.data_sets import write_cifar_binary, write_food101

TRAIN = """
def test_step(train):
    train("zoo/wide_resnet-tiny", data="cifar100", batch_size=4{more})
"""
CONVERGE = """
def test_step(converge):
    converge("zoo/wide_resnet-tiny", data="digits", batch_size=64, lr=0.05, augment=False, epochs=2{more})
"""


@pytest.fixture
def fed(bench):
    """A suite of one training step, more arguments to it, and a tiny CIFAR-100 in `data`."""
    write_cifar_binary(bench.path("data"))

    def write(more="", source=TRAIN):
        bench.write(source.format(more=more))
        return bench

    return write


def test_real_data_is_used_and_three_rates_are_reported(fed):
    bench = fed()
    result = bench.run("--accel-data=data", "--benchmark-json=out.json")
    result.assert_outcomes(passed=1)
    info = bench.accel_info()
    assert info["configuration"]["data_source"] == "resident"
    assert info["configuration"]["data_images"] == 20
    metrics = info["run"]["metrics"]
    assert metrics["loader_efficiency"] == pytest.approx(
        min(1, metrics["compute_step_s"] / info["step_time_s"]), rel=0.2
    )
    assert metrics["loader_step_s"] > 0
    assert set(info["gates"]) == {"loader_efficiency"}
    result.stdout.fnmatch_lines(["benchmark*data*bound by*loader eff*loader*compute*", "test_step*cifar100*"])


def test_loader_workers_without_data_move_synthetic_bytes(fed):
    bench = fed(", workers=1")
    bench.run("--benchmark-json=out.json").assert_outcomes(passed=1)
    info = bench.accel_info()
    assert info["configuration"]["data_source"] == "host-synthetic"
    assert info["configuration"]["workers"] == 1
    assert "loader_efficiency" in info["run"]["metrics"]
    assert not bench.left_behind()


def test_missing_data_set_is_replaced_by_synthetic_data_with_a_warning(fed):
    bench = fed()
    bench.path("empty").mkdir()
    result = bench.run("--accel-data=empty", "--benchmark-json=out.json")
    result.assert_outcomes(passed=1)
    assert bench.accel_info()["configuration"]["data_source"] == "synthetic"
    assert "loader_efficiency" not in bench.accel_info()["run"]["metrics"]
    result.stdout.fnmatch_lines(["*Data is synthetic.*"])
    result.stdout.fnmatch_lines(
        ["*SyntheticDataWarning: cifar100: not found. Looked for *Synthetic data replaces it."]
    )


def test_printed_record_command_keeps_options_and_works_from_here(fed, monkeypatch):
    bench = fed()
    bench.pytester.makepyfile(
        test_other="import pytest\n\n@pytest.mark.cpu\ndef test_other(accel):\n    accel.measure(lambda: None, work=1, unit='calls')\n"
    )
    bench.run("test_other.py", "--accel-record=1").assert_outcomes(passed=1)
    bench.path("below").mkdir()
    monkeypatch.chdir(bench.path("below"))
    result = bench.run("..", "--accel-data", "../data", bench.TOLERANT)
    result.assert_outcomes(passed=2)
    (command,) = [
        line for line in result.outlines if line.startswith("    pytest ../test_suite.py::test_step ")
    ]
    assert command.endswith("--accel-data=../data --accel-tolerance=99% --accel-record")


def test_required_data_that_is_missing_fails_with_the_searched_path(fed):
    result = fed().run("--accel-require", "--accel-data=.")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*cifar100: not found. Looked for *cifar-100-binary*", "*Real data is required here*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize("workers", [0, 1])
def test_torn_photograph_fails_and_is_named(bench, workers):
    write_food101(bench.path("data"))
    for path in bench.path("data").rglob("*.jpg"):
        path.write_bytes(path.read_bytes()[:100])
    bench.write(
        f"""
        def test_step(train):
            train("resnet18", data="food101", image_size=32, batch_size=2, workers={workers})
        """
    )
    result = bench.run("--accel-data=data")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*/food-101/images/*.jpg: does not decode: *", "*Download or extract it again*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    assert not bench.left_behind()


MEANINGLESS = {
    (
        TRAIN,
        ", min_loader_efficiency=0.9",
    ): "*min_loader_efficiency: cifar100 is synthetic and on the device*",
    (TRAIN, ", workers=1, cpus=100000"): "*cpus: 100000 were requested, and this process may use *",
    (TRAIN, ", epoch_size=0"): "*epoch_size: 0 is not a positive whole number.*",
    (CONVERGE.replace("epochs=2", "epochs=0"), ""): "*epochs: 0 is not a positive whole number.*",
    (CONVERGE, ", accuracy_tolerance=2"): "*accuracy_tolerance: 2 is not a fraction between 0 and 1.*",
}


def test_meaningless_argument_is_refused_without_traceback(bench):
    tests = [source.format(more=more) for source, more in MEANINGLESS]
    bench.write("".join(test.replace("test_step", f"test_{at}") for at, test in enumerate(tests)))
    result = bench.run()
    result.assert_outcomes(failed=len(MEANINGLESS))
    result.stdout.fnmatch_lines([*MEANINGLESS.values()])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_benchmark_that_needs_real_data_skips_without_it(bench):
    bench.write(
        """
        def test_step(accel, accel_data):
            root = accel_data("cifar100")
            note("root", root)
            measure(accel)
        """
    )
    result = bench.run("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*needs real data, with --accel-data: cifar100: not found.*"])
    result = bench.run("--accel-require", "--accel-data=.")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*During handling*")
    write_cifar_binary(bench.path("data"))
    bench.run("--accel-data=data").assert_outcomes(passed=1)
    assert bench.path("root").read_text().strip() == str(bench.path("data"))


class TestConvergence:
    def test_accuracy_and_epochs_are_reported_and_gated(self, fed):
        bench = fed(", target=0.2", CONVERGE)
        result = bench.run("--benchmark-json=out.json")
        result.assert_outcomes(passed=1)
        metrics = bench.accel_info()["run"]["metrics"]
        assert metrics["accuracy"] > 0.2
        assert {"first_epoch_s", "epoch_s", "time_to_target_s"} <= set(metrics)
        assert bench.accel_info()["gates"]["accuracy"] == 0.02
        result.stdout.fnmatch_lines(["benchmark*accuracy*to target*epoch*first epoch*"])


def test_device_fixture_alone_needs_no_mark_and_no_benchmark(bench):
    bench.pytester.makepyfile(
        """
        def test_device(accel_device, accel_batch):
            inputs, targets = accel_batch("mnist", batch_size=2)
            assert accel_device.type == inputs.device.type
            assert inputs.shape == (2, 1, 28, 28)
        """
    )
    bench.run().assert_outcomes(passed=1)


ASKED = """
def test_step(accel, monkeypatch):
    from pytest_accel.workloads.measured_step import Train, TrainStep

    found = {}
    def build(model, **options):
        found.update(options)
        raise ValueError("enough")
    monkeypatch.setattr(TrainStep, "build", build)
    with Train(accel) as train, pytest.raises(pytest.fail.Exception):
        train("resnet18"%s)
    note("asked", found.get(%r))
    measure(accel)
"""


@pytest.mark.parametrize(
    ("arguments", "more", "name", "asked"),
    [
        ((), "", "compile", None),
        (("--accel-compile=default",), "", "compile", "default"),
        (("--benchmark-disable",), "", "cudnn_benchmark", False),  # one step: a search does not pay
        (("--benchmark-disable",), ", cudnn_benchmark=True", "cudnn_benchmark", True),
    ],
)
def test_options_of_the_session_reach_the_step(bench, arguments, more, name, asked):
    bench.write(ASKED % (more, name))
    bench.run(*arguments).assert_outcomes(passed=1)
    assert bench.path("asked").read_text().strip() == str(asked)
