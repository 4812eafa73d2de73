"""Sources that others wrote, held to the protocol: what they raise, make up or never say does not end a measurement."""

from __future__ import annotations

import math
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_accel.power.source import Reasons, Source, plausible_w
from pytest_accel.stats.energy import Rail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    _Calls = SimpleQueue[tuple[Callable[[], Any], "SimpleQueue[_Answer]"] | None]

HOOK = "pytest_accel_power_sources"
LIMIT_S = (
    0.5  # for one reading: a meter behind a network answers in less, and the sensors beside it wait so long
)
_MEMBERS = ("name", "problem", "rails", "joules", "watts", "close")


def from_hook(answers: Iterable[object]) -> tuple[Source, ...]:
    """The sources that plugins gave, each guarded. ValueError, with the remedy, for what is none."""
    return tuple(Guarded(_checked(source)) for answer in answers for source in _listed(answer))


class Guarded:
    """A source of another plugin. Its code runs in a thread of its own, one call at a time: one that hangs hangs there."""

    def __init__(self, source: Source, *, limit_s: float = LIMIT_S) -> None:
        self.name = source.name
        self.rails = tuple(source.rails)
        self._source = source
        self._known = {rail.name for rail in self.rails}
        self._reasons = Reasons()
        self._apart = _Apart(f"pytest-accel {self.name}", limit_s)

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
        self._apart.close()

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
        answer = self._apart.ask(call)
        if answer.error is not None:
            text = f"{method} raised {type(answer.error).__name__}: {answer.error}"
            self._reasons.say("", method, text)
        if answer.late:  # of a source that hangs one word is enough
            self._reasons.say("", "late", f"{method} {answer.late}")
        return answer.value


class _Answer(NamedTuple):
    value: Any = None
    error: BaseException | None = None
    late: str = ""  # it did not come in time


class _Apart:
    """A daemon thread for calls that may never come back; while one is under way, no other is begun."""

    def __init__(self, name: str, limit_s: float) -> None:
        self._name, self._limit_s = name, limit_s
        self._calls: _Calls | None = None  # of a thread that runs
        self._free = threading.Lock()  # held by a call, also when nobody waits for it any more
        self._late = False  # that one: it is not waited for a second time

    def ask(self, call: Callable[[], Any]) -> _Answer:
        """What it answers, as long as it, and one before it, take no longer than the limit."""
        if not self._free.acquire(timeout=0 if self._late else self._limit_s):
            return _Answer(late="was not asked: an earlier question is not answered yet")
        try:
            calls = self._started()
        except RuntimeError as error:  # no room for a thread
            self._free.release()
            return _Answer(error=error)
        answers: SimpleQueue[_Answer] = SimpleQueue()
        calls.put((call, answers))
        try:
            return answers.get(timeout=self._limit_s)
        except Empty:
            self._late = True
            return _Answer(late=f"did not answer within {self._limit_s:g} s")

    def close(self) -> None:
        """The thread ends, if ever it is back."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None

    def _started(self) -> _Calls:
        if self._calls is None:
            calls: _Calls = SimpleQueue()
            threading.Thread(target=self._run, args=[calls], name=self._name, daemon=True).start()
            self._calls = calls
        return self._calls

    def _run(self, calls: _Calls) -> None:
        while (asked := calls.get()) is not None:
            call, answers = asked
            try:
                answer = _Answer(value=call())
            except BaseException as error:  # noqa: BLE001 -- somebody else's code; pytest's own ends are none here
                answer = _Answer(error=error)
            self._late = False
            self._free.release()
            answers.put(answer)


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
            f"{HOOK}: the rails of {source.name} are {source.rails!r}, not pytest_accel.stats.energy.Rail."
        )
    found: Source = source
    return found
