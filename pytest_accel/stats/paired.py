"""Paired comparison of an old and a new environment: schedule, and the verdict on each benchmark.

Processes of both environments alternate in blocks of four: old new new old, then new old old new. Neighbours share the
clocks, temperature and load of their minutes, which cancel in their difference; a linear drift cancels within a block.
Tolerance, tests and words are the gate's (`stats.gate`): y = ln(step time), d > 0 is slower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from types import MappingProxyType
from typing import Literal

from pytest_accel.stats import gate
from pytest_accel.stats.comparison import configuration_changes, why_unusable
from pytest_accel.stats.environment import Change, Environment, describe, diff_identity
from pytest_accel.stats.gate import Difference, Estimate, Outcome, Policy, Scale, Verdict
from pytest_accel.stats.results import Ending, Result, SessionResults, Status, describe_loss_change, status_of
from pytest_accel.stats.run import Run

Side = Literal["old", "new"]
RUNS_PER_BLOCK = 4
DEFAULT_BLOCKS = 5
MIN_BLOCKS = 2  # one block alone never fails anything
MAX_BLOCKS = 20  # 80 processes
_ABBA: tuple[Side, ...] = ("old", "new", "new", "old")
_BAAB: tuple[Side, ...] = ("new", "old", "old", "new")
# The levels are the gate's own. Tried beside them, 3,000 sessions a cell: .5 % after the first block brought .2 to .9 % of
# false alarms, because its two new runs are neighbours and one throttle may span both; 3 % at the last cost 6 points of
# power at 3 % noise.
_TESTS = Policy().max_repeats


# --- statistics -------------------------------------------------------------------------------------


def block_order(block: int) -> tuple[Side, ...]:
    """Return the order of environments in a block; blocks count from 1."""
    return _ABBA if block % 2 else _BAAB


def decision_points(max_blocks: int) -> tuple[int, ...]:
    """Return the numbers of blocks after which a test is made: all of up to five, else five spread evenly (the levels are for five)."""
    tests = min(max_blocks, _TESTS)
    return tuple(round(test * max_blocks / tests) for test in range(1, tests + 1))


def paired_policy(tolerance: float | None, max_blocks: int = DEFAULT_BLOCKS) -> Policy:
    """Return the gate's policy with this schedule; what runs of one session share cancels in pairs."""
    tests = len(decision_points(max_blocks))
    policy = Policy(max_repeats=tests, session_correlation=0.0, drifting_correlation=0.0)
    return policy if tolerance is None else replace(policy, tolerance=tolerance)


def judge_pairs(
    old: Sequence[Run], new: Sequence[Run], tolerance: float | None = None, max_blocks: int = DEFAULT_BLOCKS
) -> Verdict:
    """Judge the new environment by its pairs with the old one so far; between two tests nothing is decided."""
    policy, schedule = paired_policy(tolerance, max_blocks), decision_points(max_blocks)
    blocks = len(old) // 2
    scale = _scale(old, new, policy)
    difference = Difference(
        d=gate.centre([after.summary - before.summary for before, after in zip(old, new, strict=True)]),
        se=scale.noise * unit_standard_error(blocks),
        degrees_of_freedom=scale.degrees_of_freedom,
        repeat=max(1, sum(at <= blocks for at in schedule)),
    )
    group = gate.find_slow_group(old, new, policy)
    outcome = gate.unstable_or(gate.decide(difference, policy), group, policy)
    wanted = gate.is_open(outcome, difference, group, policy)
    is_last = blocks >= schedule[-1]
    return Verdict(
        outcome=outcome,
        tolerance=policy.tolerance,
        slowdown=gate.slowdown(difference, outcome, policy),
        noise=scale.noise,
        resolution=gate.loss(scale.noise * resolution_factor(max_blocks, policy)),
        runs=len(new),
        baseline_runs=len(old),
        wants_another_run=not is_last and (blocks not in schedule or wanted),
        slow_group=group,
    )


def _scale(old: Sequence[Run], new: Sequence[Run], policy: Policy) -> Scale:
    """Return the run-to-run standard deviation within this session, from the pairs and the gate's prior.

    Slow runs are capped on each side first: one throttled process must not blur all pairs.
    """
    before, after = (gate.capped(gate.summaries(side), policy) for side in (old, new))
    differences = [now - then for then, now in zip(before, after, strict=True)]
    return gate.pooled(gate.sum_of_squares(differences) / 2, len(differences) - 1, [*old, *new], policy)


