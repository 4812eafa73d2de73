"""The page onto disk, with what the history and the studies have to add."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytest_accel.report.page.document import Key, render_page
from pytest_accel.report.page.plotly import read_plotly_js
from pytest_accel.report.page.plots import Past
from pytest_accel.stats.results import SessionResults
from pytest_accel.storage.whole import write_whole

if TYPE_CHECKING:
    from pytest_accel.stats.changepoints import Trend
    from pytest_accel.storage.reference_values import Figure

_T = TypeVar("_T")


def write_page(
    path: Path, session: SessionResults, *, history: Path | None = None, published: Path | None = None
) -> None:
    """Write the whole page or nothing. A history or a study that cannot be read costs its plots, and the page says so."""
    library = read_plotly_js()  # first: without it there is no page
    problems: list[str] = []
    nothing: Mapping[Key, Trend[Past]] = {}
    none: Sequence[Figure] = ()
    trends = _attempt(lambda: _trends(session, history), nothing, problems)
    figures = _attempt(lambda: _figures(published), none, problems)
    told = replace(session, remarks=(*session.remarks, *problems))
    write_whole(path, render_page(told, plotly_js=library, history=trends, published=figures))


def _attempt(read: Callable[[], _T], otherwise: _T, problems: list[str]) -> _T:
    try:
        return read()
    except (ValueError, OSError) as error:  # of the stores: each names its file, its place and the remedy
        problems.append(str(error))
        return otherwise


def _trends(session: SessionResults, path: Path | None) -> Mapping[Key, Trend[Past]]:
    if path is None or not path.is_file():
        return {}
    from pytest_accel.storage.history import History

    history = History(path)
    keys = {(result.key or result.benchmark, result.disk_name) for result in session.results if result.runs}
    return {key: history.trend(*key) for key in sorted(keys)}


def _figures(folder: Path | None) -> Sequence[Figure]:
    if folder is None:
        return ()
    from pytest_accel.storage.references import read_published

    return tuple(figure for source in read_published(folder) for figure in source.figures)
