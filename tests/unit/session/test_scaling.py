"""Scaling compares a benchmark with the same on fewer devices, fed by the same kind of data."""

from types import SimpleNamespace

import pytest

from pytest_accel.options import Settings
from pytest_accel.platforms.catalogue import PlatformName
from pytest_accel.session.case import Case
from pytest_accel.session.references import with_scaling
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.run import Run
from pytest_accel.storage.baselines import BaselineEntry, BaselineFile

NODE = "test_a.py::test_x"
HERE = Environment(identity={"device_count": "1"}, context={})


def run(step_s):
    return Run(session="s", rounds_s=(step_s,) * 6, steps_per_round=1, environment=HERE.key)


def stored(step_s, source):
    return BaselineEntry(
        configuration={"data_source": source},
        work_per_step=64,
        unit="images",
        tolerance=None,
        runs=(run(step_s),),
        ledger=(),
    )


@pytest.mark.parametrize(("source", "efficiency"), [("synthetic", 1.0), ("files", 0.5)])
def test_each_kind_of_data_scales_against_its_own(source, efficiency):
    file = BaselineFile(
        platform="cpu",
        suite="a",
        environments={HERE.key: HERE},
        benchmarks={NODE: stored(0.1, "synthetic"), f"{NODE} (data)": stored(0.05, "files")},
    )
    store = SimpleNamespace(read_usable=lambda platform, _: file if platform == "cpu" else None)
    case = Case(
        item=SimpleNamespace(name="test_x", nodeid=NODE),
        platform=PlatformName("cpu", 2),
        disk_name="cpux2",
        suite="a",
        settings=Settings(),
    )
    measured = Measurement(
        run=run(0.1),
        work_per_step=128,
        unit="images",
        configuration={"data_source": source},
        environment=Environment(identity={"device_count": "2"}, context={}),
        steady=True,
    )
    found = with_scaling(case, measured, store, SimpleNamespace(disk_name=str))
    assert found.run.metrics["scaling_efficiency"] == pytest.approx(efficiency)
