"""What begins when a session turns out to hold benchmarks: until then, nothing of this was imported."""

from __future__ import annotations

import pytest

from pytest_accel.marks import CATALOGUE
from pytest_accel.options import SETTINGS
from pytest_accel.session import items as what
from pytest_accel.session.accel import SESSION_ID
from pytest_accel.session.bench import Bench
from pytest_accel.session.fresh_runs import FreshProcess, new_session_id
from pytest_accel.session.placement import PLACEMENT, Placement, give_timer
from pytest_accel.spmd.fresh import Order


def start(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Register what places, measures and judges; in a fresh process, what measures and answers."""
    settings = config.stash[SETTINGS]
    for item in filter(what.is_benchmark, items):
        give_timer(item)
    placement = config.stash[PLACEMENT] = Placement(config, settings, config.stash[CATALOGUE])
    config.pluginmanager.register(placement, "accel-placement")
    order = Order.from_environ()
    if order:
        config.stash[SESSION_ID] = order.session
        worker = FreshProcess(order)
        worker.select(config, items)
        config.pluginmanager.register(worker, "accel-fresh-process")
        return
    config.stash[SESSION_ID] = new_session_id()
    bench = Bench(config, settings, placement, collected={item.nodeid for item in items})
    config.pluginmanager.register(bench, "accel-bench")
