"""A baseline file as a value: what it holds, how it is written, and what is wrong with a bad one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast, get_args

from pytest_accel.stats.environment import Environment, fingerprint
from pytest_accel.stats.run import MAX_RUNS, Run, Scalar
from pytest_accel.storage.reading import BaselineError, Node, load, named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "MAX_RUNS",
    "SCHEMA_VERSION",
    "Action",
    "BaselineEntry",
    "BaselineError",
    "BaselineFile",
    "LedgerEntry",
    "Removal",
    "configuration_hash",
    "faults",
    "parse",
    "render",
    "rounded",
]

SCHEMA_VERSION = 1

Action: TypeAlias = Literal["record", "update", "accept", "prune", "anchor", "tolerance"]
ACTIONS: tuple[Action, ...] = get_args(Action)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """Why the runs of a benchmark are what they are: one line for each time that somebody changed them."""

    at: str  # ISO 8601, UTC
    action: Action
    reason: str  # only a recording may be silent
    runs: int  # that came; of a prune, that went; of an anchor, that it has (or had); of a tolerance, that there were
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A benchmark that was taken out of a file, and its own ledger with it: what is left to say of it."""

    at: str  # ISO 8601, UTC
    benchmark: str
    reason: str
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEntry:
    """The stored runs of one benchmark, and what exactly was measured."""

    configuration: Mapping[str, Scalar]
    work_per_step: float
    unit: str
    tolerance: float | None
    runs: tuple[Run, ...]
    ledger: tuple[LedgerEntry, ...]
    anchor: tuple[Run, ...] = ()  # runs of a release, which no refresh moves

    @property
    def configuration_hash(self) -> str:
        return configuration_hash(self.configuration, self.work_per_step, self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineFile:
    """All baselines of one suite on one platform; environments are stored once, by key."""

    platform: str
    suite: str
    environments: Mapping[str, Environment]
    benchmarks: Mapping[str, BaselineEntry]  # by node id, and by `core.keys` where real data fed it
    removed: tuple[Removal, ...] = ()


def configuration_hash(configuration: Mapping[str, Scalar], work_per_step: float, unit: str) -> str:
    """Equal exactly when the same thing was measured; of the rounded work, which is what is stored."""
    return fingerprint(
        {"configuration": dict(configuration), "work_per_step": rounded(work_per_step), "unit": unit}
    )


def rounded(value: float) -> float:
    """Seven significant digits: 0.1 ppm, a thousandth of the best run-to-run noise."""
    return float(f"{float(value):.7g}")


# --- writing ----------------------------------------------------------------------------------------


def render(file: BaselineFile) -> str:
    """Sorted keys, one fact a line, a run's rounds on one line: a diff shows what changed."""
    content: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "platform": file.platform,
        "suite": file.suite,
        "environments": {
            key: {"identity": dict(environment.identity), "context": dict(environment.context)}
            for key, environment in file.environments.items()
        },
        "benchmarks": {node_id: _entry_content(entry) for node_id, entry in file.benchmarks.items()},
    }
    if file.removed:
        content["removed"] = [asdict(each) for each in file.removed]
    return rendered(content, "") + "\n"


def _entry_content(entry: BaselineEntry) -> dict[str, object]:
    content: dict[str, object] = {
        "configuration": dict(entry.configuration),
        "configuration_hash": entry.configuration_hash,
        "work_per_step": rounded(entry.work_per_step),
        "unit": entry.unit,
        "runs": [run_content(run) for run in entry.runs],
        "ledger": [
            {
                "at": line.at,
                "action": line.action,
                "reason": line.reason,
                "runs": line.runs,
                "session": line.session,
            }
            for line in entry.ledger
        ],
    }
    if entry.tolerance is not None:
        content["tolerance"] = rounded(entry.tolerance)
    if entry.anchor:
        content["anchor"] = [run_content(run) for run in entry.anchor]
    return content


