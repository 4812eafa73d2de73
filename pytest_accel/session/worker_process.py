"""A worker process: a pytest that collects as its session did, runs items by order and answers with reports."""

from __future__ import annotations

import platform as host
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol  # as re-running plugins do; there is no public function

from pytest_accel.distributed.group import Order
from pytest_accel.distributed.launch import WorkerError
from pytest_accel.distributed.worker import begin_rank
from pytest_accel.markers import is_benchmark
from pytest_accel.measure.ranks import ALONE, Ranks
from pytest_accel.options import Settings
from pytest_accel.session.accel import CALL_MEASURE, MEASUREMENT, MEASURING_OFF, SESSION_ID
from pytest_accel.session.device import RANK_END, UNFIT, bind_worker, fail_plainly, open_device
from pytest_accel.session.selection import SELECTION, is_xdist_worker
from pytest_accel.stats.measurement import Measurement
from pytest_accel.storage.codec import encode

if TYPE_CHECKING:
    import torch

    from pytest_accel.distributed.process_group import ProcessGroup
    from pytest_accel.measure.device import Device

PROCESS_GROUP = pytest.StashKey["ProcessGroup"]()
DEVICE_CHECK = pytest.StashKey[dict[str, Any]]()  # of the process group, before its first timing
_MAX_OUTPUT = 200_000  # characters of one section of a report
_VERBOSITY = pytest.StashKey[int]()  # as the user chose it


def become_worker(config: pytest.Config) -> None:
    """Connect to the session that started this process; called before anything else."""
    config.stash[RANK_END] = end = begin_rank()
    config.pluginmanager.register(end, "accel-rank-end")
    config.stash[_VERBOSITY] = config.option.verbose
    config.option.verbose = -2  # its log is for the benchmark's output: no header, no count of items


