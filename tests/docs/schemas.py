"""JSON schemas of baselines and results, generated from the dataclasses."""

import inspect
import json
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pytest_accel.stats.results import Result, SessionResults
from pytest_accel.storage import baselines, results
from pytest_accel.storage.baselines import BaselineEntry, BaselineFile

FOLDER = Path(__file__).parents[2] / "pytest_accel" / "schemas"
NAMES = ("baseline", "results")
VERSIONS = {"baseline": baselines.SCHEMA_VERSION, "results": results.SCHEMA_VERSION}
_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
FILES: dict[str, tuple[type, str, str]] = {
    "baseline": (
        BaselineFile,
        "Baselines of one suite on one platform",
        "`baselines/<platform>/<suite>.json`: written by `--accel-record` and `--accel-update`, reviewed like code.",
    ),
    "results": (SessionResults, "Results of a session", "What `--accel-json` writes."),
}
# Keys that are written beside the fields of a dataclass.
DERIVED: dict[type, dict[str, dict[str, Any]]] = {
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
        "text": {"type": "string", "description": "The first line: what decided; absent where it is empty."},
        "throughput": {"type": "number", "description": "Work a second; absent where nothing was measured."},
    },
}


def generate(name: str) -> dict[str, Any]:
    """Return the schema of a kind of file."""
    kind, title, description = FILES[name]
    definitions: dict[str, Any] = {}
    top = _object(kind, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:pytest-accel:schema:{name}:{VERSIONS[name]}",
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
    hints, notes = get_type_hints(kind), comments(kind)
    properties = {
        each.name: {
            **_schema(hints[each.name], definitions),
            "description": _sentence(notes.get(each.name) or each.name.replace("_", " ")),
        }
        for each in fields(kind)
    }
    required = [
        each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING
    ]
    derived = DERIVED.get(kind, {})
    return {
        "title": _title(kind),
        "description": inspect.getdoc(kind).splitlines()[0],
        "type": "object",
        "additionalProperties": False,
        "required": [*(key for key in derived if kind is not Result), *required],
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


def comments(kind: type) -> dict[str, str]:
    """Return the comment of every field of a dataclass: on its own lines, else on those above; empty without one."""
    found: dict[str, str] = {}
    above, current = "", ""
    for line in inspect.getsource(kind).splitlines():
        if line.startswith("    # "):
            above = f"{above} {line[6:]}".strip()
            continue
        if field := re.match(r"    (\w+): ", line):
            current = field[1]
            found[current] = above
        if current and (comment := re.search(r"  # (.*)$", line)):
            found[current] = comment[1]
        if line.strip() == "" or re.match(r"    (@|def )", line):
            current = ""
        above = ""
    return found


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def _title(kind: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).capitalize()


def kinds(name: str) -> list[type]:
    """Return the dataclasses of a kind of file, the file itself first."""
    found: dict[type, None] = {}

    def visit(kind: Any) -> None:
        if is_dataclass(kind) and kind not in found:
            found[kind] = None
            hints = get_type_hints(kind)
            for each in fields(kind):
                visit(hints[each.name])
        for argument in get_args(kind):
            visit(argument)

    visit(FILES[name][0])
    return list(found)
