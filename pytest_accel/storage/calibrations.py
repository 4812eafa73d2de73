"""Calibrations on disk, `<root>/<platform>/calibration/<suite>.json`: beside the baselines that they vouch for.

A file of its own: a benchmark can be calibrated before it has a baseline, and an update of the baseline does not
make the machine quieter.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_accel.stats.calibration import Calibration, Conditions, FalseAlarms
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.gate import count_sessions
from pytest_accel.stats.runs import FEWEST_CALIBRATION_RUNS, MOST_CALIBRATION_RUNS, Run
from pytest_accel.storage.baselines import LOCK_TIMEOUT_S, BaselineStore, read_text, rewrite_locked
from pytest_accel.storage.reading import MAX_BYTES, BaselineError, Node, load, restore_remedy
from pytest_accel.storage.schema import (
    moment_of,
    read_environment,
    read_run,
    rendered,
    rounded,
    run_content,
    tolerance_of,
)

FOLDER = "calibration"  # in that of a platform
KIND = "calibration"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationEntry:
    """What is known of one benchmark, and the runs that say it, so that it can be computed again."""

    configuration_hash: str
    figures: Calibration
    runs: tuple[Run, ...]  # in the order in which they were measured
    at: str  # ISO 8601, UTC
    session: str
    conditions: Conditions | None = None  # None: of a file from before they were kept


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFile:
    """All calibrations of one suite on one platform; environments are stored once, by key."""

    platform: str
    suite: str
    environments: Mapping[str, Environment]
    benchmarks: Mapping[str, CalibrationEntry]  # by the keys of baselines


@dataclass(frozen=True, slots=True)
class CalibrationStore:
    """The calibrations in a folder of baselines."""

    root: Path
    lock_timeout_s: float = LOCK_TIMEOUT_S

    def path(self, platform: str, suite: str) -> Path:
        baseline = BaselineStore(self.root).path(platform, suite)
        return baseline.parent / FOLDER / baseline.name

    def files(self, platform: str = "") -> Iterator[CalibrationFile]:
        """All of a platform, or of every one."""
        folders = [self.root / platform] if platform else sorted(self.root.glob("[!.]*"))
        for folder in folders:
            for path in sorted((folder / FOLDER).glob("*.json")):
                if (file := self.read(folder.name, path.stem)) is not None:
                    yield file

    def read(self, platform: str, suite: str) -> CalibrationFile | None:
        """What is stored, None when there is nothing, BaselineError when it cannot be used."""
        path = self.path(platform, suite)
        with _remedy_of_ours(path):
            text = read_text(path)
            file = None if text is None else parse(text, str(path))
            if file is not None and (file.platform, file.suite) != (platform, suite):
                problem = f"it is of {file.platform}/{file.suite}: was it copied or renamed?"
                raise BaselineError(str(path), "", problem)
        return file

    def put(
        self,
        platform: str,
        suite: str,
        key: str,
        entry: CalibrationEntry,
        environments: Iterable[Environment],
    ) -> None:
        """In the place of what was known of that benchmark: a machine that was quietened starts afresh."""
        path = self.path(platform, suite)
        empty = CalibrationFile(platform=platform, suite=suite, environments={}, benchmarks={})
        new = {environment.key: environment for environment in environments}

        def content() -> bytes:
            file = self.read(platform, suite) or empty
            grown = dataclasses.replace(
                file,
                environments={**file.environments, **new},
                benchmarks={**file.benchmarks, key: entry},
            )
            return _checked(_without_unused(grown), path)

        rewrite_locked(path, content, self.lock_timeout_s)


def _without_unused(file: CalibrationFile) -> CalibrationFile:
    used = {run.environment for each in file.benchmarks.values() for run in each.runs}
    kept = {key: environment for key, environment in file.environments.items() if key in used}
    return dataclasses.replace(file, environments=kept)


@contextmanager
def _remedy_of_ours(path: Path) -> Iterator[None]:
    """A calibration is not recorded again, it is measured again."""
    try:
        yield
    except BaselineError as error:
        if error.remedy != restore_remedy(error.file):
            raise
        remedy = (
            f"Restore it from git (git checkout -- {shlex.quote(str(path))}), or delete it and calibrate again with "
            "--accel-calibrate=12."
        )
        raise BaselineError(error.file, error.place, error.problem, remedy) from None


# --- writing ----------------------------------------------------------------------------------------


def _checked(file: CalibrationFile, path: Path) -> bytes:
    """The text of a file that can be read back; a bad value must not reach the disk."""
    remedy = "Nothing was written."
    try:
        text = render(file)
        parse(text, str(path))
    except BaselineError as error:
        raise BaselineError(error.file, error.place, error.problem, remedy) from None
    data = text.encode("utf-8")
    if len(data) > MAX_BYTES:
        problem = f"would grow to {len(data)} bytes; at most {MAX_BYTES} can be read back"
        raise BaselineError(
            str(path), "", problem, f"{remedy} Split the suite, or calibrate with fewer runs."
        )
    return data


def render(file: CalibrationFile) -> str:
    """Sorted keys, one fact a line, a run's rounds on one line: a diff shows what changed."""
    content: dict[str, object] = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "platform": file.platform,
        "suite": file.suite,
        "environments": {
            key: {"identity": dict(environment.identity), "context": dict(environment.context)}
            for key, environment in file.environments.items()
        },
        "benchmarks": {key: _entry_content(entry) for key, entry in file.benchmarks.items()},
    }
    return rendered(content, "") + "\n"


