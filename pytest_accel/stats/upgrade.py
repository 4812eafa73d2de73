"""Two environments on one machine: what the way from the old to the new did to each benchmark, and whether to believe it.

The verdicts are those of the sessions: the new environment was judged by the gate against runs of the old one, and so was
the old one when it was measured again at the end. Here they are only put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from pytest_accel.stats.comparison import was_slowed
from pytest_accel.stats.environment import Change, diff, diff_identity
from pytest_accel.stats.quantities import counted
from pytest_accel.stats.results import Ending, Result, SessionResults, Status
from pytest_accel.stats.verdict import Outcome


class Effect(Enum):
    """What became of one benchmark; the first four are the gate's own words."""

    REGRESSED = "regressed"
    OK = "ok"
    IMPROVED = "improved"
    INCONCLUSIVE = "inconclusive"
    LOST = "lost"  # the old environment measures it, the new one does not
    DRIFTED = "drifted"  # the old environment is no longer what it was: the machine changed meanwhile
    NOT_JUDGED = "not-judged"  # there is nothing to compare it with


class Decision(Enum):
    """What to do about the whole, the gravest first."""

    REJECT = "reject"  # something is slower, or does not run
    REPEAT = "repeat"  # the comparison is not to be believed, or there is none
    LOOK = "look closer"  # nothing is known to be worse, and something is not known
    ACCEPT = "accept"


