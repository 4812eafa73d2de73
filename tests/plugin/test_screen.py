"""What a terminal shows, on a real one of 80, 120 and 200 columns; progress, dots and repeats."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from pytest_accel.session.outputs import Outputs
from tests.plugin.conftest import LONG_S, PLUGINS, QUICK, environment

WIDTHS = (80, 120, 200)
REPOSITORY = Path(__file__).parents[2]
LONG = "test_step[a-configuration-that-takes-more-than-half-of-80-columns]"
# The live line behind pytest's or below it, erased again.
_LIVE = re.compile(r"\r?\n\x1b\[K[^\n]*?\r\x1b\[A(?:\x1b\[\d+C)?", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")


def on_terminal(folder: Path, columns: int, *command: str) -> str:
    """Return what a program writes on a pseudo-terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    variables = {name: value for name, value in environment().items() if name != "CI"}
    with subprocess.Popen(
        [sys.executable, *command], cwd=folder, env=variables, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        written = bytearray()
        while chunk := _read(ours):
            written += chunk
        process.wait(LONG_S)
    os.close(ours)
    return written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 2**16)
    except OSError:  # the other end is closed
        return b""


def lines(written: str) -> list[str]:
    """Return what stays on the screen."""
    plain = _COLOUR.sub("", _LIVE.sub("", written)).replace("\r\n", "\n")
    return [line.rpartition("\r")[2] for line in plain.split("\n")]


def too_wide(shown: list[str], columns: int) -> list[str]:
    """Return lines that wrap, but for the command to copy and lines of pytest and pytest-benchmark."""
    own = [
        line
        for line in shown
        if not line.startswith(("    pytest ", "benchmark: ", "FAILED test")) and " -m pytest " not in line
    ]
    return [line for line in own if len(line) > columns]


@pytest.fixture(scope="module")
def project(shared):
    shared.write(
        """
        @pytest.mark.parametrize("size", ["800m", "a-configuration-that-takes-more-than-half-of-80-columns"])
        def test_step(accel, size):
            measure(accel)

        def test_slower(accel):
            measure(accel)
        """
    )
    shared.baseline(**{"test_slower": shared.FASTER, LONG: shared.SAME})
    return shared


@pytest.fixture(scope="module")
def screens(project):
    """A session at each width; it leaves a history."""
    command = ("-m", "pytest", *PLUGINS, *QUICK, "--accel-repeats=1", "--accel-inconclusive=fail")
    return {columns: on_terminal(project.folder, columns, *command) for columns in WIDTHS}


@pytest.mark.parametrize("columns", WIDTHS)
def test_session_fits_the_terminal(screens, columns):
    shown = lines(screens[columns])
    assert too_wide(shown, columns) == []
    (header,) = [line for line in shown if line.startswith("benchmark  ")]
    assert header.split()[:2] == ["benchmark", "verdict"]
    rows = shown[shown.index(header) + 1 :][:3]
    assert all(re.match(r"test_\S+  +\S+", row) for row in rows)
    left_out = [line for line in shown if line.startswith("No room for: ")]
    assert len(left_out) == (columns < 200)
    assert ("warm-up" in header) == (columns == 200)


def test_progress_names_benchmark_and_phase(screens):
    for phase in ("starting a process", "building", "first step", "warming up", "measuring, 0:00 left"):
        assert f" test_step[800m]: {phase}" in screens[200]
    assert re.search(r" test_slower: first step; about 0:\d\d left of the session", screens[200])


def test_progress_is_below_a_line_that_is_full(project):
    written = on_terminal(project.folder, 80, "-m", "pytest", *PLUGINS, *QUICK, "-v", "--accel-repeats=1")
    below = re.findall(r"\n\x1b\[K([^\n]*?)\r\x1b\[A\x1b\[79C", written)
    assert any(": warming up" in text for text in below)
    assert below[-1] == "", "it is erased"
    (first,) = [line for line in lines(written) if line.startswith("test_suite.py::test_step[800m] ")]
    assert first.endswith("[ 33%]")


SHOW = ("baseline", "show", "--baselines", str(REPOSITORY / "baselines"))
COMMANDS = (
    SHOW,
    ("compare", "h200", str(REPOSITORY / "baselines/h200"), "--baselines", str(REPOSITORY / "baselines")),
    ("history",),
    ("history", "test_step[800m]"),
    ("doctor",),
)


