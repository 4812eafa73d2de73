"""Verdicts as pytest's own reports: one clear text without a traceback, the same in JUnit and on the terminal."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from _pytest._code.code import ReprFileLocation  # what pytest's short summary and JUnit read
from _pytest._io import TerminalWriter

from pytest_accel.options import Settings
from pytest_accel.report.terminal import brief, explain, explanation, fitted, line_text
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.session.accel import SESSION_ID
from pytest_accel.session.case import Case
from pytest_accel.session.recording import record, refuse_disturbed
from pytest_accel.session.references import References
from pytest_accel.session.results import failures, lines_of, place_of
from pytest_accel.session.worker_process import ItemResult, is_strict_xpass
from pytest_accel.stats.causes import cause_text, lost
from pytest_accel.stats.environment import describe, describe_briefly
from pytest_accel.stats.gate import Outcome, Verdict
from pytest_accel.stats.metric_gates import total_slowdown
from pytest_accel.stats.results import Ending, ReportLine, Status
from pytest_accel.storage.baselines import BaselineStore

Phase = Literal["setup", "call", "teardown"]


class FailureText:
    """A failure without a traceback. pytest shows `toterminal`, and takes `reprcrash.message` as its short form."""

    def __init__(self, text: str, place: tuple[str, int], short: str = "") -> None:
        self.text = text
        self.reprcrash = ReprFileLocation(*place, short or text.splitlines()[0])

    def __str__(self) -> str:
        return self.text

    def toterminal(self, writer: TerminalWriter) -> None:
        markup = {"red": True, "bold": True}
        for text in self.text.splitlines():
            # A writer without colours may write into JUnit or JSON, which have no width.
            for line in fitted([text]) if writer.hasmarkup else [text]:
                writer.line(line, **markup)
            markup = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finisher:
    """Finishes cases, each once: a verdict becomes a report, a recording a baseline."""

    config: pytest.Config
    settings: Settings
    store: BaselineStore
    references: References

    def apply(self, case: Case, report: pytest.TestReport) -> None:
        self.references.look_up(case)
        apply_verdict(case, report)

    def finish(self, case: Case) -> None:
        if self.settings.record:
            if case.measurements or case.disturbed or case.problem or case.skipped or case.unfit:
                refuse_disturbed(case)
                self.references.look_up(case)
                record(case, self.store, self.config.stash[SESSION_ID])
                self.log(case.item, _reports_of_recording(case), case)
            return
        call = next(report for report in case.pending_reports if report.when == "call")
        if case.skipped:
            case.problem = f"{case.label} was skipped when it was measured again: {case.skipped}"
        if case.problem:
            fail(call, case.problem, case.item, _brief_problem(case))
        else:
            self.apply(case, call)
        self.log(case.item, case.pending_reports, case)

    def log(self, item: pytest.Item, reports: list[pytest.TestReport], case: Case | None) -> None:
        """Log reports as pytest's own loop does."""
        if case is not None:
            reports[-1].user_properties.extend(properties(case))  # JUnit reads those of the teardown
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def apply_verdict(case: Case, report: pytest.TestReport) -> None:
    report.user_properties.extend(properties(case))
    failing = [*map(explain, failures(case)), *case.unmet]
    if not failing:
        return
    if is_expected_to_fail(report):
        report.outcome = "skipped"  # as pytest does for a failure under @pytest.mark.xfail
        report.wasxfail = "; ".join(failing)
        return
    fail(report, failure_text(case), case.item, short_text(case))


def does_not_fit_report(case: Case, report: pytest.TestReport) -> None:
    """Put what did not fit into the report of a skip; fail where it used to fit."""
    assert case.unfit is not None
    report.outcome, report.longrepr = "skipped", (*place_of(case.item), case.unfit.text)
    apply_verdict(case, report)


def fail(report: pytest.TestReport, text: str, item: pytest.Item, short: str = "") -> None:
    report.outcome = "failed"
    report.sections = []  # of what was captured: torch's compiler alone logs thousands of lines
    # pytest asks for no more of it than FailureText has.
    report.longrepr = FailureText(text, place_of(item), short)  # type: ignore[assignment]


def failure_text(case: Case) -> str:
    """Return a line for each failure, and below them what may explain it."""
    lines = lines_of(case)
    texts = [line_text(case.label, line) for line in lines if line.status not in (None, Outcome.OK)]
    if case.status and VERDICTS[case.status].suspects:
        texts += explanation(case.causes(), lost(case.verdict), case.changes())
    if case.outcome is Outcome.INVALID:
        texts.append(VERDICTS[Outcome.INVALID].remedy)
    texts += [line_text("", line) for line in lines if line.status is None]
    return "\n".join(texts)


def short_text(case: Case) -> str:
    """Return what pytest's short summary shows: by how much, and the first cause or what changed in the environment."""
    failing = [*map(brief, failures(case)), *case.unmet]
    suspected = case.status is not None and VERDICTS[case.status].suspects
    causes = case.causes() if suspected else ()
    why = causes[0].text if causes else describe_briefly(case.changes()) if suspected else ""
    return "; ".join(filter(None, [*failing, why]))


