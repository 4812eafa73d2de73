"""The course of a duet: from the processes that were played so far, what is known of each benchmark and what is still open.

Everything follows from the list of what was played, so that a duet which was interrupted goes on from its files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_accel.stats.comparison import configuration_changes, why_unusable
from pytest_accel.stats.duet import RUNS_PER_GROUP, Group, Side, judge, turns
from pytest_accel.stats.environment import Environment, describe, diff_identity
from pytest_accel.stats.quantities import counted
from pytest_accel.stats.results import Ending, Result, SessionResults, loss_news
from pytest_accel.stats.upgrade import Effect, Row, Upgrade, differences, ended, is_elsewhere, session_remarks
from pytest_accel.stats.verdict import Outcome, Verdict

ATTEMPTS = (
    2  # of one run: what fails or is disturbed twice says something of the environment, or of the machine
)
_REPLACED = frozenset({Ending.FAILED, Outcome.INVALID})  # another run of these may be a good one
_EFFECTS: Mapping[Outcome, Effect] = {
    Outcome.REGRESSED: Effect.REGRESSED,
    Outcome.OK: Effect.OK,
    Outcome.IMPROVED: Effect.IMPROVED,
    Outcome.INCONCLUSIVE: Effect.INCONCLUSIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One process of a duet: which group it belongs to, where in it, and whether it replaces one that came to nothing."""

    group: int  # from 1
    place: int  # from 1 to 4
    attempt: int = 1

    @property
    def side(self) -> Side:
        return turns(self.group)[self.place - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A turn that came to its end, with what it found out."""

    turn: Turn
    session: SessionResults

    def of(self, benchmark: str) -> Result | None:
        return next((each for each in self.session.results if each.benchmark == benchmark), None)


Good = tuple[Result, Environment | None]  # a run that counts, and where it was measured


@dataclass(slots=True, kw_only=True)
class Part:
    """What is known of one benchmark."""

    benchmark: str
    old: list[Result] = field(
        default_factory=list
    )  # that count, one for each run, in the order of their pairs
    new: list[Result] = field(default_factory=list)
    verdict: Verdict | None = None  # after the last whole group
    effect: Effect | None = None  # None while it is open
    why: str = ""
    spoilt: Result | None = None  # what ended it
    is_elsewhere: bool = False  # neither environment runs it here
    wants_replacement: bool = False  # the latest run came to nothing, and may be tried once more

    @property
    def is_open(self) -> bool:
        return self.effect is None and not self.is_elsewhere

    @property
    def groups(self) -> int:
        """Whole ones."""
        return min(len(self.old), len(self.new)) // 2


def follow(played: Sequence[Played], most_groups: int) -> dict[str, Part]:
    """Every benchmark that any process knew, as far as it has come."""
    found = dict.fromkeys(result.benchmark for each in played for result in each.session.results)
    by_place: dict[tuple[int, int], list[Played]] = {}
    for each in sorted(played, key=lambda one: (one.turn.group, one.turn.place, one.turn.attempt)):
        by_place.setdefault((each.turn.group, each.turn.place), []).append(each)
    return {benchmark: _follow(benchmark, list(by_place.values()), most_groups) for benchmark in found}


def _follow(benchmark: str, places: Sequence[Sequence[Played]], most_groups: int) -> Part:
    part, first = Part(benchmark=benchmark), None
    for index, attempts in enumerate(places):
        turn = attempts[0].turn
        good = next(filter(None, (_good(each, benchmark) for each in attempts)), None)
        if good is None:
            _spoil(part, turn.side, index, attempts, places)
            return part
        first = first or good
        result, _ = good
        if why := _why_incomparable(first, good):
            part.effect, part.why = Effect.NOT_JUDGED, f"its runs cannot stand beside each other: {why}"
            part.spoilt = result
            return part
        (part.old if turn.side == "old" else part.new).append(result)
        if turn.place == RUNS_PER_GROUP:
            part.verdict = judge(_groups(part), result.tolerance, most_groups)
            if not part.verdict.wants_another_run:
                part.effect = _EFFECTS[part.verdict.outcome]
                return part
    return part


def _good(played: Played, benchmark: str) -> Good | None:
    result = played.of(benchmark)
    if result is None or why_unusable(result):
        return None
    return result, played.session.environments.get(result.environment)


def _groups(part: Part) -> list[Group]:
    runs = [(old.runs[-1], new.runs[-1]) for old, new in zip(part.old, part.new, strict=True)]
    return [
        Group(old=(one[0], two[0]), new=(one[1], two[1]))
        for one, two in zip(runs[::2], runs[1::2], strict=True)
    ]


def _spoil(
    part: Part, side: Side, index: int, attempts: Sequence[Played], places: Sequence[Sequence[Played]]
) -> None:
    """A run came to nothing: it is tried once more, or that is the end of this benchmark."""
    result = next((each for one in reversed(attempts) if (each := one.of(part.benchmark))), None)
    if result is not None and result.status in _REPLACED and len(attempts) < ATTEMPTS:
        part.wants_replacement = True
        return
    if index == 0 and is_elsewhere(result):  # the other environment is asked before anything is said
        if len(places) == 1:
            return
        other = places[1][-1].of(part.benchmark)
        if is_elsewhere(other):
            part.is_elsewhere = True
            return
    part.spoilt = result
    if result is not None and result.status is Outcome.INVALID:
        part.effect, part.why = Effect.NOT_JUDGED, f"disturbed in the {side} environment: {ended(result)}"
    elif side == "new":
        part.effect = Effect.LOST
        part.why = f"the old environment measures it, the new one does not: {ended(result)}"
    else:
        part.effect, part.why = Effect.NOT_JUDGED, f"the old environment did not measure it: {ended(result)}"


def _why_incomparable(first: Good, now: Good) -> str:
    """Why the run of another turn is of something else; empty where it is not."""
    (one, was), (two, here) = first, now
    if changes := configuration_changes(one, two):
        return f"the benchmark changed ({', '.join(changes)})"
    if was and here and (identity := diff_identity(was, here)):
        return f"another machine ({describe(identity)})"
    return ""


# --- the whole --------------------------------------------------------------------------------------


def assess(played: Sequence[Played], most_groups: int) -> Upgrade:
    """The comparison as `pytest-accel upgrade` makes one, of pairs; what is still open is not decided here."""
    parts = follow(played, most_groups)
    rows = [_row(part) for part in parts.values() if not part.is_elsewhere]
    old, new = (_merged(played, side, rows) for side in ("old", "new"))
    changes, identity = differences(old, new)
    return Upgrade(
        rows=tuple(rows),
        changes=changes,
        identity=identity,
        remarks=(
            *session_remarks((each.turn.side, each.session) for each in played),
            *_replacements(played),
        ),
        skipped=sum(part.is_elsewhere for part in parts.values()),
    )


def _row(part: Part) -> Row:
    effect, why = part.effect, part.why
    if effect is None:
        has_verdict = part.verdict is not None
        effect = Effect.INCONCLUSIVE if has_verdict else Effect.NOT_JUDGED
        why = why if has_verdict else "ended before its first group was whole"
    spoilt_old = part.spoilt if not part.old else None
    spoilt_new = part.spoilt if part.old else None
    return Row(
        benchmark=part.benchmark,
        effect=effect,
        why=why,
        old=_gathered(part.old, spoilt_old, None, ""),
        new=_gathered(part.new, spoilt_new, part.verdict, _numerics(part)),
    )


def _gathered(
    results: Sequence[Result], spoilt: Result | None, verdict: Verdict | None, numerics: str
) -> Result | None:
    """All runs of one side as one result; it failed if any of them did."""
    if not results:
        return spoilt
    failed = next((each for each in results if each.failed), spoilt)
    last = failed or results[-1]
    return replace(
        last,
        runs=tuple(each.runs[-1] for each in results),
        verdicts=(verdict,) if verdict else (),
        failed=bool(failed and failed.failed),
        work_per_step=results[-1].work_per_step,
        unit=results[-1].unit,
        environment=results[-1].environment,
        numerics=numerics,
        duration_s=math.fsum(each.duration_s for each in results),
    )


def _numerics(part: Part) -> str:
    """News of the loss: the new environment reaches another one after the same seeded steps."""
    if not (part.old and part.new):
        return ""
    before = [run.loss for result in part.old for run in result.runs]
    news = loss_news(before, part.new[-1].runs[-1].loss)
    return f"loss after the same seeded steps {news}" if news else ""


def _merged(played: Sequence[Played], side: Side, rows: Sequence[Row]) -> SessionResults:
    """One side as if it had been one session: for what differs between the two."""
    sessions = [each.session for each in played if each.turn.side == side]
    results = tuple(each for row in rows if (each := row.old if side == "old" else row.new) is not None)
    if not sessions:
        return SessionResults(session="", at="", duration_s=0.0, exit_status=0, version="")
    environments = {key: each for one in sessions for key, each in one.environments.items()}
    return replace(sessions[-1], results=results, environments=environments)


def _replacements(played: Sequence[Played]) -> list[str]:
    """What was tried again, and why: a run that came to nothing is never dropped in silence."""
    again = {(each.turn.group, each.turn.place) for each in played if each.turn.attempt > 1}
    spoilt: Counter[tuple[str, Side, str]] = Counter()
    for each in played:
        if each.turn.attempt == 1 and (each.turn.group, each.turn.place) in again:
            for result in each.session.results:
                if result.status in _REPLACED:
                    spoilt[result.name, each.turn.side, result.status.value] += 1
    return [
        f"{name}: {counted(count, 'run')} of the {side} environment {status}, and measured again"
        for (name, side, status), count in spoilt.items()
    ]
