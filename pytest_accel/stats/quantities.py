"""Quantities as people read and write them: parsing of options, printing of numbers and names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Literal

_UNITS_S = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
LONGEST_S = 1e7  # 115 days: a longer duration is a mistake, and the system's timers overflow


def parse_fraction(text: str) -> float:
    """Parse `5%`, `5 %` or `0.05`; at least 0 and less than 1."""
    stripped = text.strip()
    try:
        value = float(stripped.removesuffix("%")) / 100 if stripped.endswith("%") else float(stripped)
    except ValueError:
        raise ValueError("is not a fraction or a percentage. Write 0.05 or 5%.") from None
    if not 0 <= value < 1:
        meant = "; a number alone is a fraction: 1 is 100 %" if value >= 1 and "%" not in stripped else ""
        raise ValueError(f"is not between 0 and 100 %{meant}. Write 0.05 or 5%.")
    return value


def parse_seconds(text: str) -> float:
    """Parse `5`, `5s`, `1.5min` or `200ms`; more than 0, and at most 115 days."""
    match = re.fullmatch(r"(.*?)\s*(ms|s|min|m|h)?", text.strip())
    number, unit = match.groups() if match else (text, None)
    try:
        value = float(number) * _UNITS_S[unit or "s"]
    except ValueError:
        raise ValueError("is not a duration. Write 5, 5s, 200ms or 2min.") from None
    if not 0 < value <= LONGEST_S:
        raise ValueError("is not a positive duration of at most 115 days. Write 5, 5s, 200ms or 2min.")
    return value


def counted(number: int, noun: str) -> str:
    """Return `1 run`, `5 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(fraction: float, digits: int = 1) -> str:
    """Return `0.0712` as `7.1 %`."""
    return f"{100 * fraction:z.{digits}f} %"  # z: no -0.0


ASSUMED = "~"  # before the noise of a single run: it shows none, so that a prior is assumed


def noise_percent(fraction: float, runs: int) -> str:
    """Return a noise, or an interval, of so many runs: `~3.2 %` of a single one, which is assumed."""
    return f"{ASSUMED if runs == 1 else ''}{percent(fraction)}"


def seconds(value: float) -> str:
    """Return a duration with the unit that keeps it readable."""
    for unit, scale, limit in (("us", 1e-6, 1000), ("ms", 1e-3, 1000), ("s", 1.0, 100)):
        shown = f"{value / scale:.3g}"
        if float(shown) < limit:
            return f"{shown} {unit}"
    return f"{value / 60:.1f} min"


def minutes(value: float) -> str:
    """Return a duration as a clock shows it: `2:41`, `1:02:41`; none below zero."""
    whole, rest = divmod(max(0, round(value)), 60)
    return f"{whole}:{rest:02}" if whole < 60 else f"{whole // 60}:{whole % 60:02}:{rest:02}"


def si(value: float) -> str:
    """Return a rate with four significant digits and thousands separators: `2,640`, `91,223`, `12.34`."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def gibibytes(value: float) -> str:
    """Return bytes as MiB or GiB."""
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def printable(text: str) -> str:
    """Return text with control characters, writing directions and surrogates escaped."""
    if text.isprintable():
        return text
    escaped = (each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
    return "".join(escaped)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return ` Did you mean 'x' or 'y'?`, or nothing where no valid name is near."""
    from difflib import get_close_matches  # only an error needs it

    near = get_close_matches(name.lower(), list(valid), n=2, cutoff=0.6)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def clipped(text: str, characters: int) -> str:
    """Return a text without its middle: a name says most at its beginning and its end."""
    if len(text) <= characters:
        return text
    end = characters // 3
    return f"{text[: characters - end - 1]}…{text[-end:]}"


def parse_count(low: int, high: int, remedy: str = "") -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text.strip()) if re.fullmatch(r"\s*\d{1,9}\s*", text) else low - 1
        if not low <= number <= high:
            raise ValueError(f"is not a whole number from {low} to {high}. {remedy}".rstrip())
        return number

    return parse


def parse_choice(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"is not one of: {', '.join(values)}.")
        return text

    return parse


def parse_truth(text: str) -> bool:
    match text.strip().lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off" | "":
            return False
    raise ValueError("is not true or false.")


def parse_tolerance(text: str) -> float | Literal["auto"]:
    return "auto" if text.strip().lower() == "auto" else parse_fixed_tolerance(text)


def parse_fixed_tolerance(text: str) -> float:
    value = parse_fraction(text)
    if not value:
        raise ValueError("leaves no room for noise. Write 0.05 or 5%.")
    return value
