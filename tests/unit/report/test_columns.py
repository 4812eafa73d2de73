"""Columns of a table of results: the cell of each metric, and the verdict."""

from dataclasses import replace

import pytest

from pytest_accel.report.columns import all_synthetic, columns_and_rows
from pytest_accel.stats.gate import Estimate, Outcome, Verdict
from pytest_accel.stats.results import Ending, ReportLine, Result
from pytest_accel.stats.run import Run


def result(metrics=None, configuration=None, status=Outcome.OK, **more) -> Result:
    run = Run(session="s", rounds_s=(0.1,) * 6, steps_per_round=1, metrics=metrics or {})
    return Result(
        benchmark="test_a.py::test_x",
        suite="a",
        platform="cpu",
        disk_name="cpu",
        status=status,
        runs=(run,),
        work_per_step=64,
        unit="images",
        configuration=configuration or {},
        **more,
    )


def cells(*results: Result) -> list[dict[str, str]]:
    titles, rows = columns_and_rows(results)
    return [
        {title.removesuffix(">"): cell.text for title, cell in zip(titles, row, strict=True) if cell.text}
        for row in rows
    ]


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        (
            {"loader_step_s": 0.2, "compute_step_s": 0.1},
            {"loader": "320.0", "compute": "640.0", "bound by": "loader"},
        ),
        (
            {"loader_step_s": 0.1, "compute_step_s": 0.1},
            {"loader": "640.0", "compute": "640.0", "bound by": "compute"},
        ),
        ({"compute_step_s": 0.1}, {"compute": "640.0"}),
        ({"accuracy": 0.93456}, {"accuracy": "93.46 %"}),
        ({"accuracy": 0.0}, {"accuracy": "0.00 %"}),
        ({"epoch_s": 83.2}, {"epoch": "83.2 s"}),
        ({"latency_p50_s": 0.0012, "latency_p99_s": 0.0019}, {"latency p50 / p99": "1.2 ms / 1.9 ms"}),
        ({"latency_p50_s": 0.0005, "latency_p99_s": 0.02}, {"latency p50 / p99": "500 us / 20 ms"}),
        ({"latency_p50_s": 0.0012}, {}),
        ({"energy_per_step_j": 36.0, "epoch_size": 64_000}, {"Wh/epoch": "10.00", "units/Wh": "6,400"}),
        ({"energy_per_step_j": 36.0}, {}),
        ({"energy_per_step_j": 0.0}, {}),
        ({"loader_efficiency": 0.912}, {"loader eff.": "91.2 %"}),
        (
            {"loader_step_s": 0.1, "compute_step_s": 0.1, "loader_efficiency": 0.5},
            {"loader": "640.0", "compute": "640.0", "bound by": "both", "loader eff.": "50.0 %"},
        ),
        ({"first_epoch_s": 12.5}, {"first epoch": "12.5 s"}),
        ({"time_to_target_s": 60.0}, {"to target": "60 s"}),
        ({"mfu": 0.412}, {"MFU": "41.2 %"}),
    ],
)
def test_metric_has_its_column(metrics, shown):
    (with_metrics,), (without,) = cells(result(metrics)), cells(result())
    assert {title: with_metrics[title] for title in with_metrics.keys() - without.keys()} == shown


def test_gated_energy_has_a_column():
    gated = ReportLine(text="3.0 % less", status=Outcome.OK, of="energy_per_step_j")
    (found,) = cells(result({"energy_per_step_j": 36.0}, lines=(gated,)))
    assert found["units/Wh"] == "6,400"


def test_row_has_name_throughput_and_verdict():
    (found,) = cells(result(noise=0.02))
    assert (found["benchmark"], found["verdict"], found["±"]) == ("test_x", "ok", "~2.0 %")
    (found,) = cells(replace(result(noise=0.02), runs=2 * result().runs))
    assert found["±"] == "2.0 %", "only the noise of a single run is assumed"
    assert (found["throughput"], found["unit"], found["step"]) == ("640.0", "images/s", "100 ms")


SYNTHETIC = {"data": "imagenet", "data_source": "synthetic"}
REAL = {"data": "food101", "data_source": "files"}


@pytest.mark.parametrize(
    ("configurations", "data"),
    [
        ([SYNTHETIC, {}], [None, None]),  # said once, below the table
        ([{}], [None]),
        ([SYNTHETIC, REAL], ["synthetic", "food101"]),
        ([{"data_source": "host-synthetic"}], ["host-synthetic"]),
    ],
)
def test_source_of_data_is_named_unless_all_is_synthetic(configurations, data):
    results = [result(configuration=each) for each in configurations]
    assert [row.get("data") for row in cells(*results)] == data
    assert all_synthetic(results) is (SYNTHETIC in configurations and REAL not in configurations)


def said(outcome, point, of="throughput"):
    estimate = Estimate(point=point, low=point, high=point)
    return Verdict(outcome=outcome, tolerance=0.05, slowdown=estimate, of=of)


@pytest.mark.parametrize(
    ("throughput", "accuracy", "status", "shown"),
    [
        ((Outcome.OK, 0.01), (Outcome.OK, 0.02), Outcome.OK, "ok 1.0 % slower"),
        ((Outcome.OK, 0.01), (Outcome.REGRESSED, 0.2), Outcome.REGRESSED, "REGRESSED accuracy 20.0 % lower"),
        ((Outcome.REGRESSED, 0.1), (Outcome.OK, 0.2), Outcome.REGRESSED, "REGRESSED 10.0 % slower"),
        (
            (Outcome.REGRESSED, 0.1),
            (Outcome.REGRESSED, 0.2),
            Outcome.REGRESSED,
            "REGRESSED 10.0 % slower, accuracy 20.0 % lower",
        ),
        ((Outcome.IMPROVED, -0.1), (Outcome.IMPROVED, -0.2), Outcome.IMPROVED, "improved 10.0 % faster"),
        (
            (Outcome.OK, 0.01),
            (Outcome.INCONCLUSIVE, 0.04),
            Outcome.INCONCLUSIVE,
            "INCONCLUSIVE accuracy 4.0 % lower",
        ),
        ((Outcome.OK, 0.01), (Outcome.OK, 0.02), Ending.FAILED, "FAILED"),
    ],
)
def test_verdict_names_the_metric_that_decided_it(throughput, accuracy, status, shown):
    verdicts = (said(*throughput), said(*accuracy, of="accuracy"))
    (found,) = cells(result(status=status, verdicts=verdicts))
    assert found["verdict"] == shown
