"""The HTML page as one offline file: template, style, scripts, data and the packed plotting library."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytest_accel.report.page.plots import Nights, past, rounds, session_plots
from pytest_accel.report.page.rows import details, from_to, shortened, table, unbroken
from pytest_accel.report.remedies import remedy
from pytest_accel.report.verdicts import (
    VERDICTS,
    finding_subject,
    headline_of,
    in_order,
    needs_attention,
    rank,
    shown_status,
)
from pytest_accel.stats.environment import TITLES, VARIABLE_PREFIX, Environment, safe_arguments
from pytest_accel.stats.quantities import seconds
from pytest_accel.stats.results import Result, SessionResults
from pytest_accel.stats.run import Scalar
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage.files import write_atomic
from pytest_accel.storage.references import Figure

if TYPE_CHECKING:
    from jinja2 import Template

    from pytest_accel.storage.history import Trend

MAX_BYTES = 6_000_000  # what mail, CI artifacts and phones take
SCRIPTS = ("dom.js", "theme.js", "plotly.js", "figures.js", "details.js", "table.js", "start.js")
FAILURES_SHOWN = 6  # the table below has all of them, first
_NAMES_SHOWN = _FINDINGS_SHOWN = 3
_CHANGES_SHOWN = 8
_COMMAND_NAMES = 20  # longer commands are not copied
# Rounds drawn a run: the next step is taken where the page is too large. The last one leaves out history too.
_ROUNDS = (60, 24, 12, 6, 0)
_INSTALL = "Install it with: pip install 'pytest-accel[report]'"
_LEVELS = {"problem": ("bad", "bang"), "warning": ("warn", "bang"), "ok": ("good", "check")}
_BREAKS = re.compile(r"[^_/.:,=\[\]-]*[_/.:,=\[\]-]*", re.DOTALL)  # as in dom.js
# What HTML forbids, or UTF-8 cannot hold.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff]")
SeriesKey = tuple[str, str]  # the benchmark's key and its platform's disk name
_T = TypeVar("_T")


class ReportError(ValueError):
    """A report that cannot be made; the message has the remedy."""


# --- the file ---------------------------------------------------------------------------------------


def write_page(
    path: Path, session: SessionResults, *, history: Path | None = None, published: Path | None = None
) -> None:
    """Write the whole page or nothing. A history or study that cannot be read costs its plots; the page says so."""
    library = read_plotly_js()  # first: without it there is no page
    problems: list[str] = []
    no_trends: Mapping[SeriesKey, Trend] = {}
    no_figures: Sequence[Figure] = ()
    trends = _attempt(lambda: _trends(session, history), no_trends, problems)
    figures = _attempt(lambda: _figures(published), no_figures, problems)
    noted = replace(session, remarks=(*session.remarks, *problems))
    write_atomic(path, render_page(noted, plotly_js=library, history=trends, published=figures))


def _attempt(read: Callable[[], _T], otherwise: _T, problems: list[str]) -> _T:
    try:
        return read()
    except (ValueError, OSError) as error:  # the stores name file, place and remedy
        problems.append(str(error))
        return otherwise


def _trends(session: SessionResults, path: Path | None) -> Mapping[SeriesKey, Trend]:
    if path is None or not path.is_file():
        return {}
    from pytest_accel.storage.history import History

    history = History(path)
    return {key: history.trend(*key) for key in sorted({_key(each) for each in session.results if each.runs})}


def _figures(folder: Path | None) -> Sequence[Figure]:
    from pytest_accel.storage.references import read_published

    return (
        () if folder is None else tuple(each for source in read_published(folder) for each in source.figures)
    )


def read_plotly_js() -> bytes:
    """Return the library as its package ships it, without importing the package: that takes a second."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise ReportError(f"The report draws with plotly, which is not installed. {_INSTALL}")
    path = Path(next(iter(spec.submodule_search_locations))) / "package_data" / "plotly.min.js"
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReportError(
            f"{path}: the plotly that is installed has no script ({error.strerror}). {_INSTALL}"
        ) from None


# --- the page ---------------------------------------------------------------------------------------


