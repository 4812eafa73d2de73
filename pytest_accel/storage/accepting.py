"""Putting runs that were measured elsewhere into the baseline: fresh ones, with a reason, and never quietly."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_accel.stats.comparison import (
    Entry,
    configuration_changes,
    is_stored,
    slowed_text,
    was_slowed,
    why_unusable,
)
from pytest_accel.stats.environment import Environment, describe, diff_identity
from pytest_accel.stats.quantities import counted, printable
from pytest_accel.stats.results import Ending, Result, SessionResults, Status
from pytest_accel.stats.run import MAX_RUNS, Run, Scalar, node_id_of, suite_of
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage.baselines import BaselineStore
from pytest_accel.storage.reading import BaselineError, Node, decode, load
from pytest_accel.storage.results import MAX_BYTES, ResultsError
from pytest_accel.storage.results import parse as parse_results
from pytest_accel.storage.schema import BaselineEntry, BaselineFile, LedgerEntry, read_run
from pytest_accel.storage.whole import is_open, nearest_folder

# A verdict that asks for another baseline has chosen its own runs: the slow ones, or the fast ones.
_MOVED_BY = frozenset({Outcome.REGRESSED, Outcome.IMPROVED})


class AcceptError(ValueError):
    """Runs that no baseline takes; the message names each of them, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The runs of one benchmark that somebody wants in a baseline."""

    key: str
    suite: str
    platform: str  # the folder of its baselines
    status: Status
    configuration: dict[str, Scalar]
    work_per_step: float
    unit: str
    runs: tuple[Run, ...]
    environments: dict[str, Environment]
    elsewhere: str = ""  # the platform that its file names, where that is another one

    @property
    def place(self) -> str:
        return f"{self.platform}/{self.suite}.json"

    @property
    def identity(self) -> Environment:
        return self.environments[self.runs[-1].environment]


# --- where they come from ---------------------------------------------------------------------------


def read_candidates(path: Path, platform: str = "") -> list[Candidate]:
    """Of a file of --accel-json or --benchmark-json, or of what a recording left behind that could not write."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise ResultsError(str(path), "", "is no file of results", "Name a file that --accel-json wrote.")
        text = decode(path.read_bytes(), str(path))
    except OSError as error:
        remedy = "Name a file that --accel-json wrote."
        raise ResultsError(str(path), "", f"cannot be read: {error.strerror}", remedy) from None
    top = Node(load(text, str(path)), str(path))
    if isinstance(top.value, dict) and "measurements" in top and "node_id" in top:
        return [_unsaved(top, platform)]
    session = parse_results(text, str(path))
    if not session.version and not platform:
        raise AcceptError(
            f"{path}: pytest-benchmark's JSON does not say which variant of a platform it was measured on. "
            "Name the folder of its baselines with --platform (`pytest-accel doctor` shows it), or accept a "
            "file of --accel-json."
        )
    return [_of_result(result, session, platform) for result in session.results if result.runs]


def _of_result(result: Result, session: SessionResults, platform: str) -> Candidate:
    return Candidate(
        key=result.key or result.benchmark,
        suite=result.suite,
        platform=platform or result.disk_name,
        elsewhere=_elsewhere(platform, result, is_exact=bool(session.version)),
        status=_status(result),
        configuration=dict(result.configuration),
        work_per_step=result.work_per_step,
        unit=result.unit,
        runs=result.runs,
        environments={
            key: each
            for key, each in session.environments.items()
            if key in {run.environment for run in result.runs}
        },
    )


def _elsewhere(platform: str, result: Result, *, is_exact: bool) -> str:
    """pytest-benchmark's JSON knows the platform, but no variant of it."""
    named = platform or result.disk_name
    fits = named == result.disk_name or (not is_exact and named.startswith(f"{result.platform}-"))
    return "" if fits else result.disk_name


def _status(result: Result) -> Status:
    """Regressed too where only a metric beside its throughput did."""
    regressed = any(verdict.outcome is Outcome.REGRESSED for verdict in result.verdicts)
    return Outcome.REGRESSED if regressed else result.status


def _unsaved(top: Node, platform: str) -> Candidate:
    """What `session.recording` keeps where the baseline could not be written."""
    key = top["node_id"].text()
    measured = top["measurements"].items()
    if not measured:
        top["measurements"].fail("it holds no measurement", "Record again with --accel-record.")
    said = top["disk_name"].text() if "disk_name" in top else ""
    folder = platform or said
    if not folder:
        raise AcceptError(
            f"{top.where}: it does not say which platform it was measured on. Name the folder of its baselines with "
            "--platform; `pytest-accel doctor` shows those of this machine."
        )
    environments: dict[str, Environment] = {}
    runs = tuple(_unsaved_run(node, environments) for node in measured)
    last = measured[-1]
    return Candidate(
        key=key,
        suite=top["suite"].text() if "suite" in top else suite_of(node_id_of(key).partition("::")[0]),
        platform=folder,
        elsewhere=said if said != folder else "",
        status=Ending.RECORDED,  # but for where it was to be written
        configuration={name: value.scalar() for name, value in last["configuration"].members()},
        work_per_step=last["work_per_step"].number(positive=True),
        unit=last["work_unit"].text(),
        runs=runs,
        environments=environments,
    )


