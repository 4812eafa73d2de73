"""The history in the formats of other tools, each checked against what that tool itself reads.

- Apache Otava reads CSV with a time column and columns of metrics, which a YAML file names (docs/CSV.md there).
- Conbench takes one JSON object a result at POST /api/benchmark-results/ (its _BenchmarkResultCreateSchema).
- github-action-benchmark reads a JSON array of name, unit, value, range, extra (its extract.ts, customBiggerIsBetter).
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from typing import TYPE_CHECKING, Any

from pytest_accel.stats.environment import fingerprint
from pytest_accel.stats.gate import interval
from pytest_accel.stats.metric_gates import less_is_better
from pytest_accel.stats.quantities import si
from pytest_accel.stats.verdict import Policy
from pytest_accel.storage.history import belongs_to_series

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_accel.report.history import Track
    from pytest_accel.stats.environment import Environment
    from pytest_accel.stats.results import Result, SessionResults
    from pytest_accel.storage.history import Measured, Point

_PEAK_MEMORY = "peak_memory_bytes"
_COMMIT = re.compile(r"[0-9a-f]{40}")  # Conbench looks it up at GitHub: nothing shorter will do


def json_lines(tracks: Iterable[Track]) -> Iterator[str]:
    """One line a point: a benchmark in a session, with all its runs."""
    for track in tracks:
        for point in track.points:
            yield json.dumps(
                {
                    **_facts(track, point),
                    "step_time_s": point.step_time_s,
                    "throughput": point.throughput,
                    "runs": [{"step_time_s": run.step_time_s, **_metrics(run)} for run in point.runs],
                }
            )


def csv_text(tracks: Sequence[Track]) -> str:
    """One row a run."""
    runs = [
        (track, point, position, run)
        for track in tracks
        for point in track.points
        for position, run in enumerate(point.runs)
    ]
    names = sorted({name for *_, run in runs for name in _metrics(run)})
    rows = (
        {
            **_facts(track, point),
            "run": position,
            "step_time_s": run.step_time_s,
            "throughput": point.work_per_step / run.step_time_s,
            **{f"metrics.{name}": value for name, value in _metrics(run).items()},
        }
        for track, point, position, run in runs
    )
    return _csv([*_FACTS, "run", "step_time_s", "throughput", *(f"metrics.{name}" for name in names)], rows)


_FACTS = (
    *("platform", "benchmark", "at", "session", "host", "revision", "status", "in_series", "loss"),
    *("work_per_step", "unit", "environment", "configuration"),
)


def _facts(track: Track, point: Point) -> dict[str, Any]:
    named = {"platform": track.platform, "benchmark": track.key}
    return {name: named[name] if name in named else getattr(point, name) for name in _FACTS}


def _metrics(run: Measured) -> dict[str, float]:
    own = {} if run.peak_memory_bytes is None else {_PEAK_MEMORY: run.peak_memory_bytes}
    return {**run.metrics, **own}


def _csv(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# --- Apache Otava -----------------------------------------------------------------------------------


def otava_files(tracks: Iterable[Track]) -> dict[str, str]:
    """A folder by file name: `otava.yaml`, and a CSV of each series, because Otava has one table a test.

    A cell that is no number ends its import, so that a metric is there only where every session measured it.
    """
    files: dict[str, str] = {}
    tests: dict[str, dict[str, Any]] = {}
    for track in tracks:
        name = _file_name(track)
        metrics = sorted(set.intersection(*(set(_metrics(point.runs[-1])) for point in track.points)))
        rows = (
            {
                "time": point.at,
                "commit": point.revision,
                "session": point.session,
                "throughput": point.throughput,
                **{metric: _metrics(point.runs[-1])[metric] for metric in metrics},
            }
            for point in track.points
        )
        files[f"{name}.csv"] = _csv(["time", "commit", "session", "throughput", *metrics], rows)
        tests[name] = {
            "type": "csv",
            "file": f"{name}.csv",
            "time_column": "time",
            "attributes": ["commit", "session"],
            "metrics": {
                metric: {"direction": -1 if metric == _PEAK_MEMORY or less_is_better(metric) else 1}
                for metric in ("throughput", *metrics)
            },
        }
    return {"otava.yaml": json.dumps({"tests": tests}, indent=2) + "\n", **files}  # JSON is YAML


def _file_name(track: Track) -> str:
    """Safe as a file's name and as a test's; the digits keep apart what looks alike then."""
    name = re.sub(r"[^A-Za-z0-9_]+", "-", track.key.partition("::")[2] or track.key).strip("-")[:80]
    platform = re.sub(r"[^A-Za-z0-9_]+", "-", track.platform).strip("-")[:40]
    return f"{platform}-{name}-{fingerprint([track.platform, track.key])[:6]}"


# --- formats of one session -------------------------------------------------------------------------


def conbench_lines(session: SessionResults, repository: str) -> Iterator[str]:
    """The bodies of POST /api/benchmark-results/, one a line.

    The machine is a cluster to Conbench: for a "machine" it wants the sizes of caches, which say nothing here. Its
    identity breaks a history and its context does not, as in our own gate. Work a second is in "i/s", its only unit
    of that kind; the unit itself is a tag.
    """
    github = {"repository": repository}
    if _COMMIT.fullmatch(session.revision):
        github["commit"] = session.revision
    for result in _valid(session):
        environment = session.environments.get(result.environment)
        body = {
            "run_id": session.session,
            "run_tags": {"name": session.session, "host": session.host},
            "batch_id": f"{session.session}-{result.suite}",
            "timestamp": session.at,
            "cluster_info": _cluster(result, environment),
            "stats": {
                "data": [run.throughput(result.work_per_step) for run in result.runs],
                "unit": "i/s",
                "times": [run.step_time_s for run in result.runs],
                "time_unit": "s",
                "iterations": result.runs[0].steps_per_round * len(result.runs[0].rounds_s),
            },
            "tags": _tags(result),
            "info": dict(environment.context) if environment else {},
            "context": {"benchmark_language": "Python"},
            "github": github,
        }
        yield json.dumps(body)


def _cluster(result: Result, environment: Environment | None) -> dict[str, Any]:
    identity = dict(environment.identity) if environment else {}
    return {"name": result.disk_name, "info": identity, "optional_info": {}}


def _tags(result: Result) -> dict[str, str]:
    """Text; Conbench passes over what is empty."""
    tags = {
        **{name: str(value) for name, value in result.configuration.items() if value not in (None, "")},
        "name": result.key or result.benchmark,
        "suite": result.suite,
        "work_unit": result.unit,
    }
    return {name: value for name, value in tags.items() if name and value}


def github_action_benchmark(session: SessionResults) -> str:
    """The file of its tool `customBiggerIsBetter`: throughput, with the half width of its 95 % interval."""
    entries = []
    for result in _valid(session):
        found = interval(result.runs, Policy())
        throughput = result.work_per_step / found.point_s
        entries.append(
            {
                "name": f"{result.key or result.benchmark} ({result.disk_name})",
                "unit": f"{result.unit}/s",
                "value": throughput,
                "range": f"± {si(throughput * math.expm1(math.log(found.high_s / found.point_s)))}",
                "extra": f"{result.status.value}: {result.text}" if result.text else result.status.value,
            }
        )
    return json.dumps(entries, indent=2) + "\n"


def _valid(session: SessionResults) -> list[Result]:
    return [result for result in session.results if belongs_to_series(result)]