def render_page(
    session: SessionResults,
    *,
    plotly_js: bytes,
    history: Mapping[SeriesKey, Trend] | None = None,
    published: Sequence[Figure] = (),
) -> str:
    """Return the whole page; the same input gives the same text."""
    nights: Nights = {}
    trends = [(history or {}).get(_key(result)) for result in session.results]
    pasts = [past(result, each, nights) for result, each in zip(session.results, trends, strict=True)]
    content: dict[str, object] = {
        "session": session.session,
        "table": table(session.results),
        "plots": session_plots(session.results, published),
        "details": [
            details(result, session.command, has_past=each is not None)
            for result, each in zip(session.results, pasts, strict=True)
        ],
        "past": pasts,
        "nights": list(nights),
    }
    fixed = _context(session) | _scripts(plotly_js) | {"has_plots": bool(content["plots"])}
    page = ""
    for most in _ROUNDS:
        if most == 0:
            content |= {"past": [None] * len(pasts), "nights": []}
        content |= {"rounds": [rounds(each, most) for each in session.results], "thinned": _thinning(most)}
        page = _template().render(fixed, data=_json(content))
        if len(page.encode("utf-8")) <= MAX_BYTES:
            break
    return page


def _key(result: Result) -> SeriesKey:
    return result.key or result.benchmark, result.disk_name


def _thinning(most: int) -> str:
    if most == _ROUNDS[0]:
        return ""
    if most == 0:
        return "There are too many benchmarks here to draw each: the plots of rounds and of history are left out."
    return f"To keep the page small, at most {most} rounds of a run are drawn."


