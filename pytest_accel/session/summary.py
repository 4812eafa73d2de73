"""Lines of the terminal summary: one for everything that is not simply ok, notes, and the command that records."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pytest_accel.distributed.device_check import DeviceCheck, find_stragglers
from pytest_accel.options import Settings, baselines_root
from pytest_accel.platforms.catalogue import PlatformName
from pytest_accel.report.columns import all_synthetic
from pytest_accel.report.terminal import fitted, line_text, note
from pytest_accel.report.verdicts import VERDICTS, doctor_line, is_too_noisy, naming, rerun
from pytest_accel.session.case import Case
from pytest_accel.session.launcher import LAUNCHER_RANKS
from pytest_accel.session.references import reference_line
from pytest_accel.stats.environment import safe_arguments
from pytest_accel.stats.gate import LOSSES, THROUGHPUT, Outcome
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.quantities import ASSUMED, counted
from pytest_accel.stats.results import Ending, Result
from pytest_accel.stats.run import Scalar
from pytest_accel.storage.baselines import BaselineStore

# Statuses that fail nothing and whose line is printed; those without a baseline are named once, below.
_EXPLAINED = {
    *(Outcome.INCONCLUSIVE, Outcome.IMPROVED, Outcome.STALE_BASELINE, Outcome.DOES_NOT_FIT, Outcome.VANISHED),
    *(Ending.FAILED, Ending.NOT_GATED),
}
_OF_NOISE = ("devices", "cpu", "memory", "load")  # groups of doctor's findings that explain it
Line = tuple[str, Mapping[str, bool]]  # with its markup
_YELLOW = {"yellow": True}


def write_lines(terminal: pytest.TerminalReporter, lines: Iterable[Line]) -> None:
    """Write lines that fit the terminal; commands are indented, and stay whole to be copied."""
    for text, markup in lines:
        for line in [text] if text.startswith("    ") else fitted([text]):
            terminal.write_line(line, **markup)


def summary_lines(
    config: pytest.Config,
    settings: Settings,
    results: Sequence[Result],
    findings: Sequence[Mapping[str, Scalar]] = (),
) -> Iterator[Line]:
    measured = [result for result in results if result.runs]
    if measured:
        yield " ".join(_legend(settings, measured)), {}
    for result in results:
        if not result.failed:
            yield from _explained(result)
    noise = [each for each in findings if each.get("group") in _OF_NOISE]
    doubted = {Outcome.INCONCLUSIVE, Outcome.INVALID, *LOSSES}
    if any(result.status in doubted for result in results) and (why := doctor_line(noise)):
        yield f"doctor: {why}", _YELLOW
    yield from _notes(results)
    if measured:
        yield from _reference_lines(settings, measured)
        for name in settings.gate:
            if not any(name in result.metrics for result in measured):
                text = (
                    f"--accel-gate: {shown_name(name)} was measured in none of {counted(len(measured), 'benchmark')}, "
                    "so that nothing was gated on it"
                )
                yield text, _YELLOW
    if settings.record:
        yield from _recorded_lines(config, settings, measured)
    else:
        yield from _remedy_lines(config, settings, measured)


def _legend(settings: Settings, measured: Sequence[Result]) -> Iterator[str]:
    yield "± is the 95 % interval of run-to-run noise."
    if any(len(result.runs) == 1 for result in measured):
        yield f"{ASSUMED}: a single run shows none, so that it is assumed."
    if all_synthetic(measured):
        yield "Data is synthetic."
    if any(result.platform.partition("x")[0] == "cpu" for result in measured):
        yield f"The CPU was measured with {counted(settings.threads, 'thread')}."
    scalings = filter(None, (result.scaling for result in measured))
    if against := sorted({f"{scaling.kind}, against {scaling.against}" for scaling in scalings}):
        yield f"Scaling is throughput per device ({'; '.join(against)})."


def other_roots(cases: Iterable[Case], settings: Settings, root: Path) -> Iterator[str]:
    """Yield where benchmarks without a baseline have one: node ids begin at the root directory, which may have changed."""

    @cache  # many benchmarks share a file
    def stored(folder: Path, disk_name: str, suite: str) -> Collection[str]:
        file = BaselineStore(folder).read_usable(disk_name, suite)
        return file.benchmarks if file else ()

    found: Counter[tuple[Path, Path]] = Counter()
    for case in cases:
        if case.verdict is None or case.verdict.outcome is not Outcome.NO_BASELINE:
            continue
        for other in case.item.path.parents:
            key = case.item.path.relative_to(other).as_posix() + "".join(case.key.partition("::")[1:])
            folder = baselines_root(settings, other)
            if other != root and key in stored(folder, case.disk_name, case.suite):
                found[other, BaselineStore(folder).path(case.disk_name, case.suite)] += 1
                break
    for (other, path), number in found.items():
        yield (
            f"{counted(number, 'benchmark')} without a baseline: {path} holds one, recorded under another root directory "
            f"than {root}. Add it: --rootdir={shlex.quote(str(other))}"
        )


def _explained(result: Result) -> Iterator[Line]:
    """Yield what passes without being ok, of throughput and of metrics."""
    for line in result.lines:
        of_metric = line.status is Outcome.NO_BASELINE and line.of != THROUGHPUT
        if line.status is not None and (line.status in _EXPLAINED or of_metric):
            yield line_text(result.label, line), VERDICTS[line.status].markup


def _notes(results: Iterable[Result]) -> Iterator[Line]:
    """Yield each note once, with its benchmark or the number of them; a failure has its notes itself."""
    found: dict[str, list[str]] = {}
    for result in results:
        for text in () if result.failed else result.notes:
            found.setdefault(text, []).append(result.label)
        if result.causes and not result.failed:  # of a loss that fails nothing
            found.setdefault(result.cause_texts[0], []).append(result.label)
    for text, labels in found.items():
        yield note(labels[0] if len(labels) == 1 else counted(len(labels), "benchmark"), text), _YELLOW


def _reference_lines(settings: Settings, measured: Sequence[Result]) -> Iterator[Line]:
    """Yield published figures where they can be compared, and a line where a gate on them judged nothing."""
    references = [(result, each) for result in measured for each in result.references]
    if settings.references is not None:
        lines = [reference_line(result.label, each) for result, each in references if each.ratio is not None]
        for line in lines or ["note: nothing was published that these benchmarks could stand beside"]:
            yield line, {}
    is_gated = settings.gate_reference is not None and not settings.record
    if is_gated and not any(each.gated for _, each in references):
        text = (
            "--accel-reference: no throughput was published for these benchmarks on this platform, so that "
            "nothing was gated on. What a site expects of its own machines goes into pyproject.toml (docs/references.md)"
        )
        yield text, _YELLOW


def _recorded_lines(config: pytest.Config, settings: Settings, measured: Sequence[Result]) -> Iterator[Line]:
    root = os.path.relpath(baselines_root(settings, config.rootpath), config.invocation_params.dir)
    recorded = [result for result in measured if result.status is Ending.RECORDED]
    if files := sorted({f"{root}/{each.disk_name}/{each.suite}.json" for each in recorded}):
        named = "" if settings.baselines == Settings().baselines else f" --baselines {shlex.quote(root)}"
        noisy = sum(map(is_too_noisy, recorded))
        then = (
            f", do not commit it yet, {counted(noisy, 'benchmark')} too noisy" if noisy else ", and commit it"
        )
        then = "" if root.startswith(".accel/") else then  # which git ignores
        yield f"Recorded in {', '.join(files)}: look at it (pytest-accel baseline show{named}){then}.", {}


def unmet_lines(unmet: Iterable[str], *, measured: bool) -> Iterator[str]:
    """Yield what this machine lacks, each requirement once with the number of tests."""
    for text, number in Counter(unmet).most_common():
        yield f"{'not run' if measured else 'nothing measured'}: {text} ({counted(number, 'test')})"


# --- commands that record ---------------------------------------------------------------------


def _remedy_lines(config: pytest.Config, settings: Settings, measured: Sequence[Result]) -> Iterator[Line]:
    """Yield the one command that records what has no baseline."""
    missing = [each for each in measured if each.verdict and each.verdict.outcome is Outcome.NO_BASELINE]
    if not missing:
        return
    platforms = ", ".join(sorted({result.disk_name for result in missing}))
    root = baselines_root(settings, config.rootpath)
    text = (
        f"No baseline on {platforms} for {len(missing)} of {len(measured)} benchmarks in {root}. Record one"
    )
    if LAUNCHER_RANKS in config.stash:  # the launcher's command is not known here
        yield f"{text} by adding --accel-record to pytest's arguments.", {}
        return
    yield f"{text} with:", {}
    yield f"    {_command(config, missing, measured)} --accel-record", {"bold": True}


def _command(config: pytest.Config, results: Sequence[Result], measured: Sequence[Result]) -> str:
    """Return the command of the page and the proposal, for the folder that pytest was called in."""
    command = safe_arguments(list(map(str, config.invocation_params.args)))

    def here(result: Result) -> Result:
        if naming([result.benchmark], command) != [result.benchmark]:  # of the wheel's suites
            return result
        path, separator, name = result.benchmark.partition("::")
        path = os.path.relpath(config.rootpath / path, config.invocation_params.dir)
        return replace(result, benchmark=path + separator + name)

    return rerun([*map(here, results)], command, [*map(here, measured)])


# --- process groups -----------------------------------------------------------------


def device_check_lines(checks: Mapping[PlatformName, DeviceCheck]) -> Iterator[Line]:
    """Yield what process groups measured before their first benchmark: joint rates, and slow devices."""
    for platform, check in checks.items():
        yield f"{platform}: {check.all_reduces}", {}
        for found in find_stragglers(check.readings):
            yield note("", found.line()), _YELLOW
