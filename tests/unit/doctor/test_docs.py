"""The page names every subject that the doctor can speak of: nobody looks up what is not there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest_accel.doctor

ROOT = Path(__file__).parents[3]
_KINDS = {"ok", "warning", "problem", "unknown", "garbage"}


def subjects() -> set[str]:
    """The first argument of every finding in the source, where it is written out."""
    found = set()
    for path in Path(pytest_accel.doctor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _KINDS
            ):
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.add(first.value)
    return found


def test_every_subject_is_on_the_page():
    page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
    told = {
        name.strip()
        for line in page.splitlines()
        if line.startswith("|")
        for name in line.split("|")[2].split(",")
    }
    listed = subjects() - {"doctor", "hangs"}  # its own trouble
    assert len(listed) > 20
    assert listed <= told
