"""A pytest that `pytest-accel compile` started: it lists benchmarks, or builds one of them and takes a step of it.

Loaded with `-p`, in those processes and their ranks alone. What it found out goes into a file: the command has many of them.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.abc
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_accel.distributed.arguments import without_options
from pytest_accel.distributed.processes import die_with_parent
from pytest_accel.measure.errors import says_out_of_memory
from pytest_accel.measure.locks import LockedError, lock_folder, opened
from pytest_accel.options import settings_of
from pytest_accel.session.arguments import arguments_for_ranks
from pytest_accel.session.items import is_benchmark
from pytest_accel.session.placement import PLACEMENT, RANK_END
from pytest_accel.session.shapes import needs_gang
from pytest_accel.stats.verdict import Outcome

_TOLD, _ONLY = "--accel-told", "--accel-only"
_LOADED = f"-p{__name__}"
_LISTING = "--collect-only"
# Whoever says so, a loader too: what is tried again in vain fails.
_OF_MEMORY = ("out of memory", "OutOfMemory")
_TUNER = "torch._inductor.runtime.triton_heuristics"
_TIMES, _TIMES_MORE = "benchmark_all_configs", "coordinate_descent_tuning"  # the second where it is asked for
_IN_TURN = "accel_in_turn"  # an attribute of what waits


def words_for_list(told: Path) -> list[str]:
    """Have pytest list the benchmarks that it would run here, and how to run one of them."""
    return [_LOADED, f"{_TOLD}={told}", _LISTING]


def words_for_one(node_id: str, told: Path) -> list[str]:
    """Have pytest build one benchmark and take a step, measuring nothing."""
    return [_LOADED, f"{_TOLD}={told}", f"{_ONLY}={node_id}", "--benchmark-disable"]


def told_by(told: Path) -> dict[str, Any]:
    """What a process and its ranks said in the end; nothing, where they were killed before."""
    whole: dict[str, Any] = {}
    for path in (*told.parent.glob(f"{told.stem}-rank-*{told.suffix}"), told):
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for name in ("compiled", "found", "unkept", "tuned_beside_others"):
            found[name] = found.get(name, False) or whole.get(name, False)
        whole |= found
    return whole


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("accel")
    group.addoption(_TOLD, dest="accel_told", metavar="FILE")
    group.addoption(_ONLY, dest="accel_only", metavar="NODE_ID")


def pytest_configure(config: pytest.Config) -> None:
    die_with_parent()
    told = Path(config.getoption("accel_told"))
    _TunesInTurn(_common_lock() or told.with_name("tuning.lock")).arrange()
    config.pluginmanager.register(_Telling(told), "accel-telling")


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
        """Of all phases the last that did not pass, or else the call."""
        if report.when == "call" or not report.passed:
            self._found["end"] = _end(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        told = self._told
        if RANK_END in session.config.stash:  # each for itself
            told = told.with_stem(f"{told.stem}-rank-{os.getpid()}")
        told.write_text(json.dumps(self._found | _of_compiler() | _of_tuner()), encoding="utf-8")


def _common_lock() -> Path | None:
    """A file at which all commands of a user meet on this machine; None where there can be none."""
    try:
        path = lock_folder() / f"tuning-{os.getuid()}.lock"
        os.close(opened(path))
    except (LockedError, OSError):
        return None
    return path


class _TunesInTurn(importlib.abc.MetaPathFinder):
    """Has torch's tuner time the variants of a kernel while no other process times any, from its import on."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self._holds = False

    def arrange(self) -> None:
        if _TUNER in sys.modules:  # a conftest was first
            self._wrap(sys.modules[_TUNER])
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname != _TUNER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._wrap(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _wrap(self, module: ModuleType) -> None:
        tuner = getattr(module, "CachingAutotuner", None)
        for name in (_TIMES, _TIMES_MORE):
            times: Callable[..., object] | None = getattr(tuner, name, None)
            if times is not None:  # another torch may have others
                setattr(tuner, name, self._in_turn(times))

    def _in_turn(self, times: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(times)
        def in_turn(*args: object, **kwargs: object) -> object:
            if self._holds:  # one calls the other
                return times(*args, **kwargs)
            with os.fdopen(opened(self._lock), "r+") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                self._holds = True
                try:
                    return times(*args, **kwargs)
                finally:
                    self._holds = False
                    fcntl.flock(held, fcntl.LOCK_UN)  # which what was forked meanwhile holds too

        setattr(in_turn, _IN_TURN, True)
        return in_turn


def _listed(session: pytest.Session) -> list[dict[str, Any]]:
    """Benchmarks that this machine can run; of others their set-up would say what is missing."""
    placement = session.config.stash.get(PLACEMENT, None)
    if placement is None:
        return []
    places = [(item, placement.place(item).platform) for item in session.items if is_benchmark(item)]
    return [
        {"node_id": item.nodeid, "gang": needs_gang(platform, settings_of(item))}
        for item, platform in places
        if platform is not None
    ]


def _arguments(config: pytest.Config, told: Path) -> list[str]:
    """The session's own, without ours, without what writes files and without what would measure after all."""
    given = without_options(
        arguments_for_ranks(config)(told.parent), {"--benchmark-only": "none", "--benchmark-enable": "none"}
    )
    return [word for word in given if word not in words_for_list(told)]


def _end(report: pytest.TestReport) -> dict[str, str]:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    said = crash.message if crash else text
    outcome: str = report.outcome
    if dict(report.user_properties).get("accel.verdict") == Outcome.DOES_NOT_FIT.value:
        outcome = "unfit"
    elif report.failed and (any(words in said for words in _OF_MEMORY) or says_out_of_memory(said)):
        outcome = "no room"
    return {"outcome": outcome, "text": said}


def _of_compiler() -> dict[str, Any]:
    """Whether graphs were compiled, were there already, or cannot be kept; nothing where torch compiled none."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    graphs, traces = utils.counters["inductor"], utils.counters["aot_autograd"]
    return {
        "compiled": graphs["fxgraph_cache_miss"] > 0,
        "found": graphs["fxgraph_cache_hit"] + traces["autograd_cache_hit"] > 0,
        "unkept": graphs["fxgraph_cache_bypass"] > 0,
    }


def _of_tuner() -> dict[str, Any]:
    """Whether kernels may have been timed beside others: by a tuner that could not be made to wait."""
    module = sys.modules.get(_TUNER)
    times = getattr(getattr(module, "CachingAutotuner", None), _TIMES, None)
    return {"tuned_beside_others": module is not None and not hasattr(times, _IN_TURN)}
