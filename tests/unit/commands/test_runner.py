"""Progress of commands, and the end of their logs."""

import io

from pytest_accel.commands.runner import Console, last_lines


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_log_has_a_line_for_each_topic_and_one_a_minute():
    out, now = io.StringIO(), 0.0
    console = Console(out, clock=lambda: now)
    for now in (0, 20, 40, 61, 62):
        console.show("running", f"{now} s")
    console.show("ending")
    assert out.getvalue().splitlines() == ["running | 0 s", "running | 61 s", "ending"]


def test_terminal_has_one_live_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    console = Console(out)
    console.show("running", "a very long line of a log")
    console.say("done")
    assert out.getvalue() == "\r\x1b[Krunning | a very lo\r\x1b[Kdone\n"


def test_end_of_a_log_cannot_move_the_cursor_and_has_no_empty_lines(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"x" * 70000 + b"\nfirst\n\n\x1b[31mred\x1b[0m\n\xff\x07\x1b[2J\n")
    assert last_lines(log, 2) == ["red", "\ufffd\\x07"]
    assert last_lines(tmp_path / "none") == []
