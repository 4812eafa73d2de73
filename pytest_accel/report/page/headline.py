"""The first thing one reads: what failed, by how much and how surely, what changed; then what needs attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_accel.report.page.details import remedy, shortened, words
from pytest_accel.report.page.markup import Markup, command_line, element, icon, joined, unbroken
from pytest_accel.report.page.metrics import from_to
from pytest_accel.report.verdicts import (
    VERDICTS,
    Tone,
    VerdictRow,
    in_order,
    needs_attention,
    rank,
    shown_status,
    status_word,
    word,
)
from pytest_accel.stats.environment import Change
from pytest_accel.stats.quantities import counted
from pytest_accel.stats.results import Ending, Result, SessionResults, Status
from pytest_accel.stats.run import Scalar
from pytest_accel.stats.verdict import Outcome

FAILURES_SHOWN = 6  # the table below has all of them, first
_NAMES_SHOWN = 3
_CHANGES_SHOWN = 8
_FINDINGS_SHOWN = 3
_COMMAND_NAMES = 20  # a command of more names is nobody's to copy
# pytest's own; 1 is for the failures themselves to say.
_EXIT_STATUSES = {
    2: "it was interrupted",
    3: "pytest had an error of its own",
    4: "pytest was called wrongly, or a baseline cannot be read",
    5: "no tests were collected",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Of the whole session, in one sentence."""

    tone: Tone
    icon: str
    text: str


def verdict_of(session: SessionResults) -> Verdict:
    """Green only where something was measured and nothing asks for attention."""
    results, failed = session.results, session.failures
    total = counted(len(results), "benchmark")
    if failed:
        return Verdict(tone="bad", icon="cross", text=f"{len(failed)} of {total} failed")
    if session.exit_status not in {0, 1}:
        why = _EXIT_STATUSES.get(session.exit_status, "see pytest's own output")
        text = f"The session ended with status {session.exit_status}: {why}"
        return Verdict(tone="bad", icon="bang", text=text)
    if not any(result.was_measured for result in results):
        return Verdict(tone="warn", icon="ring", text=f"Nothing was measured{_of_what(results)}")
    if session.exit_status == 1:
        text = "No benchmark failed, but the session did: another test, or a figure it was to reach"
        return Verdict(tone="bad", icon="bang", text=text)
    if attention := [result for result in results if needs_attention(result)]:
        verb = "needs" if len(attention) == 1 else "need"
        return Verdict(
            tone="warn", icon="question", text=f"None failed; {len(attention)} of {total} {verb} attention"
        )
    recorded = sum(result.status is Ending.RECORDED for result in results)
    skipped = sum(result.status is Ending.SKIPPED for result in results)
    well = len(results) - skipped
    became = "recorded" if recorded == well else "ok"
    said = f"{'All ' if well > 1 else ''}{counted(well, 'benchmark')} {became}"
    return Verdict(tone="good", icon="check", text=f"{said}; {skipped} skipped" if skipped else said)


def _of_what(results: Sequence[Result]) -> str:
    counts = Counter(map(status_word, results))
    return (
        ": " + ", ".join(f"{number} {word}" for word, number in counts.items())
        if counts
        else ": no benchmark was found"
    )


def headline(session: SessionResults) -> Markup:
    verdict = verdict_of(session)
    failures = in_order(session.failures)
    concerned = failures or [each for each in session.results if each.status is Outcome.INCONCLUSIVE]
    return element(
        "section",
        element("h1", icon(verdict.icon), element("span", verdict.text)),
        _tally(session.results),
        _failures(failures, session) if failures else None,
        suspects(concerned, "Changed in the environment since the baseline", most=_CHANGES_SHOWN)
        or _unchanged(concerned),
        _unwell(session) if concerned else None,
        *(element("p", icon("bang"), element("span", remark), class_="remark") for remark in session.remarks),
        class_=f"headline {verdict.tone}",
        id="headline",
    )


def _unchanged(results: Sequence[Result]) -> Markup | None:
    """Said where it could have been otherwise: it sends one to look elsewhere."""
    if not any(result.runs and result.baseline for result in results):
        return None
    return element("p", "Nothing in the recorded environment changed since the baseline.", class_="suspects")


def _unwell(session: SessionResults) -> Markup | None:
    """What the doctor found, in one line; its remedies stand below."""
    found = [
        each for level in ("problem", "warning") for each in session.findings if each.get("level") == level
    ]
    if not found:
        return None
    told = [": ".join(filter(None, (subject_of(each), str(each.get("text") or "")))) for each in found]
    more = f"; and {len(told) - _FINDINGS_SHOWN} more" if len(told) > _FINDINGS_SHOWN else ""
    return element(
        "p",
        icon("bang"),
        element(
            "span",
            element("a", "Doctor", href="#doctor"),
            f": {unbroken('; '.join(told[:_FINDINGS_SHOWN]))}{more}",
        ),
        class_="remark",
    )


def subject_of(finding: Mapping[str, Scalar]) -> str:
    """What a finding of the doctor is about: `GPU 0 power limit`."""
    return " ".join(str(finding.get(name) or "") for name in ("of", "subject")).strip()


