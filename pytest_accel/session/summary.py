"""What the terminal shows after the run: the table, then a line for everything that is not simply ok."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_accel.distributed.worker import Takes, without_options
from pytest_accel.options import Settings, baselines_root
from pytest_accel.platforms.names import PlatformName
from pytest_accel.report.terminal import (
    frozen_line,
    host_bound,
    note,
    shortfall_line,
    unsteady,
    vanished_line,
    verdict_line,
    write_table,
)
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.session.case import Case
from pytest_accel.session.columns import all_synthetic, columns_and_rows, gated_without_column
from pytest_accel.session.items import is_of_wheel
from pytest_accel.session.references import reference_line
from pytest_accel.session.reports import failures
from pytest_accel.session.seating import SEATS
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.quantities import counted, percent
from pytest_accel.stats.results import cost_line
from pytest_accel.stats.roofline import Reading, find_stragglers
from pytest_accel.stats.run import in_wheel
from pytest_accel.stats.verdict import THROUGHPUT, Outcome, Verdict

# Of the command that measured: what a recording has no use for.
_NOT_FOR_RECORDING: Mapping[str, Takes] = {
    "--accel-gate": "one",
    "--accel-json": "one",
    "--accel-reference": "optional",
    "--accel-repeats": "one",
    "--accel-report": "one",
    "--accel-slowdown": "one",
    "--benchmark-json": "one",
    "--junitxml": "one",
    "--junit-xml": "one",
}


def write_summary(
    terminal: pytest.TerminalReporter,
    config: pytest.Config,
    settings: Settings,
    cases: Sequence[Case],
    vanished: Sequence[str],
) -> None:
    measured = [case for case in cases if case.measurements]
    shown = [case for case in cases if case.measurements or case.disturbed or case.unfit]
    if shown:
        terminal.section("accelerator benchmarks", sep="-", blue=True)
        write_table(terminal, *columns_and_rows(shown))
    if measured:
        legend = [
            "± is the 95 % interval of run-to-run noise.",
            "Data is synthetic." if all_synthetic(measured) else "",
            _threads(measured),
            _scaling_legend(measured),
        ]
        terminal.write_line(" ".join(filter(None, legend)))
        if settings.slowdown:
            terminal.write_line(slowdown_line(settings), yellow=True)
    for case in shown:
        _write_metrics(terminal, case)
        _write_remarks(terminal, case)
        _write_scaling(terminal, case)
    _write_notes(terminal, settings, measured)
    if measured:
        _write_references(terminal, settings, measured)
    for node_id in vanished:
        terminal.write_line(vanished_line(node_id), yellow=True)
    _write_unfrozen(terminal, measured)
    _write_remedy(terminal, config, settings, measured)
    if settings.recording:
        _write_recorded(terminal, config, settings, measured)
    noun = "recording" if settings.recording else "verdict"
    if line := cost_line([case.spent for case in cases], noun):
        terminal.write_line(line)


def _write_unfrozen(terminal: pytest.TerminalReporter, measured: Sequence[Case]) -> None:
    """tolerance="auto" of a baseline that was recorded without it."""
    asked = [case for case in measured if case.settings.tolerance == "auto" and case.verdict]
    none = [case for case in asked if case.entry and case.entry.tolerance is None]
    if none:
        terminal.write_line(
            f"note: tolerance auto: the baselines of {counted(len(none), 'benchmark')} have none frozen, so that "
            f"{percent(none[0].policy.tolerance)} was tolerated. Freeze one with --accel-record --accel-tolerance=auto.",
            yellow=True,
        )


def _write_recorded(
    terminal: pytest.TerminalReporter, config: pytest.Config, settings: Settings, measured: Sequence[Case]
) -> None:
    """Where it is, whether it is enough, and what a gate cannot do with it: said now, not on the day it is needed."""
    kept = [(case, case.standing) for case in measured if case.standing is not None]
    if not kept:
        return
    root = os.path.relpath(baselines_root(settings, config.rootpath), config.invocation_params.dir)
    files = sorted({f"{root}/{case.disk_name}/{case.suite}.json" for case, _ in kept})
    named = "" if settings.baselines == Settings().baselines else f" --baselines {shlex.quote(root)}"
    terminal.write_line(
        f"Recorded in {', '.join(files)}: look at it (pytest-accel baseline show{named}), and keep it: commit it."
    )
    few = sorted({found.provisional for _, found in kept if found.provisional})
    if few:
        text = f"Provisional ({'; '.join(few)}): record again on other days, runs of one session resemble each other."
        terminal.write_line(text)
    for case, found in kept:
        if case.frozen is not None:
            terminal.write_line(frozen_line(case.label, case.frozen), yellow=case.frozen.would_widen)
        if found.is_surely_noisy:
            terminal.write_line(
                f"note: {case.label}: run-to-run noise {percent(found.noise)} resolves a loss of {percent(found.resolution)} "
                f"here, and its tolerance is {percent(found.tolerance)}: quieten the machine (pytest-accel doctor), and "
                "record anew",
                yellow=True,
            )


def slowdown_line(settings: Settings) -> str:
    return f"--accel-slowdown {percent(settings.slowdown)}: every step was delayed on purpose."


def _scaling_legend(cases: Sequence[Case]) -> str:
    against = sorted(
        {f"{scaling.kind}, against {few}" for few, scaling in filter(None, (c.scaling for c in cases))}
    )
    return f"Scaling is throughput per device ({'; '.join(against)})." if against else ""


def write_unmatched(terminal: pytest.TerminalReporter, names: Sequence[str]) -> None:
    for name in names:
        terminal.write_line(
            f"note: pyproject.toml expects something of {name!r}, and no benchmark here has that id",
            yellow=True,
        )


Marked = tuple[str, Mapping[str, bool]]  # a line, and how the terminal shows it


def gang_lines(looked_over: Mapping[tuple[PlatformName, str], Mapping[str, Any]]) -> list[Marked]:
    """What gangs found out when they came together: slow devices, each once, and what all reached together."""
    stragglers: dict[tuple[str, int, str], str] = {}  # by host, rank and what it was slow at; the newest line
    together: dict[PlatformName, str] = {}
    for (platform, _), report in looked_over.items():
        for found in find_stragglers(Reading(**reading) for reading in report["readings"]):
            stragglers[found.reading.host, found.reading.rank, found.reading.kind] = found.line()
        together[platform] = report["lines"][-1]
    return [
        *((f"{platform}: {line}", {}) for platform, line in together.items()),
        *((note("", line), {"yellow": True}) for line in stragglers.values()),
    ]


def write_gangs(
    terminal: pytest.TerminalReporter, looked_over: Mapping[tuple[PlatformName, str], Mapping[str, Any]]
) -> None:
    for line, markup in gang_lines(looked_over):
        terminal.write_line(line, **markup)


def idle_ranks(config: pytest.Config, cases: Sequence[Case]) -> list[str]:
    """A launcher that started more ranks than any benchmark used: -m names another platform than meant."""
    seats = config.stash.get(SEATS, None)
    used = max((case.platform for case in cases), key=lambda platform: platform.devices, default=None)
    if seats is None or used is None or used.devices >= seats.launched.world_size:
        return []
    idle = seats.launched.world_size - used.devices
    text = (
        f"note: {idle} of the {seats.launched.world_size} ranks that {seats.launched.launcher} started had nothing to do: the "
        f"largest platform here is {used}."
    )
    return [text]


def write_idle_ranks(terminal: pytest.TerminalReporter, config: pytest.Config, cases: Sequence[Case]) -> None:
    for line in idle_ranks(config, cases):
        terminal.write_line(line, yellow=True)


def _write_scaling(terminal: pytest.TerminalReporter, case: Case) -> None:
    """Scaling that cannot be."""
    if case.scaling and case.scaling[1].is_superlinear:
        few, scaling = case.scaling
        terminal.write_line(
            f"note: {case.label}: {scaling.speedup:.2f} times the throughput of {few} on "
            f"{scaling.many.devices / scaling.few.devices:g} times its devices. Is the baseline of {few} of an older "
            "environment, or do the ranks do less work than it did?",
            red=True,
        )


def _write_references(
    terminal: pytest.TerminalReporter, settings: Settings, measured: Sequence[Case]
) -> None:
    """What the studies reached, where it can be compared; a gate on them that gated nothing says so."""
    lines = [
        reference_line(case.label, each)
        for case in measured
        for each in case.references
        if each.ratio is not None
    ]
    if settings.references is not None:
        for line in lines:
            terminal.write_line(line)
        if not lines:
            terminal.write_line("note: nothing was published that these benchmarks could stand beside")
    if settings.record:
        for case in measured:
            for text in case.shortfalls:
                terminal.write_line(shortfall_line(case.label, text), yellow=True)
        return
    gated = any(each.gated for case in measured for each in case.references)
    if settings.gate_reference is not None and not gated:
        terminal.write_line(
            "--accel-reference: no throughput was published for these benchmarks on this platform, so that "
            "nothing was gated on. What a site expects of its own machines goes into pyproject.toml (docs/references.md)",
            yellow=True,
        )


def _write_metrics(terminal: pytest.TerminalReporter, case: Case) -> None:
    """Gated metrics of the user's own."""
    for name, value in gated_without_column(case).items():
        terminal.write_line(note(case.label, f"{name} {value:.6g}"))


