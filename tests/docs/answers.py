"""Commands that pages show with what they print, and that this repository alone can answer: `python -m tests.docs.answers` writes it anew.

The others need results, a history or revisions of git that a clone may not have.
"""

from __future__ import annotations

import io
import re
import shlex
from contextlib import chdir, redirect_stdout

from pytest_accel.cli import main as pytest_accel
from tests.docs.pages import ROOT, named

BLOCK = re.compile(r"^```\n\$ (pytest-accel [^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANSWERED = (
    'baseline show h200 -k "117m or fine_tuning"',
    "baseline show --check",
    "compare nrp",
    'compare h200 -k "117m or fine_tuning"',
    'compare h200 olivia/single --metric throughput -k "117m or fine_tuning or olivia"',
    "compare nrp -k cityscapes --format markdown",
    "compare nrp -k dino --format csv",
)
LEFT_OUT = "..."  # a line that stands for some


def answer(command: str) -> str:
    """What a command prints here; it must succeed."""
    printed = io.StringIO()
    with chdir(ROOT), redirect_stdout(printed):
        status = pytest_accel(shlex.split(command))
    assert status == 0, f"pytest-accel {command}: exit status {status}"
    return printed.getvalue()


def shown_anew(shown: str, printed: str) -> str:
    """What a page shows, in the lines that are printed now; where it leaves some out, each is found behind the one before it, by its first word."""
    if LEFT_OUT not in shown.splitlines():
        return printed
    lines, found = printed.splitlines(), []
    for line in shown.splitlines():
        places = [at for at, each in enumerate(lines) if each.split()[:1] == line.split()[:1]]
        if line == LEFT_OUT or not places:
            found.append(line)
        else:
            found.append(lines[places[0]])
            lines = lines[places[0] + 1 :]
    return "".join(f"{line}\n" for line in found)


def main() -> int:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = BLOCK.sub(_anew, before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(named(page))  # noqa: T201 - a command
    return 0


def _anew(block: re.Match[str]) -> str:
    command = block[1].removeprefix("pytest-accel ")
    if command not in ANSWERED:
        return block[0]
    return f"```\n$ {block[1]}\n{shown_anew(block[2], answer(command))}```"


if __name__ == "__main__":
    raise SystemExit(main())
