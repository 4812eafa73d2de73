"""Changes of stored baselines: runs accepted from results, anchors, tolerances, pruning; each with a reason in the ledger."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pytest_accel.stats.baseline_quality import (
    NO_GATE,
    BaselineQuality,
    NoisePrior,
    auto_tolerance,
    baseline_quality,
    platform_prior,
)
from pytest_accel.stats.comparison import (
    configuration_changes,
    is_stored,
    slowed_text,
    was_slowed,
    why_unusable,
)
from pytest_accel.stats.environment import Environment, describe, diff_identity
from pytest_accel.stats.quantities import counted, percent, printable
from pytest_accel.stats.results import Ending, Result, SessionResults, Status
from pytest_accel.stats.run import MAX_RUNS, Run, Scalar, node_id_of
from pytest_accel.stats.verdict import Outcome, Policy
from pytest_accel.storage.baselines import (
    Action,
    BaselineEntry,
    BaselineError,
    BaselineFile,
    BaselineStore,
    LedgerEntry,
    Removal,
    rounded,
    runs_of_platform,
    without_unused,
)
from pytest_accel.storage.files import is_writable_folder, nearest_folder
from pytest_accel.storage.results import read_results

# Runs that a verdict selected are biased: the slow ones, or the fast ones.
_SELECTED_BY = frozenset({Outcome.REGRESSED, Outcome.IMPROVED})
Misplaced: TypeAlias = Callable[
    [str, Environment], str
]  # by folder: the machine, where it is of another platform
Tolerance: TypeAlias = float | Literal["auto"] | None  # None: the default


class EditError(ValueError):
    """A change of baselines that is refused; the message names each benchmark, the reason and the remedy."""


# --- candidates -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Runs of one benchmark that are to be accepted into a baseline."""

    key: str
    suite: str
    platform: str  # the folder of its baselines
    status: Status
    configuration: Mapping[str, Scalar]
    work_per_step: float
    unit: str
    runs: tuple[Run, ...]
    environments: Mapping[str, Environment]
    measured_on: str = ""  # the platform in its file, where that is another one

    @property
    def place(self) -> str:
        return f"{self.platform}/{self.suite}.json"

    @property
    def identity(self) -> Environment:
        return self.environments[self.runs[-1].environment]

    @property
    def name(self) -> str:
        return printable(f"{self.place}  {self.key}")


def read_candidates(path: Path, platform: str = "") -> list[Candidate]:
    """Return the runs of a file of --accel-json, or of a recording that could not be written."""
    session = read_results(path)
    return [_candidate(result, session, platform) for result in session.results if result.runs]


def _candidate(result: Result, session: SessionResults, platform: str) -> Candidate:
    folder = platform or result.disk_name
    regressed = any(verdict.outcome is Outcome.REGRESSED for verdict in result.verdicts)
    used = {run.environment for run in result.runs}
    return Candidate(
        key=result.key or result.benchmark,
        suite=result.suite,
        platform=folder,
        measured_on="" if folder == result.disk_name else result.disk_name,
        status=Outcome.REGRESSED if regressed else result.measured_as,
        configuration=result.configuration,
        work_per_step=result.work_per_step,
        unit=result.unit,
        runs=result.runs,
        environments={key: each for key, each in session.environments.items() if key in used},
    )


# --- accepting runs ---------------------------------------------------------------------------------


