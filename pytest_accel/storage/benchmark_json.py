"""What pytest-benchmark's own JSON holds of ours: the measurement of each benchmark, under `extra_info.accel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_accel.stats.environment import Environment
from pytest_accel.stats.results import Ending, Result, SessionResults, Status
from pytest_accel.stats.run import baseline_key, suite_of
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage.reading import Node
from pytest_accel.storage.schema import read_run

if TYPE_CHECKING:
    from pytest_accel.stats.run import Run


def is_benchmark_json(top: Node) -> bool:
    return "kind" not in top and "benchmarks" in top and "machine_info" in top


def session_of_benchmark_json(top: Node) -> SessionResults:
    """Its JSON has our measurement of each benchmark; what failed before it was measured is not in it."""
    environments: dict[str, Environment] = {}
    results: list[Result] = []
    session = ""
    for node in top["benchmarks"].items():
        if "extra_info" in node and "accel" in node["extra_info"]:
            measured = node["extra_info"]["accel"]
            results.append(_of_extra_info(node["fullname"].text(), measured, environments))
            session = session or measured["run"]["session"].text()
    if not results:
        top.fail("no benchmark here was measured by pytest-accel", "Name a file that --accel-json wrote.")
    at = top["datetime"].text() if "datetime" in top else ""
    return SessionResults(
        session=session,
        at=at,
        duration_s=0.0,
        exit_status=0,
        version="",
        environments=environments,
        results=tuple(results),
    )


def _of_extra_info(fullname: str, node: Node, environments: dict[str, Environment]) -> Result:
    facts = node["environment"]
    environment = Environment(
        identity={name: fact.text() for name, fact in facts["identity"].members()},
        context={name: fact.text() for name, fact in facts["context"].members()},
    )
    environments[environment.key] = environment
    further = node["further_runs"].items() if "further_runs" in node else []
    first = [] if "invalid" in node else [node["run"]]  # disturbed: others were judged in its place, or none
    runs = tuple(_run_as_measured(each, environments, environment) for each in [*first, *further])
    configuration = {name: value.scalar() for name, value in node["configuration"].members()}
    path, _, _ = fullname.partition("::")
    platform = node["platform"].text()
    return Result(
        benchmark=fullname,
        suite=suite_of(path),
        platform=platform,
        disk_name=platform,
        status=_status(node),
        key=baseline_key(fullname, configuration),
        file=path,
        unit=node["work_unit"].text(),
        work_per_step=node["work_per_step"].number(positive=True),
        steady=node["steady"].value is True,
        configuration=configuration,
        runs=runs,
        environment=environment.key,
    )


def _run_as_measured(node: Node, environments: dict[str, Environment], found: Environment) -> Run:
    """A run with all its fields, in which what was not measured is null; of the environment beside it."""
    plain = {name: value for name, value in node.object().items() if value is not None}
    if plain.get("environment") not in environments:
        plain["environment"] = found.key
    return read_run(Node(type(node.object())(plain), node.where, node.path), known=environments)


def _status(node: Node) -> Status:
    """Of one that failed a check of its own after it was measured, nothing is said there."""
    if "verdict" not in node:
        return Ending.NOT_MEASURED
    return Outcome(node["verdict"]["outcome"].one_of(tuple(each.value for each in Outcome)))
