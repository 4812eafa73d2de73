"""pytest's hooks, each a sentence; the rooms below do the work.

A project that merely has the plugin installed pays for reading the catalogue, and for nothing else: the
rest is imported when the first benchmark is collected, torch when the first one runs.
"""

from __future__ import annotations

import os

import pytest

import pytest_accel.hookspecs
from pytest_accel.fixtures import (  # noqa: F401 - fixtures that tests take by name
    accel,
    accel_batch,
    accel_device,
    accel_model,
    accel_optimiser,
    accel_precision,
    infer,
    train,
)
from pytest_accel.marks import (
    ask_for_hardware,
    refuse_unknown_names,
    register_platforms,
    unregister_platforms,
)
from pytest_accel.options import FRESH_VARIABLE, SETTINGS, add_options, read_settings


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(pytest_accel.hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    if FRESH_VARIABLE in os.environ:
        from pytest_accel.session.fresh_runs import begin_fresh_process

        begin_fresh_process(config)
    config.stash[SETTINGS] = read_settings(config)
    register_platforms(config)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    refuse_unknown_names(config, items)
    if config.stash[SETTINGS].require or ask_for_hardware(config, items):
        from pytest_accel.session.start import start

        start(config, items)


def pytest_unconfigure(config: pytest.Config) -> None:
    unregister_platforms(config)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Where others collect, as under xdist, no benchmark was ever seen here: nothing was measured."""
    unseen = not session.config.pluginmanager.has_plugin("accel-bench")
    listing = session.config.getoption("collectonly", default=False)
    if session.config.stash[SETTINGS].require and unseen and not listing and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
