"""Plugin of the pytest sessions that tests start: a third of their processor time, for the same outcome.

Tiny steps need no long blocks and rounds. Every `-p` reads the entry points of all installed packages, and a measurement
collects garbage twice.

PYTEST_DONT_REWRITE: or a session in a process that knows this module warns of it.
"""

import gc
import platform
from functools import cache
from importlib import metadata

import pytest

from pytest_accel.measure import rounds

_patch = pytest.MonkeyPatch()
undo = _patch.undo  # for a test whose session ends with a usage error, which is never configured
_version = cache(metadata.version)
_architecture = cache(platform.architecture)
_entry_points = cache(metadata.Distribution.entry_points.fget)
_list = metadata.distributions


@cache
def _distributions() -> tuple[metadata.Distribution, ...]:
    return tuple(_list())


def pytest_addoption() -> None:
    """Called at once, before other plugins are looked for."""
    _patch.setattr(metadata, "distributions", _distributions)
    _patch.setattr(metadata.Distribution, "entry_points", property(_entry_points))
    _patch.setattr(metadata, "version", _version)
    _patch.setattr(platform, "architecture", _architecture)  # pytest-benchmark starts a program for it
    _patch.setattr(rounds, "BLOCK_S", 0.01)
    _patch.setattr(rounds, "MIN_ROUND_S", 0.002)


def pytest_configure(config: pytest.Config) -> None:
    config.add_cleanup(undo)  # the session may be one of several in its process


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    gc.freeze()
