"""Worker processes of a session: which ones run an item, and the answers of all ranks as one result."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_accel.distributed.group import GroupAnswer, Order, StartingGroup, WorkerGroup
from pytest_accel.distributed.launch import (
    LocalLauncher,
    RankCommand,
    RankLauncher,
    SingleProcessLauncher,
    WorkerError,
)
from pytest_accel.distributed.launcher_session import RemoteLauncher
from pytest_accel.markers import is_benchmark
from pytest_accel.options import Settings
from pytest_accel.platforms.names import PlatformName
from pytest_accel.report.terminal import Progress
from pytest_accel.session.accel import EXTRA_INFO, SESSION_ID, extra_info
from pytest_accel.session.device import Unfit, wait_until_free
from pytest_accel.session.launcher import LAUNCHER_RANKS, bound_by_launcher, worker_arguments
from pytest_accel.session.selection import SELECTION, TIMER
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.run import Run
from pytest_accel.storage.codec import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShape:
    """What must be equal for the workers of one item to run another."""

    platform: PlatformName
    process_group: bool
    bind: str


def shape_of(platform: PlatformName, settings: Settings) -> WorkerShape:
    """Return the shape of an item's workers."""
    return WorkerShape(
        platform=platform, process_group=needs_process_group(platform, settings), bind=settings.bind
    )


def needs_process_group(platform: PlatformName, settings: Settings) -> bool:
    """Whether an item runs in a process group; on one device only where its marker asks for it."""
    return platform.devices > 1 or settings.process_group


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult:
    """The answers of all ranks that ran an item, as one."""

    outcome: str  # passed, failed, skipped
    text: str = ""
    cause: str = ""  # the same in one line
    measurement: Measurement | None = None
    measuring_off: bool = False
    unfit: Unfit | None = None  # it did not fit in the memory of a rank's device
    reports: Sequence[Mapping[str, Any]] = ()
    sections: Sequence[tuple[str, str]] = ()  # which rank the reports are of, and the output of the others
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    device_check: Mapping[str, Any] | None = None  # of the process group, before its first measurement
    warnings: Sequence[Mapping[str, Any]] = ()
    reusable: bool = False  # whether the workers can run another item: no collective is half done

    @classmethod
    def failed(cls, text: str) -> ItemResult:
        """Return a failure without reports of a rank."""
        return cls(outcome="failed", text=text, cause=text.splitlines()[0])


