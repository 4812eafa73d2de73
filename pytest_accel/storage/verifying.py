"""A whole folder of baselines, looked over: every fault in it, not only the first, and what should be better."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_accel.stats.baseline_quality import standing
from pytest_accel.stats.comparison import is_stored, was_slowed
from pytest_accel.stats.environment import Environment, describe, diff_identity
from pytest_accel.stats.quantities import counted
from pytest_accel.stats.run import baseline_key, node_id_of
from pytest_accel.storage.baselines import BaselineStore, read_text, without_unused
from pytest_accel.storage.reading import BaselineError
from pytest_accel.storage.references import read_source
from pytest_accel.storage.schema import BaselineEntry, BaselineFile, faults

PUBLISHED = "published"
_LEFT_OVER = re.compile(r"\..*\.tmp")  # of a writer that was killed; the next one sweeps it


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that makes a baseline unusable, or wrong."""

    file: str
    place: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.place}" if self.place else self.file
        return f"{where}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was looked at and what was found."""

    files: int
    benchmarks: int  # of files without a fault
    runs: int
    studies: int
    figures: int
    faults: tuple[Fault, ...]
    provisional: tuple[str, ...]
    remarks: tuple[str, ...]


def verify(
    root: Path,
    is_platform: Callable[[str], bool] = lambda _name: True,
    misplaced: Callable[[str, Environment], str] = lambda _folder, _environment: "",
) -> Report:
    """Every file below a root of baselines.

    `is_platform` says whether a folder's name is one that pytest would use, `misplaced` which machine an environment is
    of, where it does not belong into that folder.
    """
    found = _Findings(root=root, misplaced=misplaced)
    for entry in sorted(root.iterdir()):
        if entry.name == PUBLISHED:
            found.look_at_studies(entry)
        elif entry.is_dir() and not entry.name.startswith("."):
            if not is_platform(entry.name):
                found.remarks.append(
                    f"{entry}: no platform of the catalogue has that name, so that nothing reads it"
                )
            found.look_at_platform(entry)
        elif not entry.name.startswith("."):
            remedy = "Baselines are <root>/<platform>/<suite>.json: move it to its platform's folder."
            found.fault(str(entry), "", "is no folder of a platform", remedy)
    return found.report()


class _Findings:
    """What was found so far."""

    def __init__(self, root: Path, misplaced: Callable[[str, Environment], str]) -> None:
        self.store = BaselineStore(root)
        self.misplaced = misplaced
        self.faults: list[Fault] = []
        self.provisional: list[str] = []
        self.remarks: list[str] = []
        self.files: list[BaselineFile] = []
        self.looked_at = self.studies = self.figures = 0

    def fault(self, file: str, place: str, problem: str, remedy: str) -> None:
        self.faults.append(Fault(file=file, place=place, problem=problem, remedy=remedy))

    def error(self, error: BaselineError) -> None:
        self.fault(error.file, error.place, error.problem, error.remedy)

    def report(self) -> Report:
        entries = [entry for file in self.files for entry in file.benchmarks.values()]
        return Report(
            files=self.looked_at,
            benchmarks=len(entries),
            runs=sum(len(entry.runs) for entry in entries),
            studies=self.studies,
            figures=self.figures,
            faults=tuple(self.faults),
            provisional=tuple(self.provisional),
            remarks=tuple(self.remarks),
        )

    # --- studies --------------------------------------------------------------------------------

    def look_at_studies(self, folder: Path) -> None:
        for path in sorted(folder.glob("*.json")):
            self.studies += 1
            try:
                source = read_source(path)
            except BaselineError as error:
                self.error(error)
            else:
                self.figures += len(source.figures)

    # --- platforms ------------------------------------------------------------------------------

    def look_at_platform(self, folder: Path) -> None:
        seen = False
        for path in sorted(folder.iterdir()):
            if _LEFT_OVER.fullmatch(path.name):
                self.remarks.append(f"{path}: left behind by a writer that was killed; it may be deleted")
            elif path.suffix == ".json" and not path.name.startswith("."):
                seen = True
                self.look_at_file(folder.name, path)
            elif not path.name.startswith("."):
                self.remarks.append(f"{path}: is no baseline, and nothing reads it")
        if not seen:
            self.remarks.append(f"{folder}: holds no baselines")

    def look_at_file(self, platform: str, path: Path) -> None:
        self.looked_at += 1
        try:
            text = read_text(path)
            found = faults(text, str(path)) if text is not None else []
            file = None if found else self.store.read(platform, path.stem)
        except BaselineError as error:
            found, file = [error], None
        for each in found:
            self.error(each)
        if file is None:
            return
        self.files.append(file)
        unused = len(file.environments) - len(without_unused(file).environments)
        if unused:
            self.remarks.append(
                f"{path}: {counted(unused, 'environment')} that no run names; `pytest-accel baseline prune --yes` takes it out"
            )
        for key, entry in file.benchmarks.items():
            for problem, remedy in _entry_faults(key, entry, file):
                self.fault(str(path), key, problem, remedy)
            if machine := self.misplaced(platform, file.environments[entry.runs[-1].environment]):
                problem = f"its runs are of another machine ({machine}) than {platform}"
                remedy = "Take it out with `pytest-accel baseline prune --benchmark`, and record it on that platform."
                self.fault(str(path), key, problem, remedy)
            if why := standing(entry.runs, entry.tolerance).provisional:
                self.provisional.append(f"{platform}/{path.name}  {key}: {why}")


def _entry_faults(key: str, entry: BaselineEntry, file: BaselineFile) -> Iterator[tuple[str, str]]:
    """What a schema cannot see."""
    anew = 'Record it anew with --accel-update --accel-reason "..."'
    expected = baseline_key(node_id_of(key), entry.configuration)
    if key != expected:
        yield f"its data make its key {expected!r}: real and made-up data do not share one", f"{anew}."
    first = file.environments[entry.runs[0].environment]
    for run in entry.runs[1:]:
        if changes := diff_identity(first, file.environments[run.environment]):
            yield f"its runs are of two machines ({describe(changes)}), which do not mix", f"{anew}."
            break
    twice = [run for at, run in enumerate(entry.runs) if is_stored(run, entry.runs[:at])]
    if twice:
        yield (
            f"{counted(len(twice), 'run')} stored twice, which makes the noise look smaller than it is",
            f"{anew}.",
        )
    if any(was_slowed(run) for run in entry.runs):
        yield "it holds runs that were slowed on purpose", f"{anew}, without --accel-slowdown."
    if not entry.ledger:
        yield "its ledger is empty: nobody says where its runs come from", f"{anew}."
