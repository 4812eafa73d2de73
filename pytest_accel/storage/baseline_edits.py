"""Changes of stored baselines: runs accepted from results, anchors, tolerances, pruning; each with a reason in the ledger."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from pytest_accel.stats.baseline_quality import (
    NO_GATE,
    BaselineQuality,
    NoisePrior,
    auto_tolerance,
    baseline_quality,
    platform_prior,
)
from pytest_accel.stats.comparison import is_stored, slowed_text, was_slowed, why_unusable
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.quantities import counted, percent, printable
from pytest_accel.stats.results import Result, SessionResults
from pytest_accel.stats.run import node_id_of
from pytest_accel.stats.verdict import Outcome, Policy
from pytest_accel.storage.baselines import (
    Action,
    BaselineEntry,
    BaselineError,
    BaselineFile,
    BaselineStore,
    LedgerEntry,
    Removal,
    empty_file,
    rounded,
    runs_of_platform,
    with_runs,
)
from pytest_accel.storage.codec import FormatError

# By folder and environment: the machine, where it is of another platform than the folder.
Misplaced: TypeAlias = Callable[[str, Environment], str]
Tolerance: TypeAlias = float | Literal["auto"] | None  # None: the default


class EditError(ValueError):
    """A change of baselines that is refused; the message names each benchmark, the reason and the remedy."""


# --- accepting runs ---------------------------------------------------------------------------------


def accept(
    store: BaselineStore,
    session: SessionResults,
    *,
    reason: str,
    at: str,
    wanted: Callable[[str], bool] = lambda _key: True,
    replace: bool = False,
    misplaced: Misplaced = lambda _folder, _environment: "",
) -> list[str]:
    """Write the runs of a session into their baselines and return a line for each benchmark.

    All refusals are found before anything is written. Without a reason the lines say what would be written.
    """
    done: list[str] = []
    refused: list[str] = []
    fresh: list[Result] = []
    results = [each for each in session.results if each.runs and wanted(_key(each))]
    counts = Counter(map(_name, results))
    for result in results:
        file = store.read(result.disk_name, result.suite) or empty_file(result.disk_name, result.suite)
        if counts[_name(result)] > 1:
            refused.append(f"  {_name(result)}: it is in the file {counts[_name(result)]} times")
        elif _is_accepted(result, file, replace=replace):
            done.append(f"{_name(result)}: skipped, its runs are stored already")
        elif why := _refusal(result, session, file, replace=replace, misplaced=misplaced):
            refused.append(printable(f"  {_key(result)}: {why}"))
        else:
            fresh.append(result)
    if refused:
        head = f"{len(refused)} of {counted(len(results), 'benchmark')} cannot be accepted."
        hint = f" Choose the other {len(fresh)} with -k." if fresh else ""
        raise EditError("\n".join([head, *refused, f"Nothing was written.{hint}"]))
    would, was = ("replace its runs by", "replaced its runs by") if replace else ("add", "added")
    if not reason.strip():
        return done + [f"{_name(each)}: would {would} {counted(len(each.runs), 'run')}" for each in fresh]
    for each in fresh:
        entry = _new_entry(each, reason.strip(), at)
        environments = _environments(each, session)
        try:
            file = store.record(each.disk_name, each.suite, _key(each), entry, environments, replace=replace)
        except BaselineError as error:
            before = ["Before that, this was done:", *(f"  {line}" for line in done)]
            again = "Remove the cause and accept the same file again: stored runs are skipped."
            raise EditError(
                "\n".join([str(error), *(before if done else ["Nothing was written."]), again])
            ) from None
        now = len(file.benchmarks[_key(each)].runs)
        done.append(f"{_name(each)}: {was} {counted(len(each.runs), 'run')}, it has {now}")
    return done


def _key(result: Result) -> str:
    return result.key or result.benchmark


def _name(result: Result) -> str:
    return printable(f"{result.disk_name}/{result.suite}.json  {_key(result)}")


def _environments(result: Result, session: SessionResults) -> list[Environment]:
    return [session.environments[run.environment] for run in result.runs]


def _new_entry(result: Result, reason: str, at: str) -> BaselineEntry:
    count, newest = len(result.runs), result.runs[-1].session
    return BaselineEntry(
        configuration=result.configuration,
        work_per_step=result.work_per_step,
        unit=result.unit,
        runs=result.runs,
        ledger=(LedgerEntry(at=at, action="accept", reason=reason, runs=count, session=newest),),
    )


def _is_accepted(result: Result, file: BaselineFile, *, replace: bool) -> bool:
    """Return whether the baseline has these runs already, and no others where they replace it."""
    stored = file.benchmarks.get(_key(result))
    if stored is None or (replace and len(stored.runs) != len(result.runs)):
        return False
    return all(is_stored(run, stored.runs) for run in result.runs)


def _refusal(  # noqa: PLR0911 - one return a reason
    result: Result, session: SessionResults, file: BaselineFile, *, replace: bool, misplaced: Misplaced
) -> str:
    """Return why a baseline does not take these runs, with the remedy; empty where it does."""
    slowed = [run for run in result.runs if was_slowed(run)]
    if slowed:
        return f"it was slowed on purpose ({slowed_text(slowed)}). Measure without --accel-slowdown."
    regressed = any(verdict.outcome is Outcome.REGRESSED for verdict in result.verdicts)
    outcome = Outcome.REGRESSED if regressed else result.measured_as
    if outcome in (
        Outcome.REGRESSED,
        Outcome.IMPROVED,
    ):  # chosen by a verdict: the slow ones, or the fast ones
        again = f"pytest {shlex.quote(node_id_of(_key(result)))} -m {result.platform}"
        return (
            f"these runs were found {outcome.value}, and a baseline moves only to fresh ones. "
            f'Measure them: {again} --accel-update --accel-reason "..."'
        )
    if why := why_unusable(result.measured_as, result.runs):
        return f"{why}. Correct it, and measure again."
    environments = _environments(result, session)
    if machine := misplaced(result.disk_name, environments[-1]):
        return f"it was measured on another machine ({machine}) than {result.disk_name}. Measure it there."
    stored = file.benchmarks.get(_key(result))
    before = stored.runs if stored and not replace else ()
    twice = sum(is_stored(run, (*before, *result.runs[:at])) for at, run in enumerate(result.runs))
    if twice:
        return (
            f"{twice} of its {counted(len(result.runs), 'run')} would be stored twice. Accept only new ones."
        )
    try:
        entry = _new_entry(result, "preview", session.at)
        with_runs(file, _key(result), entry, environments, replace=replace)
    except FormatError as error:
        return f"{error.problem}. {error.remedy}"
    except ValueError as error:  # more runs than a baseline has
        return f"{error}. Record fewer."
    return ""


# --- edits ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """An edit of one benchmark: the new entry, None to remove it, and its line in the ledger."""

    text: str
    entry: BaselineEntry | None
    action: Action = "prune"
    runs: int = 0  # of the ledger's line; 0 where nothing changes


# What changes of a benchmark with this key and entry, on a platform with this noise prior; None: nothing.
EntryEdit: TypeAlias = Callable[[str, BaselineEntry, NoisePrior], EntryChange | None]


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
    for file in files:
        prior = platform_prior(runs_of_platform(store, file.platform))
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
    for key, entry in file.benchmarks.items():
        change = edit(key, entry, prior) if wanted(key) else None
        if change is None:
            continue
        lines.append(f"{key}: {change.text}")
        reason = reason or "preview"
        if change.entry is None:
            del benchmarks[key]
            removed.append(Removal(at=at, benchmark=key, reason=reason, runs=len(entry.runs)))
        elif change.runs:
            session = change.entry.runs[-1].session
            line = LedgerEntry(at=at, action=change.action, reason=reason, runs=change.runs, session=session)
            benchmarks[key] = dataclasses.replace(change.entry, ledger=(*entry.ledger, line))
    return dataclasses.replace(file, benchmarks=benchmarks, removed=tuple(removed)), lines


def set_anchor(*, clear: bool = False) -> EntryEdit:
    """Return the edit that makes the stored runs the anchor, or removes the anchor."""

    def edit(_key: str, entry: BaselineEntry, _prior: NoisePrior) -> EntryChange | None:
        runs = () if clear else entry.runs
        if entry.anchor == runs:
            return None
        changed = dataclasses.replace(entry, anchor=runs)
        if clear:
            text = f"anchor of {counted(len(entry.anchor), 'run')} removed"
            return EntryChange(text=text, entry=changed, action="anchor", runs=len(entry.anchor))
        text = f"anchor {'moved' if entry.anchor else 'set'} to its {counted(len(runs), 'stored run')}"
        return EntryChange(text=text, entry=changed, action="anchor", runs=len(runs))

    return edit


def set_tolerance(tolerance: Tolerance, *, noisy_only: bool = False) -> EntryEdit:
    """Return the edit that stores another tolerance; with `noisy_only` of benchmarks too noisy for theirs."""

    def edit(_key: str, entry: BaselineEntry, prior: NoisePrior) -> EntryChange | None:
        now = baseline_quality(entry.runs, entry.tolerance, prior)
        if noisy_only and not now.too_noisy:
            return None
        new = auto_tolerance(entry.runs, prior) if tolerance == "auto" else tolerance
        if tolerance == "auto" and (problem := _refused_auto(now, new or 0.0)):
            return EntryChange(text=f"left at {percent(now.tolerance)}: {problem}", entry=entry)
        new = None if new is None else rounded(new)
        if new in (entry.tolerance, now.tolerance):
            return None
        then = Policy().tolerance if new is None else new
        text = f"tolerance {percent(then)}, {percent(now.tolerance)} before; its runs resolve {percent(now.resolution)}"
        if then > NO_GATE:
            text += ": that is no gate, it catches a breakdown and nothing else"
        changed = dataclasses.replace(entry, tolerance=new)
        return EntryChange(text=text, entry=changed, action="tolerance", runs=len(entry.runs))

    return edit


def _refused_auto(now: BaselineQuality, tolerance: float) -> str:
    if now.provisional:
        return f"provisional ({now.provisional}): record the rest first"
    if tolerance > NO_GATE:
        return (
            f"its runs resolve {percent(now.resolution)}, too little for a gate: quieten the machine "
            "(pytest-accel doctor), or name a number"
        )
    return ""


def keep_newest(count: int) -> EntryEdit:
    """Return the edit that removes all but the newest runs."""

    def edit(_key: str, entry: BaselineEntry, _prior: NoisePrior) -> EntryChange | None:
        surplus = len(entry.runs) - count
        if surplus <= 0:
            return None
        changed = dataclasses.replace(entry, runs=entry.runs[-count:])
        return EntryChange(text=f"oldest {counted(surplus, 'run')} removed", entry=changed, runs=surplus)

    return edit


def remove(keys: Collection[str]) -> EntryEdit:
    """Return the edit that removes benchmarks."""

    def edit(key: str, entry: BaselineEntry, _prior: NoisePrior) -> EntryChange | None:
        text = f"benchmark removed, {counted(len(entry.runs), 'run')}"
        return EntryChange(text=text, entry=None) if key in keys else None

    return edit
