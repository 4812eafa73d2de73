"""The JSON schemas that go with the package, and what they say of each field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "pytest_accel" / "schemas"
NAMES = ("baseline", "results")


def load(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))


def objects(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object that has fields, by the name of its definition; the file itself comes first and has none."""
    yield "", schema
    yield from ((name, each) for name, each in schema["$defs"].items() if "properties" in each)


def resolved(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any]:
    """A field with what its definition says; what it says itself goes before that."""
    if "$ref" not in field:
        return field
    own = {key: value for key, value in field.items() if key != "$ref"}
    return {**schema["$defs"][defined(field)], **own}


def defined(field: dict[str, Any]) -> str:
    """The name of the definition that a field refers to; empty where it says all itself."""
    return field.get("$ref", "").rpartition("/")[2]
