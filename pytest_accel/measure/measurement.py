"""What one process, or the ranks of a gang, found out about one benchmark, as a value that can cross processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_accel.stats.environment import Environment
from pytest_accel.stats.keys import Scalar
from pytest_accel.stats.ranks import RankResult
from pytest_accel.stats.runs import Run

SCHEMA_VERSION = 1  # of `extra_info.accel` in pytest-benchmark's JSON, and of what a fresh process answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A run with what it measured and where."""

    run: Run  # its rounds, and what else was measured of it
    work_per_step: float  # of all ranks together
    unit: str  # of the work: images, tokens
    configuration: Mapping[str, Scalar]  # what exactly was measured
    environment: Environment  # where
    steady: bool  # whether steps had stopped drifting
    ranks: tuple[RankResult, ...] = ()  # by rank, where there were several
    # Metrics of the run that are gated too, with the loss that is tolerated; None: as much as of its throughput. What is
    # asked for, not what was measured: another tolerance makes no baseline stale.
    gates: Mapping[str, float | None] = field(default_factory=dict)
    invalid: str = ""  # why it is not to be judged: the device was not fair to it
    notes: tuple[str, ...] = ()  # what should be known of it
    no_energy: str = ""  # why its energy is not known
    missed: tuple[str, ...] = ()  # what should be judged of it and was not measured, in words

    @property
    def throughput(self) -> float:
        return self.run.throughput(self.work_per_step)

    def to_plain(self) -> dict[str, Any]:
        """Plain JSON values, as they stand in `extra_info.accel`; what only some have is absent elsewhere."""
        plain: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "throughput": self.throughput,
            "unit": f"{self.unit}/s",
            "work_per_step": self.work_per_step,
            "work_unit": self.unit,
            "step_time_s": self.run.step_time_s,
            "stall_share": self.run.stall_share,
            "steady": self.steady,
            "run": _run_to_plain(self.run),
            "configuration": dict(self.configuration),
            "environment": {
                "identity": dict(self.environment.identity),
                "context": dict(self.environment.context),
            },
        }
        if self.ranks:
            plain["ranks"] = [result.to_plain() for result in self.ranks]
        if self.gates:
            plain["gates"] = dict(self.gates)
        said = {
            "invalid": self.invalid,
            "notes": list(self.notes),
            "no_energy": self.no_energy,
            "missed": list(self.missed),
        }
        return plain | {name: told for name, told in said.items() if told}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Measurement:
        """What `to_plain` wrote; derived figures are derived again."""
        run = plain["run"]
        tuples = {"rounds_s": tuple(run["rounds_s"]), "rank_step_s": tuple(run.get("rank_step_s", ()))}
        return cls(
            run=Run(**{**run, **tuples}),
            work_per_step=plain["work_per_step"],
            unit=plain["work_unit"],
            configuration=plain["configuration"],
            environment=Environment(**plain["environment"]),
            steady=plain["steady"],
            ranks=tuple(RankResult.from_plain(result) for result in plain.get("ranks", ())),
            gates=plain.get("gates", {}),
            invalid=plain.get("invalid", ""),
            notes=tuple(plain.get("notes", ())),
            no_energy=plain.get("no_energy", ""),
            missed=tuple(plain.get("missed", ())),
        )


def _run_to_plain(run: Run) -> dict[str, Any]:
    plain = asdict(run)
    if not run.rank_step_s:
        del plain["rank_step_s"]
    return plain
