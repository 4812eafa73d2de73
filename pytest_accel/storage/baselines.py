"""Baselines on disk, `<root>/<platform>/<suite>.json`: values, validation, atomic writes under a lock."""

from __future__ import annotations

import dataclasses
import glob
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pytest_accel.stats.comparison import configuration_changes
from pytest_accel.stats.environment import Environment, describe, diff_identity, fingerprint
from pytest_accel.stats.run import MAX_RUNS, Run, Scalar
from pytest_accel.storage.codec import EXACT, FormatError, check_version, decode, encode, loads
from pytest_accel.storage.codec import render as render_json
from pytest_accel.storage.files import StorageError, format_errors, locked, read_text, unstorable_refused

SCHEMA_VERSION = 1
MAX_WORK = 1e18  # of one step
DIGITS = 7  # 0.1 ppm, a thousandth of the best run-to-run noise
_DERIVED = frozenset({"schema_version", "configuration_hash"})  # keys that are no fields
PUBLISHED = "published"  # baselines/published holds references, not baselines
_UPDATE_REMEDY = 'Replace the stored runs: --accel-update --accel-reason "...", or `pytest-accel baseline accept --replace`.'

Action: TypeAlias = Literal["record", "update", "accept", "prune", "anchor", "tolerance"]


class BaselineError(StorageError):
    """A baseline that cannot be used: the file, the place in it, the problem and the remedy."""

    @staticmethod
    def default_remedy(file: str) -> str:
        return (
            f"Restore it from git (git checkout -- {shlex.quote(file)}), "
            'or delete it and record again with --accel-update --accel-reason "...".'
        )


