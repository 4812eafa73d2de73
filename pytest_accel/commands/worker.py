"""A pytest plugin in the processes that `compile` and `upgrade` start, loaded there with `-p`.

`--accel-exclude FILE` leaves out the node ids of a JSON file; `--deselect` would leave out whatever begins with a name.
`--accel-only ID` leaves out all others, and `--accel-list FILE` writes what pytest would run here.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from pytest_accel.distributed.processes import die_with_parent
from pytest_accel.distributed.worker import without_options
from pytest_accel.stats.gate import Outcome

_EXCLUDE, _ONLY, _LIST = "--accel-exclude", "--accel-only", "--accel-list"
_LOADED = f"-p{__name__}"
DOES_NOT_FIT = 6  # an exit status beside pytest's own


def exclude_arguments(file: Path, node_ids: Sequence[str]) -> list[str]:
    """Write node ids into a file, and return pytest's arguments that leave them out."""
    file.write_text(json.dumps(node_ids, indent=0), encoding="utf-8")
    return [_LOADED, f"{_EXCLUDE}={file}"]


def list_arguments(file: Path) -> list[str]:
    """Return pytest's arguments that list the benchmarks which it would run here, and its arguments for one of them."""
    return [_LOADED, f"{_LIST}={file}", "--collect-only"]


def step_arguments(node_id: str) -> list[str]:
    """Return pytest's arguments that build one benchmark and run a step, measuring nothing."""
    return [_LOADED, f"{_ONLY}={node_id}", "--benchmark-disable", "--accel-in-process"]


# --- hooks ------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("accel")
    for option in (_EXCLUDE, _ONLY, _LIST):
        group.addoption(option)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(_ONLY) or config.getoption(_LIST):
        die_with_parent()
        config.pluginmanager.register(_StepStatus(), "accel-step-status")


class _StepStatus:
    """Let the exit status say how the benchmark ended, whatever else the session finds: it measures nothing."""

    def __init__(self) -> None:
        self._statuses: list[int] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        is_unfit = ("accel.verdict", Outcome.DOES_NOT_FIT.value) in report.user_properties
        self._statuses.append(DOES_NOT_FIT if is_unfit else int(report.failed))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        yield
        if self._statuses and session.exitstatus in (0, 1):
            session.exitstatus = max(self._statuses)


@pytest.hookimpl(trylast=True)  # after the hook that names the wheel's suites
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only, file = config.getoption(_ONLY), config.getoption(_EXCLUDE)
    excluded = frozenset(json.loads(Path(file).read_text(encoding="utf-8"))) if file else frozenset()
    left = [item for item in items if item.nodeid not in excluded and only in (None, item.nodeid)]
    if file:
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = left


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption(_LIST):
        file = Path(session.config.getoption(_LIST))
        content = {**_benchmarks(session), "arguments": _arguments(session.config, file)}
        file.write_text(json.dumps(content), encoding="utf-8")


def _benchmarks(session: pytest.Session) -> dict[str, list[str]]:
    """Return the benchmarks that this machine can run."""
    from pytest_accel.markers import is_benchmark
    from pytest_accel.options import settings_of
    from pytest_accel.session.selection import SELECTION
    from pytest_accel.session.workers import shape_of

    found: dict[str, list[str]] = {"distributed": [], "others": []}
    selection = session.config.stash.get(SELECTION, None)
    for item in filter(is_benchmark, session.items):
        if selection and (platform := selection.choose(item)):
            is_distributed = shape_of(platform, settings_of(item)).process_group
            found["distributed" if is_distributed else "others"].append(item.nodeid)
    return found


def _arguments(config: pytest.Config, file: Path) -> list[str]:
    """Return the session's arguments without ours, without what writes files and without what would measure."""
    from pytest_accel.session.launcher import worker_arguments

    dropped = ("--benchmark-only", "--benchmark-enable", "--co")
    given = without_options(worker_arguments(config)(file.parent), dict.fromkeys(dropped, "none"))
    return [word for word in given if word not in list_arguments(file)]
