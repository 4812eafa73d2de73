"""The JSON codec: values come back equal, and every fault has its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import pytest

from pytest_accel.storage.codec import EXACT, FormatError, decode, encode, loads, render


class Colour(Enum):
    RED = "red"


class Shape(Enum):
    ROUND = "round"


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size: {self.size} is negative")


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    kind: Colour | Shape = Colour.RED
    mode: Literal["a", "b"] = "a"
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, str | int | float | bool | None] = field(
        default_factory=dict, metadata={EXACT: True}
    )
    children: tuple[Outer, ...] = ()


VALUE = Outer(
    name="x",
    kind=Shape.ROUND,
    mode="b",
    inner=Inner(size=2),
    many=(Inner(), Inner(size=3)),
    figures={"f": 1 / 3},
    settings={"a": 1, "b": 1 / 3, "c": True, "d": None, "e": "t"},
    children=(Outer(name="y"),),
)


def test_value_comes_back_equal():
    assert decode(Outer, loads(render(encode(VALUE)))) == VALUE


def test_defaults_are_left_out():
    assert encode(Outer(name="x")) == {"name": "x"}


def test_digits_round_all_but_exact_fields():
    plain = encode(VALUE, digits=3)
    assert (plain["figures"], plain["settings"]["b"]) == ({"f": 0.333}, 1 / 3)


def test_whole_number_is_read_as_a_float():
    figures = decode(Outer, {"name": "x", "figures": {"f": 2}}).figures
    assert isinstance(figures["f"], float)


@pytest.mark.parametrize(
    ("change", "place", "problem"),
    [
        ({"name": 3}, "name", "3 where text is expected"),
        ({"name": b"x"}, "name", "where text is expected"),
        ({"kind": "blue"}, "kind", '"blue" is none of red, round'),
        ({"mode": "c"}, "mode", '"c" is none of a, b'),
        ({"inner": {"size": True}}, "inner.size", "true where a whole number is expected"),
        ({"inner": {"size": -1}}, "inner.size", "-1 is negative"),
        ({"many": [{}, {"size": 1.5}]}, "many[1].size", "1.5 where a whole number is expected"),
        ({"many": {}}, "many", "an object where a list is expected"),
        ({"figures": {"f": float("nan")}}, 'figures["f"]', "NaN is not a finite number"),
        ({"settings": {"s": []}}, 'settings["s"]', "a list where text, a number, true, false or null"),
        ({"naem": "x"}, "", "the key \"naem\" is unknown here. Did you mean 'name'?"),
        ({"children": [{}]}, "children[0]", 'the key "name" is missing'),
    ],
)
def test_fault_has_its_place(change, place, problem):
    with pytest.raises(FormatError) as caught:
        decode(Outer, {"name": "x", **change})
    assert caught.value.place == place
    assert problem in caught.value.problem


def test_deep_nesting_is_refused():
    with pytest.raises(FormatError, match="nested too deep"):
        loads("[" * 200_000)


def test_number_of_many_digits_is_refused():
    for value in (loads("9" * 100_000), 10**400):  # a message between processes is read by json alone
        with pytest.raises(FormatError, match="not a finite number"):
            decode(Outer, {"name": "x", "figures": {"f": value}})


def test_key_written_twice_is_refused():
    with pytest.raises(FormatError, match='the key "size" appears twice'):
        loads('{"name": "x", "inner": {"size": 1, "size": 2}}')


@pytest.mark.parametrize(("digits", "kind"), [(18, int), (19, float)])
def test_integer_of_more_digits_than_64_bits_hold_is_a_float(digits, kind):
    assert type(loads("9" * digits)) is kind
