"""Changes to baselines that a session suggests, as the text of an issue or of a pull request.

Nothing moves by itself: each part ends with the command that moves it, and with what to look at before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_accel.report.markdown import code, fenced, prose
from pytest_accel.report.remedies import remedy, rerun
from pytest_accel.report.verdicts import VERDICTS, in_order
from pytest_accel.stats.comparison import was_slowed
from pytest_accel.stats.environment import describe
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.quantities import printable
from pytest_accel.stats.results import Result, SessionResults

LIMIT_CHARACTERS = 60_000  # GitHub takes 65,536 in an issue, and nothing of a longer one
_TOGETHER = 40  # benchmarks in one list and one command
_CUT = "**The rest is left out: there is no room for it.**"
_LEAVE = (
    "Nothing recorded changed. Leave the baseline: one that follows a fault hides it. Look at the machine with "
    "pytest-accel doctor (clocks, power cap, other users), then measure again:"
)


def render_proposal(session: SessionResults) -> str:
    """Return the text, a headline first; empty where no baseline should move."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in in_order(session.results):
        # A slowdown on purpose is nothing to decide.
        if remedy([result], session.command) and not any(map(was_slowed, result.runs)):
            groups.setdefault((result.platform, result.status, result.changes), []).append(result)
    if not groups:
        return ""
    concerned = [each for members in groups.values() for each in members]
    counts = Counter(VERDICTS[each.status].word.lower() for each in concerned)
    platforms = ", ".join(dict.fromkeys(filter(None, (each.platform for each in concerned))))
    summary = ", ".join(f"{count} {word}" for word, count in counts.items())
    facts = [f"Session {code(session.session)}", code(session.at)]
    facts += [f"host {code(session.host)}"] if session.host else []
    facts += [f"revision {code(session.revision[:12])}"] if session.revision else []
    blocks = [
        f"# {prose(platforms, characters=80)}: {summary}",
        " · ".join(facts),
        "The commands are for the project's root folder on that machine. They measure anew.",
    ]
    blocks += [_part(members, session.command) for members in groups.values()]
    is_cut = sum(len(block) + 2 for block in blocks) > LIMIT_CHARACTERS
    while sum(len(block) + 2 for block in blocks) > LIMIT_CHARACTERS - len(_CUT):
        blocks.pop()
    return "\n\n".join([*blocks, *([_CUT] if is_cut else [])]) + "\n"


def _part(members: Sequence[Result], command: Sequence[str]) -> str:
    """Return benchmarks of one status and the same changes, and one command for them."""
    shown, first = members[:_TOGETHER], members[0]
    row = VERDICTS[first.status]
    lines = [f"## {row.word.capitalize()}", ""]
    lines += [f"- {code(each.benchmark)}: {prose(each.text, characters=300)}" for each in shown]
    lines += [f"- and {len(members) - len(shown)} more"] if len(members) > len(shown) else []
    if first.changes:
        lines += ["", f"Changed: {prose(describe(first.changes))}"]
    asked = remedy(shown, command)
    if asked is None or (first.status is Outcome.REGRESSED and not first.changes):
        advice, line = _LEAVE, rerun(shown, command)
    else:
        advice, line = row.remedy or f"{asked[0]}:", asked[1]
    return "\n".join([*lines, "", advice, "", *fenced([printable(line)], language="sh", characters=20_000)])
