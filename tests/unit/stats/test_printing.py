"""Words from outside on a terminal and in a log."""

from __future__ import annotations

import pytest

from pytest_accel.stats.quantities import inert, printable


def test_what_moves_a_cursor_or_ends_a_line_is_spelled_out():
    assert printable("a\x1b[31m\n\u202eb\x9b") == r"a\x1b[31m\n\u202eb\x9b"
    assert printable("test_x[ä-µ] †") == "test_x[ä-µ] †"


@pytest.mark.parametrize("line", ["::error::x", "  ::add-mask::x"])
def test_a_line_that_a_runner_would_obey_does_not_begin_so(line):
    assert inert(line) == f"\\{line}"
    assert inert(line, mark="{}") == f"{{}}{line}"


def test_other_lines_stay():
    assert inert("t.py::test_x ::error::") == "t.py::test_x ::error::"
