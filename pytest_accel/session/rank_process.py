"""A pytest that a session started as a rank: it collects as the session did, and runs what it is told to."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import pytest
from _pytest.runner import runtestprotocol  # the door that re-running plugins use; there is no public one

from pytest_accel.distributed.group import Order, Preparation
from pytest_accel.distributed.worker import begin_rank
from pytest_accel.session.accel import CALL_MEASURE, MEASUREMENT, MEASURING_OFF, SESSION_ID
from pytest_accel.session.binding import bind_this_rank
from pytest_accel.session.fitting import UNFIT
from pytest_accel.session.groups import STRAGGLERS
from pytest_accel.session.items import is_benchmark
from pytest_accel.session.placement import PLACEMENT, RANK_END
from pytest_accel.session.pytest_reports import is_strict_xpass, without_traces
from pytest_accel.stats.measurement import Measurement
from pytest_accel.storage.codec import encode

_MAX_OUTPUT = 200_000  # characters of one section of a report
WARNINGS = pytest.StashKey[list[dict[str, Any]]]()  # of the item that runs
_VERBOSITY = pytest.StashKey[int]()  # as the user chose it

__all__ = ["RANK_END", "RankProcess", "become_rank"]


def become_rank(config: pytest.Config) -> None:
    """First of all in a process that a session started: see `begin_rank`."""
    config.stash[RANK_END] = end = begin_rank()
    config.pluginmanager.register(end, "accel-rank-end")  # a rank runs what it is told to, and nothing else
    config.stash[_VERBOSITY] = config.option.verbose
    config.option.verbose = -2  # its log is for what the benchmark has to say: no header, no count of items


class RankProcess:
    """The plugin object of a rank: it runs items by order, and answers each with its reports."""

    def __init__(self, config: pytest.Config, items: Iterable[pytest.Item]) -> None:
        self._config = config
        self._end = config.stash[RANK_END]
        self._items = {item.nodeid: item for item in items}  # all of them, before -m and -k are looked at
        self._measurement: Measurement | None = None
        self._extra_info: dict[str, Any] = {}
        self._reports: list[pytest.TestReport] = []
        config.stash[WARNINGS] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool:
        self._config.option.verbose = self._config.stash[_VERBOSITY]
        for order in self._end.orders():
            answer = self._prepared(order) if isinstance(order, Preparation) else self._carried_out(order)
            self._end.answer(answer)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        self._reports = runtestprotocol(item, log=False, nextitem=nextitem)
        return True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            sys.stderr.write(f"{report.longreprtext}\n")

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """Keep the warnings of an item for the summary of the session."""
        if when == "runtest":
            self._config.stash[WARNINGS].append(
                {
                    "category": warning_message.category.__name__,
                    "message": str(warning_message.message),
                    "filename": warning_message.filename,
                    "lineno": warning_message.lineno,
                    "location": location,
                }
            )

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Keep what the fixtures hold, before they are gone."""
        self._measurement = item.stash.get(MEASUREMENT, None)
        benchmark = getattr(item, "funcargs", {}).get("benchmark")
        if benchmark is not None:
            self._extra_info = {key: value for key, value in benchmark.extra_info.items() if key != "accel"}

    def _prepared(self, preparation: Preparation) -> dict[str, Any]:
        """Bound first, as a rank is that was not started before its turn: threads of what is imported stay where they began."""
        self._take_platform(preparation.platform)
        try:
            for name in preparation.modules:
                import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever a module does when it is imported
            return _failure(f"{name} cannot be imported: {type(error).__name__}: {error}")
        return {"outcome": "passed"}

    def _take_platform(self, platform: str) -> None:
        placement = self._config.stash[PLACEMENT]
        if not placement.ordered:
            bind_this_rank(self._config, placement.catalogue.parse(platform))
        placement.ordered = platform

    def _carried_out(self, order: Order) -> dict[str, Any]:
        item = self._items.get(order.node_id)
        if item is None:
            return _failure(f"{order.node_id} was not collected here: do all ranks see the same files?")
        self._config.stash[SESSION_ID] = order.session
        self._take_platform(order.platform)
        self._measurement, self._extra_info = None, {}
        self._config.stash[WARNINGS].clear()
        # Through the hook: others' wrappers apply warning filters and explain assertions.
        item.ihook.pytest_runtest_protocol(item=item, nextitem=self._items.get(order.next_node_id))
        reports = self._reports
        off, unfit = item.stash.get(MEASURING_OFF, False), item.stash.get(UNFIT, None)
        for report in reports:
            report.sections = [(title, _shortened(text)) for title, text in without_traces(report.sections)]
        answer: dict[str, Any] = _plain(
            {
                **self._outcome(reports, must_measure=is_benchmark(item) and not off),
                "printed": _printed(reports[-1]) if any(report.failed for report in reports) else "",
                "reports": [
                    self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
                    for report in reports
                ],
                "measurement": encode(self._measurement),
                "measuring_off": off,
                "unfit": encode(unfit),
                "extra_info": self._extra_info,
                "stragglers": self._config.stash.get(STRAGGLERS, None),
                "warnings": self._config.stash[WARNINGS],
            }
        )
        return answer

    def _outcome(self, reports: Sequence[pytest.TestReport], *, must_measure: bool) -> dict[str, Any]:
        """The first phase that did not pass; a measurement counts when the teardown passed too."""
        for report in reports:
            if report.outcome != "passed" and not is_strict_xpass(report):
                return {
                    "outcome": report.outcome,
                    "when": report.when,
                    "xfailed": hasattr(report, "wasxfail"),
                    "text": _text(report),
                    "cause": _cause(report),
                }
        called = any(report.when == "call" for report in reports)  # not under --setup-only
        if self._measurement is None and must_measure and called:
            return _failure(f"it measured nothing: {CALL_MEASURE}")
        return {"outcome": "passed", "text": "", "cause": ""}


def _printed(report: pytest.TestReport) -> str:
    """All that an item printed: the last report has the sections of those before it."""
    return "".join(f"--- {title} ---\n{text.rstrip()}\n" for title, text in report.sections)


def _failure(cause: str) -> dict[str, Any]:
    return {"outcome": "failed", "text": cause, "cause": cause}


def _shortened(text: str) -> str:
    """What a test printed, within reason: the end of it matters most."""
    return text if len(text) <= _MAX_OUTPUT else f"[...]\n{text[-_MAX_OUTPUT:]}"


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a test left in its properties
    """As JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _text(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # a skip: path, line, reason
        return report.longrepr[2].removeprefix("Skipped: ")
    return report.longreprtext


def _cause(report: pytest.TestReport) -> str:
    """The error in one line, as pytest's short summary has it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else _text(report)).strip().splitlines()
    return lines[0] if lines else report.outcome
