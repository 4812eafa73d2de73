"""Checks of a folder of baselines: every fault of every file, and remarks on what should be better."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_accel.stats.baseline_quality import baseline_quality
from pytest_accel.stats.comparison import is_stored, was_slowed
from pytest_accel.stats.environment import Environment, describe, diff_identity
from pytest_accel.stats.quantities import counted
from pytest_accel.stats.run import baseline_key, node_id_of
from pytest_accel.storage.baselines import (
    MAX_BYTES,
    PUBLISHED,
    BaselineEntry,
    BaselineError,
    BaselineFile,
    BaselineStore,
    faults,
    without_unused,
)
from pytest_accel.storage.files import StorageError, read_text
from pytest_accel.storage.references import PublishedError, read_study

_TEMPORARY = re.compile(r"\..*\.tmp")  # of a writer that was killed


@dataclass(slots=True, kw_only=True)
class BaselineCheck:
    """What was checked, and what was found."""

    files: int = 0
    benchmarks: int = 0  # of files without a fault
    runs: int = 0
    studies: int = 0
    figures: int = 0
    faults: list[StorageError] = field(default_factory=list)
    provisional: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def check_baselines(
    root: Path,
    is_platform: Callable[[str], bool] = lambda _name: True,
    misplaced: Callable[[str, Environment], str] = lambda _folder, _environment: "",
) -> BaselineCheck:
    """Check every file below a root of baselines.

    `is_platform`: whether a folder's name is one that pytest would use. `misplaced`: the machine of an environment,
    where it is of another platform than the folder.
    """
    found = BaselineCheck()
    for entry in sorted(root.iterdir()):
        if entry.name == PUBLISHED:
            _check_studies(entry, found)
        elif entry.is_dir() and not entry.name.startswith("."):
            if not is_platform(entry.name):
                found.remarks.append(
                    f"{entry}: no platform of the catalogue has that name, so that nothing reads it"
                )
            _check_platform(entry, found, misplaced)
        elif not entry.name.startswith("."):
            remedy = "Baselines are <root>/<platform>/<suite>.json: move it to its platform's folder."
            found.faults.append(BaselineError(str(entry), "", "is not in the folder of a platform", remedy))
    return found


def _check_studies(folder: Path, found: BaselineCheck) -> None:
    for path in sorted(folder.glob("*.json")):
        found.studies += 1
        try:
            found.figures += len(read_study(path).figures)
        except PublishedError as error:
            found.faults.append(error)


def _check_platform(folder: Path, found: BaselineCheck, misplaced: Callable[[str, Environment], str]) -> None:
    has_files = False
    for path in sorted(folder.iterdir()):
        if _TEMPORARY.fullmatch(path.name):
            found.remarks.append(f"{path}: left behind by a writer that was killed; it may be deleted")
        elif path.suffix == ".json" and not path.name.startswith("."):
            has_files = True
            _check_file(folder, path, found, misplaced)
        elif not path.name.startswith("."):
            found.remarks.append(f"{path}: is no baseline, and nothing reads it")
    if not has_files:
        found.remarks.append(f"{folder}: holds no baselines")


def _check_file(
    folder: Path, path: Path, found: BaselineCheck, misplaced: Callable[[str, Environment], str]
) -> None:
    found.files += 1
    platform = folder.name
    try:
        text = read_text(path, BaselineError, MAX_BYTES) or ""
        problems = faults(text, str(path))
        file = None if problems else BaselineStore(folder.parent).read(platform, path.stem)
    except BaselineError as error:
        problems, file = [error], None
    found.faults += problems
    if file is None:
        return
    found.benchmarks += len(file.benchmarks)
    found.runs += sum(len(entry.runs) for entry in file.benchmarks.values())
    if unused := len(file.environments) - len(without_unused(file).environments):
        found.remarks.append(
            f"{path}: {counted(unused, 'environment')} without runs; the next change of the file removes it"
        )
    for key, entry in file.benchmarks.items():
        for problem, remedy in _entry_faults(key, entry, file):
            found.faults.append(BaselineError(str(path), key, problem, remedy))
        if machine := misplaced(platform, file.environments[entry.runs[-1].environment]):
            problem = f"its runs are of another machine ({machine}) than {platform}"
            remedy = "Remove it with `pytest-accel baseline edit --remove`, and record it on that platform."
            found.faults.append(BaselineError(str(path), key, problem, remedy))
        if why := baseline_quality(entry.runs, entry.tolerance).provisional:
            found.provisional.append(f"{platform}/{path.name}  {key}: {why}")


def _entry_faults(key: str, entry: BaselineEntry, file: BaselineFile) -> Iterator[tuple[str, str]]:
    """Yield problems that the values of a file cannot see, with their remedies."""
    anew = 'Record it again with --accel-update --accel-reason "..."'
    expected = baseline_key(node_id_of(key), entry.configuration)
    if key != expected:
        yield f"its data make its key {expected!r}: real and synthetic data do not share one", f"{anew}."
    first = file.environments[entry.runs[0].environment]
    for run in entry.runs[1:]:
        if changes := diff_identity(first, file.environments[run.environment]):
            yield f"its runs are of two machines ({describe(changes)}), which do not mix", f"{anew}."
            break
    repeated = [run for at, run in enumerate(entry.runs) if is_stored(run, entry.runs[:at])]
    if repeated:
        yield (
            f"{counted(len(repeated), 'run')} stored twice, which makes the noise look smaller than it is",
            f"{anew}.",
        )
    if any(was_slowed(run) for run in entry.runs):
        yield "it holds runs that were slowed on purpose", f"{anew}, without --accel-slowdown."
    if not entry.ledger:
        yield "its ledger is empty: the origin of its runs is unknown", f"{anew}."
