"""The table of verdicts: word, effect on the test, colours, explanation and remedy of every status a result can have.

Terminal, JUnit, Markdown, the HTML page and the documentation read this table. A new verdict is one member of
`Outcome` and one row here.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pytest

from pytest_accel.distributed.worker import Takes, without_options
from pytest_accel.options import Settings
from pytest_accel.stats.baseline_quality import MIN_SESSIONS, NO_GATE, baseline_quality
from pytest_accel.stats.environment import describe
from pytest_accel.stats.gate import Outcome, Verdict
from pytest_accel.stats.quantities import clipped, counted, percent, printable
from pytest_accel.stats.results import Ending, Result, SessionResults, Status, status_of
from pytest_accel.stats.run import MAX_RUNS, WHEEL_SUITES, Scalar, in_wheel

Effect = Literal["passes", "fails", "inconclusive", "missing_baseline", "stale_baseline", "vanished"]
Tone = Literal["bad", "warn", "gain", "good", "mute"]
_MARKUP: Mapping[Tone, Mapping[str, bool]] = {
    "bad": {"red": True, "bold": True},
    "warn": {"yellow": True},
    "gain": {"cyan": True},
    "good": {"green": True},
    "mute": {},
}


@dataclass(frozen=True, slots=True)
class VerdictRow:
    word: str  # as printed; upper case for what needs attention
    effect: Effect  # on the test; else the name of the setting that decides
    tone: Tone  # colour of terminal and page
    icon: str  # sign of the page: colour is never the only one
    meaning: str
    remedy: str = ""
    letter: str = ""  # in pytest's progress line; empty: pytest's own
    suspects: bool = False  # whether changes of the environment since the baseline may explain it

    @property
    def count(self) -> str:
        """Its word in pytest's last line, which counts: `2 no baseline, 9 ok`."""
        return self.word.lower().replace("-", " ")

    @property
    def markup(self) -> Mapping[str, bool]:
        return _MARKUP[self.tone]


# The order is that of attention: what is read first comes first.
VERDICTS: dict[Status, VerdictRow] = {
    Outcome.REGRESSED: VerdictRow(
        *("REGRESSED", "fails", "bad", "down"),
        "Worse than the baseline by more than half the tolerance, beyond noise, in at least two runs.",
        "Look at what changed, and at the machine with pytest-accel doctor. A loss that is accepted: "
        "record it with --accel-update --accel-reason.",
        suspects=True,
    ),
    Outcome.UNSTABLE: VerdictRow(
        *("UNSTABLE", "fails", "bad", "fork"),
        "Some of its runs are slower by more than the tolerance, the others are not, and the baseline's runs show no "
        "such groups: a slow mode appeared.",
        "Look for a second kernel or algorithm choice, a NUMA or clock mode that differs from process to process; compare the "
        "runs in the results of --accel-json. A single fast run says nothing.",
        suspects=True,
    ),
    Outcome.INVALID: VerdictRow(
        *("INVALID", "fails", "bad", "bang"),
        "Disturbed: three runs were throttled or shared the device, or a loss came from other work on its CPUs. Nothing was "
        "judged.",
        "Look at the machine with pytest-accel doctor; it was not judged, and its baseline is as it was.",
    ),
    Ending.FAILED: VerdictRow(
        *("FAILED", "fails", "bad", "cross"),
        "It measured nothing, a check of its own failed, or it misses a gated reference.",
        "Read its message: it is the test that failed.",
    ),
    Outcome.STALE_BASELINE: VerdictRow(
        *("STALE-BASELINE", "stale_baseline", "warn", "clock"),
        "The baseline is of another configuration or of another machine.",
        "Record it anew with --accel-update --accel-reason.",
        letter="~",
    ),
    Outcome.VANISHED: VerdictRow(
        *("VANISHED", "vanished", "warn", "ghost"),
        "It is stored in the baseline and was not found. It may have been renamed.",
        "Restore it, or remove its runs with pytest-accel baseline edit --remove.",
    ),
    Outcome.INCONCLUSIVE: VerdictRow(
        *("INCONCLUSIVE", "inconclusive", "warn", "question"),
        "Neither a loss nor its absence could be shown: too much noise, or runs that disagree.",
        "Its line ends with what would decide it: a quieter machine, more baseline runs, a larger tolerance.",
        letter="?",
        suspects=True,
    ),
    Ending.NOT_GATED: VerdictRow(
        *("NOT-GATED", "inconclusive", "warn", "question"),
        f"Its tolerance is above {percent(NO_GATE, 0)}, which is no gate: all that is known is that no loss beyond it was shown.",
        "Quieten the machine (pytest-accel doctor), and tolerate less where the tolerance is written: the mark, the option, the ini "
        "file, or the baseline (pytest-accel baseline edit --tolerance).",
        letter="g",
    ),
    Outcome.NO_BASELINE: VerdictRow(
        *("NO-BASELINE", "missing_baseline", "warn", "ring"),
        "Nothing is stored for it on this platform.",
        "Record it with --accel-record.",
        letter="n",
    ),
    Ending.NOT_MEASURED: VerdictRow(
        *("NOT-MEASURED", "passes", "warn", "ring"),
        "The session ended before, or measuring was switched off.",
        "Run it again.",
    ),
    Outcome.DOES_NOT_FIT: VerdictRow(
        *("DOES-NOT-FIT", "passes", "warn", "box"),
        "Its batch is larger than the memory of the device. It was not made smaller.",
        "Choose a smaller batch_size, or a platform with more memory.",
        letter="o",
    ),
    Outcome.IMPROVED: VerdictRow(
        *("improved", "passes", "gain", "up"),
        "Better than the baseline by more than half the tolerance, beyond noise.",
        "Refresh the baseline with --accel-update, or the loss of this gain will go unnoticed.",
    ),
    Outcome.OK: VerdictRow(
        *("ok", "passes", "good", "check"),
        "Not worse by as much as the tolerance.",
    ),
    Ending.RECORDED: VerdictRow(
        *("recorded", "passes", "good", "dot"),
        "Its runs went into the baseline, and nothing was judged.",
    ),
    Ending.SKIPPED: VerdictRow(
        *("skipped", "passes", "mute", "dash"),
        "This machine cannot run it, or it skipped itself.",
    ),
}
_FINDINGS_SHOWN = 3