def properties(case: Case) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = [
        ("accel.platform", str(case.platform)),
        ("accel.suite", case.suite),
        ("accel.tolerance", f"{case.policy.tolerance:.4f}"),
    ]
    if case.measurements:
        now = case.latest
        found += [
            ("accel.throughput", f"{case.throughput:.6g}"),
            ("accel.unit", f"{now.unit}/s"),
            ("accel.runs", len(case.runs)),
            ("accel.environment", now.environment.key),
            *((f"accel.metric.{name}", f"{now.run.metrics[name]:.6g}") for name in now.gates),
        ]
    if status := Ending.RECORDED if case.recorded else case.status:
        found.append(("accel.verdict", status.value))
    for verdict in case.verdicts:
        found += _compared(verdict, "accel" if verdict is case.verdict else f"accel.{verdict.of}")
    if case.measurements and (changes := describe(case.changes())):
        found.append(("accel.changed", changes))
    loss = lost(case.verdict)
    causes: dict[str, list[str]] = {}
    for each in case.causes():
        causes.setdefault(each.kind, []).append(cause_text(each, loss))
    found += [(f"accel.cause.{kind}", "; ".join(texts)) for kind, texts in causes.items()]
    return found


def _compared(verdict: Verdict, prefix: str) -> list[tuple[str, object]]:
    """Return losses against the baseline, with the bounds that were tested; the platform's share is included."""
    loss = total_slowdown(verdict)
    if loss is None:
        return []
    return [
        (f"{prefix}.loss", f"{loss.point:.4f}"),
        (f"{prefix}.loss.low", f"{loss.low:.4f}"),
        (f"{prefix}.loss.high", f"{loss.high:.4f}"),
        *([(f"{prefix}.common", f"{verdict.common:.4f}")] if verdict.common else []),
        (f"{prefix}.noise", f"{verdict.noise or 0:.4f}"),
        (f"{prefix}.baseline_runs", verdict.baseline_runs),
    ]


def is_expected_to_fail(report: pytest.TestReport) -> bool:
    """Whether an `xfail` applies, strict or not."""
    return hasattr(report, "wasxfail") or is_strict_xpass(report)


def _reports_of_recording(case: Case) -> list[pytest.TestReport]:
    """Return reports of an item that ran only in fresh processes."""
    if case.skipped:
        return [
            _report(case.item, "setup", "skipped", (*place_of(case.item), case.skipped)),
            _report(case.item, "teardown"),
        ]
    call = _report(case.item, "call")
    if case.unfit and not case.problem:
        does_not_fit_report(case, call)
    else:
        call.user_properties.extend(properties(case))
    if case.problem:
        fail(call, case.problem, case.item, _brief_problem(case))
    return [_report(case.item, "setup"), call, _report(case.item, "teardown")]


def _brief_problem(case: Case) -> str:
    """Return why a case gave no measurement, without its name."""
    return case.problem.splitlines()[0].removeprefix(case.label).lstrip(": ")


def _report(
    item: pytest.Item,
    when: Phase,
    outcome: Literal["passed", "failed", "skipped"] = "passed",
    longrepr: tuple[str, int, str] | None = None,
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,
        longrepr=longrepr,
        when=when,
    )


def reports_of_workers(
    item: pytest.Item, found: ItemResult, nextitem: pytest.Item | None, *, seconds: float
) -> list[pytest.TestReport]:
    """Return the reports of workers as reports of this session; tear down what the item before left here."""
    reports = [_received(item.config, report) for report in found.reports]
    if not reports:
        reports = [_report(item, when) for when in ("setup", "call", "teardown")]
        reports[1].duration = seconds
    failed = next((report for report in reports if report.failed), None)
    if failed is not None:
        failed.sections = [*found.sections, *failed.sections]
    elif found.outcome == "failed":
        fail(next(report for report in reversed(reports) if report.when != "teardown"), found.text, item)
    state = item.session._setupstate  # noqa: SLF001 - as pytest's own protocol does
    teardown = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), when="teardown")
    if teardown.excinfo is not None:
        reports[-1] = pytest.TestReport.from_item_and_call(item, teardown)
    return reports


def warn_again(received: Iterable[Mapping[str, Any]]) -> None:
    """Raise the warnings that a worker caught once more, so that pytest's summary has them."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # the worker has applied the filters
        for plain in received:
            category = type(plain["category"], (UserWarning,), {})  # pytest shows its name
            warnings.warn_explicit(plain["message"], category, plain["filename"], plain["lineno"])


def _received(config: pytest.Config, plain: Mapping[str, Any]) -> pytest.TestReport:
    """Return a report from another process."""
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=dict(plain))
    longrepr: object = report.longrepr
    if isinstance(longrepr, list):  # of a skip: path, line, reason; JSON has no tuples
        report.longrepr = tuple(longrepr)
    return report


def failed_report(
    node_id: str, path: str, status: Status, sentence: str, notes: Iterable[str] = (), *, short: str = ""
) -> pytest.TestReport:
    """Return a failed report of what is no item here, so that the exit status and JUnit have it too."""
    text = "\n".join([line_text(node_id, ReportLine(text=sentence, status=status)), *notes])
    report = pytest.TestReport(
        nodeid=node_id,
        location=(path, None, node_id.partition("::")[2] or node_id),
        keywords={},
        outcome="failed",
        longrepr=None,
        when="call",
        user_properties=[("accel.verdict", status.value)],
    )
    report.longrepr = FailureText(text, (path, 1), short or sentence)  # type: ignore[assignment]
    return report
