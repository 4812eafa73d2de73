"""Distributed benchmarks of two ranks over gloo, as a user runs them."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import inherited, left_in

LONG_S = 180.0  # only a broken test waits so long
OPTIONS = [
    *("-p", "tests.support.quick_sessions", "-p", "benchmark", "-p", "accel"),
    *("--accel-budget=30ms", "-oaccel_warmup=20ms", "--accel-tolerance=99%"),
]

SHORT_WAITS = """
from pytest_accel.distributed import device_check, group

group._FAILED_S = 1.0
device_check.REPEATS = 3
"""

SUITE = """
import os
import pathlib
import signal
import time

import pytest

from pytest_accel import cpu, cpux2


def note(name):
    with pathlib.Path(f"ranks-{name}").open("a") as file:
        file.write(f"{os.getpid()}\\n")


def measure(accel, name):
    note(name)
    accel.measure(lambda: sum(range(2000)), work=2000, unit="numbers")
"""


class Project:
    """A folder with benchmarks, and pytest in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "pytest.ini").write_text("[pytest]\n")
        (path / "conftest.py").write_text(SHORT_WAITS)

    def write(self, source: str) -> None:
        (self.path / "test_suite.py").write_text(SUITE + source)

    def run(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *arguments],
            cwd=self.path,
            env={**inherited("PYTEST_"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONG_S,
            check=False,
        )
        return done.returncode, done.stdout

    def passes(self, *arguments: str) -> str:
        status, output = self.run(*arguments)
        assert status == 0, output
        return output

    def ranks(self, name: str) -> list[int]:
        path = self.path / f"ranks-{name}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def left_behind(self) -> list[str]:
        """Return processes that still run in the project's folder."""
        return left_in(self.path)

    def benchmarks(self) -> dict[str, dict[str, object]]:
        return {each["name"]: each for each in json.loads((self.path / "out.json").read_text())["benchmarks"]}

    def cases(self) -> dict[str, ET.Element]:
        root = ET.parse(self.path / "out.xml").getroot()
        return {str(case.get("name")): case for case in root.iter("testcase")}


# A group serves until an item fails in it, so passing items come first.
ITEMS = """
@cpu
@cpux2
def test_first(accel):
    measure(accel, "first")


@cpu
@cpux2
def test_second(accel, rank, world_size):
    assert rank in range(world_size)
    measure(accel, "second")


@cpux2
def test_collective(process_group, rank, world_size):
    import torch

    value = torch.tensor([rank + 1.0])
    torch.distributed.all_reduce(value)
    assert value.item() == 3


@cpux2
def test_skips(accel):
    pytest.skip("not here")


@pytest.mark.cpux2
def test_too_late(request):
    request.getfixturevalue("process_group")


@cpux2
def test_sound(accel):
    measure(accel, "sound")


@cpux2
def test_leaves_a_child(process_group, rank):
    import subprocess

    note("leaves")
    subprocess.Popen(["sleep", "600"], env={})


@pytest.fixture
def broken_after():
    yield
    raise RuntimeError("cannot be put back")


@cpux2
def test_teardown(accel, rank, broken_after):
    measure(accel, "teardown")


@cpux2
def test_raises(accel, rank):
    if rank == 1:
        print("what it printed before")
        raise ValueError("rank 1 gives up")
    measure(accel, "raises")


@cpux2
def test_killed(accel, rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    measure(accel, "killed")


@cpu
def test_single(accel):
    measure(accel, "single")


@cpu
@pytest.mark.accel(process_group=True)
def test_group_of_one(accel, world_size):
    import torch

    assert world_size == torch.distributed.get_world_size() == 1
    measure(accel, "one")
"""


# A failed teardown is an error, and not a failed measurement too.
COUNTS = "1 not gated, 5 no baseline, 3 failed, 2 passed, 1 skipped, 1 error in"
WITHOUT_FAULT = {"test_first", "test_second", "test_sound", "test_single", "test_group_of_one"}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, str]]:
    """Record the first benchmark alone and in groups; then run all in one session: its output.

    Every group imports torch in each of its ranks, so one session shows every outcome.
    """
    project = Project(tmp_path_factory.mktemp("judged").resolve())
    project.write(ITEMS)
    project.passes("-m", "cpu", "-k", "first", "--accel-record=1")
    project.passes("-m", "cpux2", "-k", "first", "--accel-record=2")

    # As if one rank alone had been a thousand times slower, so that scaling is always good.
    (alone,) = (project.path / "baselines").glob("cpu-*/suite.json")
    content = json.loads(alone.read_text())
    (run,) = content["benchmarks"]["test_suite.py::test_first"]["runs"]
    run["rounds_s"] = [1000 * seconds for seconds in run["rounds_s"]]
    alone.write_text(json.dumps(content))
    options = ("--accel-repeats=1", "--accel-timeout=60s", "-ra")
    reports = ("--benchmark-json=out.json", "--junitxml=out.xml")
    status, output = project.run("-m", "cpu or cpux2", *options, *reports)
    assert status == 1, output
    yield project, output
    assert project.left_behind() == []


