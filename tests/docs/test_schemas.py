"""The JSON schemas are those of the dataclasses, and every file that we write is valid by them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.results import Ending
from pytest_accel.storage import baselines, results
from pytest_accel.storage.codec import encode
from pytest_accel.storage.files import StorageError
from tests.docs import schemas
from tests.support.results import make_result, make_session
from tests.unit.storage.test_schema import GOOD

ROOT = Path(__file__).parents[2]
SCHEMAS = {name: schemas.load(name) for name in schemas.NAMES}
VALIDATORS = {name: Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
READERS = {"baseline": baselines.parse, "results": results.parse}
RICHEST = max(make_session().results, key=lambda result: len(encode(result)))
SHORT = replace(RICHEST, baseline=RICHEST.baseline[:1], runs=RICHEST.runs[:1])
DOCUMENTS = {"baseline": json.loads(GOOD), "results": json.loads(results.render(make_session([SHORT])))}


def faults(name: str, content: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATORS[name].iter_errors(content)]


def reader_fault(name: str, content: object) -> str:
    """Return the problem that the reader reports; empty where it reads the content."""
    try:
        READERS[name](json.dumps(content), "file.json")
    except StorageError as error:
        return error.problem
    return ""


@pytest.mark.parametrize("name", schemas.NAMES)
def test_committed_schema_is_the_generated_one(name):
    """After a change of a dataclass: make docs."""
    Draft202012Validator.check_schema(SCHEMAS[name])
    committed = (schemas.FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")
    assert committed == schemas.render(name)


@pytest.mark.parametrize("name", schemas.NAMES)
def test_document_is_valid_and_read(name):
    assert faults(name, DOCUMENTS[name]) == []
    assert reader_fault(name, DOCUMENTS[name]) == ""


def test_committed_baselines_are_valid():
    paths = [path for path in ROOT.glob("baselines/*/*.json") if path.parent.name != "published"]
    found = {path: faults("baseline", json.loads(path.read_text(encoding="utf-8"))) for path in paths}
    assert paths
    assert {path: fault for path, fault in found.items() if fault} == {}


def test_every_status_is_valid():
    session = make_session([make_result(status, rounds=3) for status in (*Outcome, *Ending)])
    assert faults("results", json.loads(results.render(session))) == []


@pytest.mark.parametrize("name", schemas.NAMES)
def test_schema_and_reader_refuse_wrong_types_and_missing_and_unknown_keys(name):
    document, required = DOCUMENTS[name], SCHEMAS[name]["required"]
    wrong = [{**document, "colour": "blue"}]
    wrong += [{**document, key: [[1.5]]} for key in document if key != "schema_version"]
    wrong += [{key: value for key, value in document.items() if key != absent} for absent in required]
    for content in wrong:
        assert faults(name, content)
        assert reader_fault(name, content)
