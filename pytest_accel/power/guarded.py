"""Sources that others wrote, held to the protocol: what they raise or make up never ends a measurement."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pytest_accel.core.energy import Rail
from pytest_accel.power.source import Reasons, Source, plausible_w

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

HOOK = "pytest_accel_power_sources"
_MEMBERS = ("name", "problem", "rails", "joules", "watts", "close")


def from_hook(answers: Iterable[object]) -> tuple[Source, ...]:
    """The sources that plugins gave, each guarded. ValueError, with the remedy, for what is none."""
    return tuple(Guarded(_checked(source)) for answer in answers for source in _listed(answer))


class Guarded:
    """A source of another plugin."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.rails = tuple(source.rails)
        self._source = source
        self._known = {rail.name for rail in self.rails}
        self._reasons = Reasons()

    @property
    def problem(self) -> str:
        own = self._attempt("problem", lambda: str(self._source.problem)) or ""
        return "; ".join(text for text in (own, str(self._reasons)) if text)

    def joules(self) -> Mapping[str, float]:
        return self._readings("joules", self._source.joules, math.isfinite)

    def watts(self) -> Mapping[str, float]:
        return self._readings("watts", self._source.watts, plausible_w)

    def close(self) -> None:
        self._attempt("close", self._source.close)

    def _readings(
        self, method: str, read: Callable[[], Mapping[str, float]], is_sane: Callable[[float], bool]
    ) -> dict[str, float]:
        readings: dict[str, float] = {}
        for rail, value in (self._attempt(method, lambda: dict(read())) or {}).items():
            if rail not in self._known:
                self._reasons.say(
                    str(rail), method, f"{method}() tells of {rail!r}, which is none of its rails"
                )
            elif isinstance(value, bool) or not isinstance(value, int | float) or not is_sane(value):
                self._reasons.say(rail, method, f"{rail}: {method}() says {value!r}, which is no reading")
            else:
                readings[rail] = float(value)
        return readings

    def _attempt(self, method: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401 -- each answers its own
        try:
            return call()
        except Exception as error:  # noqa: BLE001 -- somebody else's code
            self._reasons.say("", method, f"{method} raised {type(error).__name__}: {error}")
            return None


def _listed(answer: object) -> list[object]:
    if isinstance(answer, list | tuple):
        return list(answer)
    raise ValueError(f"{HOOK}: {answer!r} is no list of sources. Return a list, with one source in it too.")


def _checked(source: Any) -> Source:  # noqa: ANN401 -- it is what this finds out
    missing = [member for member in _MEMBERS if not hasattr(source, member)]
    if missing or isinstance(source, type):
        what = f"has no {', '.join(missing)}" if missing else "is a class: return an object of it"
        raise ValueError(f"{HOOK}: {source!r} {what}. A source has {', '.join(_MEMBERS)}.")
    if not all(isinstance(rail, Rail) for rail in source.rails):
        raise ValueError(
            f"{HOOK}: the rails of {source.name} are {source.rails!r}, not pytest_accel.core.energy.Rail."
        )
    found: Source = source
    return found
