"""Baselines in words: how good they are, what moved between two of them, and what is wrong with a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_accel.report.terminal import Cell, Column, lines_of
from pytest_accel.stats.baseline_quality import DEFAULT_PRIOR, NoisePrior, Standing, standing
from pytest_accel.stats.environment import TITLES, Environment, describe
from pytest_accel.stats.quantities import counted, inert, percent, printable, si
from pytest_accel.storage.difference import Kind, Moved
from pytest_accel.storage.schema import BaselineEntry, BaselineFile, LedgerEntry
from pytest_accel.storage.verifying import Report

_TELLING = (
    "device_name",
    "power_limit_w",
    "cpu_model",
    "driver",
    "cuda",
    "torch",
    "python",
    "container_image",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One benchmark of a file, with what the gate makes of it."""

    file: BaselineFile
    key: str
    entry: BaselineEntry
    prior: NoisePrior = DEFAULT_PRIOR  # of its platform

    @property
    def standing(self) -> Standing:
        return standing(self.entry.runs, self.entry.tolerance, self.prior)

    @property
    def environment(self) -> Environment:
        """Of its newest run."""
        return self.file.environments[self.entry.runs[-1].environment]

    @property
    def throughput(self) -> float:
        return self.entry.work_per_step / self.standing.step.point_s

    @property
    def state(self) -> str:
        """What to mend about it, in words; empty where it is as it should be."""
        found = self.standing
        provisional = f"provisional: {found.provisional}" if found.provisional else ""
        anchored = f"anchor of {counted(len(self.entry.anchor), 'run')}" if self.entry.anchor else ""
        return "; ".join(filter(None, [provisional, found.too_noisy, found.no_gate, anchored]))


# --- show -------------------------------------------------------------------------------------------


def shown(stored: Sequence[Stored]) -> list[str]:
    """One table a platform; below it where it was measured, and the ledger."""
    platforms = sorted({each.file.platform for each in stored})
    lines: list[str] = []
    for platform in platforms:
        own = [each for each in stored if each.file.platform == platform]
        lines += [
            printable(platform),
            *map(inert, _table(own)),
            _prior(own[0].prior),
            *_environments(own),
            *_ledger(own),
            "",
        ]
    if stored:
        lines.append("± is the 95 % interval; resolves is the loss that the gate catches in 80 % of cases.")
    return lines


def _table(stored: Sequence[Stored]) -> list[str]:
    titles = ("runs", "sessions", "throughput", "unit", "±", "noise", "resolves", "tolerance")
    columns = [
        Column(title="benchmark"),
        *(Column(title=title, right=title != "unit") for title in titles),
        Column(title="state"),
    ]
    return lines_of(columns, [[Cell(text=printable(text)) for text in _row(each)] for each in stored])


def _row(each: Stored) -> list[str]:
    found, entry = each.standing, each.entry
    return [
        each.key.partition("::")[2] or each.key,
        str(found.runs),
        str(found.sessions),
        si(each.throughput),
        f"{entry.unit}/s",
        percent(found.step.relative_high),
        percent(found.noise),
        percent(found.resolution),
        percent(found.tolerance) + ("" if entry.tolerance is not None else " (default)"),
        each.state or "ok",
    ]


def _prior(prior: NoisePrior) -> str:
    """What the gate expects of a benchmark before it has runs of its own."""
    source = f"from {counted(prior.benchmarks, 'benchmark')}" if prior.benchmarks else "the default"
    worth = f"worth {prior.degrees_of_freedom:.1f} runs"
    return f"prior of run-to-run noise: {percent(prior.noise, 2)}, {worth} ({source})"


def _environments(stored: Sequence[Stored]) -> Iterator[str]:
    """Of the newest runs, each once."""
    for environment in {each.environment.key: each.environment for each in stored}.values():
        yield printable(f"environment {environment.key}: {environment_words(environment)}")


def environment_words(environment: Environment) -> str:
    """What most tells one from another."""
    facts = {**environment.identity, **environment.context}
    told = [f"{TITLES[name]} {facts[name]}" for name in _TELLING if name in facts]
    return ", ".join(told) or "nothing known of it"


def _ledger(stored: Sequence[Stored]) -> Iterator[str]:
    """Lines that several benchmarks share are one."""
    found: dict[LedgerEntry, int] = {}
    for each in stored:
        for line in each.entry.ledger:
            found[line] = found.get(line, 0) + 1
    for line, benchmarks in sorted(found.items(), key=lambda each: each[0].at):
        yield f"ledger {ledger_line(line)} ({counted(benchmarks, 'benchmark')})"
    for removal in dict.fromkeys(gone for each in stored for gone in each.file.removed):
        yield printable(f"ledger {removal.at} prune {removal.benchmark}: {removal.reason}")