def accept(
    store: BaselineStore,
    candidates: Sequence[Candidate],
    *,
    reason: str,
    at: str,
    replace: bool = False,
    misplaced: Misplaced = lambda _folder, _environment: "",
) -> list[str]:
    """Write candidates into their baselines and return a line for each; all refusals are found before anything is written.

    Without a reason the lines say what would be written.
    """
    _refuse_repeated(candidates)
    files = {each.place: store.read(each.platform, each.suite) for each in candidates}
    stored = [each for each in candidates if _is_stored_already(each, files[each.place], replace=replace)]
    fresh = [each for each in candidates if each not in stored]
    refused = [
        (each, why)
        for each in fresh or candidates
        if (why := _refusal(each, files[each.place], replace=replace, misplaced=misplaced))
    ]
    if refused:
        raise EditError(_refused_text(refused, len(candidates), len(fresh) - len(refused)))
    done = [f"{each.name}: skipped, its runs are stored already" for each in stored]
    if not reason.strip():
        verb = "would replace its runs by" if replace else "would add"
        return done + [f"{each.name}: {verb} {counted(len(each.runs), 'run')}" for each in fresh]
    _refuse_unwritable(store, fresh)
    for each in fresh:
        try:
            done.append(
                _accept_one(store, each, files[each.place], reason=reason.strip(), replace=replace, at=at)
            )
        except BaselineError as error:
            again = "Remove the cause and accept the same file again: stored runs are skipped."
            before = ["Before that, this was done:", *(f"  {line}" for line in done)]
            written = before if done else ["Nothing was written."]
            raise EditError("\n".join([f"{error.file}: {error.problem}", *written, again])) from None
    return done


def _refusal(candidate: Candidate, file: BaselineFile | None, *, replace: bool, misplaced: Misplaced) -> str:
    """Return why a baseline does not take these runs, with the remedy; empty where it does."""
    if why := _refused_as_measured(candidate):
        return why
    if candidate.measured_on:
        return f"its file says that it was measured on {candidate.measured_on}. Name that folder, or leave --platform out."
    if machine := misplaced(candidate.platform, candidate.identity):
        return f"it was measured on another machine ({machine}). Name the folder of its platform with --platform."
    return _refused_by_runs(candidate) or _refused_by_stored(candidate, file, replace=replace)


def _refused_as_measured(candidate: Candidate) -> str:
    slowed = [run for run in candidate.runs if was_slowed(run)]
    if slowed:
        return f"it was slowed on purpose ({slowed_text(slowed)}). Measure without --accel-slowdown."
    if candidate.status in _SELECTED_BY:
        name, mark = shlex.quote(node_id_of(candidate.key)), candidate.platform.partition("-")[0]
        return (
            f"these runs were found {candidate.status.value}, and a baseline moves only to fresh ones. "
            f'Measure them: pytest {name} -m {mark} --accel-update --accel-reason "..."'
        )
    why = why_unusable(candidate.status, candidate.runs)
    if why and candidate.status is Ending.NOT_MEASURED:
        return f"{why}. Accept a file of --accel-json of a session that ended."
    return f"{why}. Correct it, and measure again." if why else ""


def _refused_by_runs(candidate: Candidate) -> str:
    for environment in candidate.environments.values():
        if changes := diff_identity(environment, candidate.identity):
            return f"its runs are of two machines ({describe(changes)}), which do not mix. Measure on one."
    repeated = [run for at, run in enumerate(candidate.runs) if is_stored(run, candidate.runs[:at])]
    if repeated:
        return f"{len(repeated)} of its {counted(len(candidate.runs), 'run')} are the same run again. Measure again."
    if len(candidate.runs) > MAX_RUNS:
        return f"{len(candidate.runs)} runs; a baseline has at most {MAX_RUNS}. Record fewer."
    return ""


def _refused_by_stored(  # noqa: PLR0911 - one return a reason
    candidate: Candidate, file: BaselineFile | None, *, replace: bool
) -> str:
    stored = file.benchmarks.get(candidate.key) if file else None
    if file is None or stored is None:
        return ""
    again = [run for run in candidate.runs if is_stored(run, stored.runs)]
    if again:
        return (
            f"{len(again)} of its {counted(len(candidate.runs), 'run')} {'is' if len(again) == 1 else 'are'} "
            "in the baseline already. Accept only new ones."
        )
    if replace:
        return ""
    if changes := configuration_changes(stored, candidate):
        return f"the benchmark changed since its baseline ({', '.join(changes)}). Replace the old runs with --replace."
    machine = file.environments[stored.runs[-1].environment]
    if differs := diff_identity(machine, candidate.identity):
        return f"the stored runs are of another machine ({describe(differs)}). Replace them with --replace."
    if len(stored.runs) + len(candidate.runs) > MAX_RUNS:
        return (
            f"its baseline has {len(stored.runs)} runs, and {len(candidate.runs)} more would exceed {MAX_RUNS}. "
            "Replace them with --replace, or make room with `pytest-accel baseline edit --keep N --reason ...`."
        )
    return ""