def _entry_content(entry: CalibrationEntry) -> dict[str, object]:
    found, alarms = entry.figures, entry.figures.false_alarms
    content: dict[str, object] = {
        "at": entry.at,
        "session": entry.session,
        "configuration_hash": entry.configuration_hash,
        "noise": rounded(found.noise),
        "detectable_loss": rounded(found.detectable_loss),
        "tolerance": rounded(found.tolerance),
        "runs": [run_content(run) for run in entry.runs],
    }
    if alarms is not None:
        content["false_alarms"] = dataclasses.asdict(alarms)
    if entry.conditions is not None:
        content["conditions"] = dataclasses.asdict(entry.conditions)
    return content


# --- reading ----------------------------------------------------------------------------------------


def parse(text: str, where: str) -> CalibrationFile:
    """The file as a value, or BaselineError with the exact place of the first fault."""
    top = Node(load(text, where), where)
    _check_kind(top)
    top.check_keys(required=("kind", "schema_version", "platform", "suite", "environments", "benchmarks"))
    environments = {key: read_environment(key, node) for key, node in top["environments"].members()}
    return CalibrationFile(
        platform=top["platform"].text(),
        suite=top["suite"].text(),
        environments=environments,
        benchmarks={key: _entry(node, environments) for key, node in top["benchmarks"].members()},
    )


def _check_kind(top: Node) -> None:
    if "kind" not in top or top["kind"].value != KIND:
        top.fail(f'"kind" is not "{KIND}": this is no file of calibrations')
    if "schema_version" not in top or top["schema_version"].integer() != SCHEMA_VERSION:
        problem = f'"schema_version" is not {SCHEMA_VERSION}, which is what this pytest-accel reads'
        top.fail(problem, "Upgrade pytest-accel (pip install --upgrade pytest-accel).")


def _entry(node: Node, known: Mapping[str, Environment]) -> CalibrationEntry:
    node.check_keys(
        required=(
            "at",
            "session",
            "configuration_hash",
            "noise",
            "detectable_loss",
            "tolerance",
            "runs",
        ),
        optional=("false_alarms", "conditions"),
    )
    stored = node["runs"].items()
    if not FEWEST_CALIBRATION_RUNS <= len(stored) <= MOST_CALIBRATION_RUNS:
        node["runs"].fail(
            f"{len(stored)} runs; a calibration has {FEWEST_CALIBRATION_RUNS} to {MOST_CALIBRATION_RUNS}"
        )
    runs = tuple(read_run(run, known=known) for run in stored)
    figures = Calibration(
        runs=len(runs),
        sessions=count_sessions(runs),
        noise=node["noise"].number(least=0),
        detectable_loss=tolerance_of(node["detectable_loss"]),
        tolerance=tolerance_of(node["tolerance"]),
        false_alarms=_alarms(node["false_alarms"]) if "false_alarms" in node else None,
    )
    return CalibrationEntry(
        configuration_hash=node["configuration_hash"].text(),
        figures=figures,
        runs=runs,
        at=moment_of(node["at"]),
        session=node["session"].text(),
        conditions=_conditions(node["conditions"]) if "conditions" in node else None,
    )


def _conditions(node: Node) -> Conditions:
    node.check_keys(required=("budget_s", "threads"))
    return Conditions(budget_s=node["budget_s"].number(least=0), threads=node["threads"].integer(least=1))


def _alarms(node: Node) -> FalseAlarms:
    node.check_keys(required=("draws", "looks", "gate", "undecided", "mean"))
    draws = node["draws"].integer(least=1)
    counts = {name: node[name].integer(least=0) for name in ("gate", "undecided", "mean")}
    for name, number in counts.items():
        if number > draws:
            node[name].fail(f"{number} of {draws} draws")
    return FalseAlarms(draws=draws, looks=node["looks"].integer(least=1), **counts)
