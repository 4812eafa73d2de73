"""The JSON schemas are those of the dataclasses, and every file that we write is valid by them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pytest_accel.stats.results import Ending
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage import baselines, results
from pytest_accel.storage.files import StorageError
from tests.docs import schemas
from tests.support.results import make_result, make_session
from tests.unit.storage.test_history import results_
from tests.unit.storage.test_schema import GOOD, files

ROOT = Path(__file__).parents[2]
SCHEMAS = {name: schemas.load(name) for name in schemas.NAMES}
VALIDATORS = {name: Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
READERS = {"baseline": baselines.parse, "results": results.parse}
DOCUMENTS = {"baseline": json.loads(GOOD), "results": json.loads(results.render(make_session()))}


def faults(name: str, content: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATORS[name].iter_errors(content)]


def is_read(name: str, content: object) -> bool:
    try:
        READERS[name](json.dumps(content), "file.json")
    except StorageError:
        return False
    return True


@pytest.mark.parametrize("name", schemas.NAMES)
def test_committed_schema_is_the_generated_one(name):
    """After a change of a dataclass: make docs."""
    Draft202012Validator.check_schema(SCHEMAS[name])
    committed = (schemas.FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")
    assert committed == schemas.render(name)


@pytest.mark.parametrize("name", schemas.NAMES)
def test_document_is_valid_and_read(name):
    assert faults(name, DOCUMENTS[name]) == []
    assert is_read(name, DOCUMENTS[name])


@pytest.mark.parametrize(
    "path",
    sorted(path for path in ROOT.glob("baselines/*/*.json") if path.parent.name != "published"),
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_committed_baseline_is_valid(path):
    assert faults("baseline", json.loads(path.read_text(encoding="utf-8"))) == []


@settings(max_examples=40)
@given(file=files())
def test_every_written_baseline_is_valid(file):
    assert faults("baseline", json.loads(baselines.render(file))) == []


@settings(max_examples=25)
@given(found=st.lists(results_, max_size=3).map(tuple))
def test_every_written_result_is_valid(found):
    assert faults("results", json.loads(results.render(make_session(found)))) == []


@pytest.mark.parametrize("status", [*Outcome, *Ending], ids=lambda status: status.value)
def test_every_status_is_valid(status):
    assert faults("results", json.loads(results.render(make_session([make_result(status)])))) == []


def objects_in(content: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of every object; the first element of a list stands for all."""
    match content:
        case dict():
            yield path
            for key, value in content.items():
                yield from objects_in(value, (*path, key))
        case [first, *_]:
            yield from objects_in(first, (*path, 0))


@pytest.mark.parametrize("name", schemas.NAMES)
def test_reader_and_schema_refuse_the_same_keys(name):
    """An unknown key in every object, and every key left out."""
    for path in objects_in(DOCUMENTS[name]):
        content: Any = copy.deepcopy(DOCUMENTS[name])
        place = content
        for step in path:
            place = place[step]
        original = dict(place)
        place["colour"] = "blue"
        if not VALIDATORS[name].is_valid(content):
            assert not is_read(name, content), path
        for key in original:
            place.clear()
            place.update({each: value for each, value in original.items() if each != key})
            if not VALIDATORS[name].is_valid(content):
                assert not is_read(name, content), (path, key)
