"""JSON schemas of baselines and results, generated from the dataclasses: `python -m tests.docs.schemas` writes them."""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pytest_accel.stats.results import Result, SessionResults
from pytest_accel.storage import baselines, results
from pytest_accel.storage.baselines import BaselineEntry, BaselineFile

FOLDER = Path(__file__).parents[2] / "pytest_accel" / "schemas"
NAMES = ("baseline", "results")
_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_FILES: dict[str, tuple[type, str, str]] = {
    "baseline": (
        BaselineFile,
        "Baselines of one suite on one platform",
        "`baselines/<platform>/<suite>.json`: written by `--accel-record` and `--accel-update`, reviewed like code.",
    ),
    "results": (SessionResults, "Results of a session", "What `--accel-json` writes."),
}
# Keys that are written beside the fields of a dataclass.
_DERIVED: dict[type, dict[str, dict[str, Any]]] = {
    BaselineFile: {
        "schema_version": {"const": baselines.SCHEMA_VERSION, "description": "Version of this format."}
    },
    BaselineEntry: {
        "configuration_hash": {
            "type": "string",
            "description": "Of the configuration, the work and the unit; a file that was edited by hand is refused.",
        }
    },
    SessionResults: {
        "kind": {"const": results.KIND, "description": "The kind of file."},
        "schema_version": {"const": results.SCHEMA_VERSION, "description": "Version of this format."},
    },
    Result: {
        "throughput": {"type": "number", "description": "Work a second; absent where nothing was measured."}
    },
}


def generate(name: str) -> dict[str, Any]:
    """Return the schema of a kind of file."""
    kind, title, description = _FILES[name]
    definitions: dict[str, Any] = {}
    top = _object(kind, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:pytest-accel:schema:{name}:1",
        **top,
        "title": title,
        "description": description,
        "$defs": {key: definitions[key] for key in sorted(definitions)},
    }


def render(name: str) -> str:
    return json.dumps(generate(name), indent=2) + "\n"


def load(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints, comments = get_type_hints(kind), _comments(kind)
    properties = {
        each.name: {
            **_schema(hints[each.name], definitions),
            "description": _sentence(comments.get(each.name) or each.name.replace("_", " ")),
        }
        for each in fields(kind)
    }
    required = [
        each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING
    ]
    derived = _DERIVED.get(kind, {})
    return {
        "title": _title(kind),
        "description": inspect.getdoc(kind).splitlines()[0],
        "type": "object",
        "additionalProperties": False,
        "required": [*(key for key in derived if key != "throughput"), *required],
        "properties": {**derived, **properties},
    }


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin in {Union, types.UnionType}:
        return _union(arguments, definitions)
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [each.value for each in kind]}
    assert is_dataclass(kind), kind
    name = kind.__name__.lower()
    if name not in definitions:
        definitions[name] = {}  # first, for a type that holds itself
        definitions[name] = _object(kind, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _union(kinds: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    if all(each in _PLAIN for each in kinds):
        return {"type": list(dict.fromkeys(_PLAIN[each] for each in kinds))}
    if all(isinstance(each, type) and issubclass(each, Enum) for each in kinds):
        return {"enum": [value.value for each in kinds for value in each]}
    return {"anyOf": [_schema(each, definitions) for each in kinds]}


def _comments(kind: type) -> dict[str, str]:
    """Return the comments of a dataclass's fields: on their line, or on the lines above."""
    found, above = {}, ""
    for line in inspect.getsource(kind).splitlines():
        if comment := re.fullmatch(r"\s+# (.*)", line):
            above = f"{above} {comment[1]}".strip()
        elif field := re.match(r"    (\w+): [^#]*(?:# (.*))?$", line):
            found[field[1]] = field[2] or above
            above = ""
        else:
            above = ""
    return found


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def _title(kind: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).capitalize()


def objects(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object that has fields, by the name of its definition; the file itself first, without one."""
    yield "", schema
    yield from ((name, each) for name, each in schema["$defs"].items() if "properties" in each)


def resolved(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any]:
    """Return a field with its definition; its own keys come first."""
    if "$ref" not in field:
        return field
    own = {key: value for key, value in field.items() if key != "$ref"}
    return {**schema["$defs"][defined(field)], **own}


def defined(field: dict[str, Any]) -> str:
    """Return the name of the definition that a field refers to; empty without one."""
    return field.get("$ref", "").rpartition("/")[2]


if __name__ == "__main__":
    for each in NAMES:
        (FOLDER / f"{each}.schema.json").write_text(render(each), encoding="utf-8")
