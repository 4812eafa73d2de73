"""Commands that the documentation shows with their output, and that this repository alone can answer: it is the real one."""

from __future__ import annotations

import pytest

from tests.docs.answers import ANSWERED, BLOCK, LEFT_OUT, answer, shown_anew
from tests.docs.pages import ROOT

SHOWN = {
    command.removeprefix("pytest-accel "): output
    for page in (ROOT / "docs").rglob("*.md")
    for command, output in BLOCK.findall(page.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("command", ANSWERED)
def test_what_is_shown_is_what_it_prints(command, monkeypatch):
    monkeypatch.delenv("PYTEST_ACCEL_BASELINES", raising=False)
    printed, shown = answer(command), SHOWN[command]
    for line in shown.splitlines():
        assert line in (*printed.splitlines(), LEFT_OUT), (
            f"docs show, and it is not printed (python -m tests.docs.answers writes it anew): {line}"
        )
    if LEFT_OUT not in shown.splitlines():
        assert shown == printed


@pytest.mark.parametrize(
    ("shown", "anew"),
    [
        ("a 1\nb 2\n", "head\na 3\nb 2\nc 5\nc 6\n"),  # nothing was left out
        ("...\na 1\nb 2\n...\n", "...\na 3\nb 2\n...\n"),
        ("c 4\n...\n", "c 5\n...\n"),
        ("...\nc 4\nc 4\n", "...\nc 5\nc 6\n"),
        ("d 1\n...\n", "d 1\n...\n"),
    ],
)
def test_what_changed_is_shown_anew(shown, anew):
    assert shown_anew(shown, "head\na 3\nb 2\nc 5\nc 6\n") == anew
