"""The gangs of a session: which processes run an item, and their answers as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_accel.core.grammar import PlatformName
from pytest_accel.measure.measurement import Measurement
from pytest_accel.options import Settings
from pytest_accel.report.progress import Progress
from pytest_accel.session.accel import SESSION_ID
from pytest_accel.session.arguments import arguments_for_ranks
from pytest_accel.session.seating import SEATS, bound_by_launcher
from pytest_accel.spmd.gang import Gang, GangAnswer, Order
from pytest_accel.spmd.launch import GangError, Launcher
from pytest_accel.spmd.launchers import Elastic, OneProcess
from pytest_accel.spmd.seats import SeatLauncher


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What all ranks together made of an item."""

    outcome: str  # passed, failed, skipped
    text: str = ""
    cause: str = ""  # the same in one line
    measurement: Measurement | None = None
    measuring_off: bool = False
    reports: Sequence[Mapping[str, Any]] = ()
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    stragglers: Mapping[str, Any] | None = None
    note: str = ""  # which rank a report is of

    @classmethod
    def failed(cls, text: str) -> Found:
        """Without any report of a rank."""
        return cls(outcome="failed", text=text, cause=text.splitlines()[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What must be equal for a gang to serve the next item too."""

    platform: PlatformName
    process_group: bool
    bind: str


class Gangs:
    """Starts gangs for items, keeps the last one for the next item of its shape, and ends it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._gang: Gang | None = None
        self._shape: _Shape | None = None

    def run(
        self,
        item: pytest.Item,
        platform: PlatformName,
        settings: Settings,
        progress: Progress,
        *,
        fresh: bool,
    ) -> Found:
        """Run an item on all ranks of its platform; in processes that have run nothing before, if `fresh`."""
        shape = _Shape(platform=platform, process_group=needs_gang(platform, settings), bind=settings.bind)
        if fresh or shape != self._shape or self._gang is None or not self._gang.alive:
            self.close()
        try:
            if self._gang is None:
                self._gang, self._shape = self._start(shape, settings, progress), shape
            answer = self._gang.run(
                Order(node_id=item.nodeid, session=self._config.stash[SESSION_ID], platform=str(platform)),
                timeout_s=settings.timeout_s,
                waiting=progress.tick,
                phase=progress.phase,
            )
        except GangError as error:
            self.close()
            return Found.failed(str(error))
        except BaseException:  # Ctrl-C: nothing is left running
            self.close()
            raise
        found = found_by(answer)
        if fresh or found.outcome == "failed":  # a failure may have left a collective half done
            self.close()
        return found

    def close(self) -> None:
        gang, self._gang = self._gang, None
        if gang is not None:
            gang.close()

    def _start(self, shape: _Shape, settings: Settings, progress: Progress) -> Gang:
        progress.phase("starting ranks" if shape.process_group else "starting a process", None)
        launcher, reached = self._launcher(shape)
        return Gang.start(
            launcher,
            nodes=shape.platform.nodes,
            per_node=shape.platform.per_node,
            process_group=shape.process_group,
            arguments=arguments_for_ranks(self._config),
            directory=self._config.invocation_params.dir,
            bind="launcher" if shape.bind == "auto" and bound_by_launcher(self._config) else shape.bind,
            rendezvous_s=settings.rendezvous_s,
            waiting=progress.tick,
            **reached,
        )

    def _launcher(self, shape: _Shape) -> tuple[Launcher, dict[str, str]]:
        """Who starts the ranks, and where they then reach this session, if not on this machine alone."""
        if not shape.process_group:
            return OneProcess(), {}
        seats = self._config.stash.get(SEATS, None)
        if seats is None:
            return Elastic(), {}
        launcher = SeatLauncher(seats)
        return launcher, {"address": launcher.address, "host": launcher.host}


def needs_gang(platform: PlatformName, settings: Settings) -> bool:
    """Whether an item runs in a process group; on one device only where it was asked for."""
    return platform.devices > 1 or settings.gang


def found_by(answer: GangAnswer) -> Found:
    """The answers of all ranks as one: what rank 0 measured, unless they disagree."""
    if not answer.whole:
        return Found.failed(answer.words())
    payloads = [rank.payload for rank in answer.ranks if rank.payload is not None]
    first, size = payloads[0], len(payloads)
    failing = [rank for rank, payload in enumerate(payloads) if payload["outcome"] == "failed"]
    skipping = [rank for rank, payload in enumerate(payloads) if payload["outcome"] == "skipped"]
    if failing:
        failing.sort(key=lambda rank: rank != answer.culprit)  # the first in time is the one to read
        return _failure_of(failing, payloads)
    if skipping and len(skipping) < size:
        return Found.failed(
            f"rank {skipping[0]} of {size} skipped ({payloads[skipping[0]]['text']}) and others did not: "
            "the same test must do the same on every rank"
        )
    plain = first.get("measurement")
    return Found(
        outcome=first["outcome"],
        text=first["text"],
        cause=first["cause"],
        measurement=Measurement.from_plain(plain) if plain else None,
        measuring_off=first.get("measuring_off", False),
        reports=first.get("reports", ()),
        extra_info=first.get("extra_info", {}),
        stragglers=first.get("stragglers"),
    )


def _failure_of(failing: Sequence[int], payloads: Sequence[Mapping[str, Any]]) -> Found:
    """The first rank's failure, and in a line each what the others that failed otherwise have to say."""
    first, size = failing[0], len(payloads)
    payload = payloads[first]
    others = [
        f"rank {rank} of {size} failed too: {payloads[rank]['cause']}"
        for rank in failing[1:]
        if payloads[rank]["cause"] != payload["cause"]
    ]
    which = [f"this is rank {first} of {size}", *others] if size > 1 else []
    return Found(
        outcome="failed",
        text="\n".join([payload["text"], *which]),
        cause=f"rank {first} of {size}: {payload['cause']}" if size > 1 else payload["cause"],
        reports=payload.get("reports", ()),
        note="\n".join(which),
    )
