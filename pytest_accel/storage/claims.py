"""What a study says of its own figures, computed again from them: what does not follow is said, not hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Relation: TypeAlias = Literal["equals", "at least", "at most"]
RELATIONS: tuple[Relation, ...] = ("equals", "at least", "at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A number in a study's text or in a computed column, and how it should come out of its figures."""

    id: str
    stated: float
    decimals: int  # how many of them are stated; -2 is "to the hundred"
    unit: str
    relation: Relation
    formula: str  # one of FORMULAS
    of: tuple[tuple[str, ...], ...]  # ids of figures, in the formula's order; several: the claim is of each
    total: float | None  # the number that some formulas take beside figures
    follows: bool  # what the file says; `follows` says what the arithmetic says
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """How a claim is computed from the values of its figures."""

    signature: str
    meaning: str
    compute: Callable[[Sequence[float], float], float]
    figures: int | None  # how many it takes; None is any number
    takes_total: bool = False


FORMULAS: Mapping[str, Formula] = {
    "value": Formula(
        signature="value(a)",
        meaning="the figure itself",
        compute=lambda of, _total: of[0],
        figures=1,
    ),
    "percent_less": Formula(
        signature="percent_less(a, b)",
        meaning="by how many percent of b is a less",
        compute=lambda of, _total: 100 * (1 - of[0] / of[1]),
        figures=2,
    ),
    "percent_more": Formula(
        signature="percent_more(a, b)",
        meaning="by how many percent of b is a more",
        compute=lambda of, _total: 100 * (of[0] / of[1] - 1),
        figures=2,
    ),
    "ratio": Formula(
        signature="ratio(a, b)",
        meaning="a over b",
        compute=lambda of, _total: of[0] / of[1],
        figures=2,
    ),
    "product": Formula(
        signature="product(a, b)",
        meaning="a times b",
        compute=lambda of, _total: of[0] * of[1],
        figures=2,
    ),
    "sum": Formula(
        signature="sum(a, b, ...)",
        meaning="all of them together",
        compute=lambda of, _total: sum(of),
        figures=None,
    ),
    "efficiency": Formula(
        signature="efficiency(many, one, n)",
        meaning="many over n times one, in percent: the rate of n devices against that of one",
        compute=lambda of, total: 100 * of[0] / of[1] / total,
        figures=2,
        takes_total=True,
    ),
    "over": Formula(
        signature="over(n, a)",
        meaning="n over a: a number of images over their time is a rate, over their rate a time",
        compute=lambda of, total: total / of[0],
        figures=1,
        takes_total=True,
    ),
}


def computed(claim: Claim, values: Mapping[str, float]) -> tuple[float, ...]:
    """What the claim's formula makes of the figures' values (by id): one number for each group of figures."""
    formula = FORMULAS[claim.formula]
    total = 1.0 if claim.total is None else claim.total
    return tuple(formula.compute([values[each] for each in group], total) for group in claim.of)


def follows(claim: Claim, values: Mapping[str, float]) -> bool:
    """Whether every number that the figures give is the stated one, to the digits stated."""
    return all(_agrees(claim, found) for found in computed(claim, values))


def _agrees(claim: Claim, found: float) -> bool:
    slack = 1e-9 * max(abs(claim.stated), abs(found))  # of binary fractions, never of the study
    match claim.relation:
        case "equals":
            return abs(found - claim.stated) <= 0.5 * 10.0**-claim.decimals + slack
        case "at least":
            return found >= claim.stated - slack
        case "at most":
            return found <= claim.stated + slack
