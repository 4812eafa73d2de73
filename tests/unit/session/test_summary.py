"""The terminal summary: recordings, process groups and launchers. tests/plugin shows the others."""

from types import SimpleNamespace

import pytest

from pytest_accel.distributed.device_check import DeviceCheck, Reading
from pytest_accel.options import Settings
from pytest_accel.platforms.catalogue import PlatformName
from pytest_accel.report.verdicts import REPLACE_RUNS
from pytest_accel.session.summary import device_check_lines, summary_lines
from pytest_accel.stats.results import Ending
from tests.support.results import make_result


def reading(rank, rate):
    return Reading(kind="copy", rate=rate, rank=rank, device="CPU", host="n0")


def test_straggler_of_a_process_group_is_named():
    found = DeviceCheck(readings=(reading(0, 1.0), reading(1, 0.8467)), all_reduces="all-reduce now")
    assert [line for line, _ in device_check_lines({PlatformName("cpu", 2): found})] == [
        "cpux2: all-reduce now",
        "note: rank 1 (CPU, node n0): copy 8.3 % under the median of 2 devices",
    ]


@pytest.mark.parametrize(
    ("notes", "then"),
    [([], "and commit it."), ([REPLACE_RUNS], "do not commit it yet, 1 benchmark too noisy.")],
)
def test_recording_that_is_too_noisy_is_not_to_be_committed(tmp_path, notes, then):
    config = SimpleNamespace(rootpath=tmp_path, invocation_params=SimpleNamespace(dir=tmp_path))
    recorded = make_result(Ending.RECORDED, name="test_x", file="test_a.py", platform="cpu", notes=notes)
    *_, (text, _) = summary_lines(config, Settings(record=3), [recorded])
    assert text == f"Recorded in baselines/cpu/a.json: look at it (pytest-accel baseline show), {then}"


def test_recording_that_git_ignores_is_not_to_be_committed(tmp_path):
    config = SimpleNamespace(rootpath=tmp_path, invocation_params=SimpleNamespace(dir=tmp_path))
    recorded = make_result(Ending.RECORDED, name="test_x", file="test_a.py", platform="cpu")
    *_, (text, _) = summary_lines(config, Settings(record=3, baselines=".accel/bench"), [recorded])
    assert text.endswith("look at it (pytest-accel baseline show --baselines .accel/bench).")