def word(status: Status) -> str:
    return VERDICTS[status].word


def fails(outcome: Status, settings: Settings) -> bool:
    effect = VERDICTS[outcome].effect
    if effect in ("passes", "fails"):
        return effect == "fails"
    return bool(getattr(settings, effect) == "fail")


def is_resolved(status: Status) -> bool:
    return VERDICTS[status].tone in ("good", "mute")


def rank(status: Status) -> int:
    """Return its place in the order of attention."""
    return list(VERDICTS).index(status)


def shown_status(result: Result) -> Status:
    """Return what a result counts as: one that failed in its teardown has failed, whatever its verdict."""
    fine = is_resolved(result.status) or result.status is Outcome.IMPROVED
    return Ending.FAILED if result.failed and fine else result.status


def status_word(result: Result) -> str:
    return word(shown_status(result))


def needs_attention(result: Result) -> bool:
    """Return whether it fails nothing, and should be looked at all the same."""
    return not result.failed and not is_resolved(result.status)


def in_order(results: Iterable[Result]) -> list[Result]:
    """Sort failures first, then what needs attention, then the rest.

    Within both: a platform before its benchmarks, then by the order of the table, then the largest loss.
    """
    return sorted(results, key=_order)  # stable: equals stay in the order of the session


def _order(result: Result) -> tuple[int, bool, int, float]:
    if not result.failed and not needs_attention(result):
        return 2, True, 0, 0.0
    losses = [verdict.slowdown.point for verdict in result.verdicts if verdict.slowdown]
    return int(not result.failed), not result.is_platform, rank(result.status), -max(losses, default=0.0)


def deciding(result: Result) -> list[Verdict]:
    """Return the verdicts that gave a result its status, of throughput or of metrics; of throughput where none did."""
    found = [verdict for verdict in result.verdicts if status_of(verdict) is result.status]
    if is_resolved(result.status) or result.status is Outcome.IMPROVED:
        found = found[:1]
    return found or list(result.verdicts[:1])


