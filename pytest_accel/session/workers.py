"""Worker processes of a session: which ones run an item, and the answers of all ranks as one result."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pytest_accel.distributed.device_check import DeviceCheck
from pytest_accel.distributed.group import GroupAnswer, Order, WorkerGroup
from pytest_accel.distributed.processes import LocalLauncher, RankCommand, WorkerError
from pytest_accel.measure.locks import LockedError
from pytest_accel.options import Settings
from pytest_accel.platforms.catalogue import PlatformName
from pytest_accel.report.terminal import Progress
from pytest_accel.session.accel import SESSION_ID, extra_info
from pytest_accel.session.device import hold_devices
from pytest_accel.session.launcher import LAUNCHER_RANKS, bound_by_launcher, worker_arguments
from pytest_accel.session.selection import TIMER
from pytest_accel.session.worker_process import ItemResult
from pytest_accel.stats.measurement import Measurement
from pytest_accel.storage.codec import FormatError, decode


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShape:
    """What must be equal for the workers of one item to run another."""

    platform: PlatformName
    process_group: bool
    bind: str
    timeout_s: float  # of collectives, where there is a process group


def shape_of(platform: PlatformName, settings: Settings) -> WorkerShape:
    group = platform.devices > 1 or settings.process_group  # on one device only where its marker asks for it
    return WorkerShape(
        platform=platform,
        process_group=group,
        bind=settings.bind,
        timeout_s=settings.timeout_s if group else 0.0,
    )


class Workers:
    """Starts workers for items, keeps the last ones for the next item of their shape, and ends them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._group: WorkerGroup | None = None
        self._shape: WorkerShape | None = None
        self.device_checks: dict[PlatformName, DeviceCheck] = {}  # of the newest process group

    def run(
        self,
        item: pytest.Item,
        platform: PlatformName,
        settings: Settings,
        progress: Progress,
        *,
        fresh: bool,
        nextitem: pytest.Item | None = None,
        profile_above_s: float | None = None,
    ) -> ItemResult:
        """Run an item on all ranks of its platform; in processes that have run nothing before, if `fresh`.

        `nextitem` runs in the same processes next: fixtures that both share are kept.
        """
        shape = shape_of(platform, settings)
        if fresh or shape != self._shape or self._group is None or not self._group.alive:
            self.close()
        order = Order(
            node_id=item.nodeid,
            session=self._config.stash[SESSION_ID],
            platform=str(platform),
            next_node_id=nextitem.nodeid if nextitem is not None else "",
            profile_above_s=profile_above_s,
        )
        try:
            with hold_devices(item, settings, platform, progress):
                if self._group is None:
                    self._group = self._start(shape, settings, progress)
                    self._shape = shape
                progress.phase("building", None)
                tick, phase = progress.tick, progress.phase
                answer = self._group.run(order, timeout_s=settings.timeout_s, waiting=tick, phase=phase)
        except (WorkerError, LockedError) as error:
            self.close()
            return ItemResult.failed(str(error))
        except BaseException:  # Ctrl-C: no process stays
            self.close()
            raise
        found = merge_answers(answer)
        if found.device_check:
            self.device_checks[platform] = found.device_check
        if fresh or found.left_settings or not found.reusable:
            self.close()
        return found

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _start(self, shape: WorkerShape, settings: Settings, progress: Progress) -> WorkerGroup:
        progress.phase("starting ranks" if shape.process_group else "starting a process", None)
        ranks = self._config.stash.get(LAUNCHER_RANKS, None) if shape.process_group else None
        return WorkerGroup.launch(
            ranks or LocalLauncher(),
            nodes=shape.platform.nodes,
            per_node=shape.platform.per_node,
            process_group=shape.process_group,
            command=RankCommand(
                arguments=worker_arguments(self._config), directory=self._config.invocation_params.dir
            ),
            bind="launcher" if shape.bind == "auto" and bound_by_launcher(self._config) else shape.bind,
            rendezvous_s=settings.rendezvous_s,
            waiting=progress.tick,
        )


# --- answers ------------------------------------------------------------------------------------------


def merge_answers(answer: GroupAnswer) -> ItemResult:
    """Return the answers of all ranks as one: that of rank 0, unless they disagree."""
    try:
        answered = [each for each in answer.ranks if each.payload is not None]
        found = {each.rank: decode(ItemResult, each.payload) for each in answered}
    except FormatError as error:
        return ItemResult.failed(f"a rank answered with something else than a result: {error}")
    if unfit := _unfit(answer, found):
        return unfit
    if not answer.complete:
        return ItemResult.failed(answer.describe())
    return _merged(found, answer.culprit)


