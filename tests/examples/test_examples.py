"""The examples do what their pages say: every command of a README is run, in order, in a copy of its folder.

A block that is marked `console` holds commands (`$ `) and lines that they print. Each line that is shown must be printed,
in that order; `...` stands for lines that are left out. A command that fails says so itself: `|| echo "exit status $?"`.
Speeds are this machine's own, so figures are not compared, except where an example reads files that it brings along.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import cluster, missing
from tests.support.processes import finished, inherited

EXAMPLES = Path(__file__).parents[2] / "examples"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# No test hopes for a timing: the steps are real, and what they take is a twentieth of a second a round, of a clock that only moves
# when it is read. A delay on purpose reads it, and is felt.
STEADY = """
import types

import pytest_accel.measure.device
import pytest_accel.measure.rounds

now_s = 0.0


def ticking(tick_s):
    def read():
        global now_s
        now_s += tick_s
        return now_s

    return types.SimpleNamespace(perf_counter=read, process_time=read)


pytest_accel.measure.rounds.time = ticking(0.05)
pytest_accel.measure.device.time = ticking(0.005)
"""
# Short rounds; few plugins, since each costs time in every process.
QUICK = {
    "PYTEST_ACCEL_BUDGET": "60ms",
    "PYTEST_ACCEL_WARMUP": "50ms",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "-p benchmark -p accel -p steady -p no:cacheprovider",
}


@pytest.fixture
def environment(tmp_path_factory):
    """This process's own, without what a CI system or an outer pytest says in it."""
    plugins = tmp_path_factory.mktemp("plugins")
    (plugins / "steady.py").write_text(STEADY)
    own = inherited("PYTEST_", "GITHUB_", "CI_", "SLURM_")
    found = os.pathsep.join(filter(None, (str(plugins), own.get("PYTHONPATH"))))
    return {
        **own,
        **QUICK,
        "PYTHONPATH": found,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}",
    }


def copied(example: str, to: Path) -> Path:
    """A copy without what somebody left in the folder by trying it."""
    left = shutil.ignore_patterns("baselines", "results", ".accel", "__pycache__", ".*_cache", "*.html")
    return Path(shutil.copytree(EXAMPLES / example, to / example, ignore=left))


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """Every command of a page, with the lines that are shown below it."""
    found: list[tuple[str, list[str]]] = []
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    return found


def speechless(line: str) -> str:
    """A line without what differs from machine to machine: figures, their units, the processor, faster or slower."""
    if line.startswith("exit status"):
        return line
    line = re.sub(r"\bcpu-[a-z0-9-]+", "cpu-*", line)
    line = re.sub(r"\d[\d,.]*( (us|ms|s|min)\b| [MG]iB)?", "#", line)
    return " ".join(re.sub(r"\b(faster|slower)\b", "changed", line).split())


