"""Commands that a reader copies: measure a result again, look for its cause, move its baseline."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from pytest_accel.report.verdicts import VERDICTS, can_rerun
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.results import Result
from pytest_accel.stats.run import MAX_RUNS, RECORD_RUNS, WHEEL_SUITES, in_wheel

Command = tuple[str, str]  # title and command
_UPDATE = '--accel-update --accel-reason "why it may stay so"'
# Options of a session that belong to the measurement itself, or name where it is kept.
_KEPT_WITH_VALUE = (
    *(f"--accel-{name}" for name in ("baselines", "history", "data", "budget", "warmup")),
    *(f"--accel-{name}" for name in ("threads", "timeout", "rendezvous", "bind", "compile", "gate")),
    *("-c", "--config-file", "-o", "--override-ini", "-p", "--rootdir", "--import-mode"),
)
_KEPT_ALONE = ("--accel-require",)


def next_commands(result: Result, command: Sequence[str], *, has_past: bool = False) -> list[Command]:
    """Return what to type next; `command` are the session's arguments."""
    again = [("Measure it again", rerun([result], command))] if can_rerun(result) else []
    asked = remedy([result], command)
    return [*again, *_causes(result, has_past=has_past), *([asked] if asked else [])]


def _causes(result: Result, *, has_past: bool) -> list[Command]:
    unclear = VERDICTS[result.status].suspects or result.status in (Outcome.INVALID, Outcome.IMPROVED)
    if not unclear and result.steady and not result.misses_reference:
        return []
    named = shlex.join(["pytest-accel", "history", "--changes", keyword(result.name)])
    since = [("See since when", named)] if has_past else []
    return [("Look for what is wrong with the machine", "pytest-accel doctor"), *since]


def remedy(results: Sequence[Result], command: Sequence[str]) -> Command | None:
    """Return one command for results of one status; None where no command helps."""
    if any(result.is_platform for result in results):
        return None
    again = rerun(results, command)
    match results[0].status:
        case Outcome.REGRESSED | Outcome.IMPROVED | Outcome.STALE_BASELINE:
            return "Record a new baseline", f"{again} {_UPDATE}"
        case Outcome.NO_BASELINE:
            return "Record a baseline", f"{again} --accel-record"
        case Outcome.INCONCLUSIVE if more := [each for each in results if _wants_more_baseline(each)]:
            room = min(MAX_RUNS - len(each.baseline) for each in more)
            count = "" if room >= RECORD_RUNS else f"={room}"
            return "Add baseline runs", f"{rerun(more, command)} --accel-record{count}"
        case Outcome.VANISHED:
            named = [part for result in results for part in ("--remove", result.benchmark)]
            edit = shlex.join(["pytest-accel", "baseline", "edit", *named])
            return "See what would go from the baseline", edit
        case _:
            return None


def _wants_more_baseline(result: Result) -> bool:
    return "--accel-record" in result.text and len(result.baseline) < MAX_RUNS


def rerun(results: Sequence[Result], command: Sequence[str]) -> str:
    """Return pytest with these node ids and the session's own -m, which selects the platform."""
    ids = list(dict.fromkeys(result.benchmark for result in results))
    return shlex.join(["pytest", *naming(ids, command), *_marker(command)])


def _marker(command: Sequence[str]) -> list[str]:
    for position, part in enumerate(command):
        if part == "-m" and position + 1 < len(command):
            return ["-m", command[position + 1]]
        if part.startswith("-m") and not part.startswith("--") and len(part) > 2:
            return ["-m", part[2:]]
    return []


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
    """Yield each option with its possible value: joined by `=`, or the next word."""
    for index, part in enumerate(command):
        name, joined, value = part.partition("=")
        if part.startswith("-"):
            yield name, value if joined else "".join(command[index + 1 : index + 2])
