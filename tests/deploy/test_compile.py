"""`pytest-accel compile` with real processes: side by side, again alone, ended in time, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_accel.cli import main

LONG_S = 300.0  # of waiting for a process; only a broken test waits so long

PLAIN = """
from pytest_accel import cpu, h200


@cpu
def test_step(accel):
    accel.measure(lambda: sum(range(10)), work=1, unit="sums")


@h200
def test_elsewhere(accel):
    accel.measure(lambda: sum(range(10)), work=1, unit="sums")


def test_no_benchmark():
    raise AssertionError("it was not asked for")
"""
# torch's counters and its folder of caches, as they are after compiling; importing torch for them would take seconds.
COMPILER = """
import collections
import pathlib
import sys
import types

from pytest_accel import cpu

CACHE = pathlib.Path(__file__).parent / "cache"


def compiles(hits, misses):
    counted = collections.Counter(fxgraph_cache_hit=hits, fxgraph_cache_miss=misses)
    sys.modules["torch._dynamo.utils"] = types.SimpleNamespace(counters={"inductor": counted, "aot_autograd": collections.Counter()})
    sys.modules["torch._inductor.runtime.cache_dir_utils"] = types.SimpleNamespace(cache_dir=lambda: str(CACHE))
    (CACHE / "ab").mkdir(parents=True, exist_ok=True)
    (CACHE / "ab" / f"{hits}-{misses}.best_config").write_text("{}")
    (CACHE / "ab" / f"{hits}-{misses}.py").write_text("")


@cpu
def test_new(accel):
    accel.measure(lambda: compiles(1, 2), work=1, unit="graphs")


@cpu
def test_known(accel):
    accel.measure(lambda: compiles(3, 0), work=1, unit="graphs")
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A project of one file, and the command in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def write(text):
        (tmp_path / "test_suite.py").write_text(text)
        return tmp_path

    return write


def test_what_can_run_here_is_built_and_nothing_is_measured(suite, capsys):
    suite(PLAIN)
    assert main(["compile", "--", "test_suite.py"]) == 0
    said = capsys.readouterr().err
    assert "[1/1] test_suite.py::test_step: built, nothing to compile" in said
    assert "1 benchmark: 1 built, nothing to compile; " in said
    assert "elsewhere" not in said
    assert not Path("baselines").exists()


def test_what_was_compiled_and_what_was_there(suite, capsys):
    root = suite(COMPILER)
    old = root / "cache/ab/of-before.best_config"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    os.utime(old, (1, 1))
    assert main(["compile", "--jobs", "2", "--", "test_suite.py"]) == 0
    said = capsys.readouterr().err
    assert "test_suite.py::test_new: compiled, " in said
    assert "test_suite.py::test_known: compiled before, " in said
    assert "2 benchmarks: 1 compiled, 1 compiled before; " in said
    assert f"Kept in {root / 'cache'}; TORCHINDUCTOR_CACHE_DIR" in said
    # Tuned beside others is tuned wrong; what a session tuned that was alone stays.
    assert sorted(path.name for path in old.parent.iterdir()) == ["1-2.py", "3-0.py", "of-before.best_config"]


def test_one_that_fails_and_one_that_finds_no_room_beside_others(suite, capsys):
    suite(
        """
        import pathlib

        from pytest_accel import cpu


        @cpu
        def test_crowded(accel):
            seen = pathlib.Path("seen")
            if not seen.exists():
                seen.touch()
                raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
            accel.measure(lambda: sum(range(10)), work=1, unit="sums")


        @cpu
        def test_broken(accel):
            accel.measure(lambda: 1 / 0, work=1, unit="sums")
        """.replace("\n        ", "\n")
    )
    assert main(["compile", "--jobs", "2", "--", "test_suite.py"]) == 1
    said = capsys.readouterr().err
    first, again = said.index("test_crowded: no room on the device"), said.index("test_crowded: built")
    assert first < again
    assert "compiling, one after the other" in said[first:again]
    assert "test_broken: failed" in said
    assert "ZeroDivisionError" in said
    assert "2 benchmarks: 1 built, nothing to compile, 1 failed; " in said


def test_options_that_write_files_do_not_reach_the_processes(suite, capsys, monkeypatch):
    root = suite(PLAIN)
    (root / "pytest.ini").write_text("[pytest]\naddopts = --accel-json=of-ini.json -v\n")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--accel-metrics=of-environment.txt")
    assert (
        main(["compile", "--", "-q", "--junitxml=of-words.xml", "--accel-require", "--", "test_suite.py"])
        == 0
    )
    assert "1 benchmark: 1 built" in capsys.readouterr().err
    assert sorted(path.name for path in root.iterdir() if path.name.startswith("of-")) == []


def test_one_that_takes_too_long_is_ended(suite, capsys):
    suite(PLAIN.replace("sum(range(10))", "__import__('time').sleep(600)"))
    begun_s = time.monotonic()
    assert main(["compile", "--timeout", "15s", "--", "test_suite.py"]) == 1
    assert time.monotonic() - begun_s < LONG_S
    assert "it took longer than 15" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (
            PLAIN,
            ["-k", "elsewhere"],
            "no benchmark was found that this machine can run. Name what to compile after --",
        ),
        ("import nothing_of_this_name", [], "pytest could not collect; see above."),
    ],
)
def test_nothing_to_compile_is_one_error(suite, capsys, text, words, message):
    suite(text)
    assert main(["compile", "--", "test_suite.py", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert ("nothing_of_this_name" in said) == ("nothing" in text)


def test_an_interrupt_leaves_no_process_behind(suite):
    root = suite(
        "import os, pathlib, time\nfrom pytest_accel import cpu\n\n"
        "def sleep():\n    pathlib.Path('pid').write_text(str(os.getpid()))\n    time.sleep(600)\n\n"
        "@cpu\ndef test_slow(accel):\n    accel.measure(sleep, work=1, unit='naps')\n"
    )
    program = f"import sys; from pytest_accel.cli import main; sys.exit(main({['compile', '--', 'test_suite.py']!r}))"
    command = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + LONG_S
    while not (root / "pid").exists() or not (root / "pid").read_text():
        assert time.monotonic() < deadline_s
        assert command.poll() is None
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=LONG_S)
    assert command.returncode == 2
    assert "interrupted. 1 benchmark: none compiled: what was compiled stays." in said
    assert not Path(f"/proc/{(root / 'pid').read_text()}").exists()


@pytest.mark.rehearsal
def test_torch_compiles_once_and_finds_it_again(suite, capsys, monkeypatch):
    """The real compiler: a minute of it."""
    pytest.importorskip("torch")
    root = suite(
        "from pytest_accel import cpu\n\n"
        "@cpu\ndef test_gpt(train):\n"
        "    train('zoo/gpt-tiny', batch_size=2, precision='fp32', compile='default', sequence=32, "
        "model_options={'layers': 1})\n"
    )
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root / "cache"))
    for words in ("compiled", "compiled before"):
        assert main(["compile", "--", "test_suite.py"]) == 0
        assert f"[1/1] test_suite.py::test_gpt: {words}, " in capsys.readouterr().err