class Workers:
    """Starts workers for items, keeps the last ones for the next item of their shape, and ends them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._group: WorkerGroup | None = None
        self._shape: WorkerShape | None = None
        # By platform and id of the process group.
        self.device_checks: dict[tuple[PlatformName, str], Mapping[str, Any]] = {}

    def run(
        self,
        item: pytest.Item,
        platform: PlatformName,
        settings: Settings,
        progress: Progress,
        *,
        fresh: bool,
        nextitem: pytest.Item | None = None,
    ) -> ItemResult:
        """Run an item on all ranks of its platform; in processes that have run nothing before, if `fresh`.

        `nextitem` runs in the same processes next: fixtures that both share are kept.
        """
        shape = shape_of(platform, settings)
        if fresh or shape != self._shape or self._group is None or not self._group.alive:
            self._close_group()
        if problem := self._not_free(item, platform, settings, progress):
            return ItemResult.failed(problem)
        order = Order(
            node_id=item.nodeid,
            session=self._config.stash[SESSION_ID],
            platform=str(platform),
            next_node_id=nextitem.nodeid if nextitem is not None else "",
        )
        try:
            if self._group is None:
                self._group = self._start(shape, settings, progress)
                self._shape = shape
            answer = self._group.run(
                order, timeout_s=settings.timeout_s, waiting=progress.tick, phase=progress.phase
            )
        except WorkerError as error:
            self._close_group()
            return ItemResult.failed(str(error))
        except BaseException:  # Ctrl-C: no process stays
            self.close()
            raise
        self._stop_session(answer)
        found = merge_answers(answer)
        if found.device_check:
            self.device_checks[platform, self._group.id] = found.device_check
        if fresh or not found.reusable:
            self._close_group()
        return found

    def _stop_session(self, answer: GroupAnswer) -> None:
        """End the session where an item called `pytest.exit` or raised KeyboardInterrupt, as in this process."""
        for rank in answer.ranks:
            if rank.payload is not None and "exit" in rank.payload:
                self.close()
                stop = rank.payload["exit"]
                if stop is None:
                    raise KeyboardInterrupt
                raise pytest.exit.Exception(stop["reason"], stop["returncode"])

    def close(self) -> None:
        """End all processes."""
        self._close_group()

    def _not_free(
        self, item: pytest.Item, platform: PlatformName, settings: Settings, progress: Progress
    ) -> str:
        """Wait for other sessions on the devices of this node; return why they are not available."""
        if not is_benchmark(item) or self._config.getoption("benchmark_disable", default=False):
            return ""
        devices = self._config.stash[SELECTION].machine.devices_for(platform)
        uuids = [device.uuid for device in devices if device.uuid]
        return wait_until_free(self._config, settings, uuids, progress, label=item.name)

    def _close_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _start(self, shape: WorkerShape, settings: Settings, progress: Progress) -> WorkerGroup:
        progress.phase("starting ranks" if shape.process_group else "starting a process", None)
        return self._launch(shape, settings).connect(progress.tick)

    def _launch(self, shape: WorkerShape, settings: Settings) -> StartingGroup:
        launcher, address = self._launcher(shape)
        return WorkerGroup.launch(
            launcher,
            nodes=shape.platform.nodes,
            per_node=shape.platform.per_node,
            process_group=shape.process_group,
            command=RankCommand(
                arguments=worker_arguments(self._config), directory=self._config.invocation_params.dir
            ),
            bind="launcher" if shape.bind == "auto" and bound_by_launcher(self._config) else shape.bind,
            rendezvous_s=settings.rendezvous_s,
            **address,
        )

    def _launcher(self, shape: WorkerShape) -> tuple[RankLauncher, dict[str, str]]:
        """Return what starts the ranks, and where they reach this session if not on this machine alone."""
        if not shape.process_group:
            return SingleProcessLauncher(), {}
        ranks = self._config.stash.get(LAUNCHER_RANKS, None)
        if ranks is None:
            return LocalLauncher(), {}
        launcher = RemoteLauncher(ranks)
        return launcher, {"address": launcher.address, "host": launcher.host}


# --- answers ------------------------------------------------------------------------------------------


def merge_answers(answer: GroupAnswer) -> ItemResult:
    """Return the answers of all ranks as one: that of rank 0, unless they disagree."""
    if unfit := _unfit(answer):
        return unfit
    if not answer.complete:
        return ItemResult.failed(answer.describe())
    payloads = [rank.payload for rank in answer.ranks if rank.payload is not None]
    ranks = range(len(payloads))
    failing = [rank for rank in ranks if payloads[rank]["outcome"] == "failed"]
    if failing:
        failing.sort(key=lambda rank: rank != answer.culprit)  # the first in time is the one to read
        return _result_of(failing[0], payloads, others=failing[1:])
    expected = [rank for rank in ranks if payloads[rank].get("xfailed")]
    if expected:  # as expected, on some ranks at least
        return _result_of(expected[0], payloads)
    skipping = [rank for rank in ranks if payloads[rank]["outcome"] == "skipped"]
    if skipping and len(skipping) < len(payloads):
        return ItemResult.failed(
            f"rank {skipping[0]} of {len(payloads)} skipped ({payloads[skipping[0]]['cause']}) and others did not: "
            "the same test must do the same on every rank"
        )
    found = _result_of(0, payloads)
    if skipping and not found.reusable:  # left by the same file and line, no rank waits for another
        first, *others = ([report.get("longrepr") for report in payload["reports"]] for payload in payloads)
        found = replace(found, reusable=all(place == first for place in others))
    return found


def _unfit(answer: GroupAnswer) -> ItemResult | None:
    """Return the result where memory did not suffice on any rank; the others may have waited in a collective.

    A rank that failed or died otherwise comes before. Where no rank had built anything, none is in a collective.
    """
    failed = answer.culprit is not None and answer.ranks[answer.culprit].outcome != "skipped"
    ranks = [rank for rank in answer.ranks if rank.outcome == "skipped" and (rank.payload or {}).get("unfit")]
    if failed or not ranks:
        return None
    payloads = [rank.payload or {} for rank in ranks]
    unfits = [decode(Unfit, payload["unfit"]) for payload in payloads]
    unfit, on_all = unfits[0], len(ranks) == len(answer.ranks)
    if not on_all:
        unfit = replace(unfit, text=f"rank {ranks[0].rank} of {len(answer.ranks)}: {unfit.text}")
    reusable = on_all and all(each.nothing_built for each in unfits)
    return replace(_result_of(0, payloads[:1]), unfit=unfit, reusable=reusable)


def _result_of(rank: int, payloads: Sequence[Mapping[str, Any]], others: Sequence[int] = ()) -> ItemResult:
    """Return the answer of one rank for all; `others` failed too."""
    payload, size = payloads[rank], len(payloads)
    outcome, cause, text = payload["outcome"], payload["cause"], payload["text"]
    sections: list[tuple[str, str]] = []
    if outcome == "failed" and size > 1:
        which = [f"this is rank {rank} of {size}"] + [
            f"rank {other} failed too: {payloads[other]['cause']}"
            for other in others
            if payloads[other]["cause"] != cause
        ]
        sections = [("ranks", "\n".join(which)), *_output_of_others(rank, payloads)]
        text, cause = "\n".join([text, *which]), f"rank {rank} of {size}: {cause}"
    plain = payload.get("measurement")
    return ItemResult(
        outcome=outcome,
        text=text,
        cause=cause,
        measurement=decode(Measurement, plain) if plain else None,
        measuring_off=payload.get("measuring_off", False),
        reports=payload.get("reports", ()),
        sections=sections,
        extra_info=payload.get("extra_info", {}),
        device_check=payload.get("stragglers"),
        warnings=payload.get("warnings", ()),
        # One process waits for no other: a skip leaves nothing half done.
        reusable=outcome == "passed"
        or payload.get("when") == "setup"
        or (size == 1 and outcome == "skipped"),
    )


def _output_of_others(but: int, payloads: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the output of all ranks but one; the last report of an item has the sections of those before it."""
    return [
        (f"{title} of rank {rank}", text)
        for rank, payload in enumerate(payloads)
        if rank != but and payload.get("reports")
        for title, text in payload["reports"][-1]["sections"]
    ]