def _tally(results: Sequence[Result]) -> Markup | None:
    """How many came to which end, the most pressing first; each filters the table."""
    counts = Counter(map(shown_status, results))
    parts = [
        element(
            "li",
            element(
                "a",
                icon(VERDICTS[status].icon),
                f"{counts[status]} {word(status)}",
                class_=VERDICTS[status].tone,
                href="#benchmarks",
                data_status=status.value,
            ),
        )
        for status in sorted(counts, key=rank)
    ]
    return element("ul", *parts, class_="tally", aria_label="Benchmarks by verdict") if parts else None


def _failures(failures: Sequence[Result], session: SessionResults) -> Markup:
    position = {id(result): index for index, result in enumerate(session.results)}
    items = [_failure(result, position[id(result)]) for result in failures[:FAILURES_SHOWN]]
    more = len(failures) - len(items)
    rest = element("li", f"and {more} more, first in the table below", class_="more") if more else None
    return element("ol", *items, rest, class_="failures")


def _failure(result: Result, index: int) -> Markup:
    look = VERDICTS[shown_status(result)]
    text = unbroken(shortened(words(result)).strip())
    numbers = from_to(result)
    return element(
        "li",
        element("span", icon(look.icon), status_word(result), class_=f"badge {look.tone}"),
        element(
            "div",
            element(
                "p",
                element("a", element("bdi", result.name), href=f"#b{index}", data_open=str(index)),
                element("span", " ", element("bdi", result.platform), class_="quiet"),
                element("span", " ", element("bdi", unbroken(numbers)), class_="numbers")
                if numbers
                else None,
            ),
            element("p", text) if text else None,
        ),
    )


def suspects(results: Sequence[Result], title: str, most: int | None = None) -> Markup | None:
    """What changed since the baselines of these, each change once, with how many it concerns where not all."""
    compared = [result for result in results if result.baseline]
    counts = Counter(change for result in compared for change in result.changes)
    if not counts:
        return None
    items = [
        element(
            "li",
            change_markup(change),
            None
            if number == len(compared)
            else element("span", f" ({number} of {len(compared)})", class_="quiet"),
        )
        for change, number in list(counts.items())[:most]
    ]
    if more := len(counts) - len(items):
        items.append(element("li", element("a", f"and {more} more", href="#environment")))
    return element("div", element("h3", title), element("ul", *items, class_="changes"), class_="suspects")


def change_markup(change: Change) -> Markup:
    """Both sides in full; a screen reader hears which is which."""
    title = element("span", change.title, class_="quiet")
    if change.old is None:
        return joined(title, " ", element("ins", element("bdi", change.new or "")), " appeared")
    if change.new is None:
        return joined(title, " ", element("del", element("bdi", change.old)), " gone")
    return joined(
        title,
        " ",
        element("del", element("bdi", change.old)),
        " → ",
        element("ins", element("bdi", change.new)),
    )


# --- what needs attention next -------------------------------------------------------------------------


def attention(session: SessionResults) -> Markup | None:
    """One entry a verdict that did not fail the session and is not simply ok: how many, what it means, what to do."""
    open_ends = [result for result in session.results if needs_attention(result)]
    statuses = sorted({result.status for result in open_ends}, key=rank)
    if not statuses:
        return None
    groups = [
        _group(status, [each for each in open_ends if each.status is status], session) for status in statuses
    ]
    return element(
        "section",
        element("h2", "Needs attention"),
        element("ul", *groups, class_="groups"),
        class_="attention",
        id="attention",
    )


def _asks(row: VerdictRow) -> str:
    return f"{row.meaning} {row.remedy}".strip()


def _group(status: Status, results: Sequence[Result], session: SessionResults) -> Markup:
    look = VERDICTS[status]
    badge = element(
        "a",
        icon(look.icon),
        f"{len(results)} {word(status)}",
        class_=f"badge {look.tone}",
        href="#benchmarks",
        data_status=status.value,
    )
    asked = remedy(results, session.command) if len(results) <= _COMMAND_NAMES else None
    return element(
        "li",
        badge,
        element(
            "div",
            *(_each(results) if status is Outcome.INCONCLUSIVE else [_together(_asks(look), results)]),
            command_line(asked[1]) if asked else None,
        ),
    )


def _together(asks: str, results: Sequence[Result]) -> Markup:
    """What all of them ask for, and their names."""
    names = Markup(", ".join(element("bdi", result.name) for result in results[:_NAMES_SHOWN]))
    return element("p", asks, " ", element("span", names, _more(results), class_="quiet"))


def _each(results: Sequence[Result]) -> list[Markup]:
    """What would decide an open question is another thing for each: its verdict says it."""
    told = [
        element("p", element("bdi", result.name, class_="quiet"), " ", unbroken(shortened(words(result))))
        for result in results[:_NAMES_SHOWN]
    ]
    more = _more(results)
    return [*told, *([element("p", more.strip(), class_="quiet")] if more else [])]


def _more(results: Sequence[Result]) -> str:
    return f" and {len(results) - _NAMES_SHOWN} more" if len(results) > _NAMES_SHOWN else ""
