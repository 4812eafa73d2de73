"""Both ends of a fresh process: the session that orders a run of a benchmark, and the process that answers."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_accel.measure.measurement import Measurement
from pytest_accel.options import Settings
from pytest_accel.report.progress import Progress
from pytest_accel.session.accel import CALL_MEASURE, MEASUREMENT, SESSION_ID
from pytest_accel.session.cases import Case
from pytest_accel.session.reports import is_strict_xpass
from pytest_accel.spmd.fresh import Answer, Order, measure_fresh, take_order

ORDER = pytest.StashKey[Order]()  # set in a fresh process only


def new_session_id() -> str:
    """Sortable by time, unique between machines."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


class FreshRuns:
    """Measures cases in fresh processes that run the arguments of this session."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self.session_id = config.stash[SESSION_ID]

    def measure(self, case: Case, progress: Progress) -> None:
        """One run; its measurement, problem or skip is left in the case."""
        with tempfile.TemporaryDirectory(prefix="pytest-accel-") as folder:
            order = Order(
                node_id=case.node_id,
                session=self.session_id,
                result=str(Path(folder) / "answer.json"),
                parent=os.getpid(),
            )
            answer = measure_fresh(
                order,
                arguments=self.arguments(Path(folder)),
                directory=self._config.invocation_params.dir,
                log=Path(folder) / "log.txt",
                timeout_s=self._settings.timeout_s,
                waiting=progress.tick,
            )
        take_answer(case, answer)

    def arguments(self, folder: Path) -> list[str]:
        """Of the ini file, the environment and the command line, as pytest joins them.

        They come as arguments, so that those which write files can be left out; the ini file's own
        are therefore emptied, and pytest's cache, which knows the last failures, is put elsewhere.
        """
        in_ini = list(self._config.getini("addopts"))
        in_environment = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
        cached = self._config.pluginmanager.has_plugin("cacheprovider")
        return [
            *("-o", "addopts="),
            *(("-o", f"cache_dir={folder / 'cache'}") if cached else ()),
            *in_ini,
            *in_environment,
            *map(str, self._config.invocation_params.args),
        ]


def take_answer(case: Case, answer: Answer) -> None:
    """What a fresh process answered, as what is known of the case."""
    payload = answer.payload
    if payload is None:
        case.problem = f"{case.label}: a fresh process gave no measurement: {answer.problem}\n{answer.log}"
    elif payload["outcome"] == "skipped":
        case.skipped = str(payload["text"])
    elif payload["outcome"] == "failed":
        case.problem = f"{case.label} failed in a fresh process: {payload['cause']}\n{payload['text']}"
    else:
        case.measurements.append(Measurement.from_plain(payload["measurement"]))  # type: ignore[arg-type]


def begin_fresh_process(config: pytest.Config) -> None:
    """First of all in a process that was started to measure: see `take_order`."""
    config.stash[ORDER] = take_order()


class FreshProcess:
    """The plugin object of a process that was started to measure one item."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.answered = False
        self.measurement: Measurement | None = None

    def select(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave only the ordered item, before -m and -k are looked at."""
        others = [item for item in items if item.nodeid != self.order.node_id]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.nodeid == self.order.node_id]

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self.measurement = item.stash.get(MEASUREMENT, None)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Answer the first phase that did not pass; a measurement counts when the teardown passed too."""
        if report.outcome != "passed" and not is_strict_xpass(report):
            self.answer({"outcome": report.outcome, "text": _text(report), "cause": _cause(report)})
        elif report.when == "teardown" and self.measurement is not None:
            self.answer({"outcome": "passed", "measurement": self.measurement.to_plain()})
        elif report.when == "teardown":
            cause = f"it measured nothing: {CALL_MEASURE}"
            self.answer({"outcome": "failed", "text": cause, "cause": cause})

    def answer(self, payload: dict[str, object]) -> None:
        if self.answered:
            return
        self.answered = True
        result = Path(self.order.result)
        whole = result.with_suffix(".part")
        whole.write_text(json.dumps(payload))
        whole.rename(result)


def _text(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # a skip: path, line, reason
        return report.longrepr[2].removeprefix("Skipped: ")
    return report.longreprtext


def _cause(report: pytest.TestReport) -> str:
    """The error in one line, as pytest's short summary has it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else _text(report)).strip().splitlines()
    return lines[0] if lines else report.outcome