class WorkerProcess:
    """The plugin object of a worker: it runs items by order and answers each with its reports."""

    def __init__(self, config: pytest.Config, items: Iterable[pytest.Item]) -> None:
        self._config = config
        self._end = config.stash[RANK_END]
        self._items = {item.nodeid: item for item in items}  # all of them, before -m and -k deselect some
        self._reports: list[pytest.TestReport] = []
        self._measurement: Measurement | None = None
        self._extra_info: dict[str, Any] = {}
        self._warnings: list[dict[str, Any]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool:
        self._config.option.verbose = self._config.stash[_VERBOSITY]
        for order in self._end.orders():
            self._end.answer(self._run(order))
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
            self._warnings.append(
                {
                    "category": warning_message.category.__name__,
                    "message": str(warning_message.message),
                    "filename": warning_message.filename,
                    "lineno": warning_message.lineno,
                    "location": location,
                }
            )

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Keep what the fixtures hold, before they are torn down."""
        self._measurement = item.stash.get(MEASUREMENT, None)
        benchmark = getattr(item, "funcargs", {}).get("benchmark")
        if benchmark is not None:
            self._extra_info = {key: value for key, value in benchmark.extra_info.items() if key != "accel"}

    def _take_platform(self, platform: str) -> None:
        selection = self._config.stash[SELECTION]
        if not selection.ordered:
            bind_worker(self._config, selection.catalogue.parse(platform))
        selection.ordered = platform

    def _run(self, order: Order) -> dict[str, Any]:
        item = self._items.get(order.node_id)
        if item is None:
            return _failure(f"{order.node_id} was not collected here: do all ranks see the same files?")
        self._config.stash[SESSION_ID] = order.session
        self._take_platform(order.platform)
        self._measurement, self._extra_info, self._warnings = None, {}, []
        try:
            # Through the hook: wrappers of other plugins apply warning filters and explain assertions.
            item.ihook.pytest_runtest_protocol(item=item, nextitem=self._items.get(order.next_node_id))
        except pytest.exit.Exception as error:
            return _failure("pytest.exit") | {"exit": {"reason": str(error), "returncode": error.returncode}}
        except KeyboardInterrupt:
            return _failure("KeyboardInterrupt") | {"exit": None}
        reports = self._reports
        off, unfit = item.stash.get(MEASURING_OFF, False), item.stash.get(UNFIT, None)
        for report in reports:
            report.sections = [(title, _shortened(text)) for title, text in without_traces(report.sections)]
        serialize = self._config.hook.pytest_report_to_serializable
        answer: dict[str, Any] = _plain(
            {
                **self._outcome(must_measure=is_benchmark(item) and not off),
                "printed": _printed(reports[-1]) if any(report.failed for report in reports) else "",
                "reports": [serialize(config=self._config, report=report) for report in reports],
                "measurement": encode(self._measurement),
                "measuring_off": off,
                "unfit": encode(unfit),
                "extra_info": self._extra_info,
                "stragglers": self._config.stash.get(DEVICE_CHECK, None),
                "warnings": self._warnings,
            }
        )
        return answer

    def _outcome(self, *, must_measure: bool) -> dict[str, Any]:
        """Return the first phase that did not pass; a measurement counts when the teardown passed too."""
        for report in self._reports:
            if report.outcome != "passed" and not is_strict_xpass(report):
                return {
                    "outcome": report.outcome,
                    "when": report.when,
                    "xfailed": hasattr(report, "wasxfail"),
                    "text": _text(report),
                    "cause": _cause(report),
                }
        called = any(report.when == "call" for report in self._reports)  # not under --setup-only
        if self._measurement is None and must_measure and called:
            return _failure(f"it measured nothing: {CALL_MEASURE}")
        return {"outcome": "passed", "text": "", "cause": ""}


def _failure(cause: str) -> dict[str, Any]:
    return {"outcome": "failed", "text": cause, "cause": cause}


# --- reports ------------------------------------------------------------------------------------------


def is_strict_xpass(report: pytest.TestReport) -> bool:
    """Whether an item passed and is reported as failed because `xfail(strict=True)` expected otherwise."""
    return report.failed and str(report.longrepr or "").startswith("[XPASS(strict)]")


def without_traces(sections: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Remove torch's log of its own compiling: thousands of empty lines above the one that matters."""
    kept = [
        (title, "\n".join(line for line in text.splitlines() if " torch.__trace:" not in line))
        if title.startswith("Captured log")
        else (title, text)
        for title, text in sections
    ]
    return [(title, text) for title, text in kept if text]


def _printed(report: pytest.TestReport) -> str:
    """Return all output of an item: the last report has the sections of those before it."""
    return "".join(f"--- {title} ---\n{text.rstrip()}\n" for title, text in report.sections)


def _shortened(text: str) -> str:
    """Cut long output at its start: the end matters most."""
    return text if len(text) <= _MAX_OUTPUT else f"[...]\n{text[-_MAX_OUTPUT:]}"


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a test left in its properties
    """Return a value as JSON can hold it."""
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
    """Return the error in one line, as in pytest's short summary."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else _text(report)).strip().splitlines()
    return lines[0] if lines else report.outcome


# --- the process group --------------------------------------------------------------------------------


def ranks_of(item: pytest.Item, settings: Settings) -> Ranks:
    """Return the ranks that measure an item together; opened by the first item, kept for the following ones."""
    config = item.config
    end = config.stash.get(RANK_END, None)
    if end is None or not end.place.process_group:
        _refuse_to_be_alone(item)
        return ALONE
    group = config.stash.get(PROCESS_GROUP, None)
    # Decided alike on all ranks: their settings are the same.
    if group is not None and group.timeout_s >= settings.timeout_s:
        return group
    if group is None:
        config.add_cleanup(lambda: _close_group(config))
    _close_group(config)
    config.stash[PROCESS_GROUP] = group = _open_group(item, settings)
    return group


def _refuse_to_be_alone(item: pytest.Item) -> None:
    """Fail an item of several devices for which no process group was started."""
    platform = item.config.stash[SELECTION].choose(item).platform
    if platform is None or platform.devices == 1:
        return
    if is_xdist_worker(item.config):
        pytest.fail(
            f"{platform} runs in a process group, and none is started under xdist: run it with -n 0.",
            pytrace=False,
        )
    pytest.fail(
        f"{platform} runs in a process group, which is started for tests that take process_group as an argument: "
        "getfixturevalue comes too late.",
        pytrace=False,
    )


def _close_group(config: pytest.Config) -> None:
    if PROCESS_GROUP in config.stash:
        config.stash[PROCESS_GROUP].close()
        del config.stash[PROCESS_GROUP]


def _open_group(item: pytest.Item, settings: Settings) -> ProcessGroup:
    import torch

    from pytest_accel.distributed.process_group import open_process_group

    _, device, hardware = open_device(item, settings)
    place = item.config.stash[RANK_END].place
    torch_device = torch.device(device.name)
    try:
        group = open_process_group(
            torch_device, rendezvous_s=place.rendezvous_s, timeout_s=settings.timeout_s
        )
    except WorkerError as error:
        fail_plainly(str(error))
    if group.size > 1 and DEVICE_CHECK not in item.config.stash:
        label = f"{hardware.name}, {hardware.uuid}" if hardware else "CPU"
        item.config.stash[DEVICE_CHECK] = _check_devices(group, device, torch_device, label)
    return group


def _check_devices(
    group: ProcessGroup, device: Device, torch_device: torch.device, label: str
) -> dict[str, Any]:
    """Measure each device by itself and all together, before the first benchmark is timed."""
    from pytest_accel.distributed.device_check import check

    device.prepare()
    try:
        return check(group, torch_device, label=label, host=host.node()).plain()
    finally:
        device.restore()
