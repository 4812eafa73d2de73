"""Suites in which nearly all got slower: one failure of the platform in place of many of its benchmarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pytest

from pytest_accel.report.terminal import platform_line
from pytest_accel.session.case import Case
from pytest_accel.session.reports import is_expected_to_fail
from pytest_accel.stats.platform_shift import FEWEST_MEMBERS, PlatformShift, ShiftMember, judge_platform_shift
from pytest_accel.stats.verdict import Outcome


class Platforms:
    """What the benchmarks of a session share, by the folder of their baselines; once said it stays said."""

    def __init__(self) -> None:
        self.found: dict[str, PlatformShift] = {}
        self.changes: dict[str, str] = {}  # of the environment since the baselines: they may explain it

    def may_share(self, cases: Iterable[Case]) -> bool:
        """Whether any platform has benchmarks enough, so that verdicts wait for those of the others."""
        return any(size >= FEWEST_MEMBERS for size in _sizes(cases).values())

    def may_take_off(self, case: Case, cases: Iterable[Case], still_open: Iterable[Case]) -> bool:
        """Whether a regression may yet turn out to be the platform's: its suite is large enough, and others are still open."""
        if case.disk_name in self.found or not (_is_member(case) and _is_regressed(case)):
            return False
        others_open = any(each.disk_name == case.disk_name for each in still_open)
        return others_open and _sizes(cases)[case.disk_name] >= FEWEST_MEMBERS

    def look(self, cases: Iterable[Case], waiting: Sequence[Case]) -> None:
        """Judge what each platform shares; where it counts, those that wait for their verdict are judged on the rest."""
        for platform, group in _by_platform(cases):
            if platform in self.found:
                continue
            found = judge_platform_shift([_member(case) for case in group])
            if found is None or not found.regressed:
                continue
            self.found[platform] = found
            self.changes[platform] = group[0].environment_changes()
            for case in group:
                if case in waiting:
                    case.common = found.c
                    case.judge()

    def text(self, platform: str) -> str:
        """The failure: what is shared, and what may explain it."""
        changed = self.changes[platform]
        return "\n".join(
            [
                platform_line(platform, self.found[platform]),
                f"changed since the baseline: {changed}"
                if changed
                else "nothing in the recorded environment changed since the baseline",
                "Each benchmark was judged on what it lost beside that.",
            ]
        )

    def reports(self) -> Iterator[pytest.TestReport]:
        """A failed report for each platform, so that the exit status and JUnit have it too."""
        for platform in self.found:
            yield pytest.TestReport(
                nodeid=platform,
                location=(f"baselines/{platform}", None, platform),
                keywords={},
                outcome="failed",
                longrepr=self.text(platform),
                when="call",
            )


def _by_platform(cases: Iterable[Case]) -> list[tuple[str, list[Case]]]:
    groups: dict[str, list[Case]] = {}
    for case in filter(_is_member, cases):
        groups.setdefault(case.disk_name, []).append(case)
    return list(groups.items())


def _is_member(case: Case) -> bool:
    """Judged against a baseline, and its regression would fail it.

    From one that is expected to fail nothing is taken off: it neither brings the platform down nor passes by what all share.
    """
    was_judged = case.verdict is not None and case.verdict.slowdown is not None and bool(case.measurements)
    return was_judged and not any(map(is_expected_to_fail, case.held))


def _sizes(cases: Iterable[Case]) -> Counter[str]:
    """How many each platform has, with those whose first run was disturbed: another one may join them to the rest."""
    return Counter(
        case.disk_name for case in cases if _is_member(case) or (case.undecided and not case.measurements)
    )


def _member(case: Case) -> ShiftMember:
    return ShiftMember(
        baseline=case.comparable_runs(),
        runs=case.runs,
        tolerance=case.policy.tolerance,
        regressed=_is_regressed(case),
    )


def _is_regressed(case: Case) -> bool:
    """By its throughput: of what else it gates the platform's clocks say little."""
    return case.verdict is not None and case.verdict.outcome is Outcome.REGRESSED
