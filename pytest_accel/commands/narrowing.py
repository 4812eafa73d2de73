"""Leaves named benchmarks out of a session: those of a duet that are decided. A plugin of its own, loaded only there.

    python -m pytest -p pytest_accel.commands.narrowing --accel-left-out=FILE ...

`--deselect` would not do: it takes whatever begins with a name, `test_step_fused` with `test_step`. A file, because a
container passes no variables on, and a suite may have more benchmarks than a command line has room for.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PLUGIN = __name__
OPTION = "--accel-left-out"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, metavar="FILE", help="JSON: the node ids of items that are not run")


@pytest.hookimpl(trylast=True)  # after what gives the wheel's suites their names
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = config.getoption(OPTION)
    if not named:
        return
    left_out = frozenset(json.loads(Path(named).read_text(encoding="utf-8")))
    if gone := [item for item in items if item.nodeid in left_out]:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item.nodeid not in left_out]
