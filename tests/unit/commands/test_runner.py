"""The end of the logs of commands."""

from pytest_accel.commands.runner import last_lines


def test_end_of_a_log_cannot_move_the_cursor_and_has_no_empty_lines(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"x" * 70000 + b"\nfirst\n\n\x1b[31mred\x1b[0m\n\xff\x07\x1b[2J\n")
    assert last_lines(log, 2) == ["red", "\ufffd\\x07"]
    assert last_lines(tmp_path / "none") == []
