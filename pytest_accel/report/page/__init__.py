"""The HTML page as one offline file: template, style, scripts, data and the packed plotting library."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_accel.report import verdicts
from pytest_accel.report.markdown import render_summary
from pytest_accel.report.page.plots import Nights, past, rounds, sweeps
from pytest_accel.report.page.rows import details, from_to, table
from pytest_accel.report.terminal import way_out
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.stats.changepoints import SEASON
from pytest_accel.stats.environment import Environment, by_likelihood, safe_arguments, title_of
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.quantities import seconds
from pytest_accel.stats.results import Result, SessionResults, Status
from pytest_accel.stats.run import Scalar
from pytest_accel.storage.files import write_atomic

if TYPE_CHECKING:
    from jinja2 import Template

    from pytest_accel.storage.history import Point

SCRIPTS = ("dom.js", "theme.js", "plotly.js", "figures.js", "details.js", "table.js", "start.js")
FAILURES_SHOWN = 6  # the others unfold
_NAMES_SHOWN = 3
_CHANGES_SHOWN = 8
_LEVELS = {"problem": ("bad", "bang"), "warning": ("warn", "bang"), "ok": ("good", "check")}
_CODE = re.compile(r"`([^`\n]+)`")  # as in dom.js
SeriesKey = tuple[str, str]  # the benchmark's key and its platform's disk name


# --- the file ---------------------------------------------------------------------------------------


def write_report(path: Path, session: SessionResults, *, history: Path | None = None) -> None:
    """Write Markdown where the name ends in .md, else the page; a history that cannot be read costs only its plots."""
    if path.suffix.lower() == ".md":
        write_atomic(path, render_summary(session))
        return
    library = read_plotly_js()  # first: without it there is no page
    series: dict[SeriesKey, Sequence[Point]] = {}
    try:
        if history is not None and history.is_file():
            from pytest_accel.storage.history import History

            for key in sorted(
                {(result.stored_as, result.disk_name) for result in session.results if result.runs}
            ):
                series[key] = History(history).series(*key, SEASON)
    except (ValueError, OSError) as error:  # it names file, place and remedy
        session = replace(session, remarks=(*session.remarks, str(error)))
    write_atomic(path, render_page(session, plotly_js=library, history=series))


def read_plotly_js() -> bytes:
    """Return the library as its package ships it, without importing the package: that takes a second."""
    needed = ("jinja2", "plotly")
    found = {name: str(spec.origin) for name in needed if (spec := find_spec(name))}
    if missing := [name for name in needed if name not in found]:
        raise ValueError(f"The page needs {' and '.join(missing)}: pip install {' '.join(missing)}.")
    return Path(found["plotly"]).with_name("package_data").joinpath("plotly.min.js").read_bytes()


# --- the page ---------------------------------------------------------------------------------------


def render_page(
    session: SessionResults,
    *,
    plotly_js: bytes,
    history: Mapping[SeriesKey, Sequence[Point]] = MappingProxyType({}),
) -> str:
    """Return the whole page; the same input gives the same text."""
    nights: Nights = {}
    pasts = [
        past(result, history.get((result.stored_as, result.disk_name), ()), nights)
        for result in session.results
    ]
    plots = sweeps(session.results)
    content = {
        "session": session.session,
        "table": table(session.results),
        "plots": plots,
        "details": [
            details(result, session.command, session.results, has_past=each is not None)
            for result, each in zip(session.results, pasts, strict=True)
        ],
        "past": pasts,
        "nights": list(nights),
        "rounds": [rounds(each) for each in session.results],
    }
    # ASCII JSON in which nothing can end the script element, or begin another.
    data = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = "\n".join(f"// --- {name}\n{_asset(name)}" for name in SCRIPTS)
    return _template().render(
        _context(session),
        has_plots=bool(plots),
        data=data,
        style=_asset("page.css"),
        script=f'(() => {{\n"use strict";\n{parts}\n}})();\n',
        library=base64.b64encode(gzip.compress(plotly_js, compresslevel=9, mtime=0)).decode("ascii"),
    )


@cache
def _asset(name: str) -> str:
    return (files("pytest_accel.report.page") / "assets" / name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    """Return the template; it escapes every text."""
    from jinja2 import Environment as Engine
    from jinja2 import StrictUndefined
    from markupsafe import Markup

    def prose(text: str) -> Markup:
        """Return a sentence with what stands between backticks as code."""
        parts = enumerate(_CODE.split(text))
        return Markup("").join(
            Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in parts
        )

    engine = Engine(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    engine.filters |= {"prose": prose, "from_to": from_to}
    return engine.from_string(_asset("page.html"))


# --- what the template shows ------------------------------------------------------------------------


def _context(session: SessionResults) -> dict[str, object]:
    failures = verdicts.in_order(session.failures)
    concerned = failures or [each for each in session.results if each.status is Outcome.INCONCLUSIVE]
    counts = Counter(map(verdicts.shown_status, session.results))
    pressing = verdicts.pressing_findings(session.findings)
    calm = [each for each in session.findings if each not in pressing]
    known = sum(each.get("known", True) is not False for each in calm)
    position = {id(result): index for index, result in enumerate(session.results)}
    used = dict.fromkeys(result.environment for result in session.results)
    environments = session.environments
    return {
        "session": session,
        "headline": verdicts.headline_of(session),
        "tally": [(each.value, VERDICTS[each], counts[each]) for each in sorted(counts, key=verdicts.rank)],
        "failures": [
            (position[id(result)], status.value, VERDICTS[status], result)
            for result, status in zip(failures, map(verdicts.shown_status, failures), strict=True)
        ],
        "failures_shown": FAILURES_SHOWN,
        "names_shown": _NAMES_SHOWN,
        "outcomes": [(each.value, VERDICTS[each]) for each in sorted(counts, key=verdicts.rank)],
        "suspects": _changes(concerned, _CHANGES_SHOWN),
        "unchanged": any(result.runs and result.baseline for result in concerned),
        "doctor_line": verdicts.doctor_line(session.findings) if concerned else "",
        "attention": _attention(session),
        "all_changes": _changes(session.results),
        "environments": [(key, _facts(environments[key])) for key in used if key in environments],
        "pressing": list(map(_finding, pressing)),
        "calm": list(map(_finding, calm)),
        "calm_text": f"{known} ok" + (f", {len(calm) - known} unknown" if known < len(calm) else ""),
        "command": shlex.join(["pytest", *safe_arguments(session.command)]),
        "took": seconds(session.duration_s) if session.duration_s > 0 else "",
    }


def _changes(results: Sequence[Result], most: int | None = None) -> dict[str, object]:
    """Return what changed since the baselines, each change once, with how many benchmarks it concerns."""
    compared = [result for result in results if result.baseline]
    counts = Counter(change for result in compared for change in result.changes)
    shown = list(counts.items())[:most]
    return {"changes": shown, "of": len(compared), "more": len(counts) - len(shown)}


def _attention(session: SessionResults) -> list[dict[str, object]]:
    """Return a group for each status that failed nothing and is not resolved: how many, what it means, what to do."""
    groups: dict[Status, list[Result]] = {}
    for result in verdicts.in_order(filter(verdicts.needs_attention, session.results)):
        groups.setdefault(result.status, []).append(result)
    found = []
    for members in groups.values():
        status, row = members[0].status, VERDICTS[members[0].status]
        is_open = status is Outcome.INCONCLUSIVE
        asked = verdicts.remedy(members, session.command, session.results)
        found.append(
            {
                "status": status.value,
                "row": row,
                "members": members,
                "text": row.meaning if is_open else f"{row.meaning} {row.remedy}".strip(),
                "questions": _open_questions(members) if is_open else [],
                "command": asked[1] if asked else "",
            }
        )
    return found


def _open_questions(members: Sequence[Result]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Group inconclusive results by what would decide them: the remedy, and name and text of each without it."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for each in members:
        common, text = "", each.text
        for verdict in verdicts.deciding(each)[:1]:
            own = re.compile(f"[:;] {re.escape(way_out(verdict)[1])}")
            if own.search(text):  # an upgrade's text has a remedy of its own
                common, text = way_out(verdict, "what its noise resolves")[1], own.sub("", text, count=1)
        groups.setdefault(common, []).append((each.name, text))
    return [(common and f"{common[0].upper()}{common[1:]}:", listed) for common, listed in groups.items()]


def _finding(finding: Mapping[str, Scalar]) -> dict[str, str]:
    level = str(finding.get("level", "ok")) if finding.get("known", True) is not False else "unknown"
    tone, icon = _LEVELS.get(level, ("mute", "dash"))
    texts = {name: str(finding.get(name) or "") for name in ("group", "text", "remedy")}
    return {"level": level, "tone": tone, "icon": icon, "subject": verdicts.finding_subject(finding), **texts}


def _facts(found: Environment) -> list[tuple[str, str]]:
    values = {**found.context, **found.identity}
    return [(title_of(name), values[name]) for name in sorted(values, key=by_likelihood)]
