"""What begins when a session turns out to hold benchmarks: until then, nothing of this was imported."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

import pytest

from pytest_accel.markers import CATALOGUE
from pytest_accel.options import SETTINGS, data_root
from pytest_accel.session import items as what
from pytest_accel.session.accel import SESSION_ID
from pytest_accel.session.placement import PLACEMENT, RANK_END, Placement, give_timer, is_xdist_worker


def start(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Register what places, measures and judges; in a rank, what takes orders and answers."""
    settings = config.stash[SETTINGS]
    benchmarks = list(filter(what.is_benchmark, items))
    if benchmarks:
        _require_benchmark_plugin(config)
        data_root(settings, config)  # a folder that is not there is said now
    for item in benchmarks:
        give_timer(item)
    placement = config.stash[PLACEMENT] = Placement(config, settings, config.stash[CATALOGUE])
    config.pluginmanager.register(placement, "accel-placement")
    if RANK_END in config.stash:
        from pytest_accel.session.rank_process import RankProcess

        config.pluginmanager.register(RankProcess(config, items), "accel-rank")
        return
    # Not needed by ranks, of which there are many.
    from pytest_accel.session.bench import Bench
    from pytest_accel.session.leavings import Leavings

    config.stash[SESSION_ID] = new_session_id()
    collected = {item.nodeid: what.platforms_of(item, config.stash[CATALOGUE]) for item in items}
    bench = Bench(config, settings, placement, collected)
    config.pluginmanager.register(bench, "accel-bench")
    if (benchmarks or settings.output_files) and not is_xdist_worker(config):
        config.pluginmanager.register(Leavings(bench), "accel-leavings")


def new_session_id() -> str:
    """Sortable by time, unique between machines."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def _require_benchmark_plugin(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("benchmark"):
        raise pytest.UsageError("benchmarks are timed by pytest-benchmark: leave out -p no:benchmark.")
    off = [
        option
        for option in ("--benchmark-disable", "--benchmark-skip")
        if config.getoption(option.removeprefix("--").replace("-", "_"), default=False)
    ]
    settings = config.stash[SETTINGS]
    if off and settings.record:
        raise pytest.UsageError(f"{off[0]} switches off what --accel-record records: leave one of them out.")
