"""Paired comparison of an old and a new environment: schedule, verdict per benchmark, decision on the whole.

Processes of both environments alternate in blocks of four: old new new old, then new old old new. Neighbours share the
clocks, temperature and load of their minutes, which cancel in their difference; a linear drift cancels within a block.
Tolerance, tests and words are the gate's (`stats.gate`): y = ln(step time), d > 0 is slower.

Everything follows from the list of finished processes, so an interrupted comparison resumes from its files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from typing import Literal

from pytest_accel.stats.comparison import configuration_changes, was_slowed, why_unusable
from pytest_accel.stats.environment import Change, Environment, describe, diff, diff_identity
from pytest_accel.stats.gate import (
    Difference,
    Scale,
    capped,
    centre,
    decide,
    inflation,
    interval,
    is_open,
    levels,
    loss,
    pooled,
    require_runs,
    slowdown,
    sum_of_squares,
    summaries,
    t_quantile,
)
from pytest_accel.stats.quantities import counted
from pytest_accel.stats.results import Ending, Result, SessionResults, describe_loss_change
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Outcome, Policy, Verdict

Side = Literal["old", "new"]
RUNS_PER_BLOCK = 4
DEFAULT_BLOCKS = 5
MIN_BLOCKS = 2  # one block alone never fails anything
MAX_BLOCKS = 20  # 80 processes
ATTEMPTS = 2  # of one run: failing twice says something about the environment
_ABBA: tuple[Side, ...] = ("old", "new", "new", "old")
_BAAB: tuple[Side, ...] = ("new", "old", "old", "new")
# The levels are the gate's own. Tried beside them, 3,000 sessions a cell: .5 % after the first block brought .2 to .9 % of
# false alarms, because its two new runs are neighbours and one throttle may span both; 3 % at the last cost 6 points of
# power at 3 % noise.
_TESTS = Policy().max_repeats


# --- statistics -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBlock:
    """Four runs, two of each environment; the first of both are neighbours in time, and so are the second."""

    old: tuple[Run, Run]
    new: tuple[Run, Run]


def block_order(block: int) -> tuple[Side, ...]:
    """Return the order of environments in a block; blocks count from 1."""
    return _ABBA if block % 2 else _BAAB


def decision_points(max_blocks: int) -> tuple[int, ...]:
    """Return the numbers of blocks after which a test is made: all of up to five, else five spread evenly.

    More tests would be more chances of a false alarm; the levels are for five.
    """
    if max_blocks < 1:
        raise ValueError(f"max_blocks: {max_blocks!r} is not a whole number of at least 1.")
    if max_blocks <= _TESTS:
        return tuple(range(1, max_blocks + 1))
    return tuple(round(test * max_blocks / _TESTS) for test in range(1, _TESTS + 1))


def paired_policy(tolerance: float | None, max_blocks: int = DEFAULT_BLOCKS) -> Policy:
    """Return the gate's policy with this schedule; what runs of one session share cancels in pairs."""
    policy = Policy(
        max_repeats=len(decision_points(max_blocks)), session_correlation=0.0, drifting_correlation=0.0
    )
    return policy if tolerance is None else replace(policy, tolerance=tolerance)


def judge_pairs(
    blocks: Sequence[PairBlock], tolerance: float | None = None, max_blocks: int = DEFAULT_BLOCKS
) -> Verdict:
    """Judge the new environment by the pairs so far; between two tests nothing is decided."""
    if not blocks:
        raise ValueError("No blocks to judge. Give at least one.")
    policy, schedule = paired_policy(tolerance, max_blocks), decision_points(max_blocks)
    old = list(chain.from_iterable(block.old for block in blocks))
    new = list(chain.from_iterable(block.new for block in blocks))
    require_runs("old", old)
    require_runs("new", new)
    scale = _scale(old, new, policy)
    difference = Difference(
        d=centre(pair_differences(old, new)),
        se=scale.noise * unit_standard_error(len(blocks)),
        degrees_of_freedom=scale.degrees_of_freedom,
        repeat=max(1, sum(at <= len(blocks) for at in schedule)),
    )
    outcome = decide(difference, policy)
    is_untested = len(blocks) < schedule[-1] and len(blocks) not in schedule
    return Verdict(
        outcome=outcome,
        tolerance=policy.tolerance,
        slowdown=slowdown(difference, outcome, policy),
        noise=scale.noise,
        resolution=loss(scale.noise * resolution_factor(max_blocks, policy)),
        runs=len(new),
        baseline_runs=len(old),
        wants_another_run=is_untested
        or (len(blocks) < schedule[-1] and is_open(outcome, difference, policy)),
    )


def pair_differences(old: Sequence[Run], new: Sequence[Run]) -> list[float]:
    """Return new - old in ln(step time) of each complete pair."""
    return [after - before for before, after in zip(summaries(old), summaries(new), strict=False)]


