"""The JSON schemas against the readers and writers themselves: neither allows what the other refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pytest_accel.storage.reading import BaselineError, Node

from pytest_accel.doctor.findings import Finding
from pytest_accel.stats.environment import fingerprint
from pytest_accel.stats.results import Ending
from pytest_accel.stats.run import MAX_RUNS
from pytest_accel.stats.verdict import Outcome, Verdict
from pytest_accel.storage import results as results_store
from pytest_accel.storage import schema as baseline_store
from pytest_accel.storage.baselines import ACTIONS
from tests.docs import schemas
from tests.support.results import make_result, make_session
from tests.unit.storage.test_history import results_
from tests.unit.storage.test_schema import a_file, files

ROOT = Path(__file__).parents[2]
SCHEMAS = {name: schemas.load(name) for name in schemas.NAMES}
VALIDATORS = {name: Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
READERS: dict[str, Callable[[str, str], object]] = {
    "baseline": baseline_store.parse,
    "results": results_store.parse,
}


def faults(name: str, content: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATORS[name].iter_errors(content)]


def full_baseline() -> dict[str, Any]:
    """With every field that there is."""
    removal = baseline_store.Removal(
        at="2026-02-01T09:30:00+00:00", benchmark="t.py::test_gone", reason="gone", runs=2
    )
    file = a_file()
    ((key, entry),) = file.benchmarks.items()
    runs = tuple(replace(run, rank_step_s=(0.011, 0.012)) for run in entry.runs)
    line = replace(entry.ledger[0], action="update", reason="because")
    entry = replace(entry, runs=runs, ledger=(*entry.ledger, line))
    return json.loads(baseline_store.render(replace(file, benchmarks={key: entry}, removed=(removal,))))


def full_results() -> dict[str, Any]:
    """A night of every kind of benchmark; the first one has every field that there is."""
    content = json.loads(results_store.render(make_session()))
    rest = {"numerics": "the loss changed", "details": ["a"], "failed": True}
    whole: dict[str, Any] = {}
    for result in content["results"]:
        whole = {**result, **whole}
    whole |= rest
    whole["references"][0] |= {"flags": ["approximate"], "shortfall": "why", "ratio": 0.5}
    for run in (*whole["runs"], *whole["baseline"]):
        run |= {"loss": 2.3, "warmup_s": 1.0, "first_step_s": 0.1, "peak_memory_bytes": 7}
        run |= {"rank_step_s": [0.1], "metrics": {"mfu": 0.4}}
    return {**content, "results": [whole, *content["results"]]}


DOCUMENTS = {"baseline": full_baseline(), "results": full_results()}


# --- what is written is valid -------------------------------------------------------------------------


@pytest.mark.parametrize("name", schemas.NAMES)
def test_it_is_a_schema(name):
    Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.mark.parametrize("name", schemas.NAMES)
def test_a_document_with_every_field_is_valid_and_read(name):
    assert faults(name, DOCUMENTS[name]) == []
    READERS[name](json.dumps(DOCUMENTS[name]), "file.json")


@pytest.mark.parametrize(
    "path",
    sorted(path for path in ROOT.glob("baselines/*/*.json") if path.parent.name != "published"),
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_every_committed_baseline_is_valid(path):
    assert faults("baseline", json.loads(path.read_text(encoding="utf-8"))) == []


@settings(max_examples=40)
@given(file=files())
def test_whatever_baseline_is_written_is_valid(file):
    assert faults("baseline", json.loads(baseline_store.render(file))) == []


@settings(max_examples=25)
@given(found=st.lists(results_, max_size=3).map(tuple))
def test_whatever_results_are_written_are_valid(found):
    assert faults("results", json.loads(results_store.render(make_session(found)))) == []


@pytest.mark.parametrize("status", [*Outcome, *Ending], ids=lambda status: status.value)
def test_every_end_of_a_benchmark_is_valid(status):
    assert faults("results", json.loads(results_store.render(make_session([make_result(status)])))) == []


def test_fresh_results_of_a_session_are_valid(pytester, monkeypatch):
    """Written by pytest itself, with the doctor's findings and a recorded baseline."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        "from pytest_accel import cpu, gh200\n"
        "@cpu\ndef test_sum(accel):\n    accel.measure(lambda: sum(range(20_000)), work=1, unit='calls')\n"
        "@gh200\ndef test_elsewhere(accel): ...\n"
    )
    quick = ("-p", "benchmark", "-p", "accel", "--accel-budget=60ms", "-oaccel_warmup=50ms")
    pytester.runpytest_inprocess(*quick, "--accel-record=1", "--accel-json=recorded.json")
    pytester.runpytest_inprocess(*quick, "--accel-repeats=1", "--accel-json=judged.json")
    for name in ("recorded.json", "judged.json"):
        content = json.loads((pytester.path / name).read_text())
        assert faults("results", content) == []
        assert len(content["results"]) == 2
        assert content["findings"]
    (stored,) = pytester.path.glob("baselines/*/*.json")
    assert faults("baseline", json.loads(stored.read_text())) == []


