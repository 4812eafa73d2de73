"""Two environments measured in turn in one session: what the pairs of their runs say, and when enough has been measured.

Runs that stand side by side share the clocks, the temperature and the neighbours of their minutes, and what they share is
not in their difference. Four runs are a group: old new new old, the next one new old old new. A drift that is linear in time
cancels within each group; which of the two comes first changes from group to group.

Words, tolerance and tests are the gate's (`core.gate`): y = ln(step time), d > 0 is slower, a loss of delta should be caught,
one of delta/2 should not fail. A look is taken after whole groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal

from pytest_accel.stats.gate import (
    Difference,
    Scale,
    capped,
    centre,
    decide,
    inflation,
    is_open,
    levels,
    loss,
    pooled,
    require_usable,
    slowdown,
    sum_of_squares,
    summaries,
    t_quantile,
)
from pytest_accel.stats.verdict import Policy, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_accel.stats.run import Run

Side = Literal["old", "new"]
RUNS_PER_GROUP = 4
MOST_GROUPS = 5  # where nobody names another number: 20 processes
FEWEST_GROUPS = 2  # one group alone never fails anything
_ABBA: tuple[Side, ...] = ("old", "new", "new", "old")
_BAAB: tuple[Side, ...] = ("new", "old", "old", "new")
# The levels of the looks are the gate's own. Tried beside them, 3,000 sessions a cell: .5 % at the first look brought .2 to .9 %
# of false alarms, because the two new runs of a first group follow each other and one throttle may span both; 3 % at the last
# cost 6 points of power at 3 % noise.
_LOOKS = Policy().max_looks


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Four runs, two of each side; the first of both stand side by side, and so do the second."""

    old: tuple[Run, Run]
    new: tuple[Run, Run]


def turns(group: int) -> tuple[Side, ...]:
    """Who is measured, in order, in the group of this number, from 1 on."""
    return _ABBA if group % 2 else _BAAB


def looks_at(most_groups: int) -> tuple[int, ...]:
    """After how many groups a look is taken: after each of up to five, else five times, spread evenly.

    More looks would be more chances of a false alarm, and the levels are for five.
    """
    if most_groups < 1:
        raise ValueError(f"most_groups: {most_groups!r} is not a whole number of at least 1.")
    if most_groups <= _LOOKS:
        return tuple(range(1, most_groups + 1))
    return tuple(round(look * most_groups / _LOOKS) for look in range(1, _LOOKS + 1))


def duet_policy(tolerance: float | None, most_groups: int = MOST_GROUPS) -> Policy:
    """The gate's, with the schedule of a duet; pairs are of one session, so that they share nothing but what cancels."""
    policy = Policy(max_looks=len(looks_at(most_groups)), session_correlation=0.0, drifting_correlation=0.0)
    return policy if tolerance is None else replace(policy, tolerance=tolerance)


def judge(groups: Sequence[Group], tolerance: float | None = None, most_groups: int = MOST_GROUPS) -> Verdict:
    """Judge the new environment by the pairs so far.

    `looks` of the verdict counts runs of the new environment, `baseline_runs` those of the old one: they are equal.
    Between two looks nothing is decided, and another group is wanted.
    """
    if not groups:
        raise ValueError("No groups to judge. Give at least one.")
    policy, schedule = duet_policy(tolerance, most_groups), looks_at(most_groups)
    old = list(chain.from_iterable(group.old for group in groups))
    new = list(chain.from_iterable(group.new for group in groups))
    require_usable("old", old)
    require_usable("new", new)
    scale = _scale(old, new, policy)
    look = max(1, sum(at <= len(groups) for at in schedule))
    difference = Difference(
        d=centre(pairs(summaries(old), summaries(new))),
        se=scale.noise * unit_standard_error(len(groups)),
        degrees_of_freedom=scale.degrees_of_freedom,
        looks=look,
    )
    outcome = decide(difference, policy)
    is_between = len(groups) < schedule[-1] and len(groups) not in schedule
    return Verdict(
        outcome=outcome,
        tolerance=policy.tolerance,
        slowdown=slowdown(difference, outcome, policy),
        noise=scale.noise,
        resolution=loss(scale.noise * resolution_factor(most_groups, policy)),
        looks=len(new),
        baseline_runs=len(old),
        wants_another_run=is_between or (len(groups) < schedule[-1] and is_open(outcome, difference, policy)),
    )


def pairs(old: Sequence[float], new: Sequence[float]) -> list[float]:
    """new - old in ln(step time), of runs that stand side by side."""
    return [after - before for before, after in zip(old, new, strict=True)]


def _scale(old: Sequence[Run], new: Sequence[Run], policy: Policy) -> Scale:
    """Run-to-run standard deviation inside this session, from the pairs and the gate's prior.

    Slow runs are pulled in on each side first: a throttled process of either must not blur all pairs. A drift moves the two
    pairs of a group apart and is counted as noise: what it does to the verdict is to make it more careful.
    """
    differences = pairs(capped(summaries(old), policy), capped(summaries(new), policy))
    return pooled(sum_of_squares(differences) / 2, len(differences) - 1, [*old, *new], policy)


def unit_standard_error(groups: int) -> float:
    """Give the standard error of d at a run-to-run noise of 1: a pair has twice the variance of a run."""
    count = 2 * groups
    return math.sqrt(2 * inflation(count) / count)


def resolution_factor(most_groups: int, policy: Policy) -> float:
    """delta / s at which a loss of delta is caught in 80 % of cases at the last look; 2.5 after five groups."""
    alpha, beta = levels(policy.max_looks, policy)
    nu = policy.prior_degrees_of_freedom + 2 * most_groups - 1
    return 2 * (t_quantile(alpha or beta, nu) + t_quantile(0.2, nu)) * unit_standard_error(most_groups)


def groups_for(noise: float, tolerance: float, most: int = 20) -> int | None:
    """How many groups would resolve the tolerance at this noise; None where so many would not."""
    for groups in range(FEWEST_GROUPS, most + 1):
        policy = duet_policy(tolerance, groups)
        if noise * resolution_factor(groups, policy) <= policy.delta:
            return groups
    return None
