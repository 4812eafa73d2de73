"""A pytest plugin in the processes that `compile` and `upgrade` start, loaded there with `-p`.

`--accel-exclude FILE` leaves out the node ids of a JSON file; `--deselect` would leave out whatever begins with a name. For
`compile` it lists benchmarks or selects one, and writes what came of it into `--accel-answer FILE`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_EXCLUDE, _ANSWER, _ONLY = "--accel-exclude", "--accel-answer", "--accel-only"
_LOADED = f"-p{__name__}"
# Also as a loader says it, and as the kernel ends a worker where the host's memory ran out.
_OUT_OF_MEMORY = ("out of memory", "OutOfMemory", "killed by SIGKILL")


def exclude_arguments(file: Path, node_ids: Sequence[str]) -> list[str]:
    """Write node ids into a file, and return pytest's arguments that leave them out."""
    file.write_text(json.dumps(node_ids, indent=0), encoding="utf-8")
    return [_LOADED, f"{_EXCLUDE}={file}"]


def list_arguments(answer: Path) -> list[str]:
    """Return pytest's arguments that list the benchmarks which it would run here."""
    return [_LOADED, f"{_ANSWER}={answer}", "--collect-only"]


def step_arguments(node_id: str, answer: Path) -> list[str]:
    """Return pytest's arguments that build one benchmark and run a step, measuring nothing."""
    # In the process that counts torch's graphs; a distributed benchmark has ranks, which answer for themselves.
    return [_LOADED, f"{_ANSWER}={answer}", f"{_ONLY}={node_id}", "--benchmark-disable", "--accel-in-process"]


def read_answer(answer: Path) -> dict[str, Any]:
    """Return the answers of a process and its ranks as one; empty where they were killed before."""
    whole: dict[str, Any] = {}
    for path in (*answer.parent.glob(f"{answer.stem}-rank-*{answer.suffix}"), answer):
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for name in ("compiled", "found"):
            found[name] = found.get(name, False) or whole.get(name, False)
        whole |= found
    return whole


# --- hooks ------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("accel")
    group.addoption(_EXCLUDE, dest="accel_exclude", metavar="FILE")
    group.addoption(_ANSWER, dest="accel_answer", metavar="FILE")
    group.addoption(_ONLY, dest="accel_only", metavar="NODE_ID")


def pytest_configure(config: pytest.Config) -> None:
    from pytest_accel.distributed.processes import die_with_parent

    if config.getoption("accel_answer"):
        die_with_parent()
        answer = Path(config.getoption("accel_answer"))
        config.pluginmanager.register(_Answer(answer), "accel-answer")


@pytest.hookimpl(trylast=True)  # after the hook that names the wheel's suites
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only, file = config.getoption("accel_only"), config.getoption("accel_exclude")
    excluded = frozenset(json.loads(Path(file).read_text(encoding="utf-8"))) if file else frozenset()
    left = [item for item in items if item.nodeid not in excluded and only in (None, item.nodeid)]
    if file:
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = left


class _Answer:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.config.getoption("collectonly"):
            arguments = _arguments(session.config, self._path)
            self._found = {"benchmarks": _benchmarks(session), "arguments": arguments}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the last phase that did not pass, or else the call."""
        if report.when == "call" or not report.passed:
            self._found["end"] = _end(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        from pytest_accel.session.device import RANK_END

        path = self._path
        if RANK_END in session.config.stash:  # each rank writes its own
            path = path.with_stem(f"{path.stem}-rank-{os.getpid()}")
        path.write_text(json.dumps(self._found | _compiled_graphs()), encoding="utf-8")


def _benchmarks(session: pytest.Session) -> list[dict[str, Any]]:
    """Return the benchmarks that this machine can run."""
    from pytest_accel.markers import is_benchmark
    from pytest_accel.options import settings_of
    from pytest_accel.session.selection import SELECTION
    from pytest_accel.session.workers import needs_process_group

    selection = session.config.stash.get(SELECTION, None)
    if selection is None:
        return []
    places = [(item, selection.choose(item).platform) for item in session.items if is_benchmark(item)]
    return [
        {"node_id": item.nodeid, "distributed": needs_process_group(platform, settings_of(item))}
        for item, platform in places
        if platform is not None
    ]


def _arguments(config: pytest.Config, answer: Path) -> list[str]:
    """Return the session's arguments without ours, without what writes files and without what would measure."""
    from pytest_accel.distributed.worker import without_options
    from pytest_accel.session.launcher import worker_arguments

    given = without_options(
        worker_arguments(config)(answer.parent), {"--benchmark-only": "none", "--benchmark-enable": "none"}
    )
    return [word for word in given if word not in list_arguments(answer)]


def _end(report: pytest.TestReport) -> dict[str, str]:
    from pytest_accel.measure.errors import says_out_of_memory
    from pytest_accel.stats.verdict import Outcome

    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    message = crash.message if crash else text
    outcome: str = report.outcome
    if dict(report.user_properties).get("accel.verdict") == Outcome.DOES_NOT_FIT.value:
        outcome = "unfit"
    elif report.failed and (any(words in message for words in _OUT_OF_MEMORY) or says_out_of_memory(message)):
        outcome = "no room"
    return {"outcome": outcome, "text": message}


def _compiled_graphs() -> dict[str, Any]:
    """Return whether graphs were compiled or were in the cache; empty where torch compiled none."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    graphs, traces = utils.counters["inductor"], utils.counters["aot_autograd"]
    return {
        "compiled": graphs["fxgraph_cache_miss"] + graphs["fxgraph_cache_bypass"] > 0,
        "found": graphs["fxgraph_cache_hit"] + traces["autograd_cache_hit"] > 0,
    }
