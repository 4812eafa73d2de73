"""The results of a session as a file: written whole, read strictly; pytest-benchmark's own JSON is read too."""

from __future__ import annotations

import stat
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytest_accel.stats.environment import Change, Environment
from pytest_accel.stats.results import (
    Ending,
    ReferenceFigure,
    Result,
    ScalingFigure,
    SessionResults,
    Status,
)
from pytest_accel.stats.run import Scalar
from pytest_accel.stats.verdict import THROUGHPUT, Estimate, Outcome, Verdict
from pytest_accel.storage.benchmark_json import is_benchmark_json, session_of_benchmark_json
from pytest_accel.storage.reading import BaselineError, Node, decode, load
from pytest_accel.storage.schema import (
    duration_of,
    moment_of,
    optional,
    read_environment,
    read_run,
    rendered,
    run_content,
    tolerance_of,
)
from pytest_accel.storage.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KIND = "pytest-accel results"
SCHEMA_VERSION = 1
MAX_BYTES = 256 * 2**20  # ten thousand benchmarks of five runs; beyond this it is no result of a session
_STATUSES: dict[str, Status] = {each.value: each for kind in (Outcome, Ending) for each in kind}
_T = TypeVar("_T")


class ResultsError(BaselineError):
    """Results that cannot be used."""


def read_results(path: Path) -> SessionResults:
    """What `--accel-json` wrote, or pytest-benchmark's `--benchmark-json` with our figures in it."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_BYTES:
            raise ResultsError(str(path), "", "is no file of results", "Name what --accel-json wrote.")
        data = path.read_bytes()
    except OSError as error:
        remedy = "Name a file that --accel-json wrote."
        raise ResultsError(str(path), "", f"cannot be read: {error.strerror}", remedy) from None
    return parse(decode(data, str(path)), str(path))


def write_results(path: Path, session: SessionResults) -> None:
    write_whole(path, render(session))


# --- writing ----------------------------------------------------------------------------------------


def render(session: SessionResults) -> str:
    """Sorted keys, one fact a line; what is empty is left out."""
    content = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "session": session.session,
        "at": session.at,
        "duration_s": session.duration_s,
        "exit_status": session.exit_status,
        "version": session.version,
        "environments": {
            key: {"identity": dict(each.identity), "context": dict(each.context)}
            for key, each in session.environments.items()
        },
        "results": [_result_content(result) for result in session.results],
    }
    content |= _present(
        host=session.host,
        revision=session.revision,
        command=list(session.command),
        findings=[dict(finding) for finding in session.findings],
        remarks=list(session.remarks),
    )
    return rendered(_as_utf8(content), "") + "\n"


def _as_utf8(value: object) -> object:
    """What no UTF-8 can hold, half a surrogate pair in an exception's text, is spelled out: it must be readable again."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode("utf-8")
        case dict():
            return {_as_utf8(key): _as_utf8(each) for key, each in value.items()}
        case list():
            return [_as_utf8(each) for each in value]
        case _:
            return value


def _present(**facts: object) -> dict[str, object]:
    return {name: value for name, value in facts.items() if value not in ("", None, [], {}, 0, False)}


def _result_content(result: Result) -> dict[str, object]:
    content = {
        "benchmark": result.benchmark,
        "suite": result.suite,
        "platform": result.platform,
        "disk_name": result.disk_name,
        "status": result.status.value,
        "steady": result.steady,
    }
    return content | _present(
        failed=result.failed,
        text=result.text,
        details=list(result.details),
        key=result.key,
        file=result.file,
        line=result.line,
        duration_s=result.duration_s,
        unit=result.unit,
        work_per_step=result.work_per_step,
        tolerance=result.tolerance,
        throughput=result.throughput,  # for people and scripts; derived again when read
        configuration=dict(result.configuration),
        runs=[run_content(run) for run in result.runs],
        baseline=[run_content(run) for run in result.baseline],
        verdicts=[_verdict_content(verdict) for verdict in result.verdicts],
        environment=result.environment,
        changes=[asdict(change) for change in result.changes],
        numerics=result.numerics,
        scaling=asdict(result.scaling) if result.scaling else None,
        references=[_reference_content(each) for each in result.references],
    )