def test_one_group_serves_a_session_with_one_report(judged):
    project, output = judged
    assert output.count("test session starts") == output.count(COUNTS) == 1
    *_, first, second = project.ranks("first")
    assert first != second
    assert {first, second} == set(project.ranks("second")[-2:])  # the same group served both


def test_json_and_junit_have_the_form_of_a_single_process(judged):
    project, _ = judged
    group, single = (project.benchmarks()[name] for name in ("test_second", "test_single"))
    assert group["stats"].keys() == single["stats"].keys()
    in_group, alone = group["extra_info"]["accel"], single["extra_info"]["accel"]
    ranks = in_group.pop("ranks")
    assert [rank.get("rank", 0) for rank in ranks] == [0, 1]
    assert len(in_group["run"].pop("rank_step_s")) == 2
    alone["run"].pop("rank_step_s", None)
    assert in_group.keys() == alone.keys()
    assert in_group["run"].keys() == alone["run"].keys()
    assert in_group["platform"] == "cpux2"
    assert in_group["work_per_step"] == 2 * alone["work_per_step"]
    assert group["stats"]["data"] == pytest.approx(in_group["run"]["rounds_s"])
    slowest = [max(rounds) for rounds in zip(*(rank["run"]["rounds_s"] for rank in ranks), strict=True)]
    assert in_group["run"]["rounds_s"] == slowest
    group, single = (project.cases()[name] for name in ("test_second", "test_single"))
    assert group.attrib.keys() == single.attrib.keys()
    assert _properties(group).keys() == _properties(single).keys()
    assert _properties(group)["accel.platform"] == "cpux2"


def _properties(case: ET.Element) -> dict[str, str]:
    return {str(each.get("name")): str(each.get("value")) for each in case.iter("property")}


def test_every_run_is_recorded_in_a_fresh_group(judged):
    project, _ = judged
    recorded = 1 + 2 * 2
    assert len(set(project.ranks("first")[:recorded])) == recorded  # every run in processes of its own
    assert len(project.ranks("first")) == recorded + 2
    (alone,) = (project.path / "baselines").glob("cpu-*/suite.json")
    (in_group,) = (project.path / "baselines").glob("cpux2-*/suite.json")
    (first,) = json.loads(alone.read_text())["benchmarks"].values()
    (second,) = json.loads(in_group.read_text())["benchmarks"].values()
    assert first.keys() == second.keys()
    assert len(second["runs"]) == 2
    assert second["runs"][0].keys() - {"rank_step_s"} == first["runs"][0].keys()
    assert first["configuration"] == second["configuration"]
    assert second["runs"][0]["metrics"]["scaling_efficiency"] > 0


def test_group_is_judged_and_scaled(judged):
    project, output = judged
    assert "note: test_first (cpux2): " in output
    assert "weak, against cpu)" in output
    assert _properties(project.cases()["test_first"])["accel.verdict"] == "not-gated"


def test_a_fault_fails_its_item_alone(judged):
    project, _ = judged
    cases = project.cases()
    assert "rank 1 gives up" in _failure(cases["test_raises"])
    assert "--- Captured stdout call ---\nwhat it printed before" in _failure(cases["test_raises"])
    assert "rank 1" in _failure(cases["test_killed"])
    assert "SIGKILL" in _failure(cases["test_killed"])
    # Rank 0 still waits in its collective, or gloo has raised there.
    assert re.search("(stacks|last output) of rank 0", _failure(cases["test_killed"]))
    assert project.benchmarks().keys() == WITHOUT_FAULT | {"test_teardown"}


def test_every_outcome_is_reported_with_the_output_of_its_ranks(judged):
    project, output = judged
    assert "SKIPPED [1] test_suite.py" in output
    assert "not here" in output
    cases = project.cases()
    passed = {name for name, case in cases.items() if {each.tag for each in case} <= {"properties"}}
    assert passed == WITHOUT_FAULT | {"test_collective", "test_leaves_a_child"}
    assert "cannot be put back" in "".join(cases["test_teardown"].itertext())
    assert "getfixturevalue comes too late" in _failure(cases["test_too_late"])
    assert set(re.findall("all-reduce of .*rank", output)) == {"all-reduce of 2 rank"}  # nothing for one


def test_equal_outcome_of_all_ranks_keeps_the_group(judged):
    """A skip, and a failure of a fixture."""
    project, _ = judged
    assert set(project.ranks("sound")) == set(project.ranks("leaves"))
    assert len(set(project.ranks("sound"))) == 2


def _failure(case: ET.Element) -> str:
    (failure,) = case.iter("failure")
    return f"{failure.get('message')}\n{failure.text}"
