"""The terminal summary: the table, then a line or note for everything that is not simply ok."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
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
from pytest_accel.session.launcher import LAUNCHER_RANKS
from pytest_accel.session.references import reference_line
from pytest_accel.session.reports import failures
from pytest_accel.session.selection import is_from_wheel
from pytest_accel.session.table import all_synthetic, columns_and_rows, gated_without_column
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.quantities import counted, percent
from pytest_accel.stats.results import cost_line
from pytest_accel.stats.roofline import Reading, find_stragglers
from pytest_accel.stats.run import in_wheel
from pytest_accel.stats.verdict import THROUGHPUT, Outcome, Verdict

# Options that the suggested command for recording leaves out.
_NOT_FOR_RECORDING: Mapping[str, Takes] = {
    "--accel-gate": "one",
    "--accel-in-process": "none",
    "--accel-json": "one",
    "--accel-reference": "optional",
    "--accel-repeats": "one",
    "--accel-report": "one",
    "--accel-slowdown": "one",
    "--benchmark-json": "one",
    "--junitxml": "one",
    "--junit-xml": "one",
}
_EXPLAINED = {Outcome.INCONCLUSIVE, Outcome.IMPROVED, Outcome.STALE_BASELINE, Outcome.DOES_NOT_FIT}
Line = tuple[str, Mapping[str, bool]]  # with its markup
DeviceChecks = Mapping[tuple[PlatformName, str], Mapping[str, Any]]
_YELLOW = {"yellow": True}


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
    for text, markup in _lines(config, settings, shown, measured, vanished):
        terminal.write_line(text, **markup)
    if line := cost_line([case.spent for case in cases], "recording" if settings.recording else "verdict"):
        terminal.write_line(line)


def _lines(
    config: pytest.Config,
    settings: Settings,
    shown: Sequence[Case],
    measured: Sequence[Case],
    vanished: Sequence[str],
) -> Iterator[Line]:
    """Yield the lines below the table."""
    if measured:
        yield " ".join(_legend(measured)), {}
        if settings.slowdown:
            yield slowdown_line(settings), _YELLOW
    for case in shown:
        yield from _case_lines(case)
    yield from _notes(settings, measured)
    if measured:
        yield from _reference_lines(settings, measured)
    for node_id in vanished:
        yield vanished_line(node_id), _YELLOW
    if settings.recording:
        yield from _recorded_lines(config, settings, measured)
    else:
        yield from _remedy_lines(config, measured)


def _legend(measured: Sequence[Case]) -> Iterator[str]:
    yield "± is the 95 % interval of run-to-run noise."
    if all_synthetic(measured):
        yield "Data is synthetic."
    if on_cpu := [case for case in measured if case.platform.device == "cpu"]:
        yield f"The CPU was measured with {counted(on_cpu[0].settings.threads, 'thread')}."
    scalings = filter(None, (case.scaling for case in measured))
    if against := sorted({f"{scaling.kind}, against {few}" for few, scaling in scalings}):
        yield f"Scaling is throughput per device ({'; '.join(against)})."


def slowdown_line(settings: Settings) -> str:
    return f"--accel-slowdown {percent(settings.slowdown)}: every step was delayed on purpose."


def _case_lines(case: Case) -> Iterator[Line]:
    """Yield metrics without a column, verdicts that no failure explains, and notes."""
    for name, value in gated_without_column(case).items():
        yield note(case.label, f"{name} {value:.6g}"), {}
    if case.verdict is not None and not case.problem:
        failing = failures(case)
        for verdict in (case.verdict, *case.metric_verdicts):
            decided_by_another = verdict.wants_another_run and failing
            if _needs_line(verdict) and verdict not in failing and not decided_by_another:
                yield verdict_line(case.label, verdict), VERDICTS[verdict.outcome].markup
        if change := case.loss_change():
            yield note(case.label, f"numerics changed: {change}"), _YELLOW
    for each in case.replaced:
        yield note(case.label, f"a disturbed run was replaced: {each.invalid}"), _YELLOW
    if case.measurements and not case.latest.steady:
        yield note(case.label, unsteady(case.latest.run.warmup_s)), _YELLOW
    if case.measurements and case.verdict is not None:
        launching = host_bound([case.verdict], case.latest.run, case.comparable_runs())
        if launching is not None:
            yield note(case.label, launching), _YELLOW
    if case.scaling and case.scaling[1].is_superlinear:
        few, scaling = case.scaling
        text = (
            f"{scaling.speedup:.2f} times the throughput of {few} on "
            f"{scaling.many.devices / scaling.few.devices:g} times its devices. Is the baseline of {few} of an older "
            "environment, or do the ranks do less work than it did?"
        )
        yield note(case.label, text), {"red": True}


def _needs_line(verdict: Verdict) -> bool:
    """Whether a verdict passes without being ok; benchmarks without a baseline are explained once, below."""
    return verdict.outcome in _EXPLAINED or (
        verdict.outcome is Outcome.NO_BASELINE and verdict.of != THROUGHPUT
    )


def _notes(settings: Settings, measured: Sequence[Case]) -> Iterator[Line]:
    """Yield notes on devices and baselines, each once, and on gates that judged nothing."""
    notes: dict[str, list[Case]] = {}
    for case in measured:
        for text in case.notes:
            notes.setdefault(text, []).append(case)
    for text, cases in notes.items():
        yield note(cases[0].label if len(cases) == 1 else counted(len(cases), "benchmark"), text), _YELLOW
    for name in settings.gate:
        if measured and not any(name in case.latest.gates or case.missed for case in measured):
            text = (
                f"--accel-gate: {shown_name(name)} was measured in none of {counted(len(measured), 'benchmark')}, so that "
                "nothing was gated on it"
            )
            yield text, _YELLOW
    auto = [case for case in measured if case.settings.tolerance == "auto" and case.verdict]
    if none := [case for case in auto if case.entry and case.entry.tolerance is None]:
        text = (
            f"tolerance auto: the baselines of {counted(len(none), 'benchmark')} have none stored, so that "
            f"{percent(none[0].policy.tolerance)} was tolerated. Store one with --accel-record --accel-tolerance=auto."
        )
        yield note("", text), _YELLOW


def _reference_lines(settings: Settings, measured: Sequence[Case]) -> Iterator[Line]:
    """Yield published figures where they can be compared, and a line where a gate on them judged nothing."""
    references = [(case, each) for case in measured for each in case.references]
    if settings.references is not None:
        lines = [reference_line(case.label, each) for case, each in references if each.ratio is not None]
        for line in lines or ["note: nothing was published that these benchmarks could stand beside"]:
            yield line, {}
    if settings.record:
        for case in measured:
            for text in case.shortfalls:
                yield shortfall_line(case.label, text), _YELLOW
    elif settings.gate_reference is not None and not any(each.gated for _, each in references):
        text = (
            "--accel-reference: no throughput was published for these benchmarks on this platform, so that "
            "nothing was gated on. What a site expects of its own machines goes into pyproject.toml (docs/references.md)"
        )
        yield text, _YELLOW


def _recorded_lines(config: pytest.Config, settings: Settings, measured: Sequence[Case]) -> Iterator[Line]:
    """Yield where runs were recorded, whether they are enough, and what a gate cannot resolve with them."""
    kept = [(case, case.quality) for case in measured if case.quality is not None]
    if not kept:
        return
    root = os.path.relpath(baselines_root(settings, config.rootpath), config.invocation_params.dir)
    files = sorted({f"{root}/{case.disk_name}/{case.suite}.json" for case, _ in kept})
    named = "" if settings.baselines == Settings().baselines else f" --baselines {shlex.quote(root)}"
    yield (
        f"Recorded in {', '.join(files)}: look at it (pytest-accel baseline show{named}), and commit it.",
        {},
    )
    if few := sorted({quality.provisional for _, quality in kept if quality.provisional}):
        yield (
            f"Provisional ({'; '.join(few)}): record again on other days, runs of one session resemble each other.",
            {},
        )
    for case, quality in kept:
        if case.frozen is not None:
            yield frozen_line(case.label, case.frozen), {"yellow": case.frozen.would_widen}
        if quality.is_surely_noisy:
            text = (
                f"run-to-run noise {percent(quality.noise)} resolves a loss of {percent(quality.resolution)} here, and "
                f"its tolerance is {percent(quality.tolerance)}: quieten the machine (pytest-accel doctor), and record anew"
            )
            yield note(case.label, text), _YELLOW


# --- the command that records missing baselines ---------------------------------------------------


def _remedy_lines(config: pytest.Config, cases: Sequence[Case]) -> Iterator[Line]:
    """Yield the one command that records what has no baseline."""
    missing = [case for case in cases if case.verdict and case.verdict.outcome is Outcome.NO_BASELINE]
    if not missing:
        return
    platforms = ", ".join(sorted({case.disk_name for case in missing}))
    first = f"No baseline on {platforms} for {len(missing)} of {len(cases)} benchmarks."
    if LAUNCHER_RANKS in config.stash:  # the launcher's command is not known here
        yield f"{first} Record one by adding --accel-record to pytest's arguments.", {}
        return
    yield f"{first} Record one with:", {}
    yield f"    {_record_command(config, missing if len(missing) < len(cases) else ())}", {"bold": True}


def _record_command(config: pytest.Config, named: Sequence[Case]) -> str:
    """Return this command with --accel-record; with the names of cases in place of its paths, if given."""
    arguments = without_options(map(str, config.invocation_params.args), _NOT_FOR_RECORDING)
    if named:
        arguments = [each for each in arguments if each not in config.args]
        arguments += [_argument_of(config, case) for case in named]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return shlex.join([*_pytest_command(), *arguments[:end], "--accel-record", *arguments[end:]])


def _argument_of(config: pytest.Config, case: Case) -> str:
    """Return a node id for the command line: relative to the folder that pytest is called in."""
    if is_from_wheel(case.item):
        return in_wheel(case.node_id)
    path, separator, name = case.node_id.partition("::")
    return os.path.relpath(config.rootpath / path, config.invocation_params.dir) + separator + name


def _pytest_command() -> list[str]:
    """Return the command of this pytest: the one on the path, else by its interpreter."""
    on_path = shutil.which("pytest")
    if on_path is not None and Path(on_path).parent == Path(sys.executable).parent:
        return ["pytest"]
    beside = os.path.relpath(sys.executable)
    return [sys.executable if beside.startswith("..") else beside, "-m", "pytest"]


# --- process groups and launchers -----------------------------------------------------------------


def device_check_lines(checks: DeviceChecks) -> list[Line]:
    """Return what process groups measured before their first benchmark: joint rates, and slow devices once each."""
    stragglers: dict[tuple[str, int, str], str] = {}  # by host, rank and kind; the newest line
    joint: dict[PlatformName, str] = {}
    for (platform, _), report in checks.items():
        for found in find_stragglers(Reading(**reading) for reading in report["readings"]):
            stragglers[found.reading.host, found.reading.rank, found.reading.kind] = found.line()
        joint[platform] = report["lines"][-1]
    return [
        *((f"{platform}: {line}", {}) for platform, line in joint.items()),
        *((note("", line), _YELLOW) for line in stragglers.values()),
    ]


def idle_ranks(config: pytest.Config, cases: Sequence[Case]) -> list[str]:
    """Return a note where a launcher started more ranks than any benchmark used."""
    ranks = config.stash.get(LAUNCHER_RANKS, None)
    used = max((case.platform for case in cases), key=lambda platform: platform.devices, default=None)
    if ranks is None or used is None or used.devices >= ranks.launched.world_size:
        return []
    idle = ranks.launched.world_size - used.devices
    text = (
        f"{idle} of the {ranks.launched.world_size} ranks that {ranks.launched.launcher} started had nothing to do: the "
        f"largest platform here is {used}."
    )
    return [note("", text)]