def _verdict_content(verdict: Verdict) -> dict[str, object]:
    content = {**asdict(verdict), "outcome": verdict.outcome.value}
    if not verdict.common:
        del content["common"]  # hardly ever there
    return content


def _reference_content(reference: ReferenceFigure) -> dict[str, object]:
    return {**asdict(reference), "flags": list(reference.flags)}


# --- reading ----------------------------------------------------------------------------------------


def parse(text: str, where: str) -> SessionResults:
    """The results, or ResultsError with the exact place of the first fault."""
    try:
        top = Node(load(text, where), where)
        return session_of_benchmark_json(top) if is_benchmark_json(top) else _session(top)
    except BaselineError as error:
        raise ResultsError(error.file, error.place, error.problem, _remedy(error)) from None


def _remedy(error: BaselineError) -> str:
    """A file of results is not in git: where the fault came with no remedy of its own, it is made anew."""
    own = BaselineError(error.file, error.place, error.problem)
    return "Write it anew with --accel-json." if error.remedy == own.remedy else error.remedy


def _session(top: Node) -> SessionResults:
    if "kind" not in top or top["kind"].value != KIND:
        top.fail("this is no file of results", "Name a file that --accel-json or --benchmark-json wrote.")
    version = top["schema_version"].integer() if "schema_version" in top else 0
    if version != SCHEMA_VERSION:
        top.fail(
            f"schema_version {version} is not the one that this pytest-accel reads ({SCHEMA_VERSION})",
            "Upgrade pytest-accel, or write the file anew with this version.",
        )
    top.check_keys(
        required=(
            "kind",
            "schema_version",
            "session",
            "at",
            "duration_s",
            "exit_status",
            "version",
            "environments",
            "results",
        ),
        optional=("host", "revision", "command", "findings", "remarks"),
    )
    environments = {key: read_environment(key, node) for key, node in top["environments"].members()}
    return SessionResults(
        session=top["session"].text(),
        at=moment_of(top["at"]),
        duration_s=duration_of(top["duration_s"]),
        exit_status=top["exit_status"].integer(),
        version=top["version"].text(),
        host=_text(top, "host"),
        revision=_text(top, "revision"),
        command=_texts(top, "command"),
        environments=environments,
        results=tuple(_result(node, environments) for node in top["results"].items()),
        findings=_many(top, "findings", _scalars),
        remarks=_texts(top, "remarks"),
    )


def _result(node: Node, known: Mapping[str, Environment]) -> Result:
    node.check_keys(
        required=("benchmark", "suite", "platform", "disk_name", "status", "steady"),
        optional=(
            *("failed", "text", "details", "key", "file", "line", "duration_s", "unit", "work_per_step"),
            *("tolerance", "throughput", "configuration", "runs", "baseline", "verdicts", "environment"),
            *("changes", "numerics", "scaling", "references"),
        ),
    )
    runs = _many(node, "runs", lambda run: read_run(run, known=known))
    baseline = _many(node, "baseline", lambda run: read_run(run, known=known))
    if runs or baseline:
        if "work_per_step" not in node:
            node.fail('the key "work_per_step" is missing, and there are runs')
        node["work_per_step"].number(positive=True)
    return Result(
        benchmark=node["benchmark"].text(),
        suite=node["suite"].text(),
        platform=node["platform"].text(),
        disk_name=node["disk_name"].text(),
        status=_STATUSES[node["status"].one_of(tuple(_STATUSES))],
        failed=_truth(node, "failed"),
        text=_text(node, "text"),
        details=_texts(node, "details"),
        key=_text(node, "key"),
        file=_text(node, "file"),
        line=optional(node, "line", lambda each: each.integer(least=0)) or 0,
        duration_s=optional(node, "duration_s", duration_of) or 0.0,
        unit=_text(node, "unit"),
        work_per_step=optional(node, "work_per_step", Node.number) or 0.0,
        steady=_truth(node, "steady"),
        tolerance=optional(node, "tolerance", tolerance_of),
        configuration=optional(node, "configuration", _scalars) or {},
        runs=runs,
        baseline=baseline,
        verdicts=_many(node, "verdicts", _verdict),
        environment=_text(node, "environment"),
        changes=_many(node, "changes", _change),
        numerics=_text(node, "numerics"),
        scaling=optional(node, "scaling", _scaling),
        references=_many(node, "references", _reference),
    )


