"""Baselines on disk, `<root>/<platform>/<suite>.json`: values, validation, atomic writes under a lock."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias, TypeVar

from pytest_accel.stats.environment import Environment, describe, diff_identity, fingerprint
from pytest_accel.stats.run import MAX_RUNS, Run, Scalar
from pytest_accel.storage.codec import EXACT, FormatError, decode, encode, loads, without_keys
from pytest_accel.storage.codec import render as render_json
from pytest_accel.storage.files import LOCK_TIMEOUT_S, StorageError, read_text, rewrite_locked

SCHEMA_VERSION = 1
MAX_BYTES = 16 * 2**20  # a hundred benchmarks of ten runs are about 1 MiB
MAX_WORK = 1e18  # of one step
DIGITS = 7  # 0.1 ppm, a thousandth of the best run-to-run noise
_LONGEST_NAME_BYTES = 200  # file systems allow 255; a temporary name adds a few dozen
PUBLISHED = "published"  # baselines/published holds references, not baselines
_UPDATE_REMEDY = 'Replace it with fresh runs: --accel-update --accel-reason "...".'

Action: TypeAlias = Literal["record", "update", "accept", "prune", "anchor", "tolerance"]
_T = TypeVar("_T")


class BaselineError(StorageError):
    """A baseline that cannot be used: the file, the place in it, the problem and the remedy."""

    kind: ClassVar[str] = "baseline"

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
        _check_count("runs", self.runs)
        if self.action != "record" and not self.reason.strip():
            article = "an" if self.action[0] in "au" else "a"
            raise ValueError(f"reason: {article} {self.action} without a reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A benchmark that was removed from the file, and its ledger with it."""

    at: str  # when, ISO 8601 in UTC
    benchmark: str  # its key
    reason: str  # why it was removed
    runs: int  # that were removed with it

    def __post_init__(self) -> None:
        check_time("at", self.at)
        _check_count("runs", self.runs)


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
    anchor: tuple[
        Run, ...
    ] = ()  # runs of a release, judged with 1.5 times the tolerance; no update moves them

    def __post_init__(self) -> None:
        if not 0 < self.work_per_step <= MAX_WORK:
            raise ValueError(f"work_per_step: {self.work_per_step!r} is not in 0 < work <= {MAX_WORK:g}")
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
    return fingerprint(
        {"configuration": dict(configuration), "work_per_step": rounded(work_per_step), "unit": unit}
    )


def rounded(value: float) -> float:
    return float(f"{float(value):.{DIGITS}g}")


def check_time(name: str, text: str) -> None:
    try:
        time_ = datetime.fromisoformat(text)
    except ValueError:
        time_ = None
    if time_ is None or time_.utcoffset() != UTC.utcoffset(None):
        raise ValueError(f"{name}: {json.dumps(text)} is not a time in UTC such as 2026-01-31T09:30:00+00:00")


def check_tolerance(name: str, tolerance: float | None) -> None:
    if tolerance is not None and not 0 < tolerance < 1:
        raise ValueError(f"{name}: {tolerance!r} is not a fraction of the throughput between 0 and 1")


