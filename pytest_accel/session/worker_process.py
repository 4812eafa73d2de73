"""A worker process: a pytest that collects as its session did, runs items by order and answers with reports."""

from __future__ import annotations

import atexit
import json
import os
import platform as host
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest.runner import runtestprotocol  # as re-running plugins do; there is no public function

from pytest_accel.distributed.device_check import DeviceCheck, check
from pytest_accel.distributed.group import Order
from pytest_accel.distributed.processes import WorkerError
from pytest_accel.distributed.worker import begin_rank
from pytest_accel.markers import is_benchmark
from pytest_accel.measure.rounds import ALONE, Ranks
from pytest_accel.options import Settings
from pytest_accel.platforms.environment import torch_facts
from pytest_accel.session.accel import MEASURED_NOTHING, MEASUREMENT, PROFILE_ABOVE_S, SESSION_ID
from pytest_accel.session.device import (
    RANK_END,
    UNFIT,
    Unfit,
    bind_worker,
    fail_plainly,
    is_measuring_off,
    open_device,
)
from pytest_accel.session.selection import SELECTION
from pytest_accel.stats.measurement import Measurement
from pytest_accel.storage.codec import encode

if TYPE_CHECKING:
    from pytest_accel.distributed.process_group import ProcessGroup

PROCESS_GROUP = pytest.StashKey["ProcessGroup"]()
DEVICE_CHECK = pytest.StashKey[DeviceCheck]()  # of the process group, before its first timing
_MAX_OUTPUT = 200_000  # characters of one section of a report
_VERBOSITY = pytest.StashKey[int]()  # as the user chose it


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult:
    """The result of an item: what one rank answers, and what the session makes of the answers of all ranks."""

    outcome: str  # passed, failed, skipped
    text: str = ""
    cause: str = ""  # the same in one line
    when: str = ""  # the first phase that did not pass
    printed: str = ""  # by an item that failed; a group that did not complete shows it
    reports: tuple[Mapping[str, Any], ...] = ()
    measurement: Measurement | None = None
    extra_info: Mapping[str, Any] = field(default_factory=dict)  # of pytest-benchmark's JSON
    unfit: Unfit | None = None  # it did not fit in the memory of a rank's device
    device_check: DeviceCheck | None = None  # of the process group, before its first measurement
    warnings: tuple[Mapping[str, Any], ...] = ()
    left_settings: bool = False  # its test changed settings of torch, and the next one would run with them
    # Of the session:
    sections: Sequence[tuple[str, str]] = ()  # which rank the reports are of, and the output of the others
    reusable: bool = False  # whether the workers can run another item: no collective is half done

    @classmethod
    def failed(cls, text: str, **fields: Any) -> ItemResult:  # noqa: ANN401
        return cls(outcome="failed", text=text, cause=text.splitlines()[0], **fields)


def become_worker(config: pytest.Config) -> None:
    """Connect to the session that started this process; called before anything else."""
    try:
        config.stash[RANK_END] = end = begin_rank()
    except WorkerError as error:
        raise pytest.UsageError(str(error)) from None
    config.pluginmanager.register(end, "accel-rank-end")
    config.stash[_VERBOSITY] = config.option.verbose
    config.option.verbose = -2  # its log is for the benchmark's output: no header, no count of items


def exit_worker(status: object) -> NoReturn:
    """Exit at once after what is registered with atexit: the interpreter needs 0.6 s to tear down torch."""
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public function
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 0)


