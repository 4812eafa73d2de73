"""The terminal summary: cells of the table, and lines on process groups."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_accel.options import Settings
from pytest_accel.platforms.names import PlatformName
from pytest_accel.session.case import Case
from pytest_accel.session.device import Unfit
from pytest_accel.session.launcher import LAUNCHER_RANKS
from pytest_accel.session.summary import device_check_lines, idle_ranks
from pytest_accel.session.table import (
    all_synthetic,
    columns_and_rows,
    gated_without_column,
)
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Estimate, Outcome, Verdict

HERE = Environment(identity={}, context={})


def unmeasured(**more) -> Case:
    item = SimpleNamespace(name="test_x", nodeid="test_a.py::test_x")
    return Case(
        item=item, platform=PlatformName("cpu"), disk_name="cpu", suite="a", settings=Settings(), **more
    )


def case(metrics=None, configuration=None, gates=None, **more) -> Case:
    run = Run(session="s", rounds_s=(0.1,) * 6, steps_per_round=1, metrics=metrics or {})
    measured = Measurement(
        run=run,
        work_per_step=64,
        unit="images",
        configuration=configuration or {},
        environment=HERE,
        steady=True,
        gates=gates or {},
    )
    return unmeasured(measurements=[measured], **more)


def cells(*cases: Case) -> list[dict[str, str]]:
    columns, rows = columns_and_rows(cases)
    return [
        {column.title: cell.text for column, cell in zip(columns, row, strict=True) if cell.text}
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
        ({"latency_p50_s": 0.0012, "latency_p99_s": 0.0019}, {"latency p50 / p99": "1.2 / 1.9 ms"}),
        ({"latency_p50_s": 0.0005, "latency_p99_s": 0.02}, {"latency p50 / p99": "0.5 / 20 ms"}),
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
    (with_metrics,), (without,) = cells(case(metrics)), cells(case())
    assert {title: with_metrics[title] for title in with_metrics.keys() - without.keys()} == shown


WATCHED = {
    "energy_per_step_j": 36.0,
    "power_mean_w": 651.4,
    "power_peak_w": 699.6,
    "tdp_share": 0.931,
    "sm_clock_mhz": 1515.2,
    "temperature_c": 61.0,
}


def test_gated_energy_has_a_column():
    (found,) = cells(case(WATCHED, gates={"energy_per_step_j": 0.05}))
    assert found["units/Wh"] == "6,400"
    assert "J/unit" not in found


def test_verdict_names_energy():
    metric = said(Outcome.REGRESSED, 0.083, of="energy_per_step_j")
    (found,) = cells(case(verdict=said(Outcome.OK, 0.0), metric_verdicts=(metric,)))
    assert found["verdict"] == "REGRESSED energy 8.3 % more"


def test_row_has_name_throughput_and_verdict():
    (found,) = cells(case())
    assert found["benchmark"] == "test_x"
    assert (found["throughput"], found["unit"], found["step"]) == ("640.0", "images/s", "100 ms")
    assert found["verdict"] == "not recorded"


SYNTHETIC = {"data": "imagenet", "data_source": "synthetic"}
REAL = {"data": "food101", "data_source": "files"}


class TestData:
    def test_synthetic_data_alone_has_no_column(self):
        cases = [case(configuration=SYNTHETIC), case()]
        assert all_synthetic(cases)
        assert not any("data" in row for row in cells(*cases))

    def test_unknown_data_has_no_column(self):
        assert not all_synthetic([case()])
        assert "data" not in cells(case())[0]

    def test_real_and_synthetic_data_are_named(self):
        cases = [case(configuration=SYNTHETIC), case(configuration=REAL)]
        assert not all_synthetic(cases)
        assert [row["data"] for row in cells(*cases)] == ["synthetic", "food101"]

    def test_synthetic_data_of_the_host_is_named(self):
        assert cells(case(configuration={"data_source": "host-synthetic"}))[0]["data"] == "host-synthetic"


def said(outcome, point, of="throughput"):
    estimate = Estimate(point=point, low=point, high=point)
    return Verdict(outcome=outcome, tolerance=0.05, slowdown=estimate, of=of)


@pytest.mark.parametrize(
    ("throughput", "accuracy", "shown"),
    [
        ((Outcome.OK, 0.01), (Outcome.OK, 0.02), "ok 1.0 % slower"),
        ((Outcome.OK, 0.01), (Outcome.REGRESSED, 0.2), "REGRESSED accuracy 20.0 % lower"),
        ((Outcome.REGRESSED, 0.1), (Outcome.OK, 0.2), "REGRESSED 10.0 % slower"),
        (
            (Outcome.REGRESSED, 0.1),
            (Outcome.REGRESSED, 0.2),
            "REGRESSED 10.0 % slower, accuracy 20.0 % lower",
        ),
        ((Outcome.IMPROVED, -0.1), (Outcome.IMPROVED, -0.2), "improved 10.0 % faster"),
        ((Outcome.OK, 0.01), (Outcome.INCONCLUSIVE, 0.04), "INCONCLUSIVE accuracy 4.0 % lower"),
    ],
)
def test_verdict_names_the_metric_that_decided_it(throughput, accuracy, shown):
    metric = said(*accuracy, of="accuracy")
    (found,) = cells(case(verdict=said(*throughput), metric_verdicts=(metric,)))
    assert found["verdict"] == shown


def test_gated_metric_of_a_user_has_no_column():
    found = case({"reach": 0.7, "accuracy": 0.9}, gates={"reach": 0.1, "accuracy": 0.1})
    assert gated_without_column(found) == {"reach": 0.7}


def test_batch_that_does_not_fit_has_a_row_with_its_verdict():
    found = unmeasured(unfit=Unfit(text="a batch of 4096", environment=HERE))
    found.judge()
    assert cells(found) == [{"benchmark": "test_x", "platform": "cpu", "verdict": "DOES-NOT-FIT"}]
    assert gated_without_column(found) == {}


CPUX2 = PlatformName("cpu", 2)


def under_torchrun(world_size):
    return SimpleNamespace(
        stash={
            LAUNCHER_RANKS: SimpleNamespace(
                launched=SimpleNamespace(world_size=world_size, launcher="torchrun")
            )
        }
    )


class TestIdleRanks:
    cases = (SimpleNamespace(platform=PlatformName("cpu")), SimpleNamespace(platform=CPUX2))

    def test_idle_ranks_are_counted(self):
        assert idle_ranks(under_torchrun(3), self.cases) == [
            "note: 1 of the 3 ranks that torchrun started had nothing to do: the largest platform here is cpux2."
        ]

    @pytest.mark.parametrize("config", [under_torchrun(2), SimpleNamespace(stash={})])
    def test_no_idle_rank_is_no_line(self, config):
        assert idle_ranks(config, self.cases) == []


def reading(rank, rate):
    return {"kind": "copy", "rate": rate, "unit": "B/s", "rank": rank, "device": "CPU", "host": "n0"}


def test_straggler_of_several_process_groups_is_named_once():
    found = [
        {"readings": [reading(0, 1.0), reading(1, rate)], "lines": [line]}
        for rate, line in ((0.86, "all-reduce then"), (0.8467, "all-reduce now"))
    ]
    lines = device_check_lines({(CPUX2, "first"): found[0], (CPUX2, "second"): found[1]})
    assert [line for line, _ in lines] == [
        "cpux2: all-reduce now",
        "note: rank 1 (CPU, node n0): copy 8.3 % under the median of 2 devices",
    ]