def ledger_line(line: LedgerEntry) -> str:
    reason = f": {line.reason}" if line.reason else ""
    return printable(f"{line.at} {line.action} {counted(line.runs, 'run')}, session {line.session}{reason}")


def shown_json(stored: Iterable[Stored]) -> list[dict[str, Any]]:
    """The same for programs; nothing is rounded."""
    return [_as_json(each) for each in stored]


def _as_json(each: Stored) -> dict[str, Any]:
    found, entry = each.standing, each.entry
    return {
        "platform": each.file.platform,
        "suite": each.file.suite,
        "benchmark": each.key,
        "runs": found.runs,
        "sessions": found.sessions,
        "throughput": each.throughput,
        "throughput_low": entry.work_per_step / found.step.high_s,
        "throughput_high": entry.work_per_step / found.step.low_s,
        "unit": f"{entry.unit}/s",
        "noise": found.noise,
        "resolution": found.resolution,
        "tolerance": found.tolerance,
        "tolerance_is_default": entry.tolerance is None,
        "provisional": found.provisional or None,
        "anchor_runs": len(entry.anchor),
        "prior_noise": each.prior.noise,
        "prior_degrees_of_freedom": each.prior.degrees_of_freedom,
        "configuration": dict(entry.configuration),
        "configuration_hash": entry.configuration_hash,
        "environment": {
            "key": each.environment.key,
            "identity": dict(each.environment.identity),
            "context": dict(each.environment.context),
        },
        "ledger": [
            {"at": line.at, "action": line.action, "reason": line.reason, "runs": line.runs}
            | {"session": line.session}
            for line in entry.ledger
        ],
    }


# --- diff -------------------------------------------------------------------------------------------


def differences(moved: Sequence[Moved]) -> list[str]:
    """A paragraph for each benchmark that moved."""
    if not moved:
        return ["Nothing differs."]
    lines = [line for each in moved for line in _moved(each)]
    counts = {kind: sum(1 for each in moved if each.kind is kind) for kind in Kind}
    told = ", ".join(f"{count} {kind.value}" for kind, count in counts.items() if count)
    return [*lines, f"{counted(len(moved), 'benchmark')}: {told}."]


def _moved(each: Moved) -> Iterator[str]:
    yield printable(f"{each.kind.value}  {each.platform}  {each.key}{_figures(each)}")
    if each.configuration:
        yield printable(f"    configuration: {', '.join(each.configuration)}")
    if each.environment:
        yield printable(f"    environment: {describe(each.environment)}")
    for line in each.ledger:
        yield f"    ledger: {ledger_line(line)}"
    if each.removal:
        yield printable(f"    ledger: {each.removal.at} prune: {each.removal.reason}")
    if each.kind not in {Kind.LEDGER, Kind.RENAMED} and not each.ledger and not each.removal:
        yield "    ledger: it says nothing of this"


def _figures(each: Moved) -> str:
    old, new = each.old, each.new
    if each.kind is Kind.RENAMED:
        return f", which was {each.was}"
    if old is None or new is None:
        value = new or old
        assert value is not None
        return f": {si(value.value)} {value.unit}, {counted(each.came or each.went, 'run')}"
    by = "" if each.by is None else f" ({abs(100 * each.by):.1f} % {'faster' if each.by >= 0 else 'slower'})"
    runs = [f"+{counted(each.came, 'run')}"] if each.came else []
    runs += [f"-{counted(each.went, 'run')}"] if each.went else []
    return f": {si(old.value)} -> {si(new.value)} {new.unit}{by}" + (f", {', '.join(runs)}" if runs else "")


# --- verify -----------------------------------------------------------------------------------------


def verified(report: Report) -> list[str]:
    """Every fault, then what is provisional, then the sum."""
    lines = [line for fault in report.faults for line in (f"FAULT  {fault}", f"    {fault.remedy}")]
    lines += [f"provisional  {line}" for line in report.provisional]
    lines += [f"remark  {line}" for line in report.remarks]
    counts = (
        f"Looked at {counted(report.files, 'file')} ({counted(report.benchmarks, 'benchmark')}, "
        f"{counted(report.runs, 'run')}) and {report.studies} published ({counted(report.figures, 'figure')})"
    )
    end = f"{counted(len(report.faults), 'fault')}" if report.faults else "no fault"
    return [inert(printable(line)) for line in lines] + [f"{counts}: {end}."]