def _refuse_repeated(candidates: Sequence[Candidate]) -> None:
    counts = Counter((each.place, each.key) for each in candidates)
    lines = [f"  {printable(key)}: {count} times" for (_, key), count in counts.items() if count > 1]
    if lines:
        head = "The same benchmark is in the file more than once:"
        end = "Nothing was written. Write the file again with --accel-json."
        raise EditError("\n".join([head, *lines, end]))


def _is_stored_already(each: Candidate, file: BaselineFile | None, *, replace: bool) -> bool:
    """Return whether the baseline has these runs already, and no others where they replace it."""
    stored = file.benchmarks.get(each.key) if file else None
    if stored is None or (replace and len(stored.runs) != len(each.runs)):
        return False
    return all(is_stored(run, stored.runs) for run in each.runs)


def _refuse_unwritable(store: BaselineStore, candidates: Sequence[Candidate]) -> None:
    # Of a link to shared storage the target is replaced, by a file beside it.
    paths = [Path(os.path.realpath(store.path(each.platform, each.suite))) for each in candidates]
    folders = dict.fromkeys(nearest_folder(path.parent) for path in paths)
    closed = [f"  {folder}" for folder in folders if not is_writable_folder(folder)]
    if closed:
        end = "Nothing was written. Make them writable, or choose other benchmarks with -k."
        raise EditError("\n".join(["These folders cannot be written to:", *closed, end]))


def _refused_text(refused: Sequence[tuple[Candidate, str]], of: int, rest: int) -> str:
    lines = [printable(f"  {each.key}: {why}") for each, why in refused]
    hint = f" Choose the other {rest} with -k." if rest > 0 else ""
    head = f"{len(refused)} of {counted(of, 'benchmark')} cannot be accepted."
    return "\n".join([head, *lines, f"Nothing was written.{hint}"])


def _accept_one(
    store: BaselineStore, each: Candidate, file: BaselineFile | None, *, reason: str, replace: bool, at: str
) -> str:
    stored = file.benchmarks.get(each.key) if file else None
    entry = BaselineEntry(
        configuration=each.configuration,
        work_per_step=each.work_per_step,
        unit=each.unit,
        tolerance=stored.tolerance if stored else None,  # new runs do not change it
        runs=each.runs,
        ledger=(
            LedgerEntry(
                at=at, action="accept", reason=reason, runs=len(each.runs), session=each.runs[-1].session
            ),
        ),
    )
    write = store.replace if replace else store.append
    written = write(each.platform, each.suite, each.key, entry, each.environments.values())
    count = len(written.benchmarks[each.key].runs)
    verb = "replaced its runs by" if replace else "added"
    return f"{each.name}: {verb} {counted(len(each.runs), 'run')}, it has {count}"


# --- edits ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EditContext:
    """Time and reason of an edit, for the ledgers, and the noise prior of the platform."""

    platform: str
    reason: str
    at: str  # ISO 8601, UTC
    prior: NoisePrior

    def add(self, entry: BaselineEntry, action: Action, runs: int) -> BaselineEntry:
        line = LedgerEntry(
            at=self.at, action=action, reason=self.reason, runs=runs, session=entry.runs[-1].session
        )
        return dataclasses.replace(entry, ledger=(*entry.ledger, line))


# The new entry, or None to remove the benchmark, with a line that says what changes; no tuple: it stays as it is.
EntryEdit: TypeAlias = Callable[[str, BaselineEntry, EditContext], tuple[BaselineEntry | None, str] | None]


def edit_baselines(
    store: BaselineStore, files: Sequence[BaselineFile], edit: EntryEdit, *, reason: str, at: str
) -> list[str]:
    """Edit files under their locks and return a line for each change; without a reason nothing is written."""
    lines: list[str] = []
    for file in files:
        prior = platform_prior(runs_of_platform(store, file.platform))
        context = EditContext(platform=file.platform, reason=reason.strip() or "preview", at=at, prior=prior)
        edited, found = _edit_file(file, edit, context)
        if edited != file and reason.strip():
            # Once more, on the file as it is under the lock.
            store.change(file.platform, file.suite, lambda now, then=context: _edit_file(now, edit, then)[0])  # type: ignore[misc]
        lines += [printable(f"{file.platform}/{file.suite}.json  {line}") for line in found]
    return lines


