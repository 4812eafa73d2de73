"""What a session asks of ranks, and what they answer: the values that cross between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_accel.distributed.launch import Remains
from pytest_accel.distributed.stacks import ranks_words, shortened

_CHATTER = "[Gloo] Rank "  # is connected to so many peer ranks: gloo says it on stdout, whoever asks
_LOG_LINES = 12  # of a rank that is not the one to blame


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One benchmark to run, as one platform."""

    node_id: str
    session: str
    platform: str
    next_node_id: str = ""  # of the item that the same processes run next: fixtures that it shares are kept

    def to_plain(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, str]) -> Order:
        return cls(
            node_id=plain["node_id"],
            session=plain["session"],
            platform=plain["platform"],
            next_node_id=plain.get("next_node_id", ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What a rank can do before its turn comes: be bound to a platform's device, and import what its session has."""

    platform: str
    modules: tuple[str, ...]

    def to_plain(self) -> dict[str, Any]:
        return {"platform": self.platform, "modules": list(self.modules)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Preparation:
        return cls(platform=plain["platform"], modules=tuple(plain["modules"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """What one rank answered, or how it ended."""

    rank: int
    payload: Mapping[str, Any] | None = None
    problem: str = ""  # one line
    remains: Remains = field(default_factory=Remains)

    @property
    def outcome(self) -> str:
        return str((self.payload or {}).get("outcome", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class GangAnswer:
    """What all ranks answered; if one did not: who failed first, how, and where the others were."""

    ranks: tuple[RankAnswer, ...]
    problem: str = ""  # one line; empty if all answered
    culprit: int | None = None  # who failed first, of all that failed; None if nobody did

    @property
    def whole(self) -> bool:
        return all(rank.payload is not None for rank in self.ranks)

    def words(self) -> str:
        """For a report: the problem, the last words of the rank to blame, then the others; the same stacks once."""
        if self.whole:
            return ""
        ordered = sorted(self.ranks, key=lambda rank: rank.rank != self.culprit)
        parts = [self.problem]
        for rank in ordered:
            words = _last_words(rank, blamed=rank.rank == self.culprit)
            parts += [f"--- last words of rank {rank.rank} ---\n{words}"] if words.strip() else []
        same: dict[str, list[int]] = {}
        for rank in ordered:
            if rank.payload is None and (stacks := shortened(rank.remains.stacks)):
                same.setdefault(stacks, []).append(rank.rank)
        parts += [f"--- stacks of {ranks_words(ranks)} ---\n{stacks}" for stacks, ranks in same.items()]
        return "\n".join(parts)


def _last_words(rank: RankAnswer, *, blamed: bool) -> str:
    """All that the rank to blame has left; of another one that only lost its peer, the end."""
    if rank.payload is not None and blamed:
        return "\n".join(filter(None, (str(rank.payload.get(each, "")) for each in ("text", "printed"))))
    if rank.payload is not None:
        return str(rank.payload.get("cause", ""))
    lines = [line for line in rank.remains.log.splitlines() if not line.startswith(_CHATTER)]
    return "\n".join(lines if blamed else lines[-_LOG_LINES:])
