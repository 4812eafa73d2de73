"""Names of the wheel's suites: the same as in a checkout, so that both share their baselines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_accel.stats.run import SUITES


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark that a checkout registers in its pyproject.toml."""
    config.addinivalue_line(
        "markers",
        "sweep: one of many values of one parameter; `-m 'h200 and not sweep'` leaves it out",
    )


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Name a module as in the checkout; a node id would otherwise hold the path to site-packages."""
    module: pytest.Module = pytest.Module.from_parent(
        parent, path=module_path, nodeid=f"{SUITES}/{module_path.name}"
    )
    return module
