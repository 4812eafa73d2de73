"""Stored runs of a whole platform, grouped by benchmark and machine."""

from __future__ import annotations

from contextlib import suppress

from pytest_accel.stats.run import Run
from pytest_accel.storage.baselines import BaselineStore
from pytest_accel.storage.schema import BaselineError, BaselineFile


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