def unit_standard_error(blocks: int) -> float:
    """Return the standard error of d at a run-to-run noise of 1: a pair has twice the variance of a run."""
    count = 2 * blocks
    return math.sqrt(2 * gate.inflation(count) / count)


def resolution_factor(max_blocks: int, policy: Policy) -> float:
    """Return delta / s at which a loss of delta is caught in 80 % of cases at the last test; 2.5 after five blocks."""
    alpha, beta = gate.levels(policy.max_repeats, policy)
    nu = policy.prior_degrees_of_freedom + 2 * max_blocks - 1
    se = unit_standard_error(max_blocks)
    return 2 * (gate.t_quantile(alpha or beta, nu) + gate.t_quantile(0.2, nu)) * se


# --- progress of each benchmark ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One process of the schedule."""

    block: int  # from 1
    place: int  # from 1 to 4

    @property
    def side(self) -> Side:
        return block_order(self.block)[self.place - 1]


Sessions = Mapping[Slot, SessionResults]  # finished processes, in their order


@dataclass(slots=True, kw_only=True)
class PairedBenchmark:
    """One benchmark in both environments, as far as it is known. The old one serves as the baseline."""

    benchmark: str  # its node id
    old: list[Result] = field(default_factory=list)  # usable, one for each run, in the order of their pairs
    new: list[Result] = field(default_factory=list)
    verdict: Verdict | None = None  # after the last complete block
    status: Status = Ending.NOT_MEASURED
    why: str = "ended before its first block was complete"  # where there is no verdict
    ended_by: Result | None = None  # an unusable result
    is_open: bool = True

    @property
    def deciding(self) -> Verdict | None:
        """The verdict, where it gave the benchmark its status."""
        return self.verdict if self.verdict and self.verdict.outcome is self.status else None

    @property
    def shown_status(self) -> Status:
        """Its status, or that its tolerance is no gate."""
        return status_of(self.deciding) if self.deciding else self.status

    @property
    def failure(self) -> str:
        """Why the new environment's session failed it, whatever its speed, where the old one's did not."""
        failed = next((each for each in self.new if each.failed), None)
        if failed is None or any(each.failed for each in self.old):
            return ""
        return failed.text or failed.status.value

    @property
    def numerics(self) -> str:
        """Where the new environment reaches another loss."""
        if not (self.old and self.new):
            return ""
        before = [each.runs[-1].loss for each in self.old]
        change = describe_loss_change(before, self.new[-1].runs[-1].loss)
        return f"loss after the same seeded steps {change}" if change else ""

    def end(self, status: Status, why: str = "", result: Result | None = None) -> None:
        self.status, self.why, self.ended_by, self.is_open = status, why, result, False


def follow(
    sessions: Sessions, max_blocks: int, tolerances: Mapping[str, float] = MappingProxyType({})
) -> dict[str, PairedBenchmark]:
    """Return the progress of every benchmark that any process reported; `tolerances` replace those of their sessions."""
    names = dict.fromkeys(result.benchmark for each in sessions.values() for result in each.results)
    return {name: _follow(name, sessions, max_blocks, tolerances) for name in names}


def _follow(
    name: str, sessions: Sessions, max_blocks: int, tolerances: Mapping[str, float]
) -> PairedBenchmark:
    found = PairedBenchmark(benchmark=name)
    environments = {key: each for session in sessions.values() for key, each in session.environments.items()}
    results = filter(None, (_find(name, each) for each in sessions.values()))
    if all(each.status is Ending.SKIPPED and not each.failed for each in results):
        if len(sessions) > 1:  # both environments were asked
            found.end(Ending.SKIPPED, "skipped in both environments")
        return found
    first: Result | None = None
    for slot, session in sessions.items():
        result = _find(name, session)
        if result is None or why_unusable(result.measured_as, result.runs):
            _end_unusable(found, slot.side, result)
            return found
        first = first or result
        if why := _why_incomparable(first, result, environments):
            found.end(Outcome.STALE_BASELINE, f"its runs cannot be compared: {why}", result)
            return found
        (found.old if slot.side == "old" else found.new).append(result)
        if slot.place == RUNS_PER_BLOCK:
            old, new = ([each.runs[-1] for each in side] for side in (found.old, found.new))
            tolerance = tolerances.get(name, result.tolerance)
            verdict = found.verdict = judge_pairs(old, new, tolerance, max_blocks)
            if not verdict.wants_another_run:
                found.end(verdict.outcome)
                return found
            found.verdict = replace(verdict, outcome=Outcome.INCONCLUSIVE)
            found.status, found.why = Outcome.INCONCLUSIVE, ""
    return found