def _write_notes(terminal: pytest.TerminalReporter, settings: Settings, measured: Sequence[Case]) -> None:
    """What should be known of devices and baselines, each once; why there is no energy, where somebody asked for it."""
    notes: dict[str, list[Case]] = {}
    for case in measured:
        for text in case.notes:
            notes.setdefault(text, []).append(case)
    for text, cases in notes.items():
        of = cases[0].label if len(cases) == 1 else counted(len(cases), "benchmark")
        terminal.write_line(note(of, text), yellow=True)
    _write_ungated(terminal, settings, measured)


def _write_ungated(terminal: pytest.TerminalReporter, settings: Settings, measured: Sequence[Case]) -> None:
    """A gate that found nothing to judge: green, and of no use."""
    for name in settings.gate:
        if measured and not any(name in case.latest.gates or case.missed for case in measured):
            terminal.write_line(
                f"--accel-gate: {shown_name(name)} was measured in none of {counted(len(measured), 'benchmark')}, so that "
                "nothing was gated on it",
                yellow=True,
            )


def _write_remarks(terminal: pytest.TerminalReporter, case: Case) -> None:
    """Verdicts that need an explanation and did not already print one as a failure."""
    if case.verdict is not None and not case.problem:
        failing = failures(case)
        for verdict in (case.verdict, *case.metric_verdicts):
            settled_by_another = verdict.wants_another_run and failing
            if _needs_words(verdict) and verdict not in failing and not settled_by_another:
                terminal.write_line(verdict_line(case.label, verdict), **VERDICTS[verdict.outcome].markup)
        if news := case.loss_change():
            terminal.write_line(note(case.label, f"numerics changed: {news}"), yellow=True)
    for each in case.replaced:
        terminal.write_line(note(case.label, f"a disturbed run was replaced: {each.invalid}"), yellow=True)
    if case.measurements and not case.latest.steady:
        terminal.write_line(note(case.label, unsteady(case.latest.run.warmup_s)), yellow=True)
    if case.measurements and case.verdict is not None:
        pace = host_bound([case.verdict], case.latest.run, case.comparable_runs())
        if pace is not None:
            terminal.write_line(note(case.label, pace), yellow=True)


