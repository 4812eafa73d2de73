"""JSON from dataclass fields and back: strict, with the place of every fault.

`encode` writes a dataclass as an object of its fields and leaves out those that hold their default. `decode` reads
it back by the type hints of the fields. A value that a dataclass itself refuses (`ValueError` in `__post_init__`)
is reported at its place in the file.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pytest_accel.stats.quantities import clipped, did_you_mean

_SCALARS = {str, int, float, bool, type(None)}
INTEGER_DIGITS = 18  # beyond 64 bits an integer is a fault; Python itself refuses beyond 4300 digits
EXACT = "exact"  # metadata of a field whose numbers are never rounded
T = TypeVar("T")


class FormatError(ValueError):
    """A text or a value of the wrong form: its place, the problem, and the remedy where it is known here."""

    def __init__(self, place: str, problem: str, remedy: str = "") -> None:
        self.place = place  # such as `benchmarks["a"].runs[2].rounds_s`; empty for the document itself
        self.problem = problem
        self.remedy = remedy
        super().__init__(place, problem, remedy)

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}" if self.place else self.problem


# --- writing ----------------------------------------------------------------------------------------


def encode(value: object, *, digits: int | None = None) -> Any:  # noqa: ANN401 - any JSON value
    """Return a value as plain JSON values; floats with so many significant digits, or exactly."""
    match value:
        case Enum():
            return value.value
        case float() if digits is not None:
            return float(f"{value:.{digits}g}")
        case Mapping():
            return {str(key): encode(each, digits=digits) for key, each in value.items()}
        case list() | tuple():
            return [encode(each, digits=digits) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: encode(held, digits=None if each.metadata.get(EXACT) else digits)
            for each in fields(value)
            if (held := getattr(value, each.name)) != _default(each)
        }
    return value


def render(value: object, margin: str = "") -> str:
    """Return plain values as JSON text with sorted keys and one fact a line; a list of numbers stays on one line."""
    deeper = margin + "  "
    match value:
        case dict() if value:
            lines = [f"{deeper}{json.dumps(key)}: {render(value[key], deeper)}" for key in sorted(value)]
            return "{\n" + ",\n".join(lines) + f"\n{margin}}}"
        case [dict(), *_]:
            lines = [f"{deeper}{render(item, deeper)}" for item in value]
            return "[\n" + ",\n".join(lines) + f"\n{margin}]"
        case _:
            return json.dumps(value)


def _default(each: Field[Any]) -> object:
    if each.default is not MISSING:
        return each.default
    return each.default_factory() if each.default_factory is not MISSING else MISSING


# --- reading ----------------------------------------------------------------------------------------


def loads(text: str) -> object:
    """Return the JSON value of a text, in which no object has a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except json.JSONDecodeError as error:
        conflict = "; resolve git's merge conflict first" if "\n<<<<<<< " in text else ""
        place = f"line {error.lineno}, column {error.colno}"
        raise FormatError(place, f"not JSON: {error.msg}{conflict}") from None
    except RecursionError:
        raise FormatError("", "nested too deep") from None


def check_version(top: object, expected: int, what: str) -> None:
    """Refuse another schema before anything else: it may mean something else by the same keys."""
    if not isinstance(top, dict) or "schema_version" not in top:
        raise FormatError("", f'the key "schema_version" is missing: this is not {what}')
    version = decode(int, top["schema_version"], "schema_version")
    if version != expected:
        problem = f"{version} is not the schema that this pytest-accel reads ({expected})"
        remedy = "Upgrade pytest-accel." if version > expected else ""
        raise FormatError("schema_version", problem, remedy)


def decode(kind: type[T], value: object, place: str = "", *, derived: frozenset[str] = frozenset()) -> T:
    """Return a plain JSON value as a value of `kind`, or raise FormatError; keys in `derived` may be no fields."""
    return cast("T", _decode(kind, value, place, derived))