def _scale(old: Sequence[Run], new: Sequence[Run], policy: Policy) -> Scale:
    """Return the run-to-run standard deviation within this session, from the pairs and the gate's prior.

    Slow runs are capped on each side first: one throttled process must not blur all pairs. Drift moves the two pairs of
    a block apart and counts as noise, which makes the verdict more careful.
    """
    pairs = zip(capped(summaries(old), policy), capped(summaries(new), policy), strict=True)
    differences = [after - before for before, after in pairs]
    return pooled(sum_of_squares(differences) / 2, len(differences) - 1, [*old, *new], policy)


def unit_standard_error(blocks: int) -> float:
    """Return the standard error of d at a run-to-run noise of 1: a pair has twice the variance of a run."""
    count = 2 * blocks
    return math.sqrt(2 * inflation(count) / count)


def resolution_factor(max_blocks: int, policy: Policy) -> float:
    """Return delta / s at which a loss of delta is caught in 80 % of cases at the last test; 2.5 after five blocks."""
    alpha, beta = levels(policy.max_repeats, policy)
    nu = policy.prior_degrees_of_freedom + 2 * max_blocks - 1
    return 2 * (t_quantile(alpha or beta, nu) + t_quantile(0.2, nu)) * unit_standard_error(max_blocks)


def blocks_needed(noise: float, tolerance: float) -> int | None:
    """Return how many blocks resolve the tolerance at this noise; None where `MAX_BLOCKS` do not."""
    for blocks in range(MIN_BLOCKS, MAX_BLOCKS + 1):
        policy = paired_policy(tolerance, blocks)
        if noise * resolution_factor(blocks, policy) <= policy.delta:
            return blocks
    return None


# --- progress of each benchmark ---------------------------------------------------------------------


class Effect(Enum):
    """What the new environment did to one benchmark; the first four are outcomes of the gate."""

    REGRESSED = "regressed"
    OK = "ok"
    IMPROVED = "improved"
    INCONCLUSIVE = "inconclusive"
    LOST = "lost"  # the old environment measures it, the new one does not
    NOT_JUDGED = "not-judged"  # there is nothing to compare