def _find(name: str, session: SessionResults) -> Result | None:
    return next((each for each in session.results if each.benchmark == name), None)


def _end_unusable(found: PairedBenchmark, side: Side, result: Result | None) -> None:
    """End a benchmark whose run is unusable; its session replaced disturbed runs, as far as it could."""
    ending = ": ".join(filter(None, (result.status.value, result.text))) if result else "it was not found"
    if result and result.status is Outcome.INVALID:
        found.end(Outcome.INVALID, f"disturbed in the {side} environment: {ending}", result)
    elif side == "new":
        found.end(Ending.FAILED, f"the old environment measures it, the new one does not: {ending}", result)
    else:
        found.end(Outcome.NO_BASELINE, f"the old environment did not measure it: {ending}", result)


def _why_incomparable(first: Result, now: Result, environments: Mapping[str, Environment]) -> str:
    if changes := configuration_changes(first, now):
        return f"the benchmark changed ({', '.join(changes)})"
    was, here = environments.get(first.environment), environments.get(now.environment)
    if was and here and (identity := diff_identity(was, here)):
        return f"another machine ({describe(identity)})"
    return ""


# --- one component swapped --------------------------------------------------------------------------

# Of ln(step time). A component is regressed where it surely explains a third of the loss, and ok where it surely explains less
# than two. Simulated, 600 losses each of 6 % at noise .3, 1 and 3 %: the guilty one of all is convicted in 100, 99.7 and 70 %
# of cases, an innocent one in none; with the whole loss as tolerance in 100, 91 and 33 %, because the guilty one was often ok.
_TESTED_SHARE = 2 / 3


def swap_tolerance(lost: float) -> float:
    """Return the tolerance at which a swap is judged that may explain this loss."""
    return -math.expm1(_TESTED_SHARE * math.log1p(-lost))


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One direction: two environments that differ in one component."""

    rows: Mapping[str, PairedBenchmark] = field(default_factory=dict)
    impossible: str = ""  # why there is none, or why one benchmark has no verdict

    def verdict(self, benchmark: str) -> Verdict | None:
        return self.rows[benchmark].verdict if benchmark in self.rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedComponent:
    """Packages swapped together, both ways."""

    changes: tuple[Change, ...]
    lost: Mapping[str, float]  # by each benchmark that it was swapped for
    into_old: Swap  # OLD against OLD with those of NEW
    out_of_new: Swap  # NEW with those of OLD against NEW

    def verdicts(self, benchmark: str) -> list[Verdict]:
        """Return those of the possible directions, after one complete block at least."""
        found = (each.verdict(benchmark) for each in (self.into_old, self.out_of_new))
        return [each for each in found if each is not None]

    def explained(self, benchmark: str) -> Estimate | None:
        """Return the loss that it explains alone: the middle of both directions, in ln(step time)."""
        found = [each.slowdown for each in self.verdicts(benchmark) if each.slowdown is not None]
        if not found:
            return None

        def mean(bound: str) -> float:
            return gate.loss(-fmean(math.log(max(1 - getattr(each, bound), 1e-300)) for each in found))

        return Estimate(point=mean("point"), low=mean("low"), high=mean("high"))

    def is_convicted(self, benchmark: str) -> bool:
        """Return whether it alone explains more than half of the loss, and surely a third in every possible direction."""
        explained, found = self.explained(benchmark), self.verdicts(benchmark)
        return (
            explained is not None
            and math.log1p(-explained.point) < math.log1p(-self.lost[benchmark]) / 2
            and all(each.outcome is Outcome.REGRESSED for each in found)
        )