class WorkerProcess:
    """The plugin object of a worker: it runs items by order and answers each with its result."""

    def __init__(self, config: pytest.Config, items: Iterable[pytest.Item]) -> None:
        self._config = config
        self._end = config.stash[RANK_END]
        self._items = {item.nodeid: item for item in items}  # all of them, before -m and -k deselect some
        self._reports: list[pytest.TestReport] = []
        self._extra_info: dict[str, Any] = {}
        self._warnings: list[dict[str, Any]] = []
        self._at_start: Mapping[str, str] = {}  # settings of torch before the first item
        self._set_up: Mapping[str, str] = {}  # settings of torch when the fixtures of an item were made

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool:
        self._config.option.verbose = self._config.stash[_VERBOSITY]
        self._at_start = torch_facts()
        for order in self._end.orders():
            # A test may leave anything in its properties, and half a surrogate pair in a text.
            plain = json.dumps(encode(self._run(order)), default=str, skipkeys=True, ensure_ascii=False)
            self._end.answer(json.loads(plain.encode(errors="replace")))
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        self._reports = runtestprotocol(item, log=False, nextitem=nextitem)
        return True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            sys.stderr.write(f"{report.longreprtext}\n")

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        """Keep the warnings of an item for the summary of the session."""
        if when == "runtest":
            self._warnings.append(
                {
                    "category": warning_message.category.__name__,
                    "message": str(warning_message.message),
                    "filename": warning_message.filename,
                    "lineno": warning_message.lineno,
                }
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        self._set_up = torch_facts()

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Keep what a test wrote into its `benchmark` fixture, before that is torn down."""
        if benchmark := getattr(item, "funcargs", {}).get("benchmark"):
            self._extra_info = {key: value for key, value in benchmark.extra_info.items() if key != "accel"}

    def _run(self, order: Order) -> ItemResult:
        item, selection = self._items.get(order.node_id), self._config.stash[SELECTION]
        if item is None:
            text = f"{order.node_id} was not collected here: do all ranks see the same files?"
            return ItemResult.failed(text)
        self._config.stash[SESSION_ID] = order.session
        self._config.stash[PROFILE_ABOVE_S] = order.profile_above_s
        if not selection.ordered:
            bind_worker(self._config, selection.catalogue.parse(order.platform))
        selection.ordered = order.platform
        self._extra_info, self._warnings = {}, []
        before = self._set_up = torch_facts()
        # Through the hook: wrappers of other plugins apply warning filters and explain assertions.
        item.ihook.pytest_runtest_protocol(item=item, nextitem=self._items.get(order.next_node_id))
        for report in self._reports:
            # Of long output the end matters most.
            report.sections = [
                (title, text if len(text) <= _MAX_OUTPUT else f"[...]\n{text[-_MAX_OUTPUT:]}")
                for title, text in without_traces(report.sections)
            ]
        serialize = self._config.hook.pytest_report_to_serializable
        return ItemResult(
            **self._outcome(item),
            reports=tuple(serialize(config=self._config, report=report) for report in self._reports),
            measurement=item.stash.get(MEASUREMENT, None),
            extra_info=self._extra_info,
            unfit=item.stash.get(UNFIT, None),
            device_check=self._config.stash.get(DEVICE_CHECK, None),
            warnings=tuple(self._warnings),
            # What a fixture of the session set for this item is meant for the next ones too; one of a module sets it back.
            left_settings=torch_facts() not in (self._at_start, before, self._set_up),
        )

    def _outcome(self, item: pytest.Item) -> dict[str, Any]:
        """Return the first phase that did not pass; a measurement counts when the teardown passed too."""
        for report in self._reports:
            if report.outcome != "passed" and not is_strict_xpass(report):
                return {
                    "outcome": report.outcome,
                    "when": report.when,
                    "text": text_of(report),
                    "cause": cause_of(report),
                    # The last report has the sections of those before it.
                    "printed": "".join(
                        f"--- {title} ---\n{text.rstrip()}\n" for title, text in self._reports[-1].sections
                    ),
                }
        called = any(report.when == "call" for report in self._reports)  # not under --setup-only
        is_done = MEASUREMENT in item.stash or is_measuring_off(self._config)
        if called and is_benchmark(item) and not is_done:
            return {"outcome": "failed", "text": MEASURED_NOTHING, "cause": MEASURED_NOTHING}
        return {"outcome": "passed"}


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


def text_of(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # a skip: path, line, reason
        return report.longrepr[2].removeprefix("Skipped: ")
    return report.longreprtext


def cause_of(report: pytest.TestReport) -> str:
    """Return the error in one line, as in pytest's short summary."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else text_of(report)).strip().splitlines()
    return lines[0] if lines else report.outcome


# --- the process group --------------------------------------------------------------------------------


def ranks_of(item: pytest.Item, settings: Settings) -> Ranks:
    """Return the ranks that measure an item together; opened by the first item, kept for the following ones."""
    config = item.config
    end = config.stash.get(RANK_END, None)
    if end is None or not end.place.process_group:
        platform = config.stash[SELECTION].choose(item)
        if platform is not None and platform.devices > 1:
            fail_plainly(
                f"{platform} runs in a process group, which is started for tests that take process_group as an argument "
                "(getfixturevalue comes too late), and never under xdist (run it with -n 0)."
            )
        return ALONE
    if PROCESS_GROUP not in config.stash:
        config.stash[PROCESS_GROUP] = group = _open_group(item, settings, end.place.rendezvous_s)
        config.add_cleanup(group.close)
    return config.stash[PROCESS_GROUP]


def _open_group(item: pytest.Item, settings: Settings, rendezvous_s: float) -> ProcessGroup:
    """Open the process group; measure each device by itself and all together, before the first benchmark is timed."""
    import torch

    from pytest_accel.distributed.process_group import open_process_group

    _, device, hardware = open_device(item, settings)
    torch_device = torch.device(device.name)
    try:
        group = open_process_group(torch_device, rendezvous_s=rendezvous_s, timeout_s=settings.timeout_s)
    except WorkerError as error:
        fail_plainly(str(error))
    if group.size > 1:
        label = f"{hardware.name}, {hardware.uuid}" if hardware else "CPU"
        device.prepare()
        try:
            item.config.stash[DEVICE_CHECK] = check(group, torch_device, label=label, host=host.node())
        finally:
            device.restore()
    return group
