"""Suites of tiny steps, baselines made to order, and pytest run on them.

No test here hopes for a timing. A baseline is recorded once a session, and its rounds are multiplied
until the verdict is beyond doubt; where that is not enough, a suite runs on a clock that its own
steps move (`bench.virtual_clock`).
"""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# pytester forgets what a run imported: without this every one would make hundreds of dataclasses anew.
import pytest_accel.report.markdown
import pytest_accel.session.session
import pytest_accel.session.worker_process
import pytest_accel.storage.history  # noqa: F401 - as the others
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.stats.environment import fingerprint
from tests.support import quick_sessions
from tests.support.processes import inherited, left_in

# Other plugins of this environment cost a second in every process.
PLUGINS = ("-p", quick_sessions.__name__, "-p", "benchmark", "-p", "accel")
QUICK = ("--accel-budget=30ms", "-oaccel_warmup=20ms")
LONG_S = 120.0  # of waiting for a process; only a broken test waits so long

PREAMBLE = """
import os
import pathlib
import sys
import time

import pytest

pytestmark = pytest.mark.cpu
FRESH = "addopts=" in sys.argv  # in a process started for one run


def note(file, text):
    with open(file, "a") as stream:
        stream.write(f"{text}\\n")


def session_pid():  # the parent of a worker is its supervisor
    return int(pathlib.Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def measure(accel, step=lambda: sum(range(2000)), **options):
    note(f"pids-{accel.item.name}", os.getpid())
    return accel.measure(step, **{"work": 2000, "unit": "numbers", **options})
"""

# A step takes as long as `clock.step_s` says, and nothing else takes any time.
VIRTUAL_CLOCK = """
import types

import pytest


import pytest_accel.measure.rounds


class Clock:
    def __init__(self):
        self.now_s = 0.0
        self.step_s = 0.001

    def step(self):
        self.now_s += self.step_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    ours = types.SimpleNamespace(perf_counter=lambda: clock.now_s, process_time=lambda: clock.now_s)
    monkeypatch.setattr(pytest_accel.measure.rounds, "time", ours)
    return clock
"""


@dataclass(frozen=True, slots=True)
class Template:
    """A baseline file that was really recorded: of `test_suite.py::test_step`, one run."""

    platform: str
    content: dict[str, Any]

    @property
    def entry(self) -> dict[str, Any]:
        return next(iter(self.content["benchmarks"].values()))


def environment() -> dict[str, str]:
    """The environment of a project of its own: these tests may run in somebody's CI."""
    kept = inherited("PYTEST_ACCEL_", "GITHUB_", "CI_", "PYTEST_ADDOPTS", "COLUMNS")
    return {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    folder = tmp_path_factory.mktemp("template")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_suite.py").write_text(PREAMBLE + "\n\ndef test_step(accel):\n    measure(accel)\n")
    subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGINS, *QUICK, "--accel-record=1"],
        cwd=folder,
        env=environment(),
        check=True,
        capture_output=True,
        timeout=LONG_S,
    )
    (path,) = (folder / "baselines").glob("*/suite.json")
    return Template(path.parent.name, json.loads(path.read_text()))


class Ran(pytest.RunResult):
    """A session whose benchmarks, which pytest's last line counts by their verdicts, are counted as tests again."""

    def parseoutcomes(self) -> dict[str, int]:
        found = super().parseoutcomes()  # of a verdict the first word
        verdicts = {row.count.partition(" ")[0] for row in VERDICTS.values()} - {"failed", "skipped", "does"}
        run = sum(found.pop(word, 0) for word in (*verdicts, "failed", "passed"))
        listed = sum(
            re.match(r"FAILED \S", line) is not None for line in self.outlines
        )  # unless -r says otherwise
        failed = max(listed, super().parseoutcomes().get("failed", 0))
        return {**found, "failed": failed, "passed": run - failed}


