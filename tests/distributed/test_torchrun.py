"""pytest under a real torchrun: two agents on loopback as two nodes."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.gloo import free_port
from tests.support.processes import left_in

LONG_S = 180.0  # only a broken test waits so long
PLUGINS = ("-p", "benchmark", "-p", "accel")  # others of this environment cost a second in every process
QUICK = ("--accel-budget=60ms", "-oaccel_warmup=50ms")

SUITE = """
import os
import pathlib
import signal

from pytest_accel import cpun2


def measure(accel):
    return accel.measure(lambda: sum(range(2000)), work=2000, unit="numbers")


@cpun2
def test_first(accel, rank, world_size):
    pathlib.Path(f"first-{rank}-of-{world_size}").touch()
    measure(accel)


@cpun2
def test_killed(accel, rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    measure(accel)


@cpun2
def test_last(accel, rank):
    pathlib.Path(f"last-{rank}").touch()
    measure(accel)
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """Statuses, output and files of torchrun agents."""

    folder: Path
    statuses: list[int]
    outputs: list[str]

    @property
    def printed(self) -> str:
        return "\n".join(self.outputs)

    def junit(self) -> dict[str, str]:
        """Return the outcome of each test; a file written by two processes would not parse."""
        cases = ET.parse(self.folder / "out.xml").getroot().iter("testcase")
        return {case.get("name"): case[-1].tag if len(case) and case[-1].tag != "properties" else "passed" for case in cases}  # fmt: skip

    def benchmarks(self) -> list[str]:
        return [each["name"] for each in json.loads((self.folder / "out.json").read_text())["benchmarks"]]

    def left_behind(self) -> list[str]:
        """Return processes that still run in the project's folder."""
        return left_in(self.folder)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher's variables, and no settings of this environment."""
    for name in list(os.environ):
        if name.startswith(("PYTEST_ACCEL_", "SLURM_", "TORCHELASTIC_")) or name in {"RANK", "WORLD_SIZE", "PYTEST_ADDOPTS"}:  # fmt: skip
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are killed at the end of the test."""
    found: list[subprocess.Popen[str]] = []
    yield found
    for process in found:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def torchrun(tmp_path: Path, clean: None, started: list[subprocess.Popen[str]]) -> Callable[..., Ran]:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_suite.py").write_text(SUITE)

    def run(*arguments: str, agents: int) -> Ran:
        port = free_port()
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *(f"--nnodes={agents}", "--nproc-per-node=1"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={port}"),
            *("-m", "pytest", *PLUGINS, *QUICK),
            *("--junitxml=out.xml", "--benchmark-json=out.json", *arguments),
        ]
        outputs = [tmp_path / f"agent-{agent}.txt" for agent in range(agents)]
        for output in outputs:
            with output.open("w") as stream:
                started.append(
                    subprocess.Popen(
                        command, cwd=tmp_path, stdout=stream, stderr=stream, start_new_session=True
                    )
                )
        statuses = [process.wait(LONG_S) for process in started]
        return Ran(tmp_path, statuses, [output.read_text() for output in outputs])

    return run


# --- exit statuses, with launcher variables set by hand --------------------------------------------------------

PLAIN = """
import pathlib
import time

import pytest

pytestmark = pytest.mark.cpux2


def test_passes():
    pass


def test_leaves():
    pytest.exit("enough", returncode=9)


def test_waits():
    pathlib.Path("waiting").touch()
    time.sleep(600)
"""


@pytest.fixture
def ranks(tmp_path: Path, clean: None, started: list[subprocess.Popen[str]]) -> Callable[..., list]:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_plain.py").write_text(PLAIN)

    def start(*arguments: str) -> list[subprocess.Popen[str]]:
        variables = {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(free_port()),
        }
        started.extend(
            subprocess.Popen(
                [sys.executable, "-m", "pytest", *PLUGINS, "-m", "cpux2", *arguments],
                cwd=tmp_path,
                env={**os.environ, **variables, "RANK": rank, "LOCAL_RANK": rank},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for rank in "01"
        )
        return started

    return start


# Tests that pass and tests that fail are those of torchrun, below.
@pytest.mark.slow
@pytest.mark.rehearsal
@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["-k", "leaves"], 9), (["no_such_file.py"], pytest.ExitCode.USAGE_ERROR), (["--collect-only"], 0)],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_rank_leaves_with_the_status_of_the_session_and_one_prints(ranks, arguments, status):
    first, second = ranks(*arguments)
    outputs = [first.communicate(timeout=LONG_S)[0], second.communicate(timeout=LONG_S)[0]]
    assert [first.returncode, second.returncode] == [status, status], outputs
    assert "test session starts" in outputs[0]
    assert outputs[1] == ""


@pytest.mark.slow
def test_terminated_session_reports_and_all_ranks_leave(ranks, tmp_path):
    first, second = ranks("-k", "passes or waits", "--junitxml=out.xml")
    deadline = time.monotonic() + LONG_S
    while not (tmp_path / "waiting").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in (first, second):
        process.terminate()
    outputs = [first.communicate(timeout=LONG_S)[0], second.communicate(timeout=LONG_S)[0]]
    assert [first.returncode, second.returncode] == [pytest.ExitCode.INTERRUPTED] * 2, outputs
    assert "1 passed" in outputs[0]
    assert outputs[1] == ""
    assert 'name="test_passes"' in (tmp_path / "out.xml").read_text()


# --- torchrun ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.rehearsal
def test_two_nodes_are_one_session_and_a_killed_rank_fails_its_item_alone(torchrun):
    ran = torchrun("-m", "cpun2", agents=2)
    assert ran.statuses == [1, 1], ran.printed  # torchrun's own status for ranks that left with 1
    assert ran.junit() == {"test_first": "passed", "test_killed": "failure", "test_last": "passed"}, (
        ran.printed
    )
    assert ran.benchmarks() == ["test_first", "test_last"]
    assert ran.printed.count("test session starts") == 1
    assert ran.printed.count("2 no baseline, 1 failed") == 1
    assert "SIGKILL" in ran.printed
    assert "cpun2" in ran.printed
    files = {path.name for path in ran.folder.iterdir()}
    assert {"first-0-of-2", "first-1-of-2", "last-0", "last-1"} <= files
    exits = [
        line.split("exitcode  : ")[1].split()[0] for line in ran.printed.splitlines() if "exitcode  :" in line
    ]
    assert exits == ["1", "1"]  # of the ranks themselves
    assert ran.left_behind() == []