_GATE: Mapping[Status, Effect] = {
    Outcome.REGRESSED: Effect.REGRESSED,
    Outcome.OK: Effect.OK,
    Outcome.IMPROVED: Effect.IMPROVED,
    Outcome.INCONCLUSIVE: Effect.INCONCLUSIVE,
}
JUDGED = frozenset(_GATE.values())
_MOVED = frozenset({Effect.REGRESSED, Effect.IMPROVED})
# It was measured, but nothing that the old environment measured may stand beside it.
_INCOMPARABLE: frozenset[Status] = frozenset({Outcome.STALE_BASELINE, Outcome.NO_BASELINE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One benchmark in both environments."""

    benchmark: str  # its node id
    effect: Effect
    why: str = ""  # where the verdict of the new one does not say it
    old: Result | None = None
    new: Result | None = None
    again: Result | None = None  # the old one, at the end

    @property
    def name(self) -> str:
        return self.benchmark.partition("::")[2] or self.benchmark

    @property
    def platform(self) -> str:
        return next((each.platform for each in (self.new, self.old) if each and each.platform), "")

    @property
    def unit(self) -> str:
        return next((each.unit for each in (self.new, self.old) if each and each.unit), "")

    @property
    def old_throughput(self) -> float | None:
        return self.old.throughput if self.old else None

    @property
    def new_throughput(self) -> float | None:
        return self.new.throughput if self.new else None

    @property
    def numerics(self) -> str:
        return self.new.numerics if self.new else ""

    @property
    def is_unsure(self) -> bool:
        """Whether the second look at the old environment could not tell if it drifted."""
        return self.again is not None and self.again.status is Outcome.INCONCLUSIVE

    @property
    def fails(self) -> bool:
        """Never green by accident: also where the session of the new environment failed it for a reason of its own."""
        if self.effect in {Effect.REGRESSED, Effect.LOST, Effect.DRIFTED}:
            return True
        return self.new is not None and self.new.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """The whole comparison."""

    rows: tuple[Row, ...]  # in the order of the sessions
    changes: tuple[Change, ...] = ()  # of the environment, the most telling first
    identity: tuple[Change, ...] = ()  # of what must be equal for runs to be compared
    remarks: tuple[str, ...] = ()
    bracketed: bool = False  # whether the old environment was measured again
    skipped: int = 0  # benchmarks that neither environment runs here

    def of(self, *effects: Effect) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.effect in effects)

    @property
    def judged(self) -> tuple[Row, ...]:
        return self.of(*JUDGED)

    @property
    def decision(self) -> Decision:
        if any(_is_worse(row) for row in self.rows):
            return Decision.REJECT
        if not self.judged or self.of(Effect.DRIFTED):
            return Decision.REPEAT
        return Decision.LOOK if self.open else Decision.ACCEPT

    @property
    def open(self) -> tuple[Row, ...]:
        """Of which nobody can say whether the new environment is worse: also where the machine may have drifted."""
        unknown = {Effect.INCONCLUSIVE, Effect.NOT_JUDGED}
        return tuple(row for row in self.rows if row.effect in unknown or row.is_unsure)

    @property
    def status(self) -> int:
        """The exit status, as pytest has it: an open question costs nothing unless pytest's options say so."""
        return int(not self.judged or any(row.fails for row in self.rows))


def _is_worse(row: Row) -> bool:
    """Whether the new environment is known to be at fault; a failure of what was not judged may be of the benchmark."""
    is_well = row.effect in {Effect.OK, Effect.IMPROVED}
    return row.effect in {Effect.REGRESSED, Effect.LOST} or (is_well and row.fails)


def assess(old: SessionResults, new: SessionResults, again: SessionResults | None = None) -> Upgrade:
    """Put the sessions of an upgrade together: a recording of the old environment, the new one judged against it.

    `again` is the old environment judged against itself after that.
    """
    olds, news = _by_benchmark(old), _by_benchmark(new)
    agains = _by_benchmark(again) if again else {}
    slower, drifted = _slower_together(new), _slower_together(again) if again else {}
    rows, skipped = [], 0
    for benchmark in dict.fromkeys([*olds, *news]):
        before, after = olds.get(benchmark), news.get(benchmark)
        if is_elsewhere(before) and is_elsewhere(after):
            skipped += 1
            continue
        second = agains.get(benchmark)
        effect, why = _effect(before, after)
        if after is not None and effect in JUDGED and after.disk_name in slower:
            effect, why = Effect.REGRESSED, slower[after.disk_name]
        if again and effect is not Effect.NOT_JUDGED:
            moved = _drift(second, effect)
            if not moved and second is not None and second.disk_name in drifted:
                moved = f"the old environment, measured again, is another: {drifted[second.disk_name]}"
            if moved:
                effect, why = Effect.DRIFTED, moved
        rows.append(Row(benchmark=benchmark, effect=effect, why=why, old=before, new=after, again=second))
    changes, identity = differences(old, new)
    return Upgrade(
        rows=tuple(rows),
        changes=changes,
        identity=identity,
        remarks=tuple(_remarks(old, new, again)),
        bracketed=again is not None,
        skipped=skipped,
    )


def _by_benchmark(session: SessionResults) -> dict[str, Result]:
    return {result.benchmark: result for result in session.results if not result.is_platform}


def _slower_together(session: SessionResults) -> dict[str, str]:
    """Return the platforms of which all benchmarks lost as much, with the session's words for it.

    Each of them was judged on the rest there. Between two environments what they share is what the upgrade did, or the machine.
    """
    return {each.disk_name: each.text for each in session.results if each.is_platform}


def is_elsewhere(result: Result | None) -> bool:
    """Of another machine, or of none."""
    return result is None or (result.status is Ending.SKIPPED and not result.failed)


def was_recorded(result: Result | None) -> bool:
    return result is not None and result.status is Ending.RECORDED


def _effect(old: Result | None, new: Result | None) -> tuple[Effect, str]:
    """By what the session of the new environment said, where the old one can stand beside it."""
    if not was_recorded(old):
        return Effect.NOT_JUDGED, f"the old environment did not record it: {ended(old)}"
    if new is not None and new.status in _GATE:
        return _GATE[new.status], ""
    if new is not None and new.status in _INCOMPARABLE:
        return Effect.NOT_JUDGED, f"what the new environment measured cannot stand beside it: {new.text}"
    return Effect.LOST, f"the old environment measures it, the new one does not: {ended(new)}"


def _drift(again: Result | None, effect: Effect) -> str:
    """Why the old environment is no longer what it was; empty where it is, and where nobody can tell.

    One that runs no more is also no witness that the new one is to blame.
    """
    if again is not None and again.status in _GATE:
        moved = _GATE[again.status] in _MOVED
        return "the old environment, measured again, has another speed than before" if moved else ""
    both = " either" if effect is Effect.LOST else ""
    return f"the old environment, measured again, does not run it{both}: {ended(again)}"


def ended(result: Result | None) -> str:
    """How it came to its end, in words."""
    if result is None:
        return "it was not found"
    return f"{result.status.value}: {result.text}" if result.text else result.status.value


def differences(old: SessionResults, new: SessionResults) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """What changed for any benchmark that both measured; nearly always it is the same for all."""
    before = _by_benchmark(old)
    context: dict[Change, None] = {}
    identity: dict[Change, None] = {}
    for result in new.results:
        then = before.get(result.benchmark)
        was = old.environments.get(then.environment) if then else None
        now = new.environments.get(result.environment)
        if was is not None and now is not None:
            context |= dict.fromkeys(diff(was, now))
            identity |= dict.fromkeys(diff_identity(was, now))
    return tuple(context), tuple(identity)


def _remarks(old: SessionResults, new: SessionResults, again: SessionResults | None) -> list[str]:
    """What whoever reads the verdicts should know of how they came about."""
    sessions = {"old": old, "new": new} | ({"old, again": again} if again else {})
    found = session_remarks(sessions.items())
    if again is None:
        found.append(
            "the old environment was not measured again, so that a machine which drifted looks like an upgrade"
        )
    return found


def session_remarks(named: Iterable[tuple[str, SessionResults]]) -> list[str]:
    """What is odd about sessions that are compared, each with the name of its side."""
    sessions = list(named)
    found = []
    for name in dict.fromkeys(name for name, _ in sessions):
        ours = [each for side, each in sessions if side == name]
        slowed = sum(was_slowed(run) for session in ours for result in session.results for run in result.runs)
        if slowed:
            found.append(f"{name}: {counted(slowed, 'run')} delayed on purpose by --accel-slowdown")
    if len(hosts := dict.fromkeys(each.host for _, each in sessions if each.host)) > 1:
        # Podman gives every container a name of its own, so that this cannot be a failure.
        found.append(f"measured on hosts of several names ({', '.join(hosts)}): it must be one node")
    if len({each.revision for _, each in sessions if each.revision}) > 1:
        found.append("the code of the benchmarks changed between the sessions (another git revision)")
    return found
