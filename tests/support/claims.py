"""Claims of the published studies, computed again from their figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_accel.storage.codec import decode
from pytest_accel.storage.references import Study

# Computed from the values of a claim's figures, and a number that some take beside them; docs/references.md explains them.
FORMULAS: Mapping[str, Callable[[Sequence[float], float], float]] = {
    "value": lambda of, _: of[0],
    "percent_less": lambda of, _: 100 * (1 - of[0] / of[1]),
    "percent_more": lambda of, _: 100 * (of[0] / of[1] - 1),
    "ratio": lambda of, _: of[0] / of[1],
    "product": lambda of, _: of[0] * of[1],
    "sum": lambda of, _: sum(of),
    "efficiency": lambda of, total: 100 * of[0] / of[1] / total,
    "over": lambda of, total: total / of[0],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A number in a study's text or in a computed column."""

    id: str
    stated: float
    decimals: int  # of the stated number; -2 is "to the hundred"
    unit: str
    relation: Literal["equals", "at least", "at most"]
    formula: str
    of: tuple[tuple[str, ...], ...]  # ids of figures, in the formula's order; several: the claim is of each
    follows: bool  # whether the figures give the stated number
    total: float | None = None  # the number that some formulas take beside figures
    note: str = ""

    def __post_init__(self) -> None:
        if not self.of or not all(self.of):
            raise ValueError("of: of no figure; a claim is computed from at least one")
        if not self.follows and not self.note.strip():
            raise ValueError("note: is missing; the claim does not follow, so say why")


def claims_of(study: Study) -> tuple[Claim, ...]:
    return decode(tuple[Claim, ...], list(study.claims), "claims")


def computed_claim(claim: Claim, values: Mapping[str, float]) -> tuple[float, ...]:
    """Return what the claim's formula gives for the figures' values (by id): one number a group of figures."""
    formula = FORMULAS[claim.formula]
    total = 1.0 if claim.total is None else claim.total
    return tuple(formula([values[each] for each in group], total) for group in claim.of)


def claim_follows(claim: Claim, values: Mapping[str, float]) -> bool:
    """Return whether every number that the figures give is the stated one, to the digits stated."""
    return all(_agrees(claim, found) for found in computed_claim(claim, values))


def _agrees(claim: Claim, found: float) -> bool:
    slack = 1e-9 * max(abs(claim.stated), abs(found))  # of binary fractions
    match claim.relation:
        case "equals":
            return abs(found - claim.stated) <= 0.5 * 10.0**-claim.decimals + slack
        case "at least":
            return found >= claim.stated - slack
        case "at most":
            return found <= claim.stated + slack
