"""Strict JSON whose every fault names its file, its place, what is wrong and the remedy."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_accel.stats.run import Scalar

MAX_BYTES = 16 * 2**20  # a hundred benchmarks of ten runs are about 1 MiB; beyond this it is no baseline
INTEGER_DIGITS = 18  # beyond 64 bits an integer is a fault; Python itself refuses beyond 4300 digits


class BaselineError(ValueError):
    """A baseline that cannot be used: the file, the place in it, what is wrong, what to do."""

    def __init__(self, file: str, place: str, problem: str, remedy: str = "") -> None:
        self.file = file
        self.place = place
        self.problem = problem
        self.remedy = remedy or restore_remedy(file)
        super().__init__(file, place, problem, self.remedy)  # so that it survives pickling

    def __str__(self) -> str:
        where = f"{self.file}: {self.place}" if self.place else self.file
        return f"{where}: {self.problem}\n{self.remedy}"


def restore_remedy(file: str) -> str:
    """For a file that is beyond repair: what it was stands in git, or can be measured again."""
    return (
        f"Restore it from git (git checkout -- {shlex.quote(file)}), "
        'or delete it and record again with --accel-update --accel-reason "...".'
    )


def decode(data: bytes, where: str) -> str:
    """The bytes of a file as text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 (byte 0x{data[error.start]:02x})"
        raise BaselineError(where, f"byte {error.start}", problem) from None


class _Object(dict[str, object]):
    """A JSON object that remembers a key that was written twice, which a plain dict forgets."""

    duplicate: str | None = None


def _object(pairs: Iterable[tuple[str, object]]) -> _Object:
    made = _Object()
    for key, value in pairs:
        if key in made:
            made.duplicate = key
        made[key] = value
    return made


def load(text: str, where: str) -> object:
    """The JSON value of a text; its objects know their duplicate keys, which `Node` reports."""
    if not text.strip():
        raise BaselineError(where, "", "the file is empty")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise BaselineError(where, place, _syntax_problem(text, error)) from None
    except RecursionError:
        raise BaselineError(where, "", "nested too deeply to be a baseline") from None


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= INTEGER_DIGITS else float(digits)


def _syntax_problem(text: str, error: json.JSONDecodeError) -> str:
    if any(line.startswith("<<<<<<< ") for line in text.splitlines()):
        return "not JSON: it holds git's merge conflict markers (<<<<<<<); resolve the merge first"
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return "the file ends too early: it was cut off"
    return f"not JSON: {error.msg}"


@dataclass(frozen=True, slots=True)
class Node:
    """A value and the way to it, so that every fault can name its place."""

    value: object
    where: str
    path: tuple[str, ...] = ()

    def fail(self, problem: str, remedy: str = "") -> NoReturn:
        place = "".join(self.path).lstrip(".") or "top level"
        raise BaselineError(self.where, place, problem, remedy)

    def object(self) -> _Object:
        if not isinstance(self.value, _Object):
            self.fail(f"{named(self.value)} where an object is expected")
        if self.value.duplicate is not None:
            self.fail(f"the key {json.dumps(self.value.duplicate)} appears twice")
        return self.value

    def __getitem__(self, key: str) -> Node:
        return Node(self.object()[key], self.where, (*self.path, f".{key}"))

    def __contains__(self, key: str) -> bool:
        return key in self.object()

    def members(self) -> Iterator[tuple[str, Node]]:
        for key, value in self.object().items():
            node = Node(value, self.where, (*self.path, f"[{json.dumps(key)}]"))
            Node(key, self.where, node.path).text()
            yield key, node

    def items(self) -> list[Node]:
        if not isinstance(self.value, list):
            self.fail(f"{named(self.value)} where a list is expected")
        return [Node(item, self.where, (*self.path, f"[{i}]")) for i, item in enumerate(self.value)]

    def check_keys(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        present = self.object()
        missing = [key for key in required if key not in present]
        for key in present:
            if key not in required and key not in optional:
                near = get_close_matches(key, [*missing, *optional], n=1)
                hint = f"; did you mean {json.dumps(near[0])}?" if near else ""
                self.fail(f"the key {json.dumps(key)} is unknown here{hint}")
        if missing:
            self.fail(f"the key {json.dumps(missing[0])} is missing")

    def text(self) -> str:
        if not isinstance(self.value, str):
            self.fail(f"{named(self.value)} where text is expected")
        if any("\ud800" <= character <= "\udfff" for character in self.value):
            self.fail("text with half of a surrogate pair, which no UTF-8 can hold")
        return self.value

    def one_of(self, choices: tuple[str, ...]) -> str:
        if self.text() not in choices:
            self.fail(f"{named(self.value)} is none of {', '.join(choices)}")
        return self.text()

    def number(self, *, least: float = -math.inf, positive: bool = False) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            self.fail(f"{named(self.value)} where a number is expected")
        if not math.isfinite(self.value):
            self.fail(f"{named(self.value)} is not a finite number")
        if positive and self.value <= 0:
            self.fail(f"{named(self.value)} is not positive")
        if self.value < least:
            self.fail(f"{named(self.value)} is less than {least:g}")
        return float(self.value)

    def integer(self, *, least: int | None = None) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.fail(f"{named(self.value)} where a whole number is expected")
        if least is not None and self.value < least:
            self.fail(f"{named(self.value)} is less than {least}")
        return self.value

    def scalar(self) -> Scalar:
        match self.value:
            case None | bool():
                return self.value
            case str():
                return self.text()
            case int() | float():
                self.number()
                return self.value
            case _:
                return self.fail(f"{named(self.value)} where text, a number, true, false or null is expected")


def named(value: object) -> str:
    """A value as its file shows it, short."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case _:
            shown = json.dumps(value)
            return shown if len(shown) <= 40 else f"{shown[:39]}…"