def test_commands_fit_the_narrowest_terminal(screens, project):
    program = (
        "import sys\nfrom pytest_accel.cli import main\n"
        f"for command in {COMMANDS}:\n    main(list(command))\n    print('END', flush=True)"
    )
    shown = lines(on_terminal(project.folder, WIDTHS[0], "-c", program))
    assert too_wide(shown, WIDTHS[0]) == []
    *printed, _ = "\n".join(shown).split("END")
    assert len([text for text in printed if text.strip()]) == len(COMMANDS)
    assert "No room for: " in printed[0]


# --- dots, repeats, and what belongs to a verdict -----------------------------------------------------


def test_dots_are_in_order_and_repeats_have_a_line_of_their_own(bench):
    bench.benchmarks("test_open", "test_quick", "test_slow")
    bench.baseline(test_open=bench.FASTER, test_slow=bench.FASTER)
    result = bench.run("--accel-repeats=2")
    at = result.outlines.index(next(line for line in result.outlines if line.startswith("test_suite.py ")))
    assert result.outlines[at].split()[1] == "rnr"
    assert re.match(r"measured again: FF +\[100%\]$", result.outlines[at + 1])


def test_repeats_in_verbose_output_are_named_as_their_verdicts(bench):
    bench.benchmarks("test_slow")
    bench.baseline(test_slow=bench.FASTER)
    result = bench.run("-v", "--accel-repeats=2")
    result.stdout.fnmatch_lines(
        ["test_suite.py::test_slow REPEATED BELOW*", "test_suite.py::test_slow FAILED*"]
    )
    assert not any(line.startswith("measured again") for line in result.outlines)


FINDINGS = (
    {"group": "load", "subject": "other work", "level": "problem", "text": "54 % busy", "of": ""},
    {"group": "disk", "subject": "temporary", "level": "warning", "text": "full", "of": ""},
)


@pytest.mark.parametrize("is_open", [True, False])
def test_doctor_is_asked_where_a_verdict_is_inconclusive(bench, monkeypatch, is_open):
    asked = []

    def examine(outputs):
        asked.append(1)
        outputs.findings = FINDINGS

    monkeypatch.setattr(Outputs, "examine", examine)
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.APART if is_open else bench.SAME)
    result = bench.run("--accel-repeats=1", *([] if is_open else [bench.TOLERANT]))
    assert len(asked) == is_open
    shown = [line for line in result.outlines if line.startswith("doctor: ")]
    assert shown == (["doctor: other work: 54 % busy"] if is_open else [])


@pytest.mark.parametrize(
    "place", ["def process_group():", "def early():", "def late(accel):"], ids=["group", "early", "late"]
)
def test_benchmark_that_failed_before_measuring_brings_no_warning(bench, place):
    bench.pytester.makeconftest(f"import pytest\n\n@pytest.fixture\n{place}\n    raise OSError('no')\n")
    name = place.split()[1].partition("(")[0]
    bench.write(f"def test_step({name}, accel):\n    measure(accel)\n")
    result = bench.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("*PytestBenchmarkWarning*")


# --- the table of pytest-benchmark --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "is_shown"),
    [
        ([], False),
        (["--benchmark-columns=min,max"], True),
        (["-vv"], True),
    ],
)
def test_table_of_pytest_benchmark_has_our_benchmarks_only_on_request(bench, arguments, is_shown):
    bench.write(
        """
        def test_ours(accel):
            measure(accel)

        def test_plain(benchmark):
            benchmark.pedantic(lambda: None, rounds=2)
        """
    )
    bench.path("test_suite.py").write_text(
        bench.path("test_suite.py").read_text().replace("pytestmark = pytest.mark.cpu\n", "")
        .replace("def test_ours", "@pytest.mark.cpu\ndef test_ours")
    )  # fmt: skip
    result = bench.run("--benchmark-json=out.json", *arguments)
    begin = next(at for at, line in enumerate(result.outlines) if re.match(r"-+ benchmark: ", line))
    names = [line.split()[0] for line in result.outlines[begin:] if re.match(r"test_\w+ +[\d.,]+ ", line)]
    assert sorted(names) == (["test_ours", "test_plain"] if is_shown else ["test_plain"])
    assert len(bench.json()["benchmarks"]) == 2