def run(command: str, folder: Path, environment: dict[str, str]) -> list[str]:
    done = finished("bash", "-c", command, cwd=folder, env=environment, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def assert_shows(shown: list[str], printed: list[str], command: str) -> None:
    """The shown lines are printed, in that order."""
    rest = iter(printed)
    for line in shown:
        if line.strip() not in ("", "..."):
            assert line in rest, f"$ {command}\nis not printed (or not there): {line}\n" + "\n".join(printed)


@pytest.mark.parametrize(
    "example",
    [*(pytest.param(name, marks=pytest.mark.rehearsal) for name in ("kernel", "site")), "two-machines"],
)
def test_what_the_page_says_happens(example, tmp_path, environment):
    folder = copied(example, tmp_path)
    told = commands(folder / "README.md")
    assert told
    for command, shown in told:
        printed = run(command, folder, environment)
        same = str if example == "two-machines" else speechless  # the others measure
        assert_shows([same(line) for line in shown], [same(line) for line in printed], command)


def test_every_example_is_tested():
    assert {page.parent.name for page in EXAMPLES.glob("*/README.md")} == {"kernel", "site", "two-machines"}


def test_results_are_read_without_pytest_accel(tmp_path):
    """The page promises JSON alone: an interpreter that has no package at all prints the same."""
    folder = copied("two-machines", tmp_path)
    command = [sys.executable, "-I", "-S", "faster.py", "one-thread.json", "two-threads.json"]
    done = finished(*command, cwd=folder, check=True)
    ((_, shown),) = [each for each in commands(folder / "README.md") if "faster.py" in each[0]]
    assert done.stdout.splitlines() == shown


def every_node(
    folder: Path, environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    return finished("bash", "every-node.sh", *arguments, cwd=folder, env=environment)


def with_nodes(folder: Path, environment: dict[str, str], states: dict[str, str]) -> dict[str, str]:
    """An environment whose sinfo knows these nodes, and whose srun only notes where it was sent."""
    tools = folder / "tools"
    tools.mkdir()
    (folder / "nodes.txt").write_text("".join(f"{node} {state}\n" for node, state in states.items()))
    (tools / "sinfo").write_text("#!/bin/sh\ncat nodes.txt\n")
    (tools / "srun").write_text('#!/bin/sh\necho "$@" >> started.txt\ntest "$FAILING" != yes\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    return {**environment, "PATH": f"{tools}{os.pathsep}{environment['PATH']}"}


def test_every_node_without_a_partition_says_how_it_is_called(tmp_path, environment):
    folder = copied("site", tmp_path)
    done = every_node(folder, environment)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: bash every-node.sh PARTITION")
    assert not (folder / "results").exists()


def test_nodes_that_can_run_something_are_told_by_their_state(tmp_path, environment):
    folder = copied("site", tmp_path)
    healthy = ["idle", "mix", "alloc", "comp", "plnd", "idle-", "mix-", "alloc-", "alloc+", "idle~", "idle#"]
    sick = [
        "idle*",
        "alloc*",
        "down",
        "down*",
        "drain",
        "drng",
        "drain~",
        "idle$",
        "idle@",
        "idle%",
        "resv",
        "unk",
    ]
    states = {f"node{at:02}": state for at, state in enumerate((*healthy, *sick))}
    done = every_node(folder, with_nodes(folder, environment, states), "gpu", "-m", "a40")
    assert done.returncode == 0
    started = re.findall(r"--nodelist=(\S+)", (folder / "started.txt").read_text())
    assert {states[node] for node in started} == set(healthy)
    assert done.stderr.splitlines() == [
        f"left out: {node} ({state})" for node, state in states.items() if state in sick
    ]


@pytest.mark.parametrize(("state", "status"), [("idle", 1), ("down", 2)])
def test_every_node_leaves_with_what_became_of_them(state, status, tmp_path, environment):
    folder = copied("site", tmp_path)
    done = every_node(folder, with_nodes(folder, {**environment, "FAILING": "yes"}, {"node1": state}), "gpu")
    assert done.returncode == status


@pytest.mark.rehearsal
def test_every_node_of_a_partition_has_its_own_session(tmp_path, environment):
    if reason := missing():
        pytest.skip(reason)
    folder = copied("site", tmp_path)
    with cluster(nodes=2, gpus=0) as slurm:
        down = slurm.nodes[1]
        slurm.ask("scontrol", "update", f"NodeName={down}", "State=DRAIN", "Reason=broken")
        inside = {**environment, "SLURM_CONF": slurm.environment["SLURM_CONF"]}
        done = every_node(folder, inside, "main", "-m", "cpu", "-k", "copy")
    assert done.returncode == 0, done.stderr + "".join(
        each.read_text() for each in folder.glob("results/*.txt")
    )
    assert [each.name for each in folder.glob("results/*.json")] == [f"{slurm.nodes[0]}.json"]
    assert done.stderr == f"left out: {down} (drain)\n"
    results = json.loads((folder / "results" / f"{slurm.nodes[0]}.json").read_text())
    assert [each["benchmark"] for each in results["results"]] == ["test_node.py::test_copy"]
