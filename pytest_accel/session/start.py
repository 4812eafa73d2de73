"""Start of a session or a worker, once benchmarks were collected; nothing heavy is imported before."""

from __future__ import annotations

import pytest

from pytest_accel.markers import CATALOGUE, is_benchmark
from pytest_accel.options import SETTINGS
from pytest_accel.session.device import RANK_END
from pytest_accel.session.selection import SELECTION, PlatformSelection, set_timer


def start(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Register what selects, measures and judges; in a worker, what runs orders."""
    selection = PlatformSelection(config, config.stash[SETTINGS], config.stash[CATALOGUE])
    config.stash[SELECTION] = selection
    benchmarks = list(filter(is_benchmark, items))
    for item in benchmarks:
        set_timer(item)
    config.pluginmanager.register(selection, "accel-selection")
    if RANK_END in config.stash:
        from pytest_accel.session.worker_process import WorkerProcess

        config.pluginmanager.register(WorkerProcess(config, items), "accel-worker")
        return
    # Not imported by workers, of which there are many.
    from pytest_accel.session.session import refuse_switched_off, register_session

    if benchmarks:
        refuse_switched_off(config)
    register_session(config, items, selection)