_REPLACED = frozenset({Ending.FAILED, Outcome.INVALID})  # another run of these may be a good one
_EFFECTS: Mapping[Outcome, Effect] = {
    Outcome.REGRESSED: Effect.REGRESSED,
    Outcome.OK: Effect.OK,
    Outcome.IMPROVED: Effect.IMPROVED,
    Outcome.INCONCLUSIVE: Effect.INCONCLUSIVE,
}
JUDGED = frozenset(_EFFECTS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One process of the schedule; a second attempt replaces a run that failed or was disturbed."""

    block: int  # from 1
    place: int  # from 1 to 4
    attempt: int = 1

    @property
    def side(self) -> Side:
        return block_order(self.block)[self.place - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledSlot:
    """A process that finished, with its results."""

    slot: Slot
    session: SessionResults

    def find(self, benchmark: str) -> Result | None:
        return next((each for each in self.session.results if each.benchmark == benchmark), None)

    def environment_of(self, result: Result) -> Environment | None:
        return self.session.environments.get(result.environment)


@dataclass(slots=True, kw_only=True)
class Progress:
    """What is known of one benchmark so far."""

    benchmark: str
    old: list[Result] = field(default_factory=list)  # usable, one for each run, in the order of their pairs
    new: list[Result] = field(default_factory=list)
    verdict: Verdict | None = None  # after the last complete block
    effect: Effect | None = None  # None while it is open
    why: str = ""
    spoilt: Result | None = None  # the result that ended it
    is_elsewhere: bool = False  # neither environment runs it on this machine
    wants_replacement: bool = False  # the latest run is unusable and may be tried once more

    @property
    def is_open(self) -> bool:
        return self.effect is None and not self.is_elsewhere


def follow(filled: Sequence[FilledSlot], max_blocks: int) -> dict[str, Progress]:
    """Return the progress of every benchmark that any process reported."""
    found = dict.fromkeys(result.benchmark for each in filled for result in each.session.results)
    places: dict[tuple[int, int], list[FilledSlot]] = {}
    for each in sorted(filled, key=lambda one: (one.slot.block, one.slot.place, one.slot.attempt)):
        places.setdefault((each.slot.block, each.slot.place), []).append(each)
    return {benchmark: _follow(benchmark, list(places.values()), max_blocks) for benchmark in found}


def _follow(benchmark: str, places: Sequence[Sequence[FilledSlot]], max_blocks: int) -> Progress:
    progress = Progress(benchmark=benchmark)
    first: tuple[Result, Environment | None] | None = None
    for index, attempts in enumerate(places):
        slot = attempts[0].slot
        used = next((each for each in attempts if _is_usable(each.find(benchmark))), None)
        result = used.find(benchmark) if used else None
        if used is None or result is None:
            _spoil(progress, index, attempts, places)
            return progress
        measured = result, used.environment_of(result)
        first = first or measured
        if why := _why_incomparable(first, measured):
            progress.effect, progress.why = Effect.NOT_JUDGED, f"its runs cannot be compared: {why}"
            progress.spoilt = result
            return progress
        (progress.old if slot.side == "old" else progress.new).append(result)
        if slot.place == RUNS_PER_BLOCK:
            progress.verdict = judge_pairs(_blocks(progress), result.tolerance, max_blocks)
            if not progress.verdict.wants_another_run:
                progress.effect = _EFFECTS[progress.verdict.outcome]
                return progress
    return progress


def _is_usable(result: Result | None) -> bool:
    return result is not None and not why_unusable(result)


def _is_skipped(result: Result | None) -> bool:
    return result is None or (result.status is Ending.SKIPPED and not result.failed)


def _blocks(progress: Progress) -> list[PairBlock]:
    runs = [(old.runs[-1], new.runs[-1]) for old, new in zip(progress.old, progress.new, strict=True)]
    return [
        PairBlock(old=(one[0], two[0]), new=(one[1], two[1]))
        for one, two in zip(runs[::2], runs[1::2], strict=True)
    ]


def _spoil(
    progress: Progress, index: int, attempts: Sequence[FilledSlot], places: Sequence[Sequence[FilledSlot]]
) -> None:
    """Note an unusable run: it is tried once more, or ends this benchmark."""
    side = attempts[0].slot.side
    result = next((each for one in reversed(attempts) if (each := one.find(progress.benchmark))), None)
    if result is not None and result.status in _REPLACED and len(attempts) < ATTEMPTS:
        progress.wants_replacement = True
        return
    if index == 0 and _is_skipped(result):  # what the other environment does with it decides
        if len(places) == 1:
            return
        if _is_skipped(places[1][-1].find(progress.benchmark)):
            progress.is_elsewhere = True
            return
    progress.spoilt = result
    ended = (
        "it was not found" if result is None else ": ".join(filter(None, (result.status.value, result.text)))
    )
    if result is not None and result.status is Outcome.INVALID:
        progress.effect, progress.why = Effect.NOT_JUDGED, f"disturbed in the {side} environment: {ended}"
    elif side == "new":
        progress.effect = Effect.LOST
        progress.why = f"the old environment measures it, the new one does not: {ended}"
    else:
        progress.effect, progress.why = Effect.NOT_JUDGED, f"the old environment did not measure it: {ended}"


def _why_incomparable(
    first: tuple[Result, Environment | None], now: tuple[Result, Environment | None]
) -> str:
    (one, was), (two, here) = first, now
    if changes := configuration_changes(one, two):
        return f"the benchmark changed ({', '.join(changes)})"
    if was and here and (identity := diff_identity(was, here)):
        return f"another machine ({describe(identity)})"
    return ""


# --- the whole comparison ---------------------------------------------------------------------------


class Decision(Enum):
    """What to do about the new environment, the gravest first."""

    REJECT = "reject"  # something is slower, or does not run
    REPEAT = "repeat"  # nothing was judged
    UNDECIDED = "undecided"  # nothing is known to be worse, and something is not known
    ACCEPT = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRow:
    """One benchmark in both environments."""

    benchmark: str  # its node id
    effect: Effect
    why: str = ""  # where there is no verdict
    platform: str = ""
    unit: str = ""
    work_per_step: float = 0.0
    old: tuple[Run, ...] = ()
    new: tuple[Run, ...] = ()
    verdict: Verdict | None = None
    numerics: str = ""  # where the new environment reaches another loss
    failure: str = ""  # why the new environment's session failed it, whatever its speed

    @property
    def name(self) -> str:
        return self.benchmark.partition("::")[2] or self.benchmark

    def throughput(self, side: Side) -> float | None:
        runs = self.old if side == "old" else self.new
        return self.work_per_step / interval(runs, Policy()).point_s if runs else None

    @property
    def fails(self) -> bool:
        return self.effect in {Effect.REGRESSED, Effect.LOST} or bool(self.failure)

    @property
    def is_unfinished(self) -> bool:
        """Whether the comparison ended before this benchmark was decided."""
        is_open = self.verdict is not None and self.verdict.wants_another_run
        return self.effect is Effect.INCONCLUSIVE and is_open


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    rows: tuple[PairedRow, ...]  # in the order of the sessions
    changes: tuple[Change, ...] = ()  # of the environment, the most telling first
    identity: tuple[Change, ...] = ()  # of what must be equal for runs to be compared
    notes: tuple[str, ...] = ()

    def count(self, *effects: Effect) -> int:
        return sum(row.effect in effects for row in self.rows)

    @property
    def decision(self) -> Decision:
        is_worse = any(
            row.effect in {Effect.REGRESSED, Effect.LOST}
            or (row.effect in {Effect.OK, Effect.IMPROVED} and row.fails)
            for row in self.rows
        )
        if is_worse:
            return Decision.REJECT
        if not self.count(*JUDGED):
            return Decision.REPEAT
        return Decision.UNDECIDED if self.count(Effect.INCONCLUSIVE, Effect.NOT_JUDGED) else Decision.ACCEPT

    @property
    def status(self) -> int:
        """The exit status; a comparison that judged nothing is not green."""
        return int(not self.count(*JUDGED) or any(row.fails for row in self.rows))


def assess(filled: Sequence[FilledSlot], max_blocks: int) -> PairedComparison:
    """Return the whole comparison; what is still open is inconclusive."""
    found = follow(filled, max_blocks)
    skipped = sum(progress.is_elsewhere for progress in found.values())
    old, new = _environments(filled, "old"), _environments(filled, "new")
    both = [name for name in new if name in old]
    return PairedComparison(
        rows=tuple(_row(progress) for progress in found.values() if not progress.is_elsewhere),
        changes=tuple(dict.fromkeys(chain.from_iterable(diff(old[name], new[name]) for name in both))),
        identity=tuple(
            dict.fromkeys(chain.from_iterable(diff_identity(old[name], new[name]) for name in both))
        ),
        notes=(
            *_session_notes(filled),
            *_replacements(filled),
            *([f"{counted(skipped, 'benchmark')} of other machines skipped in both"] if skipped else []),
        ),
    )


def _environments(filled: Sequence[FilledSlot], side: Side) -> dict[str, Environment]:
    """Return the last known environment of each benchmark on one side."""
    return {
        result.benchmark: environment
        for each in filled
        if each.slot.side == side
        for result in each.session.results
        if (environment := each.environment_of(result)) is not None
    }


def _row(progress: Progress) -> PairedRow:
    effect, why = progress.effect, progress.why
    if effect is None:
        effect = Effect.INCONCLUSIVE if progress.verdict else Effect.NOT_JUDGED
        why = why or ("" if progress.verdict else "ended before its first block was complete")
    ended = [progress.spoilt] if progress.spoilt and progress.old else []
    failed = next((each for each in (*progress.new, *ended) if each.failed), None)
    known = [*progress.new, *progress.old, *filter(None, (progress.spoilt,))]
    newest = known[-1] if known else None
    return PairedRow(
        benchmark=progress.benchmark,
        effect=effect,
        why=why,
        platform=newest.platform if newest else "",
        unit=newest.unit if newest else "",
        work_per_step=next((each.work_per_step for each in known if each.work_per_step), 0.0),
        old=tuple(each.runs[-1] for each in progress.old),
        new=tuple(each.runs[-1] for each in progress.new),
        verdict=progress.verdict,
        numerics=_numerics(progress),
        failure=(failed.text or failed.status.value) if failed else "",
    )


def _numerics(progress: Progress) -> str:
    if not (progress.old and progress.new):
        return ""
    before = [each.runs[-1].loss for each in progress.old]
    news = describe_loss_change(before, progress.new[-1].runs[-1].loss)
    return f"loss after the same seeded steps {news}" if news else ""


def _session_notes(filled: Sequence[FilledSlot]) -> Iterator[str]:
    sessions = [each.session for each in filled]
    for side in ("old", "new"):
        runs = [
            run
            for each in filled
            if each.slot.side == side
            for result in each.session.results
            for run in result.runs
        ]
        if slowed := sum(map(was_slowed, runs)):
            yield f"{side}: {counted(slowed, 'run')} delayed on purpose by --accel-slowdown"
    if len(hosts := dict.fromkeys(each.host for each in sessions if each.host)) > 1:
        # A note only: Podman gives every container a host name of its own.
        yield f"measured on hosts of several names ({', '.join(hosts)}): it must be one node"
    if len({each.revision for each in sessions if each.revision}) > 1:
        yield "the code of the benchmarks changed between the sessions (another git revision)"


def _replacements(filled: Sequence[FilledSlot]) -> Iterator[str]:
    """Yield what was measured again, and why: an unusable run is never dropped in silence."""
    again = {(each.slot.block, each.slot.place) for each in filled if each.slot.attempt > 1}
    spoilt = Counter(
        (result.name, each.slot.side, result.status.value)
        for each in filled
        if each.slot.attempt == 1 and (each.slot.block, each.slot.place) in again
        for result in each.session.results
        if result.status in _REPLACED
    )
    for (name, side, status), count in spoilt.items():
        yield f"{name}: {counted(count, 'run')} of the {side} environment {status}, and measured again"
