"""The terminal summary: recordings, process groups and launchers. tests/plugin shows the others."""

from types import SimpleNamespace

from pytest_accel.distributed.device_check import DeviceCheck, Reading
from pytest_accel.options import Settings
from pytest_accel.platforms.catalogue import PlatformName
from pytest_accel.report.verdicts import REPLACE_RUNS, next_commands
from pytest_accel.session.summary import device_check_lines, summary_lines
from pytest_accel.stats.results import Ending
from tests.support.results import make_result

CPUX2 = PlatformName("cpu", 2)


def reading(rank, rate):
    return Reading(kind="copy", rate=rate, rank=rank, device="CPU", host="n0")


def test_straggler_of_several_process_groups_is_named_once():
    found = [
        DeviceCheck(readings=(reading(0, 1.0), reading(1, rate)), all_reduces=line)
        for rate, line in ((0.86, "all-reduce then"), (0.8467, "all-reduce now"))
    ]
    lines = device_check_lines({(CPUX2, "first"): found[0], (CPUX2, "second"): found[1]})
    assert [line for line, _ in lines] == [
        "cpux2: all-reduce now",
        "note: rank 1 (CPU, node n0): copy 8.3 % under the median of 2 devices",
    ]


def test_recording_that_is_too_noisy_is_not_committed_but_replaced(tmp_path):
    params = SimpleNamespace(args=["-m", "cpu", "--accel-record=3"], dir=tmp_path)
    config = SimpleNamespace(rootpath=tmp_path, invocation_params=params, stash={})
    good = make_result(Ending.RECORDED, name="test_good", file="test_a.py", platform="cpu")
    noisy = make_result(
        Ending.RECORDED, name="test_noisy", file="test_b.py", platform="cpu", notes=[REPLACE_RUNS]
    )
    first, second, command = [
        text
        for text, _ in summary_lines(config, Settings(record=3), [good, noisy])
        if "b.json" in text or "a.json" in text or text.startswith("    ")
    ]
    assert first.startswith("Recorded in baselines/cpu/a.json: look at it")
    assert second.startswith("Recorded in baselines/cpu/b.json: do not commit it, 1 benchmark too noisy.")
    update = "test_b.py::test_noisy -m cpu --accel-update --accel-reason='too noisy before'"
    assert command.endswith(f"pytest {update}")
    assert next_commands(noisy, params.args)[-1][1] == f"pytest {update}"
