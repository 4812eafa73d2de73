"""`pytest-accel compile` with real processes: side by side, again alone, ended in time, and nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_accel.cli import main
from tests.support.processes import finished, left_in

LONG_S = 300.0  # of waiting for a process; only a broken test waits so long

# torch's cache, as it is after compiling: importing torch for it would take seconds.
COMPILER = """
import os
import pathlib
import signal
import time

import pytest

from pytest_accel import cpu, cpux2, h200

CACHE = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "ab")


def compiles(name):
    with pathlib.Path(f"steps-{name}").open("a") as file:
        file.write(f"child of {os.getppid()}\\n")
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / f"{name}.best_config").write_text("{}")
    (CACHE / f"{name}.py").write_text("")


def measure(accel, name):
    accel.measure(lambda: compiles(name), work=1, unit="graphs")
"""
ENDS = """
@cpu
def test_good(accel):
    measure(accel, "good")


@cpu
def test_crowded(accel):
    seen = pathlib.Path("seen")
    if not seen.exists():
        seen.touch()
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
    measure(accel, "crowded")


@cpu
def test_huge(request, accel):
    request.node.user_properties.append(("accel.verdict", "does-not-fit"))
    pytest.skip("does not fit")


@cpu
def test_broken(accel):
    assert False, "the shape does not fit the plan"


@cpu
def test_killed(accel):
    os.kill(os.getpid(), signal.SIGKILL)


@h200
def test_elsewhere(accel):
    measure(accel, "elsewhere")


def test_no_benchmark():
    pathlib.Path("steps-none").touch()
"""
SLEEPS = """
def sleep(name):
    compiles(name)
    time.sleep(600)


