"""The gangs of a session: which processes run an item, and their answers as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from pytest_accel.options import Settings
from pytest_accel.platforms.names import PlatformName
from pytest_accel.report.terminal import Progress
from pytest_accel.session import items as what
from pytest_accel.session.accel import SESSION_ID
from pytest_accel.session.ahead import Ahead
from pytest_accel.session.arguments import arguments_for_ranks
from pytest_accel.session.exclusivity import wait_until_free
from pytest_accel.session.fitting import Unfit
from pytest_accel.session.placement import PLACEMENT
from pytest_accel.session.seating import SEATS, bound_by_launcher
from pytest_accel.session.shapes import Shape, shape_of
from pytest_accel.stats.measurement import Measurement
from pytest_accel.storage.codec import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What all ranks together made of an item."""

    outcome: str  # passed, failed, skipped
    text: str = ""
    cause: str = ""  # the same in one line
    measurement: Measurement | None = None
    measuring_off: bool = False
    unfit: Unfit | None = None  # it did not fit in the memory of a rank's device
    reports: Sequence[Mapping[str, Any]] = ()
    sections: Sequence[tuple[str, str]] = ()  # which rank the reports are of, and what the others printed
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    gang: Mapping[str, Any] | None = None  # what the gang found out about its devices when it came together
    warnings: Sequence[Mapping[str, Any]] = ()
    sound: bool = False  # nothing went wrong that could have left a collective half done

    @classmethod
    def failed(cls, text: str) -> Found:
        """Without any report of a rank."""
        return cls(outcome="failed", text=text, cause=text.splitlines()[0])


class Gangs:
    """Starts gangs for items, keeps the last one for the next item of its shape, and ends it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._gang: WorkerGroup | None = None
        self._shape: Shape | None = None
        self._ahead = Ahead(self._launch)
        # By platform and gang, what each found out about its devices before it measured.
        self.looked_over: dict[tuple[PlatformName, str], Mapping[str, Any]] = {}

    def run(
        self,
        item: pytest.Item,
        platform: PlatformName,
        settings: Settings,
        progress: Progress,
        *,
        fresh: bool,
        nextitem: pytest.Item | None = None,
    ) -> Found:
        """Run an item on all ranks of its platform; in processes that have run nothing before, if `fresh`.

        `nextitem` runs in the same processes next: fixtures that both share are kept.
        """
        shape = shape_of(platform, settings)
        if fresh or shape != self._shape or self._gang is None or not self._gang.alive:
            self._close_gang()
        if problem := self._not_free(item, platform, settings, progress):
            return Found.failed(problem)
        try:
            if self._gang is None:
                self._gang = self._ahead.take(shape) or self._start(shape, settings, progress)
                self._shape = shape
            answer = self._gang.run(
                Order(
                    node_id=item.nodeid,
                    session=self._config.stash[SESSION_ID],
                    platform=str(platform),
                    next_node_id=nextitem.nodeid if nextitem is not None else "",
                ),
                timeout_s=settings.timeout_s,
                waiting=progress.tick,
                phase=progress.phase,
            )
        except WorkerError as error:
            self._close_gang()
            return Found.failed(str(error))
        except BaseException:  # Ctrl-C: nothing is left running
            self.close()
            raise
        found = found_by(answer)
        if found.gang:
            self.looked_over[platform, self._gang.id] = found.gang
        if fresh or not found.sound:
            self._close_gang()
        return found

    def start_ahead(
        self, coming: Sequence[tuple[pytest.Item, PlatformName, Settings]], progress: Progress
    ) -> list[int]:
        """For items that are to run in fresh processes next, in this order; return which have theirs now.

        Not beside whoever measures on these devices: the first of them waits for that.
        """
        if len(coming) < 2 or self._not_free(*coming[0], progress):
            return []
        wanted = [(shape_of(platform, settings), settings) for _, platform, settings in coming]
        return self._ahead.start(wanted, progress)

    def _not_free(
        self, item: pytest.Item, platform: PlatformName, settings: Settings, progress: Progress
    ) -> str:
        """Why the devices of this node are not to be had for measuring; waits for those that others measure on."""
        if not what.is_benchmark(item) or self._config.getoption("benchmark_disable", default=False):
            return ""
        devices = self._config.stash[PLACEMENT].machine.devices_for(platform)
        uuids = [device.uuid for device in devices if device.uuid]
        return wait_until_free(self._config, settings, uuids, progress, label=item.name)

    def close(self) -> None:
        """End all that is there."""
        self._ahead.end()
        self._close_gang()

    def _close_gang(self) -> None:
        gang, self._gang = self._gang, None
        if gang is not None:
            gang.close()

    def _start(self, shape: Shape, settings: Settings, progress: Progress) -> WorkerGroup:
        progress.phase("starting ranks" if shape.process_group else "starting a process", None)
        return self._launch(shape, settings).connect(progress.tick)

    def _launch(self, shape: Shape, settings: Settings) -> StartingGroup:
        launcher, reached = self._launcher(shape)
        return WorkerGroup.launch(
            launcher,
            nodes=shape.platform.nodes,
            per_node=shape.platform.per_node,
            process_group=shape.process_group,
            command=RankCommand(
                arguments=arguments_for_ranks(self._config), directory=self._config.invocation_params.dir
            ),
            bind="launcher" if shape.bind == "auto" and bound_by_launcher(self._config) else shape.bind,
            rendezvous_s=settings.rendezvous_s,
            **reached,
        )

    def _launcher(self, shape: Shape) -> tuple[RankLauncher, dict[str, str]]:
        """Who starts the ranks, and where they then reach this session, if not on this machine alone."""
        if not shape.process_group:
            return SingleProcessLauncher(), {}
        seats = self._config.stash.get(SEATS, None)
        if seats is None:
            return LocalLauncher(), {}
        launcher = RemoteLauncher(seats)
        return launcher, {"address": launcher.address, "host": launcher.host}


def found_by(answer: GroupAnswer) -> Found:
    """The answers of all ranks as one: what rank 0 measured, unless they disagree."""
    if unfit := _unfit(answer):
        return unfit
    if not answer.complete:
        return Found.failed(answer.describe())
    payloads = [rank.payload for rank in answer.ranks if rank.payload is not None]
    ranks = range(len(payloads))
    failing = [rank for rank in ranks if payloads[rank]["outcome"] == "failed"]
    if failing:
        failing.sort(key=lambda rank: rank != answer.culprit)  # the first in time is the one to read
        return _found(failing[0], payloads, others=failing[1:])
    expected = [rank for rank in ranks if payloads[rank].get("xfailed")]
    if expected:  # as expected, on some ranks at least
        return _found(expected[0], payloads)
    skipping = [rank for rank in ranks if payloads[rank]["outcome"] == "skipped"]
    if skipping and len(skipping) < len(payloads):
        return Found.failed(
            f"rank {skipping[0]} of {len(payloads)} skipped ({payloads[skipping[0]]['cause']}) and others did not: "
            "the same test must do the same on every rank"
        )
    found = _found(0, payloads)
    return replace(found, sound=found.sound or _at_one_place(payloads)) if skipping else found


def _at_one_place(payloads: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all ranks left by the same file and line: then none waits for another."""
    first, *others = ([report.get("longrepr") for report in payload["reports"]] for payload in payloads)
    return all(place == first for place in others)