def _edit_file(file: BaselineFile, edit: EntryEdit, context: EditContext) -> tuple[BaselineFile, list[str]]:
    lines, benchmarks, removed = [], dict(file.benchmarks), list(file.removed)
    for key, entry in file.benchmarks.items():
        if (found := edit(key, entry, context)) is None:
            continue
        changed, line = found
        lines.append(line)
        if changed is None:
            del benchmarks[key]
            removed.append(Removal(at=context.at, benchmark=key, reason=context.reason, runs=len(entry.runs)))
        else:
            benchmarks[key] = changed
    edited = without_unused(dataclasses.replace(file, benchmarks=benchmarks, removed=tuple(removed)))
    if unused := len(file.environments) - len(edited.environments):
        lines.append(f"{counted(unused, 'environment')} without runs removed")
    return edited, lines


def set_anchor(*, clear: bool = False, chosen: Callable[[str], bool] = lambda _key: True) -> EntryEdit:
    """Return the edit that makes the stored runs the anchor, or removes the anchor."""

    def edit(key: str, entry: BaselineEntry, context: EditContext) -> tuple[BaselineEntry, str] | None:
        runs = () if clear else entry.runs
        if not chosen(key) or entry.anchor == runs:
            return None
        changed = dataclasses.replace(
            context.add(entry, "anchor", len(entry.anchor if clear else runs)), anchor=runs
        )
        if clear:
            return changed, f"{key}: anchor of {counted(len(entry.anchor), 'run')} removed"
        verb = "moved" if entry.anchor else "set"
        return changed, f"{key}: anchor {verb} to its {counted(len(runs), 'stored run')}"

    return edit


def set_tolerance(
    tolerance: Tolerance, *, noisy_only: bool = False, chosen: Callable[[str], bool] = lambda _key: True
) -> EntryEdit:
    """Return the edit that stores another tolerance; with `noisy_only` of benchmarks too noisy for theirs."""

    def edit(key: str, entry: BaselineEntry, context: EditContext) -> tuple[BaselineEntry, str] | None:
        now = baseline_quality(entry.runs, entry.tolerance, context.prior)
        if not chosen(key) or (noisy_only and not now.too_noisy):
            return None
        new = auto_tolerance(entry.runs, context.prior) if tolerance == "auto" else tolerance
        if tolerance == "auto" and (problem := _refused_auto(now, new or 0.0)):
            return entry, f"{key}: left at {percent(now.tolerance)}: {problem}"
        new = None if new is None else rounded(new)
        if new in (entry.tolerance, now.tolerance):
            return None
        then = Policy().tolerance if new is None else new
        changed = dataclasses.replace(context.add(entry, "tolerance", len(entry.runs)), tolerance=new)
        no_gate = ": that is no gate, it catches a breakdown and nothing else" if then > NO_GATE else ""
        return changed, (
            f"{key}: tolerance {percent(then)}, {percent(now.tolerance)} before; its runs resolve "
            f"{percent(now.resolution)}{no_gate}"
        )

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


def prune(
    *,
    remove: Callable[[str, str], bool] = lambda _platform, _key: False,
    keep_runs: int | None = None,
    chosen: Callable[[str], bool] = lambda _key: True,
) -> EntryEdit:
    """Return the edit that removes benchmarks, and all but the newest runs of the others."""

    def edit(key: str, entry: BaselineEntry, context: EditContext) -> tuple[BaselineEntry | None, str] | None:
        if not chosen(key):
            return None
        if remove(context.platform, key):
            return None, f"{key}: benchmark removed, {counted(len(entry.runs), 'run')}"
        if keep_runs is None or len(entry.runs) <= keep_runs:
            return None
        surplus = len(entry.runs) - keep_runs
        changed = dataclasses.replace(context.add(entry, "prune", surplus), runs=entry.runs[-keep_runs:])
        return changed, f"{key}: oldest {counted(surplus, 'run')} removed"

    return edit