def run_content(run: Run) -> dict[str, object]:
    measured = {"first_step_s": run.first_step_s, "warmup_s": run.warmup_s, "loss": run.loss}
    content: dict[str, object] = {
        "session": run.session,
        "environment": run.environment,
        "steps_per_round": run.steps_per_round,
        "rounds_s": [rounded(seconds) for seconds in run.rounds_s],
        **{name: rounded(value) for name, value in measured.items() if value is not None},
    }
    if run.peak_memory_bytes is not None:
        content["peak_memory_bytes"] = run.peak_memory_bytes
    if run.rank_step_s:
        content["rank_step_s"] = [rounded(seconds) for seconds in run.rank_step_s]
    if run.metrics:
        content["metrics"] = {name: rounded(value) for name, value in run.metrics.items()}
    return content


def rendered(value: object, margin: str) -> str:
    deeper = margin + "  "
    match value:
        case dict() if value:
            lines = [f"{deeper}{json.dumps(key)}: {rendered(value[key], deeper)}" for key in sorted(value)]
            return "{\n" + ",\n".join(lines) + f"\n{margin}}}"
        case [dict(), *_]:
            lines = [f"{deeper}{rendered(item, deeper)}" for item in value]
            return "[\n" + ",\n".join(lines) + f"\n{margin}]"
        case _:
            return json.dumps(value)


# --- reading ----------------------------------------------------------------------------------------


def parse(text: str, where: str) -> BaselineFile:
    """The file as a value, or BaselineError with the exact place of the first fault."""
    top = _top(text, where)
    environments = {key: read_environment(key, node) for key, node in top["environments"].members()}
    benchmarks = {node_id: _entry(node, known=environments) for node_id, node in top["benchmarks"].members()}
    return BaselineFile(
        platform=top["platform"].text(),
        suite=top["suite"].text(),
        environments=environments,
        benchmarks=benchmarks,
        removed=tuple(_removal(node) for node in top["removed"].items()) if "removed" in top else (),
    )


def faults(text: str, where: str) -> list[BaselineError]:
    """Every environment, benchmark and removal of a file that cannot be used, not only the first."""
    try:
        top = _top(text, where)
        parts = [*top["environments"].members()]
        known = {key: Environment(identity={}, context={}) for key, _ in parts}
        benchmarks = [node for _, node in top["benchmarks"].members()]
    except BaselineError as error:
        return [error]
    removed = [lambda: [_removal(node) for node in top["removed"].items()]] if "removed" in top else []
    checks: list[Callable[[], object]] = [
        top["platform"].text,
        top["suite"].text,
        *(partial(read_environment, key, node) for key, node in parts),
        *(partial(_entry, node, known=known) for node in benchmarks),
        *removed,
    ]
    return [error for error in map(_fault, checks) if error is not None]


def _fault(check: Callable[[], object]) -> BaselineError | None:
    try:
        check()
    except BaselineError as error:
        return error
    return None


def _top(text: str, where: str) -> Node:
    top = Node(load(text, where), where)
    _check_version(top)
    top.check_keys(
        required=("schema_version", "platform", "suite", "environments", "benchmarks"), optional=("removed",)
    )
    return top


def _check_version(top: Node) -> None:
    """Before anything else: what another schema means by its keys is not ours to say."""
    if "schema_version" not in top:
        top.fail('the key "schema_version" is missing: this is not a baseline file')
    node = top["schema_version"]
    version = node.integer()
    if version > SCHEMA_VERSION:
        problem = f"{version} is newer than this pytest-accel reads ({SCHEMA_VERSION})"
        node.fail(problem, "Upgrade pytest-accel (pip install --upgrade pytest-accel).")
    if version < SCHEMA_VERSION:
        node.fail(f"{version} is no schema that this pytest-accel reads ({SCHEMA_VERSION})")


def read_environment(key: str, node: Node) -> Environment:
    node.check_keys(required=("identity", "context"))
    environment = Environment(
        identity={name: fact.text() for name, fact in node["identity"].members()},
        context={name: fact.text() for name, fact in node["context"].members()},
    )
    if key != environment.key:
        node.fail(f"its content has the key {json.dumps(environment.key)}: it was changed by hand")
    return environment