def _needs_words(verdict: Verdict) -> bool:
    """What passes without being ok; benchmarks that were never recorded are explained once for all, below."""
    return verdict.outcome in {
        Outcome.INCONCLUSIVE,
        Outcome.IMPROVED,
        Outcome.STALE_BASELINE,
        Outcome.DOES_NOT_FIT,
    } or (verdict.outcome is Outcome.NO_BASELINE and verdict.of != THROUGHPUT)


def _write_remedy(
    terminal: pytest.TerminalReporter, config: pytest.Config, settings: Settings, cases: Sequence[Case]
) -> None:
    """With no baseline: the one command that records it."""
    missing = [case for case in cases if case.verdict and case.verdict.outcome is Outcome.NO_BASELINE]
    if not missing or settings.recording:
        return
    where = ", ".join(sorted({case.disk_name for case in missing}))
    nothing = f"No baseline on {where} for {len(missing)} of {len(cases)} benchmarks."
    if SEATS in config.stash:  # whoever launched this knows how
        terminal.write_line(f"{nothing} Record one by adding --accel-record to pytest's arguments.")
        return
    terminal.write_line(f"{nothing} Record one with:")
    terminal.write_line(f"    {_recording(config, missing if len(missing) < len(cases) else ())}", bold=True)


def _recording(config: pytest.Config, named: Sequence[Case]) -> str:
    """This very command, to record; where only some benchmarks need it, with their names in place of its paths."""
    arguments = without_options(map(str, config.invocation_params.args), _NOT_FOR_RECORDING)
    if named:
        arguments = [each for each in arguments if each not in config.args]
        arguments += [_from_here(config, case) for case in named]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return shlex.join([*_pytest_command(), *arguments[:end], "--accel-record", *arguments[end:]])


def _from_here(config: pytest.Config, case: Case) -> str:
    """A node id as the command line takes it: its path is relative to the folder that pytest is called in."""
    if is_of_wheel(case.item):
        return in_wheel(case.node_id)
    path, separator, name = case.node_id.partition("::")
    return os.path.relpath(config.rootpath / path, config.invocation_params.dir) + separator + name


def _pytest_command() -> list[str]:
    """How to call this very pytest again: the one on the path, else by its interpreter."""
    on_path = shutil.which("pytest")
    if on_path is not None and Path(on_path).parent == Path(sys.executable).parent:
        return ["pytest"]
    beside = os.path.relpath(sys.executable)
    return [sys.executable if beside.startswith("..") else beside, "-m", "pytest"]


def _threads(cases: Sequence[Case]) -> str:
    on_cpu = [case for case in cases if case.platform.device == "cpu"]
    if not on_cpu:
        return ""
    return f"The CPU was measured with {counted(on_cpu[0].settings.threads, 'thread')}."
