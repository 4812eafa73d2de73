"""Commands that the documentation shows with their output, and that this repository alone can answer: it is the real one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pytest_accel.cli import main

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```\n\$ (pytest-accel [^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The others need results, a history or revisions of git that a clone may not have.
ANSWERED = (
    'baseline show h200 -k "117m or fine_tuning"',
    "baseline verify",
    "compare nrp",
    'compare h200 -k "117m or fine_tuning"',
    'compare h200 olivia/single --metric throughput -k "117m or fine_tuning or olivia"',
    "compare nrp -k cityscapes --format markdown",
    "compare nrp -k dino --format csv",
)
SHOWN = {
    command.removeprefix("pytest-accel "): output
    for page in (ROOT / "docs").rglob("*.md")
    for command, output in BLOCK.findall(page.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("command", ANSWERED)
def test_what_is_shown_is_what_it_prints(command, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("PYTEST_ACCEL_BASELINES", raising=False)
    assert main(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    shown = SHOWN[command]
    for line in shown.splitlines():
        assert line in (*printed.splitlines(), "..."), f"docs show, and it is not printed: {line}"
    if "..." not in shown.splitlines():
        assert shown == printed