@cpu
@pytest.mark.parametrize("name", ["one", "two"])
def test_slow(accel, name):
    accel.measure(lambda: sleep(name), work=1, unit="naps")
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A project of one file, in which the command then runs; nothing of it is left running."""
    root = tmp_path.resolve()
    monkeypatch.chdir(root)
    monkeypatch.setenv(
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"
    )  # other plugins cost a third of a second in each process
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p tests.support.quick_sessions -p benchmark -p accel")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root / "cache"))
    (root / "pytest.ini").write_text("[pytest]\n")

    def write(text):
        (root / "test_suite.py").write_text(COMPILER + text)
        return root

    yield write
    assert left_in(root) == []


def in_cache(root):
    return {path.name for path in (root / "cache/ab").iterdir()}


def test_every_outcome_has_its_line_and_what_failed_beside_others_is_tried_again(suite, capsys):
    root = suite(ENDS)
    chosen = root / "cache/ab/of-a-session.best_config"
    chosen.parent.mkdir(parents=True)
    chosen.touch()
    os.utime(chosen, (1, 1))
    assert main(["compile", "--jobs", "5", "--", "test_suite.py"]) == 1
    said = capsys.readouterr().err
    beside, _, alone = said.partition("compiling, one after the other")
    again = set(re.findall(r"test_(\w+): failed, and is tried again alone", beside))
    assert again == {"crowded", "huge", "broken", "killed"}
    lines = re.findall(r"^\[\d/5\] test_suite\.py::test_(\w+): ([\w ]+), \d", said, re.MULTILINE)
    assert dict(lines) == {
        "good": "built",
        "crowded": "built",
        "huge": "does not fit on the device",
        "broken": "failed",
        "killed": "failed",
    }
    assert "killed by SIGKILL" in alone
    assert "AssertionError: the shape does not fit the plan" in alone
    assert "5 benchmarks: 3 built, 2 failed; " in said
    assert f"torch keeps what it compiles in {root / 'cache'} (" in said
    assert "by hand: pytest test_suite.py::test_" in said
    # One step of each, and none of what was not selected.
    steps = {path.name.removeprefix("steps-"): path.read_text() for path in root.glob("steps-*")}
    assert steps == dict.fromkeys(("good", "crowded"), f"child of {os.getpid()}\n")
    # What was tuned beside other processes is forgotten; what an earlier session chose stays.
    assert in_cache(root) == {"good.py", "crowded.py", chosen.name}


def test_options_that_write_files_or_measure_do_not_reach_the_processes(suite, capsys, monkeypatch):
    root = suite(ENDS)
    (root / "pytest.ini").write_text("[pytest]\naddopts = --accel-json=of-ini.json -v\n")
    added = "--accel-report=of-environment.txt --junitxml=of-environment.xml --log-file=of-environment.log"
    monkeypatch.setenv("PYTEST_ADDOPTS", f"-p tests.support.quick_sessions -p benchmark -p accel {added}")
    words = ["-q", "--co", "--junitxml=of-words.xml", "--accel-require", "--benchmark-enable", "-k", "good"]
    assert main(["compile", "--", *words, "--", "test_suite.py"]) == 0
    assert "1 benchmark: 1 built" in capsys.readouterr().err
    assert list(root.glob("of-*")) == []
    assert (root / "steps-good").read_text() == f"child of {os.getpid()}\n"


def test_benchmark_that_takes_too_long_is_ended_and_delays_no_other(suite, capsys):
    deaf = "def test_deaf(accel):\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n    time.sleep(600)\n"
    suite(ENDS + f"\n\n@cpu\n{deaf}")
    (Path.cwd() / "conftest.py").write_text(
        "def pytest_collection_modifyitems(items):\n    items.sort(key=lambda item: item.name != 'test_deaf')\n"
    )
    program = (
        "import sys\nfrom pytest_accel.cli import main\nfrom pytest_accel.commands import runner\n"
        "runner._STOPS = ((runner.signal.SIGINT, 0.5), (runner.signal.SIGKILL, 5.0))\n"
        "sys.exit(main(['compile', '--jobs', '2', '--timeout', '6s', '--', 'test_suite.py', '-k', 'deaf or good']))"
    )
    done = finished(sys.executable, "-c", program)
    assert done.returncode == 1, done.stderr
    assert done.stderr.index("test_good: built") < done.stderr.index("test_deaf: failed")
    assert "    it took too long and was ended" in done.stderr


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (
            "",
            ["-k", "elsewhere"],
            "no benchmark was found that this machine can run. Name what to compile after --",
        ),
        ("import nothing_of_this_name", [], "pytest could not collect; see above."),
    ],
)
def test_nothing_to_compile_is_one_error(suite, capsys, text, words, message):
    root = suite(ENDS)
    (root / "test_other.py").write_text(text)
    assert main(["compile", "--", "test_suite.py", "test_other.py", *words]) == 2
    said = capsys.readouterr().err
    assert message in said.splitlines()[-1]
    assert ("nothing_of_this_name" in said) == bool(text)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_end_of_the_command_ends_its_processes(suite, end):
    root = suite(SLEEPS)
    program = "import sys; from pytest_accel.cli import main; sys.exit(main(['compile', '--jobs', '2', '--', 'test_suite.py']))"
    command = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + LONG_S
    while not all((root / f"cache/ab/{name}.py").exists() for name in ("one", "two")):
        assert time.monotonic() < deadline_s
        assert command.poll() is None
        time.sleep(0.05)
    command.send_signal(end)
    _, said = command.communicate(timeout=LONG_S)
    assert left_in(root) == []
    if end is not signal.SIGKILL:
        assert command.returncode == 2
        assert "interrupted after 0 of 2 benchmarks. What was compiled stays." in said
        assert in_cache(root) == {"one.py", "two.py"}


@pytest.mark.rehearsal
def test_torch_compiles_once_and_finds_it_again(suite):
    """The real compiler: a minute of it."""
    pytest.importorskip("torch")
    root = suite(
        "\n\n@cpu\ndef test_gpt(train):\n"
        "    train('zoo/gpt-tiny', batch_size=2, precision='fp32', compile='default', sequence=32, "
        "model_options={'layers': 1})\n"
    )
    found = []
    for _ in range(2):
        assert main(["compile", "--", "test_suite.py"]) == 0
        found.append({path.relative_to(root) for path in (root / "cache").glob("fxgraph/**/*")})
    assert found[0]
    assert found[1] == found[0]


@pytest.mark.rehearsal
def test_ranks_of_a_distributed_benchmark_compile(suite, capsys):
    root = suite("\n\n@cpux2\ndef test_both(accel, rank):\n    measure(accel, f'rank-{rank}')\n")
    assert main(["compile", "--jobs", "2", "--", "test_suite.py"]) == 0
    assert "[1/1] test_suite.py::test_both: built, " in capsys.readouterr().err
    assert in_cache(root) == {"rank-0.py", "rank-1.py"}
