"""What the benchmarks of one platform share: a slowdown of all of them is the machine's, and is said once.

d of each benchmark is tonight's ln(step time) less its baseline's; their median c is what they have in common. It counts where
it is surely beyond half the tolerance, nearly all share it, and at least one of them fails by it. So it adds no alarm to those
of the benchmarks themselves, and excuses no loss that is not itself a failure: many failures become one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from pytest_accel.stats.gate import centre, judge, loss, summaries, t_quantile
from pytest_accel.stats.run import Run, median_error
from pytest_accel.stats.verdict import Estimate, Outcome, Policy, Verdict

FEWEST = 8  # benchmarks; of fewer, two that regressed could pass for the machine
LEVEL = 0.02  # one-sided, of c beyond half the tolerance: the gate's own at the fourth look
SIGN_LEVEL = 0.05  # so many must share it that chance seldom makes as many: 7 of 8, 15 of 20
_WITNESSES = {"SM clock": "sm_clock_mhz", "power": "power_mean_w"}  # what may explain it, where runs have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One benchmark of a suite: the runs of its baseline, and tonight's."""

    baseline: Sequence[Run]
    runs: Sequence[Run]
    tolerance: float
    regressed: bool = False  # judged by itself

    @property
    def d(self) -> float:
        return centre(summaries(self.runs)) - centre(summaries(self.baseline))


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """What the benchmarks of one platform have in common tonight."""

    c: float  # median of d, of ln(step time); above 0 is slower
    at_least: float  # lower bound of c
    slower: int  # benchmarks that lost more than half of c
    members: int
    tolerance: float  # their median
    regressed: bool  # whether c counts: it is one failure, and each benchmark is judged on the rest
    witnesses: Mapping[str, float] = field(
        default_factory=dict
    )  # changes of clocks and power since the baselines

    @property
    def loss(self) -> float:
        """c as a loss of throughput."""
        return loss(self.c)


def judge_together(members: Sequence[Member]) -> Together | None:
    """What they share; None where they are too few to tell."""
    if len(members) < FEWEST:
        return None
    differences = [each.d for each in members]
    c, tolerance = median(differences), median(each.tolerance for each in members)
    at_least = c - t_quantile(LEVEL, len(members) - 1) * median_error(differences)
    slower = sum(d > c / 2 for d in differences)
    is_common = at_least > -math.log1p(-tolerance) / 2 and slower >= enough(len(members))
    return Together(
        c=c,
        at_least=at_least,
        slower=slower,
        members=len(members),
        tolerance=tolerance,
        regressed=is_common and any(each.regressed for each in members),
        witnesses=_changes(members),
    )


def enough(members: int) -> int:
    """How many of them must be slower: the fewest that a fair coin reaches in at most SIGN_LEVEL of cases."""
    chance, count = 0.0, members + 1
    while count > 0 and chance + math.comb(members, count - 1) / 2**members <= SIGN_LEVEL:
        count -= 1
        chance += math.comb(members, count) / 2**members
    return count


def judge_rest(baseline: Sequence[Run], candidate: Sequence[Run], c: float, policy: Policy) -> Verdict:
    """Judge a benchmark on what it lost beside c; plainly where there is no c.

    One that lost less than the others did not improve: it is ok, and needs no second look to say so.
    """
    if not c:
        return judge(baseline, candidate, policy)
    return at_best_ok(replace(judge(baseline, without(c, candidate), policy), common=loss(c)))


def at_best_ok(verdict: Verdict) -> Verdict:
    """A gain is no more than ok, and is not measured again to be sure of it."""
    if verdict.outcome not in {Outcome.OK, Outcome.IMPROVED}:
        return verdict
    return replace(verdict, outcome=Outcome.OK, wants_another_run=False)


def whole(verdict: Verdict) -> Estimate | None:
    """What a benchmark lost against its baseline, with what its platform lost; None where nothing was compared."""
    found, kept = verdict.slowdown, 1 - verdict.common
    if found is None or not verdict.common:
        return found
    return Estimate(
        point=1 - kept * (1 - found.point), low=1 - kept * (1 - found.low), high=1 - kept * (1 - found.high)
    )


def without(c: float, runs: Iterable[Run]) -> list[Run]:
    """The runs as they would have been without what all share; ratios inside a run stay."""
    kept = math.exp(-c)
    return [replace(run, rounds_s=tuple(kept * seconds for seconds in run.rounds_s)) for run in runs]


def _changes(members: Sequence[Member]) -> dict[str, float]:
    """Of clocks and power, the median over the benchmarks that had them then and have them now."""
    found: dict[str, float] = {}
    for shown, name in _WITNESSES.items():
        ratios = [
            now / then - 1
            for each in members
            if (now := _typical(each.runs, name)) > 0 and (then := _typical(each.baseline, name)) > 0
        ]
        if 2 * len(ratios) >= len(members):
            found[shown] = median(ratios)
    return found


def _typical(runs: Sequence[Run], metric: str) -> float:
    values = [run.metrics[metric] for run in runs if metric in run.metrics]
    return median(values) if values else 0.0
