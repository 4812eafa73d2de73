"""The picture of the README: a terminal with a benchmark that regressed, as SVG. `make docs` draws failure.txt.

`python -m tests.docs.picture` records failure.txt again. That takes a minute, and a CPU with AVX-512: somebody set a variable
that makes a matrix product slower.
"""

import os
import re
import subprocess
import sys
from html import escape
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.docs.pages import ROOT

SVG = ROOT / "docs" / "assets" / "failure.svg"
RECORDED = Path(__file__).with_name("failure.txt")  # with the colours of a terminal, as escape sequences
COLUMNS = 108
CAUSE = "MKL_ENABLE_INSTRUCTIONS=AVX2"
COMMAND = "pytest -q test_step.py"
BENCHMARK = """import torch
from pytest_accel import cpu

@cpu
def test_product(accel):
    a = torch.randn(512, 512)
    accel.measure(lambda: a @ a, work=1, unit="products")
"""
WIDTH, HEIGHT, PAD = 8, 18, 16  # of a character, of a line, around all
COLOURS = {"31": "#ff9d95", "32": "#86d6a1", "33": "#f0c264", "34": "#7cb8ff", "36": "#74d4e0"}
# A ground of its own reads on light and dark pages.
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" fill="#e6e9ec" font-size="13"
 font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace">
<rect x=".5" y=".5" width="{2}" height="{3}" rx="8" fill="#171b20" stroke="#79838e"/>
"""


def record() -> str:
    """Return what a session prints that finds the loss; its baseline is recorded before."""

    def run(*more: str, status: int, **variables: str) -> str:
        known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "COLUMNS": str(COLUMNS), **variables}
        command = [sys.executable, "-m", *COMMAND.split(), "--color=yes", *more]
        done = subprocess.run(command, cwd=folder, env=known, stdout=subprocess.PIPE, text=True, check=False)
        assert done.returncode == status, done.stdout
        return done.stdout

    with TemporaryDirectory() as folder:
        Path(folder, "test_step.py").write_text(BENCHMARK, encoding="utf-8")
        run("--accel-record", status=0)
        return f"$ {CAUSE} {COMMAND}\n{run(status=1, **dict([CAUSE.split('=')]))}"


def draw(text: str) -> str:
    """Return a terminal with this text; a run of one colour is one element, as wide as its characters in every font."""
    rows: list[list[tuple[str, str]]] = [[]]  # characters, each with its codes
    codes = ""
    for part in re.findall(r"\x1b\[[\d;]*m|.|\n", text.rstrip("\n")):
        if part.startswith("\x1b"):
            codes = "" if part == "\x1b[0m" else f"{codes};{part[2:-1]}"
        elif part == "\n":
            rows.append([])
        else:
            rows[-1].append((part, codes))
    width, height = max(map(len, rows)) * WIDTH + 2 * PAD, len(rows) * HEIGHT + 2 * PAD
    lines = [HEAD.format(width, height, width - 1, height - 1)]
    for number, row in enumerate(rows):
        x, y = PAD, PAD + number * HEIGHT + 13
        for style, characters in groupby(row, key=lambda each: each[1]):
            run = "".join(character for character, _ in characters)
            fills = [f' fill="{COLOURS[code]}"' for code in style.split(";") if code in COLOURS]
            look = "".join(fills[-1:]) + (' font-weight="bold"' if "1" in style.split(";") else "")
            if run.strip():
                lines.append(
                    f'<text x="{x}" y="{y}" textLength="{len(run) * WIDTH}" xml:space="preserve"{look}>'
                    f"{escape(run, quote=False)}</text>\n"
                )
            x += len(run) * WIDTH
    return "".join([*lines, "</svg>\n"])


if __name__ == "__main__":
    RECORDED.write_text(record(), encoding="utf-8")
    SVG.write_text(draw(RECORDED.read_text(encoding="utf-8")), encoding="utf-8")
