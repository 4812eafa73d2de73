"""What a run leaves: every contest with its raw times or its reason, and what they ran on, as JSON. No torch here."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.peers.contests import Contest
from benchmarks.peers.ratios import Ratio, Times, rate, ratio_of

KIND = "pytest-accel peers"
SCHEMA_VERSION = 1
LIBRARIES = (
    *("torch", "torchvision", "timm", "transformers", "segmentation-models-pytorch"),
    *("triton", "pytest-accel"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a contest measured."""

    against: str  # whose way, in words
    times: Times
    steps: tuple[int, int]  # of a block, ours and the peer's
    work: int  # of a step
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A contest as it was played, and what came of it: one of the two."""

    contest: Contest
    played: Played | None = None
    error: str = ""

    @property
    def ratio(self) -> Ratio | None:
        return None if self.played is None else ratio_of(self.played.times)

    @property
    def cut_off(self) -> bool:
        return self.played is not None and self.played.times.cut_off


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What all contests of a run share."""

    date: str  # ISO 8601, UTC
    device: str  # cuda, cpu
    device_name: str
    groups: int
    block_seconds: float
    versions: dict[str, str]

    @property
    def small(self) -> bool:
        """Whether contests were played small, so that their figures mean nothing."""
        return self.device == "cpu"


def installed() -> dict[str, str]:
    """Return the versions of what the contests use, as far as it is installed."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def content(session: Session, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return what the file holds: seconds a step of every block in order, two of each side to a group."""
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        **asdict(session),
        "small": session.small,
        "contests": [_entry(entry) for entry in entries],
    }


def _entry(entry: Entry) -> dict[str, Any]:
    contest, played, ratio = entry.contest, entry.played, entry.ratio
    made = {
        "name": contest.name,
        "row": contest.row,
        "model": contest.model,
        "task": contest.task,
        "batch_size": contest.batch_size,
        "precision": contest.precision,
        "choices": dict(contest.choices),
        "peer_pixels": contest.peer_pixels,
        "goal": contest.goal,
    }
    if played is None or ratio is None:
        return {**made, "error": entry.error}
    sides = zip(("ours", "peer"), (played.times.ours_s, played.times.peer_s), played.steps, strict=True)
    return {
        **made,
        "against": played.against,
        "unit": played.unit,
        "work": played.work,
        "cut_off": entry.cut_off,
        **{
            side: {"step_s": list(steps_s), "steps": steps, "rate": rate(played.work, steps_s)}
            for side, steps_s, steps in sides
        },
        "ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high if math.isfinite(ratio.high) else None,  # JSON has no infinity
        "reached": ratio.reaches(contest.goal),
    }