def _decode(kind: Any, value: object, place: str, derived: frozenset[str]) -> Any:  # noqa: ANN401, PLR0911 - one case a type
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or kind is object:
        return value
    if origin in {Union, types.UnionType}:
        return _one_of(arguments, value, place, derived)
    if origin is Literal:
        if value not in arguments:
            _fail(place, f"{shown(value)} is none of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        items = _checked(value, list, place)
        return tuple(_decode(arguments[0], each, f"{place}[{i}]", derived) for i, each in enumerate(items))
    if origin is not None and issubclass(origin, Mapping):
        found = _checked(value, dict, place)
        return {
            key: _decode(arguments[1], each, f"{place}[{json.dumps(key)}]", derived)
            for key, each in found.items()
        }
    if is_dataclass(kind):
        return _decode_fields(kind, value, place, derived)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(_decode(Literal[tuple(each.value for each in kind)], value, place, derived))
    return _scalar(kind, value, place)


def _decode_fields(kind: Any, value: object, place: str, derived: frozenset[str]) -> Any:  # noqa: ANN401 - a dataclass
    found = _checked(value, dict, place)
    hints = _hints(kind)
    missing = [each.name for each in fields(kind) if _default(each) is MISSING and each.name not in found]
    for key in found:
        if key not in hints and key not in derived:
            _fail(place, f"the key {json.dumps(key)} is unknown here.{did_you_mean(key, hints)}".rstrip("."))
    if missing:
        _fail(place, f"the key {json.dumps(missing[0])} is missing")
    values = {
        name: _decode(hints[name], each, f"{place}.{name}" if place else name, derived)
        for name, each in found.items()
        if name in hints
    }
    try:
        return kind(**values)
    except ValueError as error:
        below, problem = _named_field(str(error), hints)
        _fail(".".join(filter(None, (place, below))), problem)


def _named_field(text: str, names: Mapping[str, Any]) -> tuple[str, str]:
    """Divide the text of a refused value, "rounds_s[2]: ...", into the place that it names and the problem."""
    place, separator, problem = text.partition(": ")
    return (place, problem) if separator and place.partition("[")[0] in names else ("", text)


@cache
def _hints(kind: type) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: hint for name, hint in get_type_hints(kind).items() if name in names}


def _one_of(kinds: tuple[Any, ...], value: object, place: str, derived: frozenset[str]) -> object:
    """Return a value of a union: of scalars, of enumerations, or of one kind and None."""
    if value is None and type(None) in kinds:
        return None
    if set(kinds) == _SCALARS:
        if isinstance(value, dict | list):
            _fail(place, f"{shown(value)} where text, a number, true, false or null is expected")
        return _decode(type(value), value, place, derived)
    others = [each for each in kinds if each is not type(None)]
    if len(others) == 1:
        return _decode(others[0], value, place, derived)
    words = {each.value: each for kind in others for each in kind}
    return words[_decode(Literal[tuple(words)], value, place, derived)]


def _scalar(kind: type, value: object, place: str) -> object:
    if kind is str or kind is bool:
        return _checked(value, kind, place)
    if isinstance(value, bool) or not isinstance(value, int | float):
        _fail(place, f"{shown(value)} where {'a whole number' if kind is int else 'a number'} is expected")
    if not abs(value) <= sys.float_info.max:  # isfinite() raises on an integer too large for a float
        _fail(place, f"{shown(value)} is not a finite number")
    if kind is int and not isinstance(value, int):
        _fail(place, f"{shown(value)} where a whole number is expected")
    return kind(value)


def _checked(value: object, kind: type, place: str) -> Any:  # noqa: ANN401 - a value of that kind
    words = {dict: "an object", list: "a list", bool: "true or false", str: "text"}
    if not isinstance(value, kind):
        _fail(place, f"{shown(value)} where {words[kind]} is expected")
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise FormatError("", f"the key {json.dumps(twice)} appears twice in one object")
    return made


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= INTEGER_DIGITS else float(digits)


def shown(value: object) -> str:
    """Return a value as its file shows it, short."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case _:
            return clipped(json.dumps(value, default=repr), 40)


def _fail(place: str, problem: str) -> NoReturn:
    raise FormatError(place, problem)
