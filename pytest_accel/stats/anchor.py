"""The anchor: runs that move only at a release, so that many small accepted losses still stop somewhere.

A baseline that is refreshed again and again follows a slow loss down, each step of it too small to fail. The anchor does not
follow: it is judged beside the baseline, by the same gate, with more room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_accel.stats.facets import Facet
from pytest_accel.stats.metrics import ANCHOR
from pytest_accel.stats.runs import Run
from pytest_accel.stats.together import at_best_ok, judge_rest
from pytest_accel.stats.verdict import Policy

SHARE = 1.5  # of the tolerance: a release may have cost something that was accepted
_MOST = 0.99  # a tolerance stays below 1


def judge_anchor(anchor: Sequence[Run], candidate: Sequence[Run], c: float, policy: Policy) -> Facet:
    """Judge the candidate against the anchor; `c` is what its whole platform lost, 0 where that does not count.

    Faster than the anchor is where one hopes to be after a release: it is ok, and asks for nothing.
    """
    wider = replace(policy, tolerance=min(SHARE * policy.tolerance, _MOST))
    verdict = at_best_ok(judge_rest(anchor, candidate, c, wider))
    return Facet(name=ANCHOR, verdict=replace(verdict, of=ANCHOR))
