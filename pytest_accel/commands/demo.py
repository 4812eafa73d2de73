"""`pytest-accel demo`: record a baseline, judge against it, and catch an injected slowdown, in a small new project."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from pytest_accel.commands.registry import argument, command
from pytest_accel.commands.runner import runner_environment
from pytest_accel.report.terminal import fitted, line_text
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.quantities import si
from pytest_accel.stats.results import Ending, Result
from pytest_accel.storage.results import read_results

# A step that computes would be slower by the load of the moment; a sleep keeps its length, in every process.
FILES = {
    "test_demo.py": """\
import time

from pytest_accel import cpu


# It waits, as for a device: a wait lasts equally long on a busy machine. A step of yours computes.
@cpu
def test_wait(accel):
    accel.measure(lambda: time.sleep(0.03), work=1, unit="steps")
""",
    "pytest.ini": """\
[pytest]
# Time for the rounds of one run, and the loss that passes: 5 s and 5 % are the defaults, for real steps.
accel_budget = 500ms
accel_tolerance = 20%
""",
}


@command(
    argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("pytest-accel-demo"),
        metavar="FOLDER",
        help="where the project is written (pytest-accel-demo)",
    ),
    example="demo /tmp/try",
)
def demo(args: argparse.Namespace) -> int:
    """Record a baseline and catch a slowdown, in a small new project.

    It needs no torch and no GPU, and takes half a minute, one or two on a busy machine. Exit status 1 where a verdict is
    not the expected one.
    """
    folder: Path = args.folder
    _write_project(folder)
    shown = shlex.quote(str(folder))
    _say(f"{shown} has one benchmark, test_demo.py, and its settings, pytest.ini.\n")
    print(f"$ cd {shown}")
    has_page = all(map(find_spec, ("jinja2", "plotly")))
    slow = ("--accel-slowdown=50%", *(["--accel-report=report.html"] if has_page else []))
    steps = (
        (
            "Three runs, each in a fresh process, become the baseline.",
            ("--accel-record=3",),
            {Ending.RECORDED},
        ),
        ("The benchmark is measured again and judged against it.", (), {Outcome.OK, Outcome.IMPROVED}),
        ("Every step takes twice as long: the test fails.", slow, {Outcome.REGRESSED}),
    )
    missed = []
    for text, options, expected in steps:
        _say(f"\n# {text}")
        if _pytest(folder, options).status not in expected:
            missed.append(text)
    if has_page:
        _say(f"\nThe page of the last session, for a browser: {shlex.quote(str(folder / 'report.html'))}")
    if missed:
        _say(
            f"Not as expected: {' '.join(missed)} `pytest-accel doctor` shows what disturbs this machine. "
            f"Remove {shown}, and try again."
        )
        return 1
    _say(
        "Next: `pytest-accel doctor` names the platforms of this machine; mark a test of yours with one of them."
    )
    return 0


def _say(text: str) -> None:
    print("\n".join(fitted(text.split("\n"))), flush=True)


def _write_project(folder: Path) -> None:
    """Write the files of the project into a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty. Remove it, or name a new folder.")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")


def _pytest(folder: Path, options: tuple[str, ...]) -> Result:
    """Run pytest there, print its command and verdict, and return its result; ValueError where it measured nothing."""

    print(f"$ {shlex.join(['pytest', *options])}", flush=True)
    # Settings of the reader's own project would move the baselines, or judge otherwise.
    environ = {name: value for name, value in runner_environment().items() if not name.startswith("PYTEST_")}
    file = folder.resolve() / ".accel" / "results.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *options, f"--accel-json={file}"]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    results = read_results(file).results if file.exists() else ()
    if not results:
        print(done.stdout + done.stderr, end="")
        raise ValueError("pytest measured nothing; its output is above.")
    result = results[0]
    throughput = f"{si(result.throughput)} {result.unit}/s" if result.throughput else "not measured"
    for line in result.lines:
        if line.status is not None:
            _say(f"    {line_text(result.label, line)}")
    _say(f"    {throughput}; exit status {done.returncode}")
    return result
