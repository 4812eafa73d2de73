"""The page as one file: template, style, script, data and the packed plotting library, below a hard limit of size."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template

from pytest_accel.report.page.details import details
from pytest_accel.report.page.headline import attention, headline, verdict_of
from pytest_accel.report.page.markup import Markup, data_block, element
from pytest_accel.report.page.plotly import Packed, packed, policy_hash
from pytest_accel.report.page.plots import Nights, Past, past, rounds
from pytest_accel.report.page.rows import table
from pytest_accel.report.page.session_plots import session_plots
from pytest_accel.report.page.surroundings import about, environment, findings, moment
from pytest_accel.stats.changepoints import Trend
from pytest_accel.stats.results import Result, SessionResults
from pytest_accel.storage.reference_values import Figure

MAX_BYTES = 6_000_000  # what a mail, a CI artifact and a phone take without a thought
SCRIPTS = ("dom.js", "theme.js", "plotly.js", "figures.js", "details.js", "table.js", "start.js")
Key = tuple[str, str]  # of a series: the benchmark's key and its platform's disk name


# So many rounds a run are drawn; thirteen are usual. Where the page grows too large the next step is taken, and at the
# last one history is not drawn either: verdicts and figures always stay.
_ROUNDS = (60, 24, 12, 6, 0)


def render_page(
    session: SessionResults,
    *,
    plotly_js: bytes,
    history: Mapping[Key, Trend[Past]] | None = None,
    published: Sequence[Figure] = (),
) -> str:
    """The whole page; the same input gives the same text."""
    library = packed(plotly_js)
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
    page = ""
    for most in _ROUNDS:
        if most == 0:
            content |= {"past": [None] * len(trends), "nights": []}
        drawn = {"rounds": [rounds(result, most) for result in session.results], "thinned": _thinning(most)}
        page = _page(session, content | drawn, library)
        if len(page.encode("utf-8")) <= MAX_BYTES:
            break
    return page


def _key(result: Result) -> Key:
    return result.key or result.benchmark, result.disk_name


def _thinning(most: int) -> str:
    if most == _ROUNDS[0]:
        return ""
    if most == 0:
        return "There are too many benchmarks here to draw each: the plots of rounds and of history are left out."
    return f"To keep the page small, at most {most} rounds of a run are drawn."


def _page(session: SessionResults, content: Mapping[str, object], library: Packed) -> str:
    script = _script()
    verdict = verdict_of(session)
    sections = [headline(session), attention(session), _benchmarks(), _plots(content)]
    around = [environment(session), findings(session), about(session)]
    policy = (
        f"default-src 'none'; script-src '{policy_hash(script.encode())}' '{library.sha256}'; "
        "style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'; base-uri 'none'"
    )
    where = " · ".join(filter(None, (session.host, moment(session.at), session.session)))
    return Template(_asset("page.html")).substitute(
        policy=html.escape(policy),
        title=html.escape(f"{verdict.text} · pytest-accel"),
        style=_asset("page.css"),
        where=element("span", where, class_="quiet"),
        main="".join(filter(None, sections)),
        around="".join(filter(None, around)),
        data=data_block("data", content),
        library=library.base64,
        script=script,
    )


def _benchmarks() -> Markup:
    """Filled by the script; without one this says so."""
    return element(
        "section",
        element("h2", "Benchmarks"),
        element("div", id="table"),
        element(
            "noscript",
            element(
                "p",
                "The table and the plots need JavaScript, which is switched off here: download this file and open it.",
            ),
        ),
        id="benchmarks",
    )


def _plots(content: Mapping[str, object]) -> Markup | None:
    if not content["plots"]:
        return None
    return element("section", element("h2", "Across benchmarks"), element("div", id="plot-list"), id="plots")


@cache
def _script() -> str:
    parts = "\n".join(f"// --- {name}\n{_asset(name)}" for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


@cache
def _asset(name: str) -> str:
    return (files("pytest_accel.report.page") / "assets" / name).read_text(encoding="utf-8")
