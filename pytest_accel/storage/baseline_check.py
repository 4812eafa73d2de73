"""Checks of a folder of baselines: every fault of every file, and remarks on what should be better."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_accel.stats.baseline_quality import baseline_quality
from pytest_accel.stats.comparison import is_stored, was_slowed
from pytest_accel.stats.environment import Environment, describe, diff_identity
from pytest_accel.stats.quantities import counted
from pytest_accel.stats.run import baseline_key, node_id_of
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
    provisional: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def check_baselines(
    root: Path,
    is_platform: Callable[[str], bool] = lambda _name: True,
    misplaced: Callable[[str, Environment], str] = lambda _folder, _environment: "",
) -> BaselineCheck:
    """Check every file below a root of baselines; a file that cannot be read has its first fault.

    `is_platform`: whether a folder's name is one that pytest would use. `misplaced`: the machine of an environment,
    where it is of another platform than the folder.
    """
    found = BaselineCheck()
    for path in sorted((root / PUBLISHED).glob("*.json")):
        found.studies += 1
        try:
            found.figures += len(read_study(path).figures)
        except PublishedError as error:
            found.faults.append(error)
    for path in sorted(root.glob("*.json")):
        remedy = "Baselines are <root>/<platform>/<suite>.json: move it to its platform's folder."
        found.faults.append(BaselineError(str(path), "", "is not in the folder of a platform", remedy))
    store = BaselineStore(root)
    for platform in sorted({each for each, _ in store.suites()}):
        if not is_platform(platform):
            unread = "no platform of the catalogue has that name, so that nothing reads it"
            found.remarks.append(f"{root / platform}: {unread}")
    for platform, suite in store.suites():
        found.files += 1
        try:
            file = store.read(platform, suite) or empty_file(platform, suite)
        except BaselineError as error:
            found.faults.append(error)
        else:
            _check_file(store.path(platform, suite), file, found, misplaced)
    return found


def _check_file(
    path: Path, file: BaselineFile, found: BaselineCheck, misplaced: Callable[[str, Environment], str]
) -> None:
    for key, entry in file.benchmarks.items():
        found.benchmarks += 1
        found.runs += len(entry.runs)
        for problem, remedy in _entry_faults(key, entry, file):
            found.faults.append(BaselineError(str(path), key, problem, remedy))
        if machine := misplaced(file.platform, file.environments[entry.runs[-1].environment]):
            problem = f"its runs are of another machine ({machine}) than {file.platform}"
            remedy = "Remove it with `pytest-accel baseline edit --remove`, and record it on that platform."
            found.faults.append(BaselineError(str(path), key, problem, remedy))
        if why := baseline_quality(entry.runs, entry.tolerance).provisional:
            found.provisional.append(f"{file.platform}/{path.name}  {key}: {why}")


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
