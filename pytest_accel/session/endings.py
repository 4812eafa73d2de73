"""What becomes of a benchmark in the end: its verdict as a report, or what it measured in a baseline."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_accel.options import Settings
from pytest_accel.session.accel import SESSION_ID
from pytest_accel.session.case import Case
from pytest_accel.session.recording import refuse_disturbed, write_down
from pytest_accel.session.references import References
from pytest_accel.session.reports import apply_verdict, built_reports, fail, note_verdict, properties
from pytest_accel.storage.baselines import BaselineStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """Ends cases, each once."""

    config: pytest.Config
    settings: Settings
    store: BaselineStore
    references: References

    def settle(self, case: Case, report: pytest.TestReport) -> None:
        """The verdict is final: it becomes the report, and is noted in pytest-benchmark's JSON."""
        self.references.look_up(case)
        apply_verdict(case, report)
        note_verdict(case)

    def end(self, case: Case) -> None:
        """After its last run: write it down if recording, and log its reports."""
        reached = case.measurements or case.disturbed or case.problem or case.skipped or case.unfit
        if self.settings.record:
            if reached:  # else there is nothing to tell
                self._write_down(case)
                self.log(case.item, built_reports(case), case)
            return
        call = next(report for report in case.held if report.when == "call")
        if case.skipped:
            case.problem = f"{case.label} was skipped when it was measured again: {case.skipped}"
        if case.problem:
            fail(call, case.problem, case.item)
        else:
            self.settle(case, call)
        self.log(case.item, case.held, case)

    def log(self, item: pytest.Item, reports: list[pytest.TestReport], case: Case | None) -> None:
        """Tell pytest, as its own loop would have."""
        if case is not None:
            reports[-1].user_properties.extend(properties(case))  # JUnit reads those of the teardown
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _write_down(self, case: Case) -> None:
        """What a recording found out, if the device was fair to it."""
        refuse_disturbed(case)
        self.references.look_up(case)
        write_down(case, self.store, self.config.stash[SESSION_ID])