def can_rerun(result: Result) -> bool:
    """Return whether pytest can measure it again by its name."""
    return not result.is_platform and result.status is not Outcome.VANISHED


class Headline(NamedTuple):
    tone: Tone
    icon: str
    text: str


def headline_of(session: SessionResults) -> Headline:
    """Return the headline: green only where something was measured and nothing needs attention."""
    results, failed, status = session.results, session.failures, session.exit_status
    total = counted(len(results), "benchmark")
    if failed:
        return Headline("bad", "cross", f"{len(failed)} of {total} failed")
    if status not in {0, 1}:
        why = "it was interrupted" if status == pytest.ExitCode.INTERRUPTED else "see pytest's own output"
        return Headline("bad", "bang", f"The session ended with status {status}: {why}")
    if not any(result.runs for result in results):
        what = counts(map(status_word, results)) or "no benchmark was found"
        return Headline("warn", "ring", f"Nothing was measured: {what}")
    if status == 1:
        text = "No benchmark failed, but the session did: another test, or a figure it was to reach"
        return Headline("bad", "bang", text)
    if attention := sum(map(needs_attention, results)):
        text = f"None failed; {attention} of {total} {'needs' if attention == 1 else 'need'} attention"
        return Headline("warn", "question", text)
    return Headline("good", "check", f"{total}: {counts(map(status_word, results))}")


def counts(words: Iterable[str]) -> str:
    """Return `2 REGRESSED, 1 ok`, the most frequent first."""
    return ", ".join(f"{number} {each}" for each, number in Counter(words).most_common())


def finding_subject(finding: Mapping[str, Scalar]) -> str:
    """Return what a finding of the doctor is about: `GPU 0 power limit`."""
    return " ".join(str(finding.get(name) or "") for name in ("of", "subject")).strip()


def pressing_findings(findings: Sequence[Mapping[str, Scalar]]) -> list[Mapping[str, Scalar]]:
    return [each for level in ("problem", "warning") for each in findings if each.get("level") == level]


def doctor_line(findings: Sequence[Mapping[str, Scalar]]) -> str:
    """Return what the doctor found wrong in one line; empty where it found nothing."""
    lines = [f"{finding_subject(each)}: {each.get('text') or ''}" for each in pressing_findings(findings)]
    more = f"; and {len(lines) - _FINDINGS_SHOWN} more" if len(lines) > _FINDINGS_SHOWN else ""
    return "; ".join(lines[:_FINDINGS_SHOWN]) + more


# --- commands that a reader copies --------------------------------------------------------------------

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
    found = [("Measure it again", rerun([result], command, session))] if can_rerun(result) else []
    unclear = VERDICTS[result.status].suspects or result.status in (Outcome.INVALID, Outcome.IMPROVED)
    if unclear or not result.steady or result.misses_reference:
        found.append(("Look for what is wrong with the machine", "pytest-accel doctor"))
        if has_past:
            named = shlex.join(["pytest-accel", "history", "--changes", result.name.partition("[")[0]])
            found.append(("See since when", named))
    asked = remedy([result], command, session)
    return [*found, asked] if asked else found


def remedy(
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
        case Ending.RECORDED if noisy := [each for each in results if is_too_noisy(each)]:
            what = "Quieten the machine, and replace the noisy runs"
            return what, f"{rerun(noisy, command, session)} {REPLACE}"
        case Ending.RECORDED if runs := [n for each in results if (n := _runs_a_day(each, command)) > 0]:
            what = f"Go on recording on other days, until runs of {MIN_SESSIONS} sessions are stored"
            return what, f"{again} --accel-record={min(runs)}"
        case Outcome.VANISHED:
            ids = [each.benchmark for each in results]
            return "See what would go from the baseline", removal(ids, command)
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


def naming(ids: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return node ids as pytest finds them; suites of the wheel by their import names."""
    of_wheel = "--pyargs" in command and any(part.startswith(WHEEL_SUITES) for part in command)
    return ["--pyargs", *map(in_wheel, ids)] if of_wheel else list(ids)


def kept_options(command: Sequence[str]) -> list[str]:
    """Return the session's options that belong to the measurement, as `--name=value` where they have one."""
    kept: list[str] = []
    for name, value in with_values(command):
        if name == "--accel-require":
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
