"""The scale of the gate, learned from the nights that were kept: how noisy a benchmark is, never where it stands.

Successive differences of the nights' first runs hold the noise twice and a slow drift hardly at all. What they say is pooled with
the gate's prior, as further runs would be. Baselines stay what was recorded: nothing here moves them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from pytest_accel.stats.gate import in_noise, sum_of_squares
from pytest_accel.stats.robust import spread
from pytest_accel.stats.verdict import Policy

# nu_hist: a history says how it was. 15 caught as many on a quiet machine, with 1.6 % false alarms where 6 has 1.0 (2,000 draws).
MOST_DEGREES = 6.0
FEWEST_DIFFERENCES = 5  # a scale from fewer is worth less than the prior
NIGHTS = 60  # the newest ones
# Of two nights: sessions of one afternoon share its machine, and differ by less than nights do.
APART_S = 12 * 3600.0
# Of the prior of a benchmark without nights: the quietest noise that the gate was studied at.
LEAST_NOISE = 0.003
_CAP = 4.0  # robust standard deviations: a night on which the code changed is no noise
# Degrees of freedom of the gate's own rho: nights that were measured twice are few, and open ones.
_RHO_WORTH = 5.0
_MOST_RHO = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """ln(step time) of each run of one session, in their order, and what makes two nights comparable."""

    runs: tuple[float, ...]
    alike: tuple[str, ...] = ()  # configuration and environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What nights say of the noise of one benchmark."""

    noise: float  # s_hist
    degrees_of_freedom: float  # nu_hist
    nights: int
    correlation: float | None = None  # rho; None where no night had two runs


def nightly(begun_s: Sequence[float]) -> list[int]:
    """Which of these sessions, from the oldest to the newest, are nights: each begun long enough after the one before it.

    The first of those that are close together counts: nobody repeats a session until it pleases.
    """
    kept: list[int] = []
    for index, at_s in enumerate(begun_s):
        if not kept or at_s - begun_s[kept[-1]] >= APART_S:
            kept.append(index)
    return kept


def learn(nights: Sequence[Night], policy: Policy | None = None) -> Learned | None:
    """Of nights from the oldest to the newest; None where they are too few to tell.

    Two nights are compared only where nothing but time lies between them: the same configuration and environment.
    """
    policy = policy or Policy()
    differences = [
        after.runs[0] - before.runs[0] for before, after in pairwise(nights) if before.alike == after.alike
    ]
    if len(differences) < FEWEST_DIFFERENCES:
        return None
    variance = math.fsum(each**2 for each in _capped(differences)) / (2 * len(differences))
    return Learned(
        noise=math.sqrt(variance),
        degrees_of_freedom=min(MOST_DEGREES, 2 / 3 * len(differences)),
        nights=len(nights),
        correlation=_correlation(nights, variance, policy),
    )


def typical_noise(learned: Iterable[Learned]) -> float | None:
    """The median of a platform's benchmarks, for one that is new there; None where none has nights."""
    noises = [each.noise for each in learned]
    return max(LEAST_NOISE, median(noises)) if noises else None


def with_learned(policy: Policy, learned: Learned) -> Policy:
    """The policy whose prior is the gate's own and these nights, pooled."""
    nu = policy.prior_degrees_of_freedom + learned.degrees_of_freedom
    squares = (
        policy.prior_degrees_of_freedom * policy.prior_noise**2
        + learned.degrees_of_freedom * learned.noise**2
    )
    policy = replace(policy, prior_noise=math.sqrt(squares / nu), prior_degrees_of_freedom=nu)
    rho = learned.correlation
    # What was learned needs no guess of a drift.
    return policy if rho is None else replace(policy, session_correlation=rho, drifting_correlation=rho)


def with_typical(policy: Policy, noise: float) -> Policy:
    """The policy of a benchmark without nights of its own: as surely as before, about the noise of its platform."""
    return replace(policy, prior_noise=noise)


def _capped(differences: Sequence[float]) -> list[float]:
    most = _CAP * spread(differences, about=0.0)
    return [max(-most, min(most, each)) for each in differences] if most else list(differences)


def _correlation(nights: Sequence[Night], variance: float, policy: Policy) -> float | None:
    """The share of the variance that runs of one session have in common; drawn to the gate's own, at such noise, where nights are few."""
    several = [night.runs for night in nights if len(night.runs) > 1]
    nu = sum(len(runs) - 1 for runs in several)
    if not nu or not variance:
        return None
    inside = math.fsum(map(sum_of_squares, several)) / nu
    found = max(0.0, 1 - inside / variance)
    expected = in_noise(policy, math.sqrt(variance)).session_correlation
    return min(_MOST_RHO, (_RHO_WORTH * expected + nu * found) / (_RHO_WORTH + nu))