def _unfit(answer: GroupAnswer) -> Found | None:
    """What did not fit on any rank did not fit; the others may have waited for it in a collective, and been ended.

    A rank that failed or is gone without that comes before. Where no rank had built anything, none is in a collective.
    """
    failed = answer.culprit is not None and answer.ranks[answer.culprit].outcome != "skipped"
    told = [rank for rank in answer.ranks if rank.outcome == "skipped" and (rank.payload or {}).get("unfit")]
    if failed or not told:
        return None
    payloads = [rank.payload or {} for rank in told]
    unfits = [decode(Unfit, payload["unfit"]) for payload in payloads]
    unfit, of_all = unfits[0], len(told) == len(answer.ranks)
    if not of_all:
        unfit = replace(unfit, text=f"rank {told[0].rank} of {len(answer.ranks)}: {unfit.text}")
    sound = of_all and all(each.nothing_built for each in unfits)
    return replace(_found(0, payloads[:1]), unfit=unfit, sound=sound)


def _found(rank: int, payloads: Sequence[Mapping[str, Any]], others: Sequence[int] = ()) -> Found:
    """What one rank answered, for all; `others` failed too."""
    payload, size = payloads[rank], len(payloads)
    failed = payload["outcome"] == "failed"
    plain = payload.get("measurement")
    which = [f"this is rank {rank} of {size}"] + [
        f"rank {other} failed too: {payloads[other]['cause']}"
        for other in others
        if payloads[other]["cause"] != payload["cause"]
    ]
    sections = [("ranks", "\n".join(which)), *_printed(rank, payloads)] if failed and size > 1 else []
    return Found(
        outcome=payload["outcome"],
        text="\n".join([payload["text"], *(which if failed and size > 1 else ())]),
        cause=f"rank {rank} of {size}: {payload['cause']}" if failed and size > 1 else payload["cause"],
        measurement=decode(Measurement, plain) if plain else None,
        measuring_off=payload.get("measuring_off", False),
        reports=payload.get("reports", ()),
        sections=sections,
        extra_info=payload.get("extra_info", {}),
        gang=payload.get("stragglers"),
        warnings=payload.get("warnings", ()),
        # One process waits for no other: what it skipped leaves nothing half done.
        sound=payload["outcome"] == "passed"
        or payload.get("when") == "setup"
        or (size == 1 and payload["outcome"] == "skipped"),
    )


def _printed(but: int, payloads: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What all ranks but one printed; the last report of an item has the sections of those before it."""
    return [
        (f"{title} of rank {rank}", text)
        for rank, payload in enumerate(payloads)
        if rank != but and payload.get("reports")
        for title, text in payload["reports"][-1]["sections"]
    ]
