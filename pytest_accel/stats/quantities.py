"""Reading and writing the quantities people type: fractions, percentages, seconds, counts."""

from __future__ import annotations

import math

_UNITS_S = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def parse_fraction(text: str) -> float:
    """`5%`, `5 %` or `0.05`; at least 0 and less than 1."""
    stripped = text.strip()
    try:
        value = float(stripped.removesuffix("%")) / 100 if stripped.endswith("%") else float(stripped)
    except ValueError:
        raise ValueError("is not a fraction or a percentage. Write 0.05 or 5%.") from None
    if not 0 <= value < 1:
        raise ValueError("is not between 0 and 100 %. Write 0.05 or 5%.")
    return value


def parse_seconds(text: str) -> float:
    """`5`, `5s`, `1.5min` or `200ms`; more than 0."""
    stripped = text.strip()
    for suffix in sorted(_UNITS_S, key=len, reverse=True):
        if stripped.endswith(suffix):
            number, scale = stripped.removesuffix(suffix), _UNITS_S[suffix]
            break
    else:
        number, scale = stripped, 1.0
    try:
        value = float(number) * scale
    except ValueError:
        raise ValueError("is not a duration. Write 5, 5s, 200ms or 2min.") from None
    if not (value > 0 and math.isfinite(value)):
        raise ValueError("is not a positive duration. Write 5, 5s, 200ms or 2min.")
    return value


def counted(number: int, noun: str) -> str:
    """`1 run`, `5 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(fraction: float, digits: int = 1) -> str:
    """`0.0712` as `7.1 %`."""
    return f"{100 * fraction:.{digits}f} %"


def seconds(value: float) -> str:
    """A duration with the unit that keeps it readable."""
    for unit, scale, limit in (("us", 1e-6, 1000), ("ms", 1e-3, 1000), ("s", 1.0, 100)):
        shown = f"{value / scale:.3g}"
        if float(shown) < limit:
            return f"{shown} {unit}"
    return f"{value / 60:.1f} min"


def si(value: float) -> str:
    """A rate with four significant digits and thousands separators: `2,640`, `91,223`, `12.34`."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def gibibytes(value: int) -> str:
    """Bytes as MiB or GiB."""
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
