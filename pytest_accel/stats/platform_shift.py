"""Platform shift: a slowdown that the benchmarks of one platform share is the machine's, and is reported once.

d of each benchmark is its ln(step time) in this session minus that of its baseline; c is their median. c counts where it is
beyond half the tolerance, nearly all benchmarks share it, and at least one of them fails by it. So it adds no alarm to those
of the benchmarks, and excuses no loss that is not itself a failure: many failures become one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from pytest_accel.stats.gate import centre, judge, loss, summaries, t_quantile
from pytest_accel.stats.run import Run, median_error
from pytest_accel.stats.verdict import Estimate, Outcome, Policy, Verdict

FEWEST_MEMBERS = 8  # of fewer, two that regressed could pass for the machine
LEVEL = 0.02  # one-sided, of c beyond half the tolerance: the gate's own after the fourth repeat
SIGN_LEVEL = 0.05  # chance that a fair coin gives as many slower benchmarks: 7 of 8, 15 of 20
_WITNESSES = {"SM clock": "sm_clock_mhz", "power": "power_mean_w"}  # metrics that may explain it


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftMember:
    """One benchmark of a platform: the runs of its baseline, and those of this session."""

    baseline: Sequence[Run]
    runs: Sequence[Run]
    tolerance: float
    regressed: bool = False  # judged by itself

    @property
    def d(self) -> float:
        return centre(summaries(self.runs)) - centre(summaries(self.baseline))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformShift:
    """Change of speed that the benchmarks of one platform share in a session."""

    c: float  # median of d, of ln(step time); above 0 is slower
    at_least: float  # lower bound of c
    slower: int  # benchmarks that lost more than half of c
    members: int
    tolerance: float  # their median
    regressed: bool  # whether c counts: it is one failure, and each benchmark is judged on the rest
    witnesses: Mapping[str, float] = field(default_factory=dict)  # relative changes of clocks and power

    @property
    def loss(self) -> float:
        """c as a loss of throughput."""
        return loss(self.c)


def judge_platform_shift(members: Sequence[ShiftMember]) -> PlatformShift | None:
    """Return what they share; None where they are too few to tell."""
    if len(members) < FEWEST_MEMBERS:
        return None
    differences = [each.d for each in members]
    c, tolerance = median(differences), median(each.tolerance for each in members)
    at_least = c - t_quantile(LEVEL, len(members) - 1) * median_error(differences)
    slower = sum(d > c / 2 for d in differences)
    is_common = at_least > -math.log1p(-tolerance) / 2 and slower >= fewest_slower(len(members))
    return PlatformShift(
        c=c,
        at_least=at_least,
        slower=slower,
        members=len(members),
        tolerance=tolerance,
        regressed=is_common and any(each.regressed for each in members),
        witnesses=_changes(members),
    )


def fewest_slower(members: int) -> int:
    """Return the smallest number of heads that a fair coin reaches in at most SIGN_LEVEL of cases."""
    chance, count = 0.0, members + 1
    while count > 0 and chance + math.comb(members, count - 1) / 2**members <= SIGN_LEVEL:
        count -= 1
        chance += math.comb(members, count) / 2**members
    return count


def judge_rest(baseline: Sequence[Run], candidate: Sequence[Run], c: float, policy: Policy) -> Verdict:
    """Judge a benchmark on what it lost beside c; a plain verdict where c is 0.

    A benchmark that lost less than the others did not improve: it is ok, and needs no second run.
    """
    if not c:
        return judge(baseline, candidate, policy)
    return at_best_ok(replace(judge(baseline, without_shift(c, candidate), policy), common=loss(c)))


def at_best_ok(verdict: Verdict) -> Verdict:
    """Return a gain as ok, without another run to be sure of it."""
    if verdict.outcome not in {Outcome.OK, Outcome.IMPROVED}:
        return verdict
    return replace(verdict, outcome=Outcome.OK, wants_another_run=False)


def total_slowdown(verdict: Verdict) -> Estimate | None:
    """Return the loss of a benchmark with that of its platform; None where nothing was compared."""
    found, kept = verdict.slowdown, 1 - verdict.common
    return found and found.mapped(lambda lost: 1 - kept * (1 - lost)) if verdict.common else found


def without_shift(c: float, runs: Iterable[Run]) -> list[Run]:
    """Return the runs as they would be without what all benchmarks share."""
    kept = math.exp(-c)
    return [replace(run, rounds_s=tuple(kept * seconds for seconds in run.rounds_s)) for run in runs]


def _changes(members: Sequence[ShiftMember]) -> dict[str, float]:
    """Return the median change of clocks and power over the benchmarks that have both values."""
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
