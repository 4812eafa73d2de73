"""What people write into options, as values; or ValueError in words that follow what they wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pytest_accel.stats.quantities import parse_fraction


def count(low: int, high: int, remedy: str = "") -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.strip().isdecimal() and low <= int(text) <= high):
            raise ValueError(f"is not a whole number from {low} to {high}. {remedy}".rstrip())
        return int(text)

    return parse


def choice(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"is not one of: {', '.join(values)}.")
        return text

    return parse


def columns(*known: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            wrong = f": there is no {unknown[0]!r}" if unknown else ""
            raise ValueError(
                f"is not a list of columns{wrong}. Valid, separated by commas: {', '.join(known)}. Benchmark, platform "
                "and verdict are always there."
            )
        return names

    return parse


def truth(text: str) -> bool:
    match text.strip().lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off" | "":
            return False
    raise ValueError("is not true or false.")


def gates(text: str) -> dict[str, float | None]:
    from pytest_accel.stats.gating import parse_gates  # where somebody asks for it: `pytest --help` does not

    return parse_gates(text)


def history(text: str) -> str:
    return "" if text.strip().lower() in ("off", "none") else text


def tolerance(text: str) -> float | Literal["auto"]:
    return "auto" if text.strip().lower() == "auto" else fixed_tolerance(text)


def fixed_tolerance(text: str) -> float:
    value = parse_fraction(text)
    if not value:
        raise ValueError("leaves no room for noise. Write 0.05 or 5%.")
    return value
