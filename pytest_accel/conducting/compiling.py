"""A pytest that `pytest-accel compile` started: it lists benchmarks, or builds one of them and takes a step of it.

Loaded with `-p`, in those processes alone. What it found out goes into a file: the command has many of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_accel.core.verdict import Outcome
from pytest_accel.options import settings_of
from pytest_accel.session.placing.arguments import arguments_for_ranks
from pytest_accel.session.placing.items import is_benchmark
from pytest_accel.session.placing.placement import PLACEMENT
from pytest_accel.session.ranks.gangs import needs_gang

_TOLD, _ONLY = "--accel-told", "--accel-only"
_LOADED = f"-p{__name__}"
_LISTING = "--collect-only"
_OUT_OF_MEMORY = ("out of memory", "OutOfMemory", "does not fit")


def words_for_list(told: Path) -> list[str]:
    """Have pytest list the benchmarks that it would run here, and how to run one of them."""
    return [_LOADED, f"{_TOLD}={told}", _LISTING, "-q"]


def words_for_one(node_id: str, told: Path) -> list[str]:
    """Have pytest build one benchmark and take a step, measuring nothing."""
    return [_LOADED, f"{_TOLD}={told}", f"{_ONLY}={node_id}", "--benchmark-disable"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("accel")
    group.addoption(_TOLD, dest="accel_told", metavar="FILE")
    group.addoption(_ONLY, dest="accel_only", metavar="NODE_ID")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Telling(Path(config.getoption("accel_told"))), "accel-telling")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only = config.getoption("accel_only")
    if only is not None:
        items[:] = [item for item in items if item.nodeid == only]


class _Telling:
    def __init__(self, told: Path) -> None:
        self._told = told
        self._found: dict[str, Any] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.config.getoption("collectonly"):
            self._found = {
                "benchmarks": _listed(session),
                "arguments": _arguments(session.config, self._told),
            }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:  # the first phase that did not pass, or the call
            self._found.setdefault("end", _end(report))

    def pytest_sessionfinish(self) -> None:
        self._told.write_text(json.dumps(self._found | _of_compiler()), encoding="utf-8")


def _listed(session: pytest.Session) -> list[dict[str, Any]]:
    """Benchmarks that this machine can run; of others their set-up would say what is missing."""
    benchmarks = list(filter(is_benchmark, session.items))
    places = [(item, session.config.stash[PLACEMENT].place(item).platform) for item in benchmarks]
    return [
        {"node_id": item.nodeid, "gang": needs_gang(platform, settings_of(item))}
        for item, platform in places
        if platform is not None
    ]


def _arguments(config: pytest.Config, told: Path) -> list[str]:
    """The session's own, without ours and without what writes files."""
    ours = words_for_list(told)[:-1]
    given = arguments_for_ranks(config)(told.parent)
    given.remove("-q")
    return [word for word in given if word not in ours]


def _end(report: pytest.TestReport) -> dict[str, str]:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    unfit = dict(report.user_properties).get("accel.verdict") == Outcome.DOES_NOT_FIT.value
    short = unfit or (report.failed and any(words in text for words in _OUT_OF_MEMORY))
    return {"outcome": "no room" if short else report.outcome, "text": text}


def _of_compiler() -> dict[str, Any]:
    """How many graphs were compiled and how many were there, and where they are kept; nothing where torch compiled none."""
    utils = sys.modules.get("torch._dynamo.utils")
    caches = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    if utils is None or caches is None:
        return {}
    graphs, traces = utils.counters["inductor"], utils.counters["aot_autograd"]
    return {
        "compiled": graphs["fxgraph_cache_miss"] + graphs["fxgraph_cache_bypass"],
        "found": graphs["fxgraph_cache_hit"] + traces["autograd_cache_hit"],
        "cache": caches.cache_dir(),
    }