def _verdict(node: Node) -> Verdict:
    node.check_keys(
        required=("outcome", "tolerance"),
        optional=(
            *("slowdown", "noise", "resolution", "looks", "baseline_runs", "wants_another_run", "reason"),
            *("of", "common"),
        ),
    )
    return Verdict(
        outcome=Outcome(node["outcome"].one_of(tuple(each.value for each in Outcome))),
        tolerance=tolerance_of(node["tolerance"]),
        slowdown=_nullable(node, "slowdown", _estimate),
        noise=_nullable(node, "noise", Node.number),
        resolution=_nullable(node, "resolution", Node.number),
        looks=optional(node, "looks", lambda each: each.integer(least=0)) or 0,
        baseline_runs=optional(node, "baseline_runs", lambda each: each.integer(least=0)) or 0,
        wants_another_run=_truth(node, "wants_another_run"),
        reason=_text(node, "reason"),
        of=_text(node, "of") or THROUGHPUT,
        common=optional(node, "common", Node.number) or 0.0,
    )


def _estimate(node: Node) -> Estimate:
    node.check_keys(required=("point", "low", "high"))
    return Estimate(point=node["point"].number(), low=node["low"].number(), high=node["high"].number())


def _change(node: Node) -> Change:
    node.check_keys(required=("name", "old", "new"))
    return Change(
        name=node["name"].text(), old=_nullable(node, "old", Node.text), new=_nullable(node, "new", Node.text)
    )


def _scaling(node: Node) -> ScalingFigure:
    node.check_keys(required=("against", "speedup", "efficiency", "kind"))
    return ScalingFigure(
        against=node["against"].text(),
        speedup=node["speedup"].number(),
        efficiency=node["efficiency"].number(),
        kind=node["kind"].text(),
    )


def _reference(node: Node) -> ReferenceFigure:
    node.check_keys(
        required=("id", "source", "platform", "metric", "unit", "value"),
        optional=("ratio", "flags", "differs", "expected", "gated", "shortfall"),
    )
    return ReferenceFigure(
        id=node["id"].text(),
        source=node["source"].text(),
        platform=node["platform"].text(),
        metric=node["metric"].text(),
        unit=node["unit"].text(),
        value=node["value"].number(),
        ratio=_nullable(node, "ratio", Node.number),
        flags=_texts(node, "flags"),
        differs=_text(node, "differs"),
        expected=_truth(node, "expected"),
        gated=_truth(node, "gated"),
        shortfall=_text(node, "shortfall"),
    )


def _nullable(node: Node, key: str, read: Callable[[Node], _T]) -> _T | None:
    return None if key not in node or node[key].value is None else read(node[key])


def _many(node: Node, key: str, read: Callable[[Node], _T]) -> tuple[_T, ...]:
    return tuple(read(each) for each in node[key].items()) if key in node else ()


def _text(node: Node, key: str) -> str:
    return optional(node, key, Node.text) or ""


def _texts(node: Node, key: str) -> tuple[str, ...]:
    return _many(node, key, Node.text)


def _truth(node: Node, key: str) -> bool:
    if key not in node:
        return False
    value = node[key].value
    if not isinstance(value, bool):
        node[key].fail("true or false is expected here")
    return value


def _scalars(node: Node) -> dict[str, Scalar]:
    return {name: value.scalar() for name, value in node.members()}
