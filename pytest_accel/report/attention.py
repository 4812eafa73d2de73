"""Which results a reader sees first, and the word for each: the same in every summary."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_accel.report.lines import word
from pytest_accel.stats.results import Ending, Result, Status
from pytest_accel.stats.verdict import Outcome, Verdict

SETTLED: frozenset[Status] = frozenset({Outcome.OK, Ending.RECORDED, Ending.SKIPPED})
# The gravest first. A verdict on the machine comes before a benchmark that broke: it is what was asked for.
_GRAVITY: tuple[Status, ...] = (
    Ending.PLATFORM,  # it explains what follows
    Outcome.REGRESSED,
    Outcome.INVALID,
    Ending.FAILED,
    Ending.OFF_REFERENCE,
    Outcome.STALE_BASELINE,
    Ending.VANISHED,
    Outcome.INCONCLUSIVE,
    Outcome.NO_BASELINE,
    Ending.NOT_MEASURED,
    Outcome.DOES_NOT_FIT,
    Outcome.IMPROVED,
    Outcome.OK,
    Ending.RECORDED,
    Ending.SKIPPED,
)


def needs_attention(result: Result) -> bool:
    """Whether it fails nothing, and somebody should look all the same."""
    return not result.failed and result.status not in SETTLED


def status_word(result: Result) -> str:
    """As the terminal shows it: what needs attention in capitals."""
    if result.failed and result.status in {*SETTLED, Outcome.IMPROVED}:
        return "FAILED"  # well against its baseline, and something else of it failed
    return plain_word(result.status)


def plain_word(status: Status) -> str:
    if isinstance(status, Outcome):
        return word(status)
    return status.value if status in SETTLED else status.value.upper()


def in_order(results: Iterable[Result]) -> list[Result]:
    """Failures first, then what needs attention, then the rest; of these the gravest and the largest loss first."""
    return sorted(results, key=_order)  # stable: equals stay in the order of the session


def _order(result: Result) -> tuple[int, int, float]:
    if not result.failed and not needs_attention(result):
        return 2, 0, 0.0
    losses = [verdict.slowdown.point for verdict in result.verdicts if verdict.slowdown]
    return int(not result.failed), _GRAVITY.index(result.status), -max(losses, default=0.0)


def told_verdicts(result: Result) -> list[Verdict]:
    """Those to show: a question that was not pursued, because another verdict decided, is no news."""
    final = [verdict for verdict in result.verdicts if not verdict.wants_another_run]
    is_decided = any(verdict.outcome is result.status for verdict in final)
    return final if is_decided else list(result.verdicts)


def deciding(result: Result) -> Verdict | None:
    """The verdict that its status is: of its throughput, or of a metric that it gates."""
    told = told_verdicts(result)
    return next((verdict for verdict in told if verdict.outcome is result.status), told[0] if told else None)


def shortfalls(result: Result) -> list[str]:
    """Why it falls short of references that are gated."""
    return [reference.shortfall for reference in result.references if reference.shortfall]
