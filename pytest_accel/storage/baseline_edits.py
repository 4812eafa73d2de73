"""Upkeep of stored baselines: accepted runs, edits with a reason in the ledger, and checks of a folder."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from pytest_accel.stats import baseline_quality as quality
from pytest_accel.stats.baseline_quality import NoisePrior
from pytest_accel.stats.comparison import is_stored, was_slowed, why_unusable
from pytest_accel.stats.environment import describe, diff_identity
from pytest_accel.stats.gate import LOSSES, Outcome, Policy
from pytest_accel.stats.quantities import counted, percent, printable
from pytest_accel.stats.results import Result, SessionResults
from pytest_accel.stats.run import Run, node_id_of
from pytest_accel.storage import baselines
from pytest_accel.storage.baselines import BaselineEntry, BaselineError, BaselineFile, BaselineStore
from pytest_accel.storage.codec import FormatError
from pytest_accel.storage.files import StorageError
from pytest_accel.storage.references import PublishedError, read_study

Tolerance: TypeAlias = float | Literal["auto"] | None  # None: the default


@dataclass(slots=True)
class Accepted:
    done: list[str] = field(default_factory=list)  # what was written, or would be
    refused: list[str] = field(default_factory=list)  # with the reason and the remedy


def accept(
    store: BaselineStore,
    session: SessionResults,
    *,
    reason: str,
    at: str,
    wanted: Callable[[str], bool] = lambda _key: True,
    replace: bool = False,
) -> Accepted:
    """Write the runs of a session into their baselines; without a reason only check them.

    A refused benchmark leaves the others alone, and stored runs are skipped: the same file can be accepted again.
    """
    found = Accepted()
    would, was = ("replace its runs by", "replaced its runs by") if replace else ("add", "added")
    for result in session.results:
        key, place = result.stored_as, (result.disk_name, result.suite)
        if not result.runs or not wanted(key):
            continue
        try:
            file = store.read(*place) or baselines.empty_file(*place)
            stored = _runs(key, file)
            is_whole = not replace or len(stored) == len(result.runs)
            if is_whole and all(is_stored(run, stored) for run in result.runs):
                text = "skipped, its runs are stored already"
            else:
                environments = [session.environments[run.environment] for run in result.runs]
                _check_fit(key, result, () if replace else stored)
                entry = _new_entry(result, reason.strip() or "preview", at)
                runs = counted(len(result.runs), "run")
                if reason.strip():
                    now = store.record(*place, key, entry, environments, replace=replace)
                    text = f"{was} {runs}, it has {len(_runs(key, now))}"
                else:
                    baselines.with_runs(file, key, entry, environments, replace=replace)
                    text = f"would {would} {runs}"
        except (StorageError, FormatError) as error:
            found.refused.append(printable(f"{key}: {error.problem}. {error.remedy}"))
        except ValueError as error:
            found.refused.append(printable(f"{key}: {error}"))
        else:
            found.done.append(printable(f"{result.disk_name}/{result.suite}.json  {key}: {text}"))
    return found


def _runs(key: str, file: BaselineFile) -> tuple[Run, ...]:
    return file.benchmarks[key].runs if key in file.benchmarks else ()


def _new_entry(result: Result, reason: str, at: str) -> BaselineEntry:
    count, newest = len(result.runs), result.runs[-1].session
    return BaselineEntry(
        configuration=result.configuration,
        work_per_step=result.work_per_step,
        unit=result.unit,
        runs=result.runs,
        ledger=(baselines.LedgerEntry(at=at, action="accept", reason=reason, runs=count, session=newest),),
    )


def _check_fit(key: str, result: Result, stored: Sequence[Run]) -> None:
    """Raise ValueError, with the remedy, for runs that are no baseline."""
    if slowed := [run for run in result.runs if was_slowed(run)]:
        felt = percent(max(run.metrics["slowdown_felt"] for run in slowed))
        raise ValueError(f"it was slowed on purpose ({felt}). Measure without --accel-slowdown.")
    lost = next((verdict.outcome for verdict in result.verdicts if verdict.outcome in LOSSES), None)
    gained = result.verdict is not None and result.verdict.outcome is Outcome.IMPROVED  # gated or not
    outcome = lost or (Outcome.IMPROVED if gained else result.measured_as)
    if outcome in (*LOSSES, Outcome.IMPROVED):  # chosen by a verdict: the slow ones, or the fast ones
        raise ValueError(
            f"these runs were found {outcome.value}, and a baseline moves only to fresh ones. Measure them: "
            f'pytest {shlex.quote(node_id_of(key))} -m {result.platform} --accel-update --accel-reason "..."'
        )
    if why := why_unusable(result.measured_as, result.runs):
        raise ValueError(f"{why}. Correct it, and measure again.")
    if twice := sum(is_stored(run, (*stored, *result.runs[:at])) for at, run in enumerate(result.runs)):
        runs = counted(len(result.runs), "run")
        raise ValueError(f"{twice} of its {runs} would be stored twice. Accept only new ones.")


# --- edits ------------------------------------------------------------------------------------------


# Of a key and an entry, on a platform with this noise prior: what changes, in words, and the new entry, None to remove
# it; or nothing.
EntryEdit: TypeAlias = Callable[[str, BaselineEntry, NoisePrior], tuple[str, BaselineEntry | None] | None]


def priors_of(store: BaselineStore, files: Iterable[BaselineFile]) -> dict[str, NoisePrior]:
    """Return the noise prior of each platform of these files."""
    platforms = {file.platform for file in files}
    return {
        platform: quality.platform_prior(baselines.runs_of_platform(store, platform))
        for platform in platforms
    }


def edit_baselines(
    store: BaselineStore,
    files: Sequence[BaselineFile],
    edit: EntryEdit,
    *,
    reason: str,
    at: str,
    wanted: Callable[[str], bool] = lambda _key: True,
) -> list[str]:
    """Edit files under their locks and return a line for each change; without a reason nothing is written."""
    lines: list[str] = []
    priors = priors_of(store, files)
    for file in files:
        prior = priors[file.platform]
        apply = partial(_edited, edit=edit, prior=prior, wanted=wanted, reason=reason.strip(), at=at)
        edited, found = apply(file)
        if edited != file and reason.strip():
            # Once more, on the file as it is under the lock.
            store.change(file.platform, file.suite, lambda now, apply=apply: apply(now)[0])  # type: ignore[misc]
        lines += [printable(f"{file.platform}/{file.suite}.json  {line}") for line in found]
    return lines


def _edited(
    file: BaselineFile,
    *,
    edit: EntryEdit,
    prior: NoisePrior,
    wanted: Callable[[str], bool],
    reason: str,
    at: str,
) -> tuple[BaselineFile, list[str]]:
    lines, benchmarks, removed = [], dict(file.benchmarks), list(file.removed)
    reason = reason or "preview"
    for key, entry in file.benchmarks.items():
        change = edit(key, entry, prior) if wanted(key) else None
        if change is None:
            continue
        text, new = change
        lines.append(f"{key}: {text}")
        if new is None:
            del benchmarks[key]
            removed.append(baselines.Removal(at=at, benchmark=key, reason=reason, runs=len(entry.runs)))
        elif new != entry:
            action: baselines.Action = "tolerance" if new.anchor == entry.anchor else "anchor"
            concerned = entry.runs if action == "tolerance" else new.anchor or entry.anchor
            session, runs = entry.runs[-1].session, len(concerned)
            line = baselines.LedgerEntry(at=at, action=action, reason=reason, runs=runs, session=session)
            benchmarks[key] = dataclasses.replace(new, ledger=(*entry.ledger, line))
    return dataclasses.replace(file, benchmarks=benchmarks, removed=tuple(removed)), lines


def set_anchor(*, clear: bool = False) -> EntryEdit:
    """Return the edit that makes the stored runs the anchor, or removes the anchor."""

    def edit(_key: str, entry: BaselineEntry, _prior: NoisePrior) -> tuple[str, BaselineEntry] | None:
        runs = () if clear else entry.runs
        if entry.anchor == runs:
            return None
        text = f"anchor {'moved' if entry.anchor else 'set'} to its {counted(len(runs), 'stored run')}"
        if clear:
            text = f"anchor of {counted(len(entry.anchor), 'run')} removed"
        return text, dataclasses.replace(entry, anchor=runs)

    return edit


def set_tolerance(tolerance: Tolerance, *, noisy_only: bool = False) -> EntryEdit:
    """Return the edit that stores another tolerance; with `noisy_only` of benchmarks too noisy for theirs."""

    def edit(_key: str, entry: BaselineEntry, prior: NoisePrior) -> tuple[str, BaselineEntry] | None:
        now = quality.baseline_quality(entry.runs, entry.tolerance, prior)
        if noisy_only and not now.too_noisy:
            return None
        new = quality.auto_tolerance(entry.runs, prior) if tolerance == "auto" else tolerance
        if tolerance == "auto" and (problem := _refused_auto(now, new or 0.0)):
            return f"left at {percent(now.tolerance)}: {problem}", entry
        new = None if new is None else baselines.rounded(new)
        if new in (entry.tolerance, now.tolerance):
            return None
        then = Policy().tolerance if new is None else new
        text = f"tolerance {percent(then)}, {percent(now.tolerance)} before; its runs resolve {percent(now.resolution)}"
        if then > quality.NO_GATE:
            text += ": that is no gate, it catches a breakdown and nothing else"
        return text, dataclasses.replace(entry, tolerance=new)

    return edit


def _refused_auto(now: quality.BaselineQuality, tolerance: float) -> str:
    if now.provisional:
        return f"provisional ({now.provisional}): record the rest first"
    if tolerance > quality.NO_GATE:
        return (
            f"its runs resolve {percent(now.resolution)}, too little for a gate: quieten the machine "
            "(pytest-accel doctor), or name a number"
        )
    return ""


def remove(keys: Collection[str]) -> EntryEdit:
    def edit(key: str, entry: BaselineEntry, _prior: NoisePrior) -> tuple[str, None] | None:
        return (f"benchmark removed, {counted(len(entry.runs), 'run')}", None) if key in keys else None

    return edit


# --- checks -----------------------------------------------------------------------------------------


def check_baselines(
    root: Path, is_platform: Callable[[str], bool] = lambda _name: True
) -> Iterator[tuple[Path, list[StorageError]]]:
    """Yield every file below a root of baselines with its faults; a file that cannot be read has its first one.

    `is_platform`: whether a folder's name is one that pytest would use.
    """
    store, move = BaselineStore(root), "Move it to the folder of its platform."
    for path in sorted((root / baselines.PUBLISHED).glob("*.json")):
        try:
            read_study(path)
            yield path, []
        except PublishedError as error:
            yield path, [error]
    for path in sorted(root.glob("*.json")):
        yield path, [BaselineError(str(path), "", "is not in the folder of a platform", move)]
    for platform, suite in store.suites():
        path = store.path(platform, suite)
        faults: list[StorageError] = []
        if not is_platform(platform):
            problem = f"nothing reads it: no platform of the catalogue is named {platform}"
            faults.append(BaselineError(str(path), "", problem, move))
        try:
            file = store.read(platform, suite) or baselines.empty_file(platform, suite)
            for key, entry in file.benchmarks.items():
                problems = _entry_faults(entry, file)
                faults += [BaselineError(str(path), printable(key), problem, _ANEW) for problem in problems]
        except BaselineError as error:
            faults.append(error)
        yield path, faults


_ANEW = 'Record it again with --accel-update --accel-reason "...", or remove it with `pytest-accel baseline edit --remove`.'


def _entry_faults(entry: BaselineEntry, file: BaselineFile) -> Iterator[str]:
    """Yield problems that come from merged or copied files, and that their values cannot see."""
    first, *others = (file.environments[run.environment] for run in entry.runs)
    for other in others:
        if changes := diff_identity(first, other):
            yield f"its runs are of two machines ({describe(changes)}), which do not mix"
            break
    if repeated := [run for at, run in enumerate(entry.runs) if is_stored(run, entry.runs[:at])]:
        yield f"{counted(len(repeated), 'run')} stored twice, which makes the noise look smaller than it is"
    if any(was_slowed(run) for run in entry.runs):
        yield "it holds runs that were slowed on purpose"
