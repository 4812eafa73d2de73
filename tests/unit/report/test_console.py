"""Progress of commands: a live line on a terminal, few lines in a log."""

from __future__ import annotations

import io

from pytest_accel.report.console import Console, last_line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_has_a_line_for_each_change_and_one_a_minute():
    out, now = io.StringIO(), 0.0
    console = Console(out, clock=lambda: now)
    for now in (0, 20, 40, 61, 62):
        console.show(f"running, {now} s", topic="running")
    console.show("ending")
    assert out.getvalue().splitlines() == ["running, 0 s", "running, 61 s", "ending"]


def test_a_terminal_has_one_live_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    console = Console(out)
    console.show("running", "a very long line of a log")
    console.say("done")
    assert out.getvalue() == "\r\x1b[Krunning | a very lo\r\x1b[Kdone\n"


def test_the_last_line_of_a_log_cannot_move_the_cursor(tmp_path):
    log = tmp_path / "log.txt"
    assert last_line(log) == ""
    log.write_bytes(b"x" * 9000 + b"\nfirst\n\x1b[31m50 %\x1b[0m\x07\x1b[2J \xff\n\n")
    assert last_line(log) == "50 % \ufffd"