def _unsaved_run(node: Node, environments: dict[str, Environment]) -> Run:
    facts = node["environment"]
    found = Environment(
        identity={name: fact.text() for name, fact in facts["identity"].members()},
        context={name: fact.text() for name, fact in facts["context"].members()},
    )
    environments[found.key] = found
    plain = {name: value for name, value in node["run"].object().items() if value is not None}
    plain["environment"] = found.key
    run = Node(type(node["run"].object())(plain), node.where, (*node.path, ".run"))
    return read_run(run, known=environments)


# --- what is refused --------------------------------------------------------------------------------

Misplaced = Callable[[str, Environment], str]  # by folder: the machine, where it is none of that platform


def _anywhere(_folder: str, _environment: Environment) -> str:
    return ""


def refusal(
    candidate: Candidate, file: BaselineFile | None, *, replace: bool, misplaced: Misplaced = _anywhere
) -> str:
    """Why a baseline does not take these runs, and what to do; empty where it does."""
    return (
        _refused_as_measured(candidate)
        or _refused_there(candidate, misplaced)
        or _refused_among_themselves(candidate)
        or _refused_by_stored(candidate, file, replace=replace)
    )


def _refused_as_measured(candidate: Candidate) -> str:
    slowed = [run for run in candidate.runs if was_slowed(run)]
    if slowed:
        return f"it was slowed on purpose ({slowed_text(slowed)}). Measure without --accel-slowdown."
    if candidate.status in _MOVED_BY:
        said = str(candidate.status.value)
        return (
            f"these runs are those that were found {said}, and a baseline moves only to fresh ones. "
            f"Measure them: {update_command(candidate)}"
        )
    why = why_unusable(candidate)
    if why and candidate.status is Ending.NOT_MEASURED:
        return f"{why}. Accept a file of --accel-json of a session that ended."
    return f"{why}. Mend it, and measure again." if why else ""


def _refused_there(candidate: Candidate, misplaced: Misplaced) -> str:
    if candidate.elsewhere:
        return f"its file says that it was measured on {candidate.elsewhere}. Name that folder, or leave --platform out."
    if machine := misplaced(candidate.platform, candidate.identity):
        return f"it was measured on another machine ({machine}). Name the folder of its platform with --platform."
    return ""


def _refused_among_themselves(candidate: Candidate) -> str:
    for environment in candidate.environments.values():
        if changes := diff_identity(environment, candidate.identity):
            return f"its runs are of two machines ({describe(changes)}), which do not mix. Measure on one."
    twice = [run for at, run in enumerate(candidate.runs) if is_stored(run, candidate.runs[:at])]
    if twice:
        return (
            f"{len(twice)} of its {counted(len(candidate.runs), 'run')} are the same run again. Measure anew."
        )
    if len(candidate.runs) > MAX_RUNS:
        return f"{len(candidate.runs)} runs; a baseline has at most {MAX_RUNS}. Record fewer."
    return ""


def _refused_by_stored(candidate: Candidate, file: BaselineFile | None, *, replace: bool) -> str:
    stored = file.benchmarks.get(candidate.key) if file else None
    if file is None or stored is None:
        return ""
    again = [run for run in candidate.runs if is_stored(run, stored.runs)]
    if again:
        count = f"{len(again)} of its {counted(len(candidate.runs), 'run')}"
        return f"{count} {'stands' if len(again) == 1 else 'stand'} in the baseline already. Accept only new ones."
    return "" if replace else _refused_to_mix(candidate, stored, file)


def _refused_to_mix(candidate: Candidate, stored: BaselineEntry, file: BaselineFile) -> str:
    if changes := configuration_changes(_as_entry(stored), _as_entry(candidate)):
        return f"the benchmark changed since its baseline ({', '.join(changes)}). Replace the old runs with --replace."
    elsewhere = file.environments[stored.runs[-1].environment]
    if differs := diff_identity(elsewhere, candidate.identity):
        return f"the stored runs are of another machine ({describe(differs)}). Replace them with --replace."
    if len(stored.runs) + len(candidate.runs) > MAX_RUNS:
        return (
            f"its baseline has {len(stored.runs)} runs, and {len(candidate.runs)} more would exceed {MAX_RUNS}. "
            "Replace them with --replace, or make room with `pytest-accel baseline prune --keep N --yes`."
        )
    return ""


def _as_entry(what: BaselineEntry | Candidate) -> Entry:
    return Entry(
        key="",
        name="",
        values={},
        configuration=what.configuration,
        work_per_step=what.work_per_step,
        unit=what.unit,
    )


def update_command(candidate: Candidate) -> str:
    """The command that measures fresh runs into a baseline."""
    name, mark = shlex.quote(node_id_of(candidate.key)), candidate.platform.partition("-")[0]
    return f'pytest {name} -m {mark} --accel-update --accel-reason "..."'