# --- pytest-benchmark ---------------------------------------------------------------------------------


def add_to_pytest_benchmark(
    item: pytest.Item, platform: PlatformName, measurement: Measurement, result: ItemResult
) -> None:
    """Enter a measurement of workers into this session's pytest-benchmark, for its table and its JSON."""
    from pytest_benchmark.fixture import BenchmarkFixture
    from pytest_benchmark.utils import NameWrapper

    session = item.config._benchmarksession  # type: ignore[attr-defined]  # noqa: SLF001 - as its fixture does
    marked = item.get_closest_marker("benchmark")
    options = {
        **session.options,
        **(marked.kwargs if marked else {}),
        "timer": NameWrapper(_RecordedClock(measurement.run)),  # type: ignore[no-untyped-call]
        "add_stats": session.benchmarks.append,
        "logger": session.logger,
        "warner": item.warn,
        "disabled": False,
        "cprofile": None,
    }
    # Versions of pytest-benchmark take different ones.
    taken = set(inspect.signature(BenchmarkFixture).parameters) - {"node"}
    fixture: Any = BenchmarkFixture(item, **{name: options.get(name) for name in taken})  # type: ignore[no-untyped-call]
    rounds, iterations = len(measurement.run.rounds_s), measurement.run.steps_per_round
    fixture.pedantic(lambda: None, rounds=rounds, iterations=iterations)
    fixture.stats.options["timer"] = item.stash[TIMER]  # its name goes into the JSON
    info = extra_info(platform, measurement)
    if result.device_check:
        info["device_check"] = dict(result.device_check)
    fixture.extra_info.update(result.extra_info)
    fixture.extra_info["accel"] = item.stash[EXTRA_INFO] = info


class _RecordedClock:
    """Returns the times of recorded rounds: pytest-benchmark reads its clock twice for each."""

    def __init__(self, run: Run) -> None:
        self._rounds_s: Iterator[float] = (round_s * run.steps_per_round for round_s in run.rounds_s)
        self._in_round = False

    def __call__(self) -> float:
        self._in_round = not self._in_round
        return 0.0 if self._in_round else next(self._rounds_s)