@dataclass(slots=True)
class Bench:
    """A project with benchmarks in `test_suite.py`."""

    pytester: pytest.Pytester | None  # for runs in this process
    template: Template
    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    # What the stored step times were, against those measured now.
    SAME = 1.0  # with TOLERANT: ok, whatever this machine is busy with
    FASTER = 1e-3  # so that now regressed, whatever this machine was busy with
    SLOWER = 1e3
    APART = (FASTER, SLOWER)  # two runs that say nothing: inconclusive
    TOLERANT = "--accel-tolerance=99%"

    # --- the suite ------------------------------------------------------------------------------

    def write(self, source: str) -> None:
        """Write `test_suite.py`: `measure(accel)` measures a tiny step and notes the process."""
        self.path("test_suite.py").write_text(PREAMBLE + "\n\n" + textwrap.dedent(source))

    def benchmarks(self, *names: str) -> None:
        self.write("\n\n".join(f"def {name}(accel):\n    measure(accel)\n" for name in names))

    def virtual_clock(self) -> None:
        """Give the suite a fixture `clock` whose `step` takes exactly `step_s`."""
        self.path("conftest.py").write_text(VIRTUAL_CLOCK)

    # --- its baseline ---------------------------------------------------------------------------

    @property
    def baseline_path(self) -> Path:
        return self.folder / "baselines" / self.template.platform / "suite.json"

    def baseline(self, **factors: float | Sequence[float]) -> None:
        """Store recorded runs for benchmarks by name, their rounds multiplied; a run for each factor."""
        content = json.loads(json.dumps(self.template.content))
        content["benchmarks"] = {
            f"test_suite.py::{name}": self._entry([factor] * 3 if isinstance(factor, float) else factor)
            for name, factor in factors.items()
        }
        self.save_baseline(content)

    def virtual_baseline(self, **steps_s: float) -> None:
        """Store three runs whose rounds took exactly so long, for benchmarks on a virtual clock."""
        self.baseline(**dict.fromkeys(steps_s, self.SAME))
        content = self.load_baseline()
        for name, step_s in steps_s.items():
            for run in content["benchmarks"][f"test_suite.py::{name}"]["runs"]:
                run["rounds_s"] = [step_s] * 6
        self.save_baseline(content)

    def _entry(self, factors: Sequence[float]) -> dict[str, Any]:
        entry = json.loads(json.dumps(self.template.entry))
        (run,) = entry["runs"]
        for name in (
            "cpu_wait_s_per_step",
            "other_cpu_share",
        ):  # or the load of this machine would be a cause
            run["metrics"].pop(name, None)
        entry["runs"] = [
            {**run, "rounds_s": [factor * seconds for seconds in run["rounds_s"]]} for factor in factors
        ]
        return entry

    def load_baseline(self) -> dict[str, Any]:
        return json.loads(self.baseline_path.read_text())

    def save_baseline(self, content: dict[str, Any]) -> None:
        self.baseline_path.parent.mkdir(parents=True, exist_ok=True)
        self.baseline_path.write_text(json.dumps(content))

    def entry(self, name: str) -> dict[str, Any]:
        return self.load_baseline()["benchmarks"][f"test_suite.py::{name}"]

    def doctor_environment(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the stored environment, with the key that its content then has."""
        content = self.load_baseline()
        ((_, environment),) = content["environments"].items()
        change(environment)
        key = fingerprint(environment)
        content["environments"] = {key: environment}
        for entry in content["benchmarks"].values():
            for run in entry["runs"]:
                run["environment"] = key
        self.save_baseline(content)

    # --- running --------------------------------------------------------------------------------

    def run(self, *arguments: str) -> pytest.RunResult:
        """Run pytest and the first run of benchmarks in this process; repeats are still processes."""
        return self.run_with_workers("--accel-in-process", *arguments)

    def run_with_workers(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in this process and benchmarks in workers, as users do."""
        ran = self.pytester.runpytest_inprocess(*PLUGINS, *QUICK, *arguments)
        return Ran(ran.ret, ran.outlines, ran.errlines, ran.duration)

    def refuses(self, said: str, *arguments: str) -> None:
        """Run pytest: a usage error without a traceback, before anything is measured."""
        result = self.run(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([said])
        result.stderr.no_fnmatch_line("*Traceback*")
        assert list(self.folder.glob("pids-*")) == []

    def run_apart(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in a process of its own, which also takes the first run of benchmarks."""
        start_s = time.monotonic()
        out, err = self.path("stdout.txt"), self.path("stderr.txt")
        with out.open("w") as stdout, err.open("w") as stderr:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *PLUGINS, *QUICK, "--accel-in-process", *arguments],
                cwd=self.folder, env=environment(), stdout=stdout, stderr=stderr, check=False, timeout=LONG_S,
            )  # fmt: skip
        lines = [path.read_text(errors="replace").splitlines() for path in (out, err)]
        return Ran(done.returncode, *lines, time.monotonic() - start_s)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start pytest and go on."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *PLUGINS, *QUICK, "--accel-in-process", *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def wait_for(self, file: str, process: subprocess.Popen[str]) -> None:
        """Until the suite has written a file."""
        deadline = time.monotonic() + LONG_S
        while not self.path(file).exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                pytest.fail(f"{file} was never written:\n{process.communicate()[0]}")
            time.sleep(0.05)

    # --- what it left ---------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        return self.folder / name

    def processes(self, name: str) -> list[int]:
        """The processes that measured a benchmark, in order."""
        path = self.path(f"pids-{name}")
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def left_behind(self) -> list[str]:
        """Processes that go on working in the project's folder."""
        return left_in(self.folder)

    def json(self, name: str = "out.json") -> dict[str, Any]:
        return json.loads(self.path(name).read_text())

    def accel_info(self, of: str = "") -> dict[str, Any]:
        """What the JSON of pytest-benchmark has of ours, of one benchmark."""
        (found,) = [each for each in self.json()["benchmarks"] if of in ("", each["name"])]
        return found["extra_info"]["accel"]

    def verdicts(self, of: str = "") -> dict[str, dict[str, Any]]:
        """The verdicts of one benchmark in the results of --accel-json=a.json, by metric."""
        (found,) = [each for each in self.json("a.json")["results"] if each["benchmark"].endswith(of)]
        return {each.get("of", "throughput"): each for each in found["verdicts"]}

    def junit(self, name: str = "out.xml") -> ET.Element:
        return ET.parse(self.path(name)).getroot()

    def testcase(self, name: str) -> ET.Element:
        (found,) = [case for case in self.junit().iter("testcase") if case.get("name") == name]
        return found

    def properties(self, name: str) -> dict[str, str]:
        """What JUnit says of a test beside its outcome, each once."""
        listed = [(each.get("name"), each.get("value")) for each in self.testcase(name).iter("property")]
        assert len(dict(listed)) == len(listed)
        return dict(listed)


@pytest.fixture
def bench(pytester: pytest.Pytester, template: Template, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for name in os.environ.keys() - environment().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\n")
    made = Bench(pytester, template, pytester.path)
    yield made
    quick_sessions.undo()
    for process in made.started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def shared(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A project whose one session several tests read; it runs with `run_apart`."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "pytest.ini").write_text("[pytest]\n")
    return Bench(None, template, folder)
