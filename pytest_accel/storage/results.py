"""Results of a session as a JSON file."""

from __future__ import annotations

from pathlib import Path

from pytest_accel.stats.results import SessionResults
from pytest_accel.storage import baselines
from pytest_accel.storage.codec import FormatError, check_version, decode, encode, loads
from pytest_accel.storage.codec import render as render_json
from pytest_accel.storage.files import StorageError, format_errors, read_text, write_atomic

KIND = "pytest-accel results"
SCHEMA_VERSION = 2
_DERIVED = frozenset({"kind", "schema_version", "text", "throughput"})  # keys that are no fields


class ResultsError(StorageError):
    @staticmethod
    def default_remedy(_file: str) -> str:
        return "Write it again with --accel-json."


_REMEDY = "Name a file that --accel-json wrote."


def read_results(path: Path) -> SessionResults:
    text = read_text(path, ResultsError)
    if text is None:
        raise ResultsError(str(path), "", "cannot be read: it does not exist", _REMEDY)
    return parse(text, str(path))


def write_results(path: Path, session: SessionResults) -> None:
    write_atomic(path, render(session))


def render(session: SessionResults) -> str:
    """Return the text of a file of results: sorted keys, one fact a line, fields that hold their default left out."""
    content = {"kind": KIND, "schema_version": SCHEMA_VERSION, **encode(session)}
    content.setdefault("environments", {})
    content.setdefault("results", [])
    for plain, result in zip(content["results"], session.results, strict=True):
        derived = {"text": result.text, "throughput": result.throughput}  # for scripts; left out when read
        plain.update({name: value for name, value in derived.items() if value})
    return render_json(content) + "\n"


def parse(text: str, where: str) -> SessionResults:
    """Return the results, or raise ResultsError with the place of the first fault."""
    with format_errors(where, ResultsError):
        top = loads(text)
        if not isinstance(top, dict) or top.get("kind") != KIND:
            raise FormatError("", "this is no file of results", _REMEDY)
        check_version(top, SCHEMA_VERSION, "a file of results")
        session = decode(SessionResults, top, derived=_DERIVED)
        baselines.check_time("at", session.at)
        for index, result in enumerate(session.results):
            place = f"results[{index}]"
            if result.runs or result.baseline:
                baselines.check_work(f"{place}.work_per_step", result.work_per_step)
            baselines.check_tolerance(f"{place}.tolerance", result.tolerance)
            baselines.check_environments(result.runs, session.environments, f"{place}.runs")
            baselines.check_environments(result.baseline, session.environments, f"{place}.baseline")
    return session