# --- values -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One change of a benchmark's stored runs."""

    at: str  # when, ISO 8601 in UTC
    action: Action  # what was done: runs recorded, replaced, accepted or pruned; anchor or tolerance moved
    reason: str  # why; only a recording needs none
    runs: int  # added; of a prune: removed; of an anchor: in it; of a tolerance: stored
    session: str  # of the newest of these runs

    def __post_init__(self) -> None:
        check_time("at", self.at)
        if self.action != "record" and not self.reason.strip():
            raise ValueError(f"reason: the action {self.action} without a reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A benchmark that was removed from the file, and its ledger with it."""

    at: str  # when, ISO 8601 in UTC
    benchmark: str  # its key
    reason: str  # why it was removed
    runs: int  # that were removed with it

    def __post_init__(self) -> None:
        check_time("at", self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEntry:
    """The stored runs of one benchmark, and what exactly was measured."""

    # What is measured: batch size, precision, model. A baseline of another configuration is stale.
    configuration: Mapping[str, Scalar] = dataclasses.field(metadata={EXACT: True})
    work_per_step: float  # units of work in one step, of all ranks together
    unit: str  # of the work: images, tokens
    tolerance: float | None = None  # tolerated loss of throughput, a fraction; absent: the default
    runs: tuple[Run, ...]  # oldest first
    ledger: tuple[LedgerEntry, ...]  # every change of the runs, oldest first
    # Runs of a release, judged with 1.5 times the tolerance; no update moves them.
    anchor: tuple[Run, ...] = ()

    def __post_init__(self) -> None:
        check_work("work_per_step", self.work_per_step)
        check_tolerance("tolerance", self.tolerance)
        if not 1 <= len(self.runs) <= MAX_RUNS:
            raise ValueError(f"runs: {len(self.runs)} runs; a baseline has 1 to {MAX_RUNS}")
        if len(self.anchor) > MAX_RUNS:
            raise ValueError(f"anchor: {len(self.anchor)} runs; an anchor has 1 to {MAX_RUNS}")

    @property
    def configuration_hash(self) -> str:
        return configuration_hash(self.configuration, self.work_per_step, self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineFile:
    """All baselines of one suite on one platform; environments are stored once, by key."""

    platform: str  # the folder of the file: the platform with its variant, such as h200 or a100-sxm4-80gb
    suite: str  # the name of the file: that of the test module without test_
    environments: Mapping[str, Environment]  # of the runs, by key
    benchmarks: Mapping[str, BaselineEntry]  # by node id; followed by " (data)" for real data
    removed: tuple[Removal, ...] = ()  # benchmarks that were pruned


def configuration_hash(configuration: Mapping[str, Scalar], work_per_step: float, unit: str) -> str:
    """Return a hash that is equal exactly when the same thing was measured; the work as rounded as it is stored."""
    work = rounded(work_per_step)
    return fingerprint({"configuration": dict(configuration), "work_per_step": work, "unit": unit})


def rounded(value: float) -> float:
    return float(f"{float(value):.{DIGITS}g}")


def check_time(name: str, text: str) -> None:
    try:
        time_ = datetime.fromisoformat(text)
    except ValueError:
        time_ = None
    if time_ is None or time_.utcoffset() != UTC.utcoffset(None):
        raise FormatError(name, f"{json.dumps(text)} is not a time in UTC such as 2026-01-31T09:30:00+00:00")


def check_tolerance(name: str, tolerance: float | None) -> None:
    if tolerance is not None and not 0 < tolerance < 1:
        raise FormatError(name, f"{tolerance!r} is not a fraction of the throughput between 0 and 1")


def check_work(name: str, work_per_step: float) -> None:
    if not 0 < work_per_step <= MAX_WORK:
        raise FormatError(name, f"{work_per_step!r} is not in 0 < work <= {MAX_WORK:g}")


# --- JSON -------------------------------------------------------------------------------------------


def render(file: BaselineFile) -> str:
    """Return the text of a file: sorted keys, one fact a line, so that a diff shows what changed."""
    content = {"schema_version": SCHEMA_VERSION, **encode(file, digits=DIGITS)}
    for key, entry in file.benchmarks.items():
        content["benchmarks"][key]["configuration_hash"] = entry.configuration_hash
    return render_json(content) + "\n"


def parse(text: str, where: str) -> BaselineFile:
    """Return the file as a value, or raise BaselineError with the place of its first fault."""
    with format_errors(where, BaselineError):
        top: Any = loads(text)
        if isinstance(top, dict) and "kind" in top:
            problem = "these are results of --accel-json, no baseline"
            raise FormatError("kind", problem, "Move the file elsewhere.")
        check_version(top, SCHEMA_VERSION, "a baseline file")
        file = decode(BaselineFile, top, derived=_DERIVED)
        check_keys(file.environments)
        for key, entry in file.benchmarks.items():
            place, expected = _place(key), entry.configuration_hash
            if top["benchmarks"][key].get("configuration_hash") != expected:
                problem = (
                    f"the configuration here has the hash {json.dumps(expected)}: it was changed by hand"
                )
                raise FormatError(f"{place}.configuration_hash", problem)
            check_environments(entry.runs, file.environments, f"{place}.runs")
            check_environments(entry.anchor, file.environments, f"{place}.anchor")
        return file


def check_keys(environments: Mapping[str, Environment]) -> None:
    for key, environment in environments.items():
        if key != environment.key:
            problem = f"its content has the key {json.dumps(environment.key)}: it was changed by hand"
            raise FormatError(f"environments[{json.dumps(key)}]", problem)


def check_environments(runs: Iterable[Run], known: Mapping[str, object], place: str) -> None:
    """Raise FormatError where a run names an environment that its file does not hold."""
    for index, run in enumerate(runs):
        if run.environment not in known:
            problem = f"{json.dumps(run.environment)} is not among the environments of this file"
            raise FormatError(f"{place}[{index}].environment", problem)


# --- the store --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BaselineStore:
    """The folder of baselines. Reading needs no lock: files are replaced atomically."""

    root: Path

    def path(self, platform: str, suite: str) -> Path:
        for kind, name in (("platform", platform), ("suite", suite)):
            is_name = re.fullmatch(r"[^./\\-][^/\\]{0,199}", name) and name.isprintable()
            if not is_name or (kind == "platform" and name == PUBLISHED):
                remedy = (
                    f"A {kind} is a folder or file name: no slash, no leading dot or dash, at most 200 characters, "
                    f"and not {PUBLISHED}."
                )
                raise BaselineError(str(self.root), "", f"{name!r} cannot name a {kind}", remedy)
        return self.root / platform / f"{suite}.json"

    def suites(self, platform: str = "") -> list[tuple[str, str]]:
        """Return platform and suite of every file, or of those of one platform."""
        found = (path for path in self.root.glob(f"{glob.escape(platform) or '[!.]*'}/[!.]*.json"))
        return sorted((path.parent.name, path.stem) for path in found if path.parent.name != PUBLISHED)

    def platforms(self) -> list[str]:
        return sorted({platform for platform, _ in self.suites()})

    def platform(self, name: str) -> str:
        """Return the folder that a name means: the one of that name, else the only one that begins with it, as cpu-x of cpu."""
        if not name or (self.root / name).is_dir():
            return name
        found = [platform for platform in self.platforms() if platform.startswith(f"{name}-")]
        if len(found) > 1:
            problem, remedy = f"has several of {name!r}: {', '.join(found)}", "Name one of them."
            raise BaselineError(str(self.root), "", problem, remedy)
        return found[0] if found else name

    def files(self, platform: str = "") -> list[BaselineFile]:
        """Return all files, or those of one platform; raise BaselineError where there are none."""
        platform = self.platform(platform)
        found = [file for each in self.suites(platform) if (file := self.read(*each))]
        if not found:
            there = ", ".join(self.platforms()) or "none"
            problem = f"has no baselines of the platform {platform!r}" if platform else "holds no baselines"
            remedy = f"Platforms here: {there}. Record some with --accel-record, or name the folder with --baselines."
            raise BaselineError(str(self.root), "", problem, remedy)
        return found

    def read(self, platform: str, suite: str) -> BaselineFile | None:
        """Return the stored baselines, or None; raise BaselineError when they cannot be used."""
        path = self.path(platform, suite)
        text = read_text(path, BaselineError)
        if text is None:
            return None
        file = parse(text, str(path))
        for place, stored, expected in (("platform", file.platform, platform), ("suite", file.suite, suite)):
            if stored != expected:
                problem = f"{stored!r} in the file of {expected!r}: was it copied or renamed?"
                raise BaselineError(str(path), place, problem)
        return file

    def read_usable(self, platform: str, suite: str) -> BaselineFile | None:
        """Return the stored baselines; None where there are none, or they cannot be used."""
        try:
            return self.read(platform, suite)
        except BaselineError:
            return None

    def record(
        self,
        platform: str,
        suite: str,
        key: str,
        entry: BaselineEntry,
        environments: Iterable[Environment],
        *,
        replace: bool = False,
    ) -> BaselineFile:
        """Add the runs of `entry` to a baseline, or replace them, as `with_runs` does."""
        new = tuple(environments)
        return self.change(platform, suite, lambda file: with_runs(file, key, entry, new, replace=replace))

    def change(
        self, platform: str, suite: str, change: Callable[[BaselineFile], BaselineFile]
    ) -> BaselineFile:
        """Rewrite a file under its lock, without environments that no run names."""
        path = self.path(platform, suite)
        with format_errors(str(path), BaselineError), locked(path, BaselineError) as write:
            changed = change(self.read(platform, suite) or empty_file(platform, suite))
            runs = (run for each in changed.benchmarks.values() for run in (*each.runs, *each.anchor))
            used = {run.environment for run in runs}
            kept = {key: each for key, each in changed.environments.items() if key in used}
            changed = dataclasses.replace(changed, environments=kept)
            write(_checked(changed, path))
        return changed


def empty_file(platform: str, suite: str) -> BaselineFile:
    return BaselineFile(platform=platform, suite=suite, environments={}, benchmarks={})


def runs_of_platform(store: BaselineStore, platform: str) -> list[tuple[Run, ...]]:
    """Return the runs of every benchmark of a platform, those of one machine together; a bad file has none."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for _, suite in store.suites(platform):
        file = store.read_usable(platform, suite) or empty_file(platform, suite)
        for key, entry in file.benchmarks.items():
            for run in entry.runs:
                identity = file.environments[run.environment].identity
                groups.setdefault((suite, key, repr(sorted(identity.items()))), []).append(run)
    return [tuple(runs) for runs in groups.values()]


# --- changes of a file ------------------------------------------------------------------------------


def with_runs(
    file: BaselineFile,
    key: str,
    entry: BaselineEntry,
    environments: Iterable[Environment],
    *,
    replace: bool = False,
) -> BaselineFile:
    """Return the file with the runs and ledger lines of `entry`, which holds only what is new.

    They are added to the stored runs, or replace them. Raise FormatError where they do not belong together.
    """
    known = {**file.environments, **{each.key: each for each in environments}}
    stored = file.benchmarks.get(key)
    if stored is not None and replace:
        tolerance = entry.tolerance if entry.tolerance is not None else stored.tolerance
        anchor = stored.anchor if _is_comparable(stored, entry, known) else ()
        ledger = stored.ledger + entry.ledger
        entry = dataclasses.replace(entry, tolerance=tolerance, anchor=anchor, ledger=ledger)
    elif stored is not None:
        _check_addition(key, stored, entry)
        entry = dataclasses.replace(
            stored,
            tolerance=stored.tolerance if stored.tolerance is not None else entry.tolerance,
            runs=stored.runs + entry.runs,
            ledger=stored.ledger + entry.ledger,
        )
    machines = [known[run.environment] for run in entry.runs if run.environment in known]
    for machine in machines[1:]:
        if changes := diff_identity(machines[0], machine):
            where = describe(changes)
            problem = f"runs of two machines do not mix, and these are of another machine ({where})"
            raise FormatError(_place(key), problem, _UPDATE_REMEDY)
    return dataclasses.replace(file, environments=known, benchmarks={**file.benchmarks, key: entry})


def _is_comparable(stored: BaselineEntry, entry: BaselineEntry, known: Mapping[str, Environment]) -> bool:
    """Return whether an anchor and new runs are of one configuration and machine."""
    machines = [known[run.environment] for run in (*stored.anchor, *entry.runs) if run.environment in known]
    is_elsewhere = any(diff_identity(machines[0], each) for each in machines[1:])
    return not is_elsewhere and stored.configuration_hash == entry.configuration_hash


def _check_addition(key: str, stored: BaselineEntry, entry: BaselineEntry) -> None:
    if stored.configuration_hash != entry.configuration_hash:
        changes = ", ".join(configuration_changes(stored, entry))
        problem = f"stale: the benchmark changed since its baseline ({changes})"
        raise FormatError(_place(key), problem, _UPDATE_REMEDY)
    room = MAX_RUNS - len(stored.runs)
    if len(entry.runs) > room:
        problem = f"has {len(stored.runs)} runs and would get {len(entry.runs)} more; a baseline has at most {MAX_RUNS}"
        remedy = f"Record at most {room} (--accel-record={room}), or replace all. " if room else ""
        raise FormatError(f"{_place(key)}.runs", problem, remedy + _UPDATE_REMEDY)


def _place(key: str) -> str:
    return f"benchmarks[{json.dumps(key)}]"


def _checked(file: BaselineFile, path: Path) -> bytes:
    """Return the bytes of a file that can be read back; a bad value must not reach the disk."""
    with unstorable_refused(str(path), BaselineError):
        text = render(file)
        parse(text, str(path))
    return text.encode("utf-8")