def _entry(node: Node, *, known: Mapping[str, Environment]) -> BaselineEntry:
    node.check_keys(
        required=("configuration", "configuration_hash", "work_per_step", "unit", "runs", "ledger"),
        optional=("tolerance", "anchor"),
    )
    runs = node["runs"].items()
    if not 1 <= len(runs) <= MAX_RUNS:
        node["runs"].fail(f"{len(runs)} runs; a baseline has 1 to {MAX_RUNS}")
    entry = BaselineEntry(
        configuration={name: value.scalar() for name, value in node["configuration"].members()},
        work_per_step=node["work_per_step"].number(positive=True),
        unit=node["unit"].text(),
        tolerance=optional(node, "tolerance", tolerance_of),
        runs=tuple(read_run(run, known=known) for run in runs),
        ledger=tuple(_ledger_entry(line) for line in node["ledger"].items()),
        anchor=optional(node, "anchor", lambda each: _anchor(each, known=known)) or (),
    )
    stored = node["configuration_hash"]
    if stored.text() != entry.configuration_hash:
        problem = f"the configuration here has the hash {json.dumps(entry.configuration_hash)}: it was changed by hand"
        stored.fail(problem)
    return entry


def _anchor(node: Node, *, known: Mapping[str, Environment]) -> tuple[Run, ...]:
    runs = node.items()
    if not 1 <= len(runs) <= MAX_RUNS:
        node.fail(f"{len(runs)} runs; an anchor has 1 to {MAX_RUNS}")
    return tuple(read_run(run, known=known) for run in runs)


def read_run(node: Node, *, known: Mapping[str, Environment]) -> Run:
    node.check_keys(
        required=("session", "environment", "steps_per_round", "rounds_s"),
        optional=("first_step_s", "warmup_s", "peak_memory_bytes", "loss", "metrics", "rank_step_s"),
    )
    if node["environment"].text() not in known:
        node["environment"].fail(
            f"{named(node['environment'].value)} is not among the environments of this file"
        )
    rounds = node["rounds_s"].items()
    if not rounds:
        node["rounds_s"].fail("no rounds; a run has at least 1")
    return Run(
        session=node["session"].text(),
        rounds_s=tuple(seconds.number(positive=True) for seconds in rounds),
        steps_per_round=node["steps_per_round"].integer(least=1),
        environment=node["environment"].text(),
        first_step_s=optional(node, "first_step_s", duration_of),
        warmup_s=optional(node, "warmup_s", duration_of),
        peak_memory_bytes=optional(node, "peak_memory_bytes", lambda value: value.integer(least=0)),
        loss=optional(node, "loss", Node.number),
        metrics=optional(node, "metrics", _metrics) or {},
        rank_step_s=optional(node, "rank_step_s", _step_times) or (),
    )


def _ledger_entry(node: Node) -> LedgerEntry:
    node.check_keys(required=("at", "action", "reason", "runs", "session"))
    action = cast("Action", node["action"].one_of(ACTIONS))
    if action != "record" and not node["reason"].text().strip():
        node["reason"].fail(f"{'an' if action[0] in 'au' else 'a'} {action} without a reason")
    return LedgerEntry(
        at=moment_of(node["at"]),
        action=action,
        reason=node["reason"].text(),
        runs=node["runs"].integer(least=1),
        session=node["session"].text(),
    )


def _removal(node: Node) -> Removal:
    node.check_keys(required=("at", "benchmark", "reason", "runs"))
    return Removal(
        at=moment_of(node["at"]),
        benchmark=node["benchmark"].text(),
        reason=node["reason"].text(),
        runs=node["runs"].integer(least=1),
    )


def optional(node: Node, key: str, read: Callable[[Node], _T]) -> _T | None:
    return read(node[key]) if key in node else None


def duration_of(node: Node) -> float:
    return node.number(least=0)


def tolerance_of(node: Node) -> float:
    tolerance = node.number(positive=True)
    if tolerance >= 1:
        node.fail(f"{named(node.value)} is not a fraction of the throughput between 0 and 1")
    return tolerance


def _step_times(node: Node) -> tuple[float, ...]:
    return tuple(seconds.number(positive=True) for seconds in node.items())


def _metrics(node: Node) -> Mapping[str, float]:
    return {name: value.number() for name, value in node.members()}


def moment_of(node: Node) -> str:
    try:
        moment = datetime.fromisoformat(node.text())
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() != UTC.utcoffset(None):
        node.fail(f"{named(node.value)} is not a moment in UTC such as 2026-01-31T09:30:00+00:00")
    return node.text()
