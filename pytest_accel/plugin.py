"""pytest's hooks, each a sentence; the rooms below do the work.

Nothing here imports torch, probes hardware or starts a process: a project that merely has the plugin
installed pays for reading the catalogue, and for nothing else.
"""

from __future__ import annotations

import pytest

import pytest_accel.hookspecs
from pytest_accel.marks import register_platforms, unregister_platforms
from pytest_accel.options import SETTINGS, add_options, read_settings
from pytest_accel.platforms.catalogue import CatalogueError
from pytest_accel.session.accel import SESSION_ID
from pytest_accel.session.bench import Bench
from pytest_accel.session.fixtures import (  # noqa: F401 - fixtures that tests take by name
    accel,
    accel_batch,
    accel_device,
    accel_model,
    accel_optimiser,
    accel_precision,
    infer,
    train,
)
from pytest_accel.session.fresh_runs import FreshProcess, new_session_id
from pytest_accel.session.placement import PLACEMENT, Placement
from pytest_accel.spmd.fresh import Order


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(pytest_accel.hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "accel(tolerance, budget, warmup): settings of one benchmark, before those of the session"
    )
    settings = config.stash[SETTINGS] = read_settings(config)
    try:
        catalogue = register_platforms(config)
    except CatalogueError as error:
        raise pytest.UsageError(str(error)) from None
    order = Order.from_environ()
    config.stash[SESSION_ID] = order.session if order else new_session_id()
    placement = config.stash[PLACEMENT] = Placement(config, settings, catalogue)
    config.pluginmanager.register(placement, "accel-placement")
    worker = FreshProcess(order) if order else Bench(config, settings, placement)
    config.pluginmanager.register(worker, "accel-bench")


def pytest_unconfigure(config: pytest.Config) -> None:
    unregister_platforms(config)