def _merged(found: Mapping[int, ItemResult], culprit: int | None) -> ItemResult:
    failing = [rank for rank, each in found.items() if each.outcome == "failed"]
    if failing:
        failing.sort(key=lambda rank: rank != culprit)  # the first in time is the one to read
        return _failed_on(failing, found)
    expected = [each for each in found.values() if any("wasxfail" in report for report in each.reports)]
    if expected:  # on some ranks at least
        return _alone(expected[0], len(found))
    skipping = [rank for rank, each in found.items() if each.outcome == "skipped"]
    if skipping and len(skipping) < len(found):
        return ItemResult.failed(
            f"rank {skipping[0]} of {len(found)} skipped ({found[skipping[0]].cause}) and others did not: "
            "the same test must do the same on every rank"
        )
    return _alone(found[0], len(found))


def _unfit(answer: GroupAnswer, found: Mapping[int, ItemResult]) -> ItemResult | None:
    """Return the result where memory did not suffice on any rank; the others may have waited in a collective.

    A rank that failed or died otherwise comes before.
    """
    skipped = {rank: each for rank, each in found.items() if each.outcome == "skipped"}
    failed = answer.culprit is not None and answer.culprit not in skipped
    unfits = {rank: each.unfit for rank, each in skipped.items() if each.unfit}
    if failed or not unfits:
        return None
    rank, unfit = next(iter(unfits.items()))
    if len(unfits) < len(answer.ranks):
        unfit = replace(unfit, text=f"rank {rank} of {len(answer.ranks)}: {unfit.text}")
    return replace(found[rank], unfit=unfit)


def _alone(found: ItemResult, size: int) -> ItemResult:
    """Return the result of one rank for all. One process waits for no other: a skip leaves nothing half done."""
    well = found.outcome == "passed" or found.when == "setup" or (size == 1 and found.outcome == "skipped")
    return replace(found, reusable=well)


def _failed_on(failing: Sequence[int], found: Mapping[int, ItemResult]) -> ItemResult:
    """Return the failure of the first of these ranks, with the causes and the output of the others."""
    (rank, *others), size = failing, len(found)
    shown = _alone(found[rank], size)
    if size == 1:
        return shown
    unlike = [other for other in others if found[other].cause != shown.cause]
    which = [f"this is rank {rank} of {size}"]
    which += [f"rank {other} failed too: {found[other].cause}" for other in unlike]
    # The last report of an item has the sections of those before it.
    output = [
        (f"{title} of rank {other}", text)
        for other, each in found.items()
        if other != rank and each.reports
        for title, text in each.reports[-1]["sections"]
    ]
    return replace(
        shown,
        text="\n".join([shown.text, *which]),
        cause=f"rank {rank} of {size}: {shown.cause}",
        sections=[("ranks", "\n".join(which)), *output],
    )


# --- pytest-benchmark ---------------------------------------------------------------------------------


def add_to_pytest_benchmark(
    item: pytest.Item, platform: PlatformName, measurement: Measurement, theirs: Mapping[str, Any]
) -> None:
    """Enter a measurement of workers into this session's pytest-benchmark, for its table and its JSON."""
    from pytest_benchmark.fixture import BenchmarkFixture
    from pytest_benchmark.utils import NameWrapper

    rounds_s, iterations = measurement.run.rounds_s, measurement.run.steps_per_round
    # Read twice for each round.
    clock = (at_s for round_s in rounds_s for at_s in (0.0, round_s * iterations))
    session = item.config._benchmarksession  # type: ignore[attr-defined]  # noqa: SLF001 - as its fixture does
    marked = item.get_closest_marker("benchmark")
    options = {
        **session.options,
        **(marked.kwargs if marked else {}),
        "timer": NameWrapper(lambda: next(clock)),  # type: ignore[no-untyped-call]
        "add_stats": session.benchmarks.append,
        "logger": session.logger,
        "warner": item.warn,
        "disabled": False,
        "cprofile": None,
    }
    # Versions of pytest-benchmark take different ones.
    taken = set(inspect.signature(BenchmarkFixture).parameters) - {"node"}
    fixture: Any = BenchmarkFixture(item, **{name: options.get(name) for name in taken})  # type: ignore[no-untyped-call]
    fixture.pedantic(lambda: None, rounds=len(rounds_s), iterations=iterations)
    fixture.stats.options["timer"] = item.stash[TIMER]  # its name goes into the JSON
    fixture.extra_info.update(theirs, accel=extra_info(platform, measurement))
