"""Commands that a reader copies: measure a result again, look for its cause, move its baseline."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from pytest_accel.distributed.worker import Takes, without_options
from pytest_accel.report.verdicts import VERDICTS, can_rerun
from pytest_accel.stats.baseline_quality import MIN_SESSIONS, baseline_quality
from pytest_accel.stats.environment import describe
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.quantities import clipped, printable
from pytest_accel.stats.results import Ending, Result
from pytest_accel.stats.run import MAX_RUNS, RECORD_RUNS, WHEEL_SUITES, in_wheel

Command = tuple[str, str]  # title and command
REPLACE = "--accel-update --accel-reason='too noisy before'"
REPLACE_RUNS = f"replace its runs: {REPLACE}"  # in the note of a recording that is too noisy
_REASON_CHARACTERS = 200
_RUNS_A_DAY = 2  # of a recording that goes on: a second run shows what is of the day and what of the process
# Options of a session that belong to the measurement itself, or name where it is kept.
_KEPT_WITH_VALUE = (
    *(f"--accel-{name}" for name in ("baselines", "history", "data", "budget")),
    *(f"--accel-{name}" for name in ("timeout", "compile", "gate", "tolerance")),
    *(f"--accel-{name}" for name in ("inconclusive", "missing-baseline", "stale-baseline")),
    *("-c", "--config-file", "-o", "--override-ini", "-p", "--rootdir", "--import-mode"),
)
_KEPT_ALONE = ("--accel-require",)
# Options that a command for the whole session leaves out: they write files, record, or were for one session.
_LEFT_OUT: Mapping[str, Takes] = {
    **dict.fromkeys(("--accel-record", "--accel-reference"), "optional"),
    **dict.fromkeys(("--accel-in-process", "--accel-update", "--"), "none"),
    **dict.fromkeys(("--accel-json", "--accel-reason", "--accel-repeats", "--accel-report"), "one"),
    **dict.fromkeys(("--accel-slowdown", "--benchmark-json", "--junitxml", "--junit-xml"), "one"),
}


def next_commands(
    result: Result, command: Sequence[str], session: Sequence[Result] = (), *, has_past: bool = False
) -> list[Command]:
    """Return what to type next; `command` are the session's arguments, `session` all its results."""
    again = [("Measure it again", rerun([result], command, session))] if can_rerun(result) else []
    asked = remedy([result], command, session)
    return [*again, *_causes(result, has_past=has_past), *([asked] if asked else [])]


def _causes(result: Result, *, has_past: bool) -> list[Command]:
    unclear = VERDICTS[result.status].suspects or result.status in (Outcome.INVALID, Outcome.IMPROVED)
    if not unclear and result.steady and not result.misses_reference:
        return []
    named = shlex.join(["pytest-accel", "history", "--changes", keyword(result.name)])
    since = [("See since when", named)] if has_past else []
    return [("Look for what is wrong with the machine", "pytest-accel doctor"), *since]


def remedy(  # noqa: PLR0911 - one a status
    results: Sequence[Result], command: Sequence[str], session: Sequence[Result] = ()
) -> Command | None:
    """Return one command for results of one status; None where no command helps.

    `session` are all its results.
    """
    again = rerun(results, command, session)
    match None if results[0].is_platform else results[0].status:
        case Outcome.REGRESSED | Outcome.IMPROVED | Outcome.STALE_BASELINE:
            return "Record a new baseline", f"{again} --accel-update --accel-reason={_reason(results)}"
        case Outcome.NO_BASELINE:
            return "Record a baseline", f"{again} --accel-record"
        case Outcome.INCONCLUSIVE if more := [
            each for each in results if "--accel-record" in each.text and len(each.baseline) < MAX_RUNS
        ]:
            room = min(MAX_RUNS - len(each.baseline) for each in more)
            count = "" if room >= RECORD_RUNS else f"={room}"
            return "Add baseline runs", f"{rerun(more, command, session)} --accel-record{count}"
        case Ending.RECORDED if noisy := [each for each in results if is_too_noisy(each)]:
            return (
                "Quieten the machine, and replace the noisy runs",
                f"{rerun(noisy, command, session)} {REPLACE}",
            )
        case Ending.RECORDED if runs := [n for each in results if (n := _runs_a_day(each, command)) > 0]:
            what = f"Go on recording on other days, until runs of {MIN_SESSIONS} sessions are stored"
            return what, f"{again} --accel-record={min(runs)}"
        case Outcome.VANISHED:
            return "See what would go from the baseline", removal(
                [each.benchmark for each in results], command
            )
        case _:
            return None


