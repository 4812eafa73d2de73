"""Around the benchmarks: the environment and what changed in it, the doctor's findings, the session itself."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime

from pytest_accel.report.page.headline import subject_of, suspects
from pytest_accel.report.page.markup import Markup, breakable, command_line, element, icon
from pytest_accel.stats.environment import TITLES, VARIABLE_PREFIX, Environment, safe_arguments
from pytest_accel.stats.quantities import seconds
from pytest_accel.stats.results import SessionResults
from pytest_accel.stats.run import Scalar

_LEVELS = {"problem": ("bad", "bang"), "warning": ("warn", "bang"), "ok": ("good", "check")}


def environment(session: SessionResults) -> Markup | None:
    """What differs between the baselines' environments and this one, then this one in full."""
    used = dict.fromkeys(result.environment for result in session.results if result.environment)
    here = [session.environments[key] for key in used if key in session.environments]
    changed = suspects(session.results, "Changed since the baselines")
    if not here and changed is None:
        return None
    return element(
        "section",
        element("h2", "Environment"),
        changed or _same(any(result.baseline for result in session.results)),
        *(_facts(each, number if len(here) > 1 else 0) for number, each in enumerate(here, start=1)),
        id="environment",
    )


def _same(was_compared: bool) -> Markup | None:  # noqa: FBT001 - it reads as a sentence
    return (
        element("p", "Nothing in the recorded environment changed since the baselines.", class_="quiet")
        if was_compared
        else None
    )


def _facts(found: Environment, number: int) -> Markup:
    title = f"Environment {number} of this session ({found.key})" if number else f"This session ({found.key})"
    names = sorted({*found.identity, *found.context}, key=_telling)
    pairs = [
        (
            TITLES.get(name, name.removeprefix(VARIABLE_PREFIX)),
            found.identity.get(name) or found.context.get(name) or "",
        )
        for name in names
    ]
    return element("details", element("summary", title), definitions(pairs), class_="fold")


def _telling(name: str) -> tuple[int, str]:
    order = list(TITLES)
    return order.index(name) if name in TITLES else len(order), name


def findings(session: SessionResults) -> Markup | None:
    """The doctor's: problems and warnings with their remedies in sight, the rest folded."""
    if not session.findings:
        return None
    pressing = [
        each for level in ("problem", "warning") for each in session.findings if each.get("level") == level
    ]
    well = [each for each in session.findings if each not in pressing]
    return element(
        "section",
        element("h2", "Doctor"),
        element("ul", *map(_finding, pressing), class_="groups") if pressing else None,
        element(
            "details",
            element("summary", _folded(well)),
            element("ul", *map(_finding, well), class_="groups"),
            class_="fold",
        )
        if well
        else None,
        id="doctor",
    )


def _folded(well: Sequence[Mapping[str, Scalar]]) -> str:
    """What nobody tells was not checked: it is not counted as ok."""
    told = sum(_is_told(each) for each in well)
    return f"{told} ok" if told == len(well) else f"{told} ok, {len(well) - told} not told"


def _is_told(finding: Mapping[str, Scalar]) -> bool:
    return finding.get("known", True) is not False


def _finding(finding: Mapping[str, Scalar]) -> Markup:
    level = str(finding.get("level", "ok")) if _is_told(finding) else "not told"
    tone, sign = _LEVELS.get(level, ("mute", "dash"))
    remedy = str(finding.get("remedy") or "")
    return element(
        "li",
        element("span", icon(sign), level, class_=f"badge {tone}"),
        element(
            "div",
            element(
                "p",
                element("strong", subject_of(finding)),
                " ",
                element("span", str(finding.get("group") or ""), class_="quiet"),
            ),
            element("p", str(finding.get("text") or "")),
            element("p", remedy, class_="remedy") if remedy else None,
        ),
    )


def about(session: SessionResults) -> Markup:
    pairs = [
        ("session", session.session),
        ("began", moment(session.at)),
        ("took", seconds(session.duration_s) if session.duration_s > 0 else ""),
        ("host", session.host),
        ("revision", session.revision),
        ("exit status", str(session.exit_status)),
        ("pytest-accel", session.version),
    ]
    return element(
        "section",
        element("h2", "Session"),
        command_line(shlex.join(["pytest", *safe_arguments(session.command)])),
        definitions([pair for pair in pairs if pair[1]]),
        id="session",
    )


def definitions(pairs: Sequence[tuple[str, str]]) -> Markup:
    rows = [
        element("div", element("dt", breakable(name)), element("dd", element("bdi", breakable(text))))
        for name, text in pairs
    ]
    return element("dl", *rows, class_="facts")


def moment(text: str) -> str:
    """ISO 8601 as people read it; anything else as it stands."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{found:%Y-%m-%d %H:%M} {found.tzname() or ''}".rstrip()
