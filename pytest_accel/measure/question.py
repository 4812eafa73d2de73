"""What may be asked of `accel.measure`, checked before anything is timed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_accel.stats.keys import Scalar

_LONGEST_UNIT = 24  # characters: it is a column of a table


class QuestionError(ValueError):
    """An argument that no measurement can answer to; the message names it and what is valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """How much work a step does, in which unit, and what exactly is measured: plain values."""

    work: float
    unit: str
    configuration: Mapping[str, Scalar]

    @classmethod
    def of(cls, step: object, work: object, unit: object, configuration: object) -> Question:
        _check_step(step)
        return cls(work=_work(work, unit), unit=_unit(unit), configuration=_configuration(configuration))


def checked(step: Callable[[], object]) -> Callable[[], object]:
    """The step, for its first call: one that returns a coroutine or a generator has done nothing yet."""

    def first() -> object:
        result = step()
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            getattr(result, "close", lambda: None)()
            raise QuestionError(
                f"step: it returns a {type(result).__name__}, whose body did not run. "
                "Pass a plain function that does the work when it is called."
            )
        return result

    return first


def check_demand(**demands: object) -> None:
    """Operations and bytes of a step are positive numbers, where they are given at all."""
    for name, value in demands.items():
        if value is not None and not 0 <= _number(value) < math.inf:
            raise QuestionError(
                f"{name}: {value!r} is not a positive, finite number. Count what one step takes."
            )


def check_steps(**counts: tuple[object, int]) -> None:
    """Numbers of steps are whole, each with the least that it may be."""
    for name, (value, least) in counts.items():
        plain = _plain(value)
        if not isinstance(plain, int) or isinstance(plain, bool) or plain < least:
            raise QuestionError(
                f"{name}: {value!r} is no number of steps. Write a whole number from {least} on."
            )


def _check_step(step: object) -> None:
    if not callable(step):
        raise QuestionError(
            f"step: {step!r} cannot be called. Pass a function: accel.measure(lambda: ..., ...)."
        )


def _plain(value: object) -> object:
    """A NumPy or torch scalar as the Python number it holds; anything else as it is."""
    item = getattr(value, "item", None)
    if not callable(item) or isinstance(value, str | int | float | bool):
        return value
    try:
        return item()
    except (TypeError, ValueError, RuntimeError):  # an array of several
        return value


def _number(value: object) -> float:
    """As a Python number; NaN for what is none."""
    plain = _plain(value)
    if not isinstance(plain, int | float) or isinstance(plain, bool):
        return math.nan
    try:
        return float(plain)
    except OverflowError:
        return math.inf


def _work(value: object, unit: object) -> float:
    if 0 < (work := _number(value)) < math.inf:
        return work
    raise QuestionError(
        f"work: {value!r} is not a positive, finite number. Count in {unit} what one step does."
    )


def _unit(value: object) -> str:
    if isinstance(value, str) and value.strip() and value.isprintable() and len(value) <= _LONGEST_UNIT:
        return value
    raise QuestionError(f'unit: {value!r} is not a short word. Write what is counted: "images", "tokens".')


def _configuration(value: object) -> dict[str, Scalar]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise QuestionError(f"configuration: {value!r} is not a mapping of names to values.")
    return {_key(key): _scalar(key, each) for key, each in value.items()}


def _key(key: object) -> str:
    if isinstance(key, str) and key:
        return key
    raise QuestionError(f"configuration: the name {key!r} is not a text.")


def _scalar(key: object, value: object) -> Scalar:
    plain = _plain(value)
    if plain is None or isinstance(plain, str | bool | int):
        return plain
    if isinstance(plain, float) and math.isfinite(plain):
        return plain
    raise QuestionError(
        f"configuration[{key!r}]: {value!r} cannot be stored. Write a text, a finite number, True, False or None."
    )