# --- writing ----------------------------------------------------------------------------------------


def accept(
    store: BaselineStore,
    candidates: Sequence[Candidate],
    *,
    reason: str,
    replace: bool,
    at: str,
    misplaced: Misplaced = _anywhere,
) -> list[str]:
    """What was done with each of them. What one is refused for, and where nothing can be written, is found before."""
    if not reason.strip():
        raise AcceptError('A baseline moves for a reason, which its ledger keeps. Say it: --reason "..."')
    _refuse_twins(candidates)
    files = {each.place: store.read(each.platform, each.suite) for each in candidates}
    fresh: list[Candidate] = []
    standing: list[Candidate] = []
    for each in candidates:
        stands = _stands_already(each, files[each.place], replace=replace)
        (standing if stands else fresh).append(each)
    refused = [
        (each, why)
        for each in fresh or candidates
        if (why := refusal(each, files[each.place], replace=replace, misplaced=misplaced))
    ]
    if refused:
        raise AcceptError(_refused(refused, len(candidates), len(fresh) - len(refused)))
    _refuse_unwritable(store, fresh)
    done = [f"{_named(each)}: passed over, its runs stand there already" for each in standing]
    for each in fresh:
        try:
            done.append(_accepted(store, each, reason=reason.strip(), replace=replace, at=at))
        except BaselineError as error:
            raise AcceptError(_broken_off(error, done)) from None
    return done


def _named(each: Candidate) -> str:
    return printable(f"{each.place}  {each.key}")


def _refuse_twins(candidates: Sequence[Candidate]) -> None:
    counts = Counter((each.place, each.key) for each in candidates)
    lines = [f"  {printable(key)}: {count} times" for (_, key), count in counts.items() if count > 1]
    if lines:
        head = "The same benchmark stands in the file more than once, and its runs would be too:"
        end = "Nothing was written. Write the file anew with --accel-json."
        raise AcceptError("\n".join([head, *lines, end]))


def _stands_already(each: Candidate, file: BaselineFile | None, *, replace: bool) -> bool:
    """Whether nothing of it is left to do: the baseline has its runs, and no others where it replaces."""
    stored = file.benchmarks.get(each.key) if file else None
    if stored is None or (replace and len(stored.runs) != len(each.runs)):
        return False
    return all(is_stored(run, stored.runs) for run in each.runs)


def _refuse_unwritable(store: BaselineStore, candidates: Sequence[Candidate]) -> None:
    places = dict.fromkeys((each.platform, each.suite) for each in candidates)
    # A link to shared storage stays a link: its target is what is replaced, by a file beside it.
    paths = [Path(os.path.realpath(store.path(*place))) for place in places]
    folders = dict.fromkeys(nearest_folder(path.parent) for path in paths)
    closed = [f"  {folder}" for folder in folders if not is_open(folder)]
    if closed:
        end = "Nothing was written. Make them writable, or choose other benchmarks with -k."
        raise AcceptError("\n".join(["These folders cannot be written to:", *closed, end]))


def _broken_off(error: BaselineError, done: Sequence[str]) -> str:
    """It is too late for nothing: what was written stays, and is passed over the next time."""
    again = "Remove the cause and accept the same file again: what stands already is passed over."
    written = (
        ["Before that, this was done:", *(f"  {line}" for line in done)] if done else ["Nothing was written."]
    )
    return "\n".join([f"{error.file}: {error.problem}", *written, again])


def _refused(refused: Sequence[tuple[Candidate, str]], of: int, rest: int) -> str:
    lines = [printable(f"  {each.key}: {why}") for each, why in refused]
    hint = (
        [f"Nothing was written. Choose the other {rest} with -k."] if rest > 0 else ["Nothing was written."]
    )
    return "\n".join([f"{len(refused)} of {counted(of, 'benchmark')} cannot be accepted.", *lines, *hint])


def _accepted(store: BaselineStore, each: Candidate, *, reason: str, replace: bool, at: str) -> str:
    line = LedgerEntry(
        at=at, action="accept", reason=reason, runs=len(each.runs), session=each.runs[-1].session
    )
    entry = BaselineEntry(
        configuration=each.configuration,
        work_per_step=each.work_per_step,
        unit=each.unit,
        tolerance=_tolerance(store, each),
        runs=each.runs,
        ledger=(line,),
    )
    write = store.replace if replace else store.append
    written = write(each.platform, each.suite, each.key, entry, each.environments.values())
    count = len(written.benchmarks[each.key].runs)
    done = "replaced its runs by" if replace else "added"
    return f"{_named(each)}: {done} {counted(len(each.runs), 'run')}, it has {count}"


def _tolerance(store: BaselineStore, each: Candidate) -> float | None:
    """That of the baseline, which new runs do not change."""
    file = store.read(each.platform, each.suite)
    stored = file.benchmarks.get(each.key) if file else None
    return stored.tolerance if stored else None