# --- the same fields as the readers -----------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch) -> dict[tuple[frozenset[str], frozenset[str]], int]:
    """Which keys a reader asked for, required and optional, each time that it looked into an object."""
    found: dict[tuple[frozenset[str], frozenset[str]], int] = {}
    check = Node.check_keys

    def noted(self: Node, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        found[frozenset(required), frozenset(optional)] = 1
        check(self, required, optional)

    monkeypatch.setattr(Node, "check_keys", noted)
    return found


@pytest.mark.parametrize("name", schemas.NAMES)
def test_the_readers_know_the_same_fields(name, asked):
    READERS[name](json.dumps(DOCUMENTS[name]), "file.json")
    described = {
        (frozenset(each["required"]), frozenset(each["properties"]) - frozenset(each["required"]))
        for definition, each in schemas.objects(SCHEMAS[name])
        if definition != "finding"  # whose reader is core.findings, and below
    }
    assert set(asked) == described


def test_the_same_values_as_the_code():
    result = SCHEMAS["results"]["$defs"]["result"]["properties"]
    verdict = SCHEMAS["results"]["$defs"]["verdict"]["properties"]
    benchmark = SCHEMAS["baseline"]["$defs"]["benchmark"]["properties"]
    line = SCHEMAS["baseline"]["$defs"]["ledger_line"]["properties"]
    assert result["status"]["enum"] == [each.value for kind in (Outcome, Ending) for each in kind]
    assert verdict["outcome"]["enum"] == [each.value for each in Outcome]
    assert set(verdict) == set(Verdict.__dataclass_fields__)
    assert tuple(line["action"]["enum"]) == ACTIONS
    assert benchmark["runs"]["maxItems"] == MAX_RUNS
    assert set(SCHEMAS["results"]["$defs"]["finding"]["properties"]) == set(Finding.__dataclass_fields__)
    assert SCHEMAS["results"]["properties"]["schema_version"]["const"] == results_store.SCHEMA_VERSION
    assert SCHEMAS["baseline"]["properties"]["schema_version"]["const"] == baseline_store.SCHEMA_VERSION


def test_what_both_files_hold_is_described_once():
    ours, theirs = (SCHEMAS[name]["$defs"] for name in schemas.NAMES)
    shared = ours.keys() & theirs.keys()
    assert shared == {"configuration", "environment", "hash", "moment", "run"}
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


@pytest.mark.parametrize("name", schemas.NAMES)
def test_every_field_is_described(name):
    schema = SCHEMAS[name]
    for definition, each in schemas.objects(schema):
        assert each["description"], definition
        for field, told in each["properties"].items():
            description = schemas.resolved(schema, told).get("description", "")
            assert description.endswith("."), f"{definition}.{field}"


# --- the same values as the readers -----------------------------------------------------------------

WRONG: tuple[Any, ...] = (None, True, -1, 0, 1.5, "words", "", [], {}, [1], ["x"], {"x": 1}, {"x": "y"})
# What a schema cannot say, or what a reader has no use for; by the end of a path.
ONLY_READERS_KNOW = {
    # An environment's key is made of its content, and a run's is one of the file; a hash is of what stands beside it.
    "baseline": {
        "environments",
        "environment",
        "configuration",
        "configuration_hash",
        "unit",
        "work_per_step",
    },
    "results": {"environments", "environment"},
}
# A result's own environment is looked up when it is shown; throughput is derived again; findings are free.
ONLY_THE_SCHEMA_KNOWS = {"baseline": set(), "results": {"throughput", "findings"}}


def places(content: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a document; of a list the first element stands for all."""
    if path:
        yield path
    match content:
        case dict():
            for key, value in content.items():
                yield from places(value, (*path, key))
        case [first, *_]:
            yield from places(first, (*path, 0))


def changed(content: Any, path: tuple[str | int, ...], value: object) -> Any:
    made = copy.deepcopy(content)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return made


def is_read(name: str, content: object) -> bool:
    try:
        READERS[name](json.dumps(content), "file.json")
    except BaselineError:
        return False
    return True


def small(name: str) -> dict[str, Any]:
    """The document with one result in it: thousands of these are made."""
    content = copy.deepcopy(DOCUMENTS[name])
    if name == "results":
        (result, *_) = content["results"]
        short = {key: result[key][:1] for key in ("runs", "baseline", "details", "changes", "references")}
        result |= short
        for run in (*result["runs"], *result["baseline"]):
            run["rounds_s"] = run["rounds_s"][:1]
        content |= {"results": [result], "findings": content["findings"][:1]}
    return content


@pytest.mark.parametrize("name", schemas.NAMES)
def test_schema_and_reader_refuse_the_same(name):
    """Every place of a whole document with every kind of wrong value in it."""
    whole = small(name)
    tried = refused = 0
    for path in places(whole):
        names = {step for step in path if isinstance(step, str)}
        for value in WRONG:
            content = changed(whole, path, value)
            valid, read = VALIDATORS[name].is_valid(content), is_read(name, content)
            tried, refused = tried + 1, refused + (not valid)
            if valid and not read:
                assert names & ONLY_READERS_KNOW[name], (path, value)
            if read and not valid:
                assert names & ONLY_THE_SCHEMA_KNOWS[name], (path, value)
    assert refused > tried / 2


@pytest.mark.parametrize("name", schemas.NAMES)
def test_a_field_too_many_or_too_few(name):
    whole = small(name)
    for path in places(whole):
        inner: Any = whole
        for step in path:
            inner = inner[step]
        if not isinstance(inner, dict):
            continue
        made = changed(whole, path, {**inner, "colour": "blue"})
        if VALIDATORS[name].is_valid(made):  # an object whose names are free
            assert path[-1] in ("configuration", "metrics", "identity", "context") or "findings" in path, path
        for key in inner:
            made = changed(whole, path, {each: value for each, value in inner.items() if each != key})
            if VALIDATORS[name].is_valid(made):
                assert is_read(name, made) or {key, *path} & ONLY_READERS_KNOW[name], (path, key)


def test_a_ledger_that_does_not_say_why_is_refused():
    content = small("baseline")
    (entry,) = content["benchmarks"].values()
    entry["ledger"][1]["reason"] = "  "
    assert "does not match" in "".join(faults("baseline", content))
    assert not is_read("baseline", content)


def test_runs_without_their_work_are_refused_with_their_place():
    content = small("results")
    del content["results"][0]["work_per_step"]
    assert "work_per_step" in "".join(faults("results", content))
    with pytest.raises(BaselineError, match=r"results\[0\]: the key \"work_per_step\" is missing"):
        results_store.parse(json.dumps(content), "file.json")


def test_a_key_that_is_no_hash_is_refused():
    content = small("baseline")
    ((key, environment),) = content["environments"].items()
    assert key == fingerprint(environment)
    content["environments"] = {"nowhere": environment}
    assert faults("baseline", content)