def removal(ids: Sequence[str], command: Sequence[str]) -> str:
    """Return the command that shows what would be removed with these benchmarks."""
    named = [part for each in ids for part in ("--remove", each)]
    folder = [f"--baselines={word}" for name, word in with_values(command) if name == "--accel-baselines"]
    return shlex.join(["pytest-accel", "baseline", "edit", *named, *folder])


def _reason(results: Sequence[Result]) -> str:
    changes = {result.changes for result in results}
    found = describe(changes.pop()) if len(changes) == 1 else ""
    return shlex.quote(clipped(printable(found), _REASON_CHARACTERS) or "why it may stay so")


def is_too_noisy(result: Result) -> bool:
    """Return whether a recording is noisier than its tolerance allows; more runs would be pooled with the noisy ones."""
    return any(REPLACE_RUNS in line.text for line in result.lines)


def _runs_a_day(result: Result, command: Sequence[str]) -> int:
    """Return how many runs a recording lacks on each further day; 0 where it is complete, or full."""
    replaced = "--accel-update" in command
    stored = (*(() if replaced else result.baseline), *result.runs)
    now = baseline_quality(stored, result.tolerance) if result.runs else None
    if now is None or not now.provisional:
        return 0
    return min(_RUNS_A_DAY, (MAX_RUNS - now.runs) // max(MIN_SESSIONS - now.sessions, 1))


def rerun(results: Sequence[Result], command: Sequence[str], session: Sequence[Result] = ()) -> str:
    """Return pytest with these node ids, the session's -m, which selects the platform, and its other options.

    Several that are all that a session measured: its own arguments.
    """
    ids = list(dict.fromkeys(result.benchmark for result in results))
    if len(ids) > 1 and {*ids} == {each.benchmark for each in session if each.runs}:
        return shlex.join(["pytest", *without_options(command, _LEFT_OUT)])
    expression = next((value for name, value in with_values(command) if name == "-m" and value), "")
    marker = ["-m", expression] if expression else []
    return shlex.join(["pytest", *naming(ids, command), *marker, *kept_options(command)])


def keyword(name: str) -> str:
    """Return an expression for `-k` that selects a benchmark: its grammar has no blanks, commas or quotes."""
    parts = [part for part in re.findall(r"[\w:+\-.\[\]/]+", name) if part not in {"and", "or", "not"}]
    return " and ".join(parts)


def naming(ids: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return node ids as pytest finds them; suites of the wheel by their import names."""
    of_wheel = "--pyargs" in command and any(part.startswith(WHEEL_SUITES) for part in command)
    return ["--pyargs", *map(in_wheel, ids)] if of_wheel else list(ids)


def kept_options(command: Sequence[str]) -> list[str]:
    """Return the session's options that belong to the measurement, as `--name=value` where they have one."""
    kept: list[str] = []
    for name, value in with_values(command):
        if name in _KEPT_ALONE:
            kept.append(name)
        elif name in _KEPT_WITH_VALUE and value:
            kept += [f"{name}={value}"] if name.startswith("--") else [name, value]
    return kept


def with_values(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option with its possible value: joined, as in `-oname=value` and `--name=value`, or the next word."""
    for index, part in enumerate(command):
        is_short = part.startswith("-") and not part.startswith("--")
        name, joined, value = (part[:2], part[2:], part[2:]) if is_short else part.partition("=")
        if part.startswith("-"):
            yield name, value if joined else "".join(command[index + 1 : index + 2])