def _check_count(name: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{name}: {count} is less than 1")


# --- JSON -------------------------------------------------------------------------------------------


def render(file: BaselineFile) -> str:
    """Return the text of a file: sorted keys, one fact a line, so that a diff shows what changed."""
    content = {"schema_version": SCHEMA_VERSION, **encode(file, digits=DIGITS)}
    for key, entry in file.benchmarks.items():
        content["benchmarks"][key]["configuration_hash"] = entry.configuration_hash
    return render_json(content) + "\n"


def parse(text: str, where: str) -> BaselineFile:
    """Return the file as a value, or raise BaselineError with the place of its first fault."""
    file, found = _parse(text, where)
    if file is None or found:
        raise found[0]
    return file


def faults(text: str, where: str) -> list[BaselineError]:
    """Return a fault for each environment, benchmark and removal of a file that cannot be used."""
    return _parse(text, where)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """A file whose parts are still plain."""

    schema_version: int
    platform: str
    suite: str
    environments: Mapping[str, object]
    benchmarks: Mapping[str, object]
    removed: object = ()


def _parse(text: str, where: str) -> tuple[BaselineFile | None, list[BaselineError]]:
    found: list[BaselineError] = []

    def attempt(read: Callable[[], _T]) -> _T | None:
        try:
            return read()
        except FormatError as error:
            found.append(BaselineError(where, error.place or "top level", error.problem, error.remedy))
            return None

    def read_all(name: str, read: Callable[[str, object, str], _T]) -> dict[str, _T]:
        parts: Mapping[str, object] = getattr(document, name)
        read_parts = {
            key: attempt(lambda key=key, value=value: read(key, value, f"{name}[{json.dumps(key)}]"))  # type: ignore[misc]
            for key, value in parts.items()
        }
        return {key: each for key, each in read_parts.items() if each is not None}

    document = attempt(lambda: _document(text))
    if document is None:
        return None, found
    file = BaselineFile(
        platform=document.platform,
        suite=document.suite,
        environments=read_all("environments", decode_environment),
        benchmarks=read_all(
            "benchmarks", lambda _key, value, place: _entry(value, place, document.environments)
        ),
        removed=attempt(lambda: decode(tuple[Removal, ...], document.removed or [], "removed")) or (),
    )
    return file, found


def _document(text: str) -> _Document:
    top = loads(text)
    version = top.get("schema_version") if isinstance(top, dict) else None
    if isinstance(top, dict) and "schema_version" not in top:
        raise FormatError("", 'the key "schema_version" is missing: this is not a baseline file')
    # Before anything else: another schema may mean something else by the same keys.
    if isinstance(version, int) and version > SCHEMA_VERSION:
        problem = f"{version} is newer than this pytest-accel reads ({SCHEMA_VERSION})"
        raise FormatError(
            "schema_version", problem, "Upgrade pytest-accel (pip install --upgrade pytest-accel)."
        )
    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise FormatError(
            "schema_version", f"{version} is no schema that this pytest-accel reads ({SCHEMA_VERSION})"
        )
    return decode(_Document, top)


def decode_environment(key: str, value: object, place: str) -> Environment:
    environment = decode(Environment, value, place)
    if key != environment.key:
        raise FormatError(
            place, f"its content has the key {json.dumps(environment.key)}: it was changed by hand"
        )
    return environment


def _entry(value: object, place: str, environments: Mapping[str, object]) -> BaselineEntry:
    if not isinstance(value, dict) or "configuration_hash" not in value:
        decode(BaselineEntry, value, place)
        raise FormatError(place, 'the key "configuration_hash" is missing')
    entry = decode(BaselineEntry, without_keys(value, "configuration_hash"), place)
    if value["configuration_hash"] != entry.configuration_hash:
        problem = f"the configuration here has the hash {json.dumps(entry.configuration_hash)}: it was changed by hand"
        raise FormatError(f"{place}.configuration_hash", problem)
    check_environments(entry.runs, environments, f"{place}.runs")
    check_environments(entry.anchor, environments, f"{place}.anchor")
    return entry


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
    lock_timeout_s: float = LOCK_TIMEOUT_S

    def path(self, platform: str, suite: str) -> Path:
        for kind, name in (("platform", platform), ("suite", suite)):
            _check_name(kind, name, self.root)
        return self.root / platform / f"{suite}.json"

    def read(self, platform: str, suite: str) -> BaselineFile | None:
        """Return the stored baselines, or None; raise BaselineError when they cannot be used."""
        path = self.path(platform, suite)
        file = read_file(path)
        if file is None:
            return None
        for place, stored, expected in (
            ("platform", file.platform, platform),
            ("suite", file.suite, suite),
        ):
            if stored != expected:
                problem = f"{stored!r} in the file of {expected!r}: was it copied or renamed?"
                raise BaselineError(str(path), place, problem)
        return file

    def append(
        self,
        platform: str,
        suite: str,
        node_id: str,
        entry: BaselineEntry,
        environments: Iterable[Environment],
    ) -> BaselineFile:
        """Add the runs and ledger lines of `entry`, which holds only what is new, to those stored."""
        path = self.path(platform, suite)

        def change(file: BaselineFile) -> BaselineFile:
            grown = _appended(path, file, node_id, entry)
            return _with_entry(path, file, node_id, grown, environments)

        return self._rewrite(platform, suite, change)

    def replace(
        self,
        platform: str,
        suite: str,
        node_id: str,
        entry: BaselineEntry,
        environments: Iterable[Environment],
    ) -> BaselineFile:
        """Replace the stored runs by those of `entry`; the ledger grows."""
        path = self.path(platform, suite)
        new = tuple(environments)

        def change(file: BaselineFile) -> BaselineFile:
            stored = file.benchmarks.get(node_id)
            past = stored.ledger if stored is not None else ()
            anchor = _kept_anchor(file, stored, entry, new) if stored is not None else ()
            renewed = dataclasses.replace(entry, ledger=past + entry.ledger, anchor=anchor)
            return _with_entry(path, file, node_id, renewed, new)

        return self._rewrite(platform, suite, change)

    def change(
        self, platform: str, suite: str, change: Callable[[BaselineFile], BaselineFile]
    ) -> BaselineFile:
        """Rewrite a file under its lock, without environments that no run names."""

        def kept(file: BaselineFile) -> BaselineFile:
            return without_unused(change(file))

        return self._rewrite(platform, suite, kept)

    def _rewrite(
        self, platform: str, suite: str, change: Callable[[BaselineFile], BaselineFile]
    ) -> BaselineFile:
        path = self.path(platform, suite)
        empty = BaselineFile(platform=platform, suite=suite, environments={}, benchmarks={})
        changed = empty

        def content() -> bytes:
            nonlocal changed
            changed = change(self.read(platform, suite) or empty)
            return _checked(changed, path)

        rewrite_locked(path, content, self.lock_timeout_s, BaselineError)
        return changed


def read_file(path: Path) -> BaselineFile | None:
    """Return the baselines of any file, or None; raise BaselineError when they cannot be used."""
    text = read_text(path, BaselineError, MAX_BYTES)
    return None if text is None else parse(text, str(path))


def _check_name(kind: str, name: str, root: Path) -> None:
    """Refuse a name that is no single path component."""
    bad = (
        not name
        or name.startswith((".", "-"))
        or any(character in "/\\" or not character.isprintable() for character in name)
        or len(os.fsencode(name)) > _LONGEST_NAME_BYTES
        or (kind == "platform" and name == PUBLISHED)
    )
    if bad:
        raise BaselineError(
            str(root),
            "",
            f"{name!r} cannot name a {kind}",
            f"A {kind} is a folder or file name: no slash, no leading dot or dash, "
            f"at most {_LONGEST_NAME_BYTES} bytes, and not {PUBLISHED}.",
        )


# --- runs of a platform --------------------------------------------------------------------------


def runs_of_platform(store: BaselineStore, platform: str) -> list[tuple[Run, ...]]:
    """Return the comparable runs of every benchmark of a platform; a file that cannot be read has none."""
    found: list[tuple[Run, ...]] = []
    for path in sorted((store.root / platform).glob("*.json")):
        with suppress(BaselineError):
            file = store.read(platform, path.stem)
            found += runs_of_file(file) if file else ()
    return found


def runs_of_file(file: BaselineFile) -> list[tuple[Run, ...]]:
    """Return the runs of each benchmark, those of one machine identity together."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for key, entry in file.benchmarks.items():
        for run in entry.runs:
            identity = file.environments[run.environment].identity
            groups.setdefault((key, repr(sorted(identity.items()))), []).append(run)
    return [tuple(runs) for runs in groups.values()]


# --- changes of a file -----------------------------------------------------------------------------------


def _appended(path: Path, file: BaselineFile, node_id: str, entry: BaselineEntry) -> BaselineEntry:
    stored = file.benchmarks.get(node_id)
    if stored is None:
        return entry
    if stored.configuration_hash != entry.configuration_hash:
        problem = (
            f"stale: it was recorded with another configuration ({stored.configuration_hash}, "
            f"now {entry.configuration_hash}), and runs of two configurations do not mix"
        )
        raise BaselineError(str(path), _place(node_id), problem, _UPDATE_REMEDY)
    if len(stored.runs) + len(entry.runs) > MAX_RUNS:
        raise _too_many_runs(path, node_id, stored=len(stored.runs), new=len(entry.runs))
    return dataclasses.replace(
        stored,
        tolerance=stored.tolerance if stored.tolerance is not None else entry.tolerance,
        runs=stored.runs + entry.runs,
        ledger=stored.ledger + entry.ledger,
    )


def _kept_anchor(
    file: BaselineFile, stored: BaselineEntry, entry: BaselineEntry, new: Iterable[Environment]
) -> tuple[Run, ...]:
    """Return the anchor to keep beside new runs: none where its configuration or machine differs from theirs."""
    known = {**file.environments, **{environment.key: environment for environment in new}}
    machines = [known[run.environment] for run in (*stored.anchor, *entry.runs) if run.environment in known]
    elsewhere = any(diff_identity(machines[0], each) for each in machines[1:])
    return () if elsewhere or stored.configuration_hash != entry.configuration_hash else stored.anchor


def _check_identity(path: Path, node_id: str, environments: list[Environment]) -> None:
    for environment in environments[1:]:
        if changes := diff_identity(environments[0], environment):
            problem = (
                f"recorded on another machine ({describe(changes)}), and runs of two machines do not mix"
            )
            raise BaselineError(str(path), _place(node_id), problem, _UPDATE_REMEDY)


def _place(node_id: str) -> str:
    return f"benchmarks[{json.dumps(node_id)}]"


def _too_many_runs(path: Path, node_id: str, *, stored: int, new: int) -> BaselineError:
    room = MAX_RUNS - stored
    problem = f"has {stored} runs and would get {new} more; a baseline has at most {MAX_RUNS}"
    remedy = f"Record at most {room} (--accel-record={room}), or replace all runs. " if room else ""
    return BaselineError(str(path), f"{_place(node_id)}.runs", problem, remedy + _UPDATE_REMEDY)


def _with_entry(
    path: Path, file: BaselineFile, node_id: str, entry: BaselineEntry, new: Iterable[Environment]
) -> BaselineFile:
    known = {**file.environments, **{environment.key: environment for environment in new}}
    _check_identity(path, node_id, [known[run.environment] for run in entry.runs if run.environment in known])
    benchmarks = {**file.benchmarks, node_id: entry}
    return without_unused(dataclasses.replace(file, environments=known, benchmarks=benchmarks))


def without_unused(file: BaselineFile) -> BaselineFile:
    """Return the file without environments that no run names."""
    used = {run.environment for each in file.benchmarks.values() for run in (*each.runs, *each.anchor)}
    environments = {key: environment for key, environment in file.environments.items() if key in used}
    return dataclasses.replace(file, environments=environments)


def _checked(file: BaselineFile, path: Path) -> bytes:
    """Return the bytes of a file that can be read back; a bad value must not reach the disk."""
    remedy = "Nothing was written. The measured values cannot be stored; the file itself is intact."
    try:
        text = render(file)
        parse(text, str(path))
    except BaselineError as error:
        raise BaselineError(error.file, error.place, error.problem, remedy) from None
    except (ValueError, TypeError) as error:  # NaN or an object in a configuration
        raise BaselineError(str(path), "", str(error), remedy) from None
    data = text.encode("utf-8")
    if len(data) > MAX_BYTES:
        problem = f"would grow to {len(data)} bytes; at most {MAX_BYTES} can be read back"
        raise BaselineError(str(path), "", problem, "Nothing was written. Split the suite.")
    return data