def _json(content: object) -> str:
    """Return ASCII JSON in which nothing can end the script element, or begin another."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _scripts(plotly_js: bytes) -> dict[str, object]:
    """Return scripts, style, and the policy that lets nothing else run."""
    library = plotly_js.decode("utf-8").replace("\r\n", "\n").encode("utf-8")  # as a browser hashes it
    parts = "\n".join(f"// --- {name}\n{_asset(name)}" for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{parts}\n}})();\n'
    return {
        "script": script,
        "library": base64.b64encode(gzip.compress(library, compresslevel=9, mtime=0)).decode("ascii"),
        "style": _asset("page.css"),
        "policy": f"default-src 'none'; script-src '{_hash(script.encode())}' '{_hash(library)}'; "
        "style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'; base-uri 'none'",
    }


def _hash(script: bytes) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script).digest()).decode("ascii")


@cache
def _asset(name: str) -> str:
    return (files("pytest_accel.report.page") / "assets" / name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    """Return the template; it escapes every text."""
    try:
        from jinja2 import Environment as Engine
        from jinja2 import StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise ReportError(f"The report is written with jinja2, which is not installed. {_INSTALL}") from None

    def visible(value: object) -> object:
        is_text = isinstance(value, str) and not isinstance(value, Markup)
        return _FORBIDDEN.sub("\ufffd", str(value)) if is_text else value

    def breakable(text: str) -> Markup:
        parts = _BREAKS.findall(_FORBIDDEN.sub("\ufffd", text))
        return Markup("<wbr>").join(part for part in parts if part)

    engine = Engine(
        autoescape=True, undefined=StrictUndefined, finalize=visible, trim_blocks=True, lstrip_blocks=True
    )
    engine.filters |= {"breakable": breakable, "unbroken": unbroken}
    return engine.from_string(_asset("page.html"))


# --- what the template shows ------------------------------------------------------------------------


def _context(session: SessionResults) -> dict[str, object]:
    failures = in_order(session.failures)
    concerned = failures or [each for each in session.results if each.status is Outcome.INCONCLUSIVE]
    counts = Counter(map(shown_status, session.results))
    pressing = [
        each for level in ("problem", "warning") for each in session.findings if each.get("level") == level
    ]
    calm = [each for each in session.findings if each not in pressing]
    known = sum(each.get("known", True) is not False for each in calm)
    position = {id(result): index for index, result in enumerate(session.results)}
    return {
        "headline": headline_of(session),
        "where": " · ".join(filter(None, (session.host, _moment(session.at), session.session))),
        "tally": [(status.value, VERDICTS[status], counts[status]) for status in sorted(counts, key=rank)],
        "failures": [_failure(result, position[id(result)]) for result in failures[:FAILURES_SHOWN]],
        "more_failures": max(0, len(failures) - FAILURES_SHOWN),
        "suspects": _suspects(concerned, _CHANGES_SHOWN),
        "unchanged": any(result.runs and result.baseline for result in concerned),
        "doctor_line": _doctor_line(pressing) if concerned else "",
        "remarks": session.remarks,
        "attention": _attention(session),
        "all_changes": _suspects(session.results),
        "was_compared": any(result.baseline for result in session.results),
        "environments": _environments(session),
        "pressing": [_finding(each) for each in pressing],
        "calm": [_finding(each) for each in calm],
        "calm_text": f"{known} ok" + (f", {len(calm) - known} unknown" if known < len(calm) else ""),
        "command": shlex.join(["pytest", *safe_arguments(session.command)]),
        "facts": _facts(session),
    }


def _failure(result: Result, index: int) -> dict[str, object]:
    return {
        "index": index,
        "name": result.name,
        "platform": result.platform,
        "row": VERDICTS[shown_status(result)],
        "numbers": from_to(result),
        "text": shortened(result.text).strip(),
    }


def _suspects(results: Sequence[Result], most: int | None = None) -> dict[str, object]:
    """Return what changed since the baselines, each change once, with how many benchmarks it concerns."""
    compared = [result for result in results if result.baseline]
    counts = Counter(change for result in compared for change in result.changes)
    shown = list(counts.items())[:most]
    return {"changes": shown, "of": len(compared), "more": len(counts) - len(shown)}


def _doctor_line(pressing: Sequence[Mapping[str, Scalar]]) -> str:
    lines = [
        ": ".join(filter(None, (finding_subject(each), str(each.get("text") or "")))) for each in pressing
    ]
    more = f"; and {len(lines) - _FINDINGS_SHOWN} more" if len(lines) > _FINDINGS_SHOWN else ""
    return "; ".join(lines[:_FINDINGS_SHOWN]) + more


def _attention(session: SessionResults) -> list[dict[str, object]]:
    """Return a group for each status that failed nothing and is not settled: how many, what it means, what to do."""
    results = [result for result in session.results if needs_attention(result)]
    groups = []
    for status in sorted({result.status for result in results}, key=rank):
        members = [result for result in results if result.status is status]
        row = VERDICTS[status]
        asked = remedy(members, session.command) if len(members) <= _COMMAND_NAMES else None
        shown = [(each.name, shortened(each.text)) for each in members[:_NAMES_SHOWN]]
        groups.append(
            {
                "status": status.value,
                "row": row,
                "count": len(members),
                "members": shown,
                "more": len(members) - len(shown),
                # What would decide an open question differs: each has its own text.
                "text": "" if status is Outcome.INCONCLUSIVE else f"{row.meaning} {row.remedy}".strip(),
                "command": asked[1] if asked else "",
            }
        )
    return groups


def _finding(finding: Mapping[str, Scalar]) -> dict[str, str]:
    level = str(finding.get("level", "ok")) if finding.get("known", True) is not False else "unknown"
    tone, icon = _LEVELS.get(level, ("mute", "dash"))
    texts = {name: str(finding.get(name) or "") for name in ("group", "text", "remedy")}
    return {"level": level, "tone": tone, "icon": icon, "subject": finding_subject(finding), **texts}


def _environments(session: SessionResults) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return title and facts of each environment that the session measured in."""
    used = dict.fromkeys(result.environment for result in session.results if result.environment)
    here = [session.environments[key] for key in used if key in session.environments]
    return [
        (
            f"Environment {number} of this session ({found.key})"
            if len(here) > 1
            else f"This session ({found.key})",
            _environment_facts(found),
        )
        for number, found in enumerate(here, start=1)
    ]


def _environment_facts(found: Environment) -> list[tuple[str, str]]:
    order = {name: index for index, name in enumerate(TITLES)}
    values = {**found.context, **found.identity}
    names = sorted(values, key=lambda name: (order.get(name, len(order)), name))
    return [(TITLES.get(name, name.removeprefix(VARIABLE_PREFIX)), values[name]) for name in names]


def _facts(session: SessionResults) -> list[tuple[str, str]]:
    pairs = [
        ("session", session.session),
        ("began", _moment(session.at)),
        ("took", seconds(session.duration_s) if session.duration_s > 0 else ""),
        ("host", session.host),
        ("revision", session.revision),
        ("exit status", str(session.exit_status)),
        ("pytest-accel", session.version),
    ]
    return [pair for pair in pairs if pair[1]]


def _moment(text: str) -> str:
    """Return ISO 8601 as people read it; anything else as it is."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{found:%Y-%m-%d %H:%M} {found.tzname() or ''}".rstrip()
