"""An interrupt, by real signals: what was measured is kept, and nothing is played behind it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.peers import cli, measuring

ROOT = Path(__file__).parents[2]


class Ours:
    """Stands for a step that checks itself, and is interrupted in doing so where that is wanted."""

    work, unit = 8, "images"

    def __init__(self, *, interrupted: bool = False, broken: bool = False) -> None:
        self.done: list[str] = []
        self.interrupted, self.broken = interrupted, broken

    def __call__(self) -> None:
        self.done.append("step")

    def check(self) -> None:
        self.done.append("check")
        if self.interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        if self.broken:
            raise RuntimeError("no gradients")


def interrupted_play(monkeypatch, file: Path, ours: Ours, *, at: int) -> None:
    """Two contests of five groups each, SIGINT in one of the blocks, of which the first two are tries."""
    blocks = itertools.count(1)

    def timed(*_) -> float:
        if next(blocks) == at:
            os.kill(os.getpid(), signal.SIGINT)
        return 0.1

    monkeypatch.setattr(measuring, "compiled", lambda *_: nullcontext({"ours": ours, "peer": None}))
    monkeypatch.setattr(measuring, "timed", timed)
    cli.main(["resnet50", "swin_t", "--device=cpu", "--groups=5", f"--json={file}"])


@pytest.mark.parametrize(
    ("at", "ours", "groups", "done"),
    [
        pytest.param(16, Ours(), 3, ["step", "check"], id="in a block"),
        pytest.param(0, Ours(interrupted=True), 5, ["check"], id="in its check"),
        pytest.param(16, Ours(interrupted=True), 3, ["step", "check"], id="twice"),
    ],
)
def test_an_interrupted_contest_is_kept_told_and_the_last(
    at, ours, groups, done, tmp_path, capsys, monkeypatch
):
    file = tmp_path / "peers.json"
    with pytest.raises(KeyboardInterrupt):
        interrupted_play(monkeypatch, file, ours, at=at)
    assert ours.done == done
    printed = capsys.readouterr()
    assert "\nresnet50 " in printed.out
    assert "swin_t" not in printed.out + printed.err
    (kept,) = json.loads(file.read_text())["contests"]
    assert len(kept["ours"]["step_s"]) == len(kept["peer"]["step_s"]) == 2 * groups
    assert kept["cut_off"] is (groups < 5)
    told = [line for line in (printed.out + printed.err).splitlines() if "cut off after 3 groups" in line]
    assert len(told) == 2 * kept["cut_off"]  # as soon as it is over, and below the table
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_fails_after_an_interrupt_is_the_last_too(tmp_path, capsys, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        interrupted_play(monkeypatch, tmp_path / "peers.json", Ours(broken=True), at=16)
    printed = capsys.readouterr()
    assert "FAILED resnet50: RuntimeError: no gradients" in printed.out
    assert "swin_t" not in printed.out + printed.err


def test_an_interrupt_before_two_groups_leaves_nothing(tmp_path, capsys, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        interrupted_play(monkeypatch, tmp_path / "peers.json", Ours(), at=10)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "peers.json").exists()


PLAYED = """
import runpy, sys, time
from contextlib import nullcontext, suppress
from benchmarks.peers import measuring

class Ours:
    work, unit = 8, "images"
    __call__ = check = lambda self: None

def timed(*_):
    time.sleep(0.01)
    return 0.01

measuring.compiled = lambda *_: nullcontext({"ours": Ours(), "peer": None})
measuring.timed = timed
sys.argv = ["peers", "resnet50", "--device=cpu", "--groups=100000", "--json", sys.argv[1]]
runpy.run_module("benchmarks.peers", run_name="__main__")
"""


@pytest.mark.parametrize("gone", [False, True], ids=["read", "nobody reads"])
def test_a_command_that_is_interrupted_leaves_with_130_and_its_times(gone, tmp_path):
    """`2>&1 | tee`: Ctrl-C ends tee, too."""
    file = tmp_path / "peers.json"
    with subprocess.Popen(
        [sys.executable, "-c", PLAYED, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        text=True,
    ) as played:
        for line in played.stdout:
            if "groups of blocks" in line:
                break
        time.sleep(1)  # for two groups and more of a hundredth of a second each
        if gone:
            played.stdout.close()
        played.send_signal(signal.SIGINT)
        printed = "" if gone else played.stdout.read()
        assert played.wait(60) == 130
    (kept,) = json.loads(file.read_text())["contests"]
    assert kept["cut_off"]
    assert ("\nresnet50 " in printed, printed.endswith("interrupted\n")) == (not gone, not gone)
