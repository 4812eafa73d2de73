"""Changing what is stored of benchmarks beside their runs, each with a reason in its ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_accel.storage.schema import Action, BaselineEntry, BaselineFile, LedgerEntry

if TYPE_CHECKING:
    from pytest_accel.stats.run import Run
    from pytest_accel.storage.baselines import BaselineStore


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What the ledger keeps of a change."""

    action: Action
    reason: str
    at: str

    def noted(self, entry: BaselineEntry, runs: tuple[Run, ...]) -> BaselineEntry:
        """The entry with one line more, about these runs."""
        line = LedgerEntry(
            at=self.at, action=self.action, reason=self.reason, runs=len(runs), session=runs[-1].session
        )
        return dataclasses.replace(entry, ledger=(*entry.ledger, line))


def amend(
    store: BaselineStore,
    file: BaselineFile,
    amended: Callable[[str, BaselineEntry], tuple[BaselineEntry, str] | None],
) -> list[str]:
    """Put what `amended` makes of each benchmark in its place; give what it has to say of them, where it has."""
    said: list[str] = []

    def changed(current: BaselineFile) -> BaselineFile:
        said.clear()
        benchmarks = dict(current.benchmarks)
        for key, entry in current.benchmarks.items():
            if found := amended(key, entry):
                benchmarks[key], line = found
                said.append(line)
        return dataclasses.replace(current, benchmarks=benchmarks)

    if changed(file) != file:  # what would change nothing is not written
        store.change(file.platform, file.suite, changed)
    return said
