"""Checks of a folder of baselines: the faults of every file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_accel.stats.comparison import is_stored, was_slowed
from pytest_accel.stats.environment import Environment, describe, diff_identity
from pytest_accel.stats.quantities import counted
from pytest_accel.storage.baselines import (
    PUBLISHED,
    BaselineEntry,
    BaselineError,
    BaselineFile,
    BaselineStore,
    empty_file,
)
from pytest_accel.storage.files import StorageError
from pytest_accel.storage.references import PublishedError, read_study


@dataclass(slots=True, kw_only=True)
class BaselineCheck:
    """What was checked, and what was found."""

    files: int = 0
    benchmarks: int = 0  # of files without a fault
    runs: int = 0
    studies: int = 0
    figures: int = 0
    faults: list[StorageError] = field(default_factory=list)


def check_baselines(
    root: Path,
    is_platform: Callable[[str], bool] = lambda _name: True,
    misplaced: Callable[[str, Environment], str] = lambda _folder, _environment: "",
) -> BaselineCheck:
    """Check every file below a root of baselines; a file that cannot be read has its first fault.

    `is_platform`: whether a folder's name is one that pytest would use. `misplaced`: the machine of an environment,
    where it is of another platform than the folder.
    """
    found, store, move = BaselineCheck(), BaselineStore(root), "Move it to the folder of its platform."
    for path in sorted((root / PUBLISHED).glob("*.json")):
        found.studies += 1
        try:
            found.figures += len(read_study(path).figures)
        except PublishedError as error:
            found.faults.append(error)
    for path in sorted(root.glob("*.json")):
        found.faults.append(BaselineError(str(path), "", "is not in the folder of a platform", move))
    for platform, suite in store.suites():
        path = store.path(platform, suite)
        found.files += 1
        if not is_platform(platform):
            problem = f"nothing reads it: no platform of the catalogue is named {platform}"
            found.faults.append(BaselineError(str(path), "", problem, move))
        try:
            file = store.read(platform, suite) or empty_file(platform, suite)
        except BaselineError as error:
            found.faults.append(error)
            continue
        for key, entry in file.benchmarks.items():
            found.benchmarks += 1
            found.runs += len(entry.runs)
            for problem in _entry_faults(entry, file, misplaced):
                found.faults.append(BaselineError(str(path), key, problem, _ANEW))
    return found


_ANEW = 'Record it again with --accel-update --accel-reason "...", or remove it with `pytest-accel baseline edit --remove`.'


def _entry_faults(
    entry: BaselineEntry, file: BaselineFile, misplaced: Callable[[str, Environment], str]
) -> Iterator[str]:
    """Yield problems that come from merged or copied files, and that their values cannot see."""
    first, *others = (file.environments[run.environment] for run in entry.runs)
    for other in others:
        if changes := diff_identity(first, other):
            yield f"its runs are of two machines ({describe(changes)}), which do not mix"
            break
    repeated = [run for at, run in enumerate(entry.runs) if is_stored(run, entry.runs[:at])]
    if repeated:
        yield f"{counted(len(repeated), 'run')} stored twice, which makes the noise look smaller than it is"
    if any(was_slowed(run) for run in entry.runs):
        yield "it holds runs that were slowed on purpose"
    if not entry.ledger:
        yield "its ledger is empty: the origin of its runs is unknown"
    if machine := misplaced(file.platform, [first, *others][-1]):
        yield f"its runs are of another machine ({machine}) than {file.platform}"
