"""References on disk: the studies below `baselines/published`, and a site's own expectations in pyproject.toml."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pytest_accel.platforms import names as grammar
from pytest_accel.storage.claims import FORMULAS, RELATIONS, Claim
from pytest_accel.storage.reading import MAX_BYTES, BaselineError, Node, decode, load, named, restore_remedy
from pytest_accel.storage.reference_values import (
    DOUBTS,
    FLAGS,
    METRICS,
    UNITS,
    Expectation,
    Figure,
    Source,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_accel.storage.claims import Relation

__all__ = [
    "ExpectationError",
    "PublishedError",
    "published_folder",
    "read_expectations",
    "read_published",
    "read_source",
]

SCHEMA_VERSION = 1
KINDS = ("paper", "slides", "report")
PYPROJECT_TABLE = "tool.pytest-accel.references"
OPEN = "none"  # TOML has no null: the bound that there is not
_Named = TypeVar("_Named", Figure, Claim)
_SEGMENT = re.compile(r"[a-z0-9][a-z0-9_.-]*")


class PublishedError(BaselineError):
    """A file of published figures that cannot be used: the file, the place in it, what is wrong, what to do."""


class ExpectationError(ValueError):
    """An expectation in pyproject.toml that cannot be read; the message says where, why and what to write."""


# --- what others published --------------------------------------------------------------------------


def published_folder(baselines: Path) -> Path:
    """Beside the baselines, as in our own repository; else those that came with the plugin, or lie in its checkout."""
    package = Path(__file__).parents[1]
    folders = (baselines / "published", package / "published", package.parent / "baselines" / "published")
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def read_published(folder: Path) -> tuple[Source, ...]:
    """Every study in a folder, by the name of its file; none where there is no folder."""
    paths = sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))
    return tuple(read_source(path) for path in paths)


def read_source(path: Path) -> Source:
    """One study, or PublishedError with the exact place of the first fault."""
    where = str(path)
    try:
        return _source(Node(load(decode(_bytes(path), where), where), where), key=path.stem)
    except BaselineError as error:
        # Nothing of it was measured here, so that there is nothing to record again.
        git = f"Mend it, or restore it from git (git checkout -- {shlex.quote(where)})."
        remedy = git if error.remedy == restore_remedy(where) else error.remedy
        raise PublishedError(error.file, error.place, error.problem, remedy) from None


def _bytes(path: Path) -> bytes:
    where = str(path)
    try:
        if not path.is_file():  # a pipe that stands here would wait for ever
            raise BaselineError(where, "", "is not a regular file", "Move it away; a study is a JSON file.")
        if path.stat().st_size > MAX_BYTES:
            raise BaselineError(where, "", f"{path.stat().st_size} bytes; a study has at most {MAX_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise BaselineError(where, "", f"cannot be read: {error.strerror}", "Make it readable.") from None


def _source(top: Node, *, key: str) -> Source:
    if "schema_version" not in top:
        top.fail('the key "schema_version" is missing: this is not a file of published figures')
    if top["schema_version"].integer() != SCHEMA_VERSION:
        problem = f"{named(top['schema_version'].value)} is no schema that this pytest-accel reads ({SCHEMA_VERSION})"
        top["schema_version"].fail(problem, "Upgrade pytest-accel (pip install --upgrade pytest-accel).")
    top.check_keys(required=("schema_version", "source", "figures", "claims"))
    head = top["source"]
    head.check_keys(required=("key", "title", "authors", "year", "venue", "kind"), optional=("note",))
    if head["key"].text() != key:
        head["key"].fail(f"{named(head['key'].value)} in a file named {json.dumps(key + '.json')}")
    figures = _unique([(node, _figure(node, key)) for node in top["figures"].items()])
    values = {figure.id: figure.value for figure in figures}
    return Source(
        key=key,
        title=_said(head["title"]),
        authors=_said(head["authors"]),
        year=head["year"].integer(least=1900),
        venue=_said(head["venue"]),
        kind=head["kind"].one_of(KINDS),
        note=_note(head),
        figures=figures,
        claims=_unique([(node, _claim(node, key, values)) for node in top["claims"].items()]),
    )


def _unique(read: list[tuple[Node, _Named]]) -> tuple[_Named, ...]:
    seen: set[str] = set()
    for node, each in read:
        if each.id in seen:
            node["id"].fail(f"{json.dumps(each.id)} appears twice; an id is of one")
        seen.add(each.id)
    return tuple(each for _node, each in read)


def _figure(node: Node, key: str) -> Figure:
    node.check_keys(
        required=("id", "table", "row", "platform", "workload", "configuration", "metric", "unit", "value"),
        optional=("flags", "note"),
    )
    figure = Figure(
        id=_id(node["id"], key),
        table=_said(node["table"]),
        row=_said(node["row"]),
        platform=_platform(node["platform"]),
        workload=_said(node["workload"]),
        configuration={name: value.scalar() for name, value in node["configuration"].members()},
        metric=node["metric"].one_of(tuple(METRICS)),
        unit=node["unit"].one_of(UNITS),
        value=node["value"].number(positive=True),
        flags=_flags(node),
        note=_note(node),
    )
    if figure.id.rpartition("/")[2] != figure.platform:
        node["id"].fail(f"{json.dumps(figure.id)} does not end with its platform, {figure.platform}")
    if figure.is_doubtful and not figure.note:
        node.fail(f"is {' and '.join(DOUBTS.intersection(figure.flags))}, and no note says why")
    return figure


def _claim(node: Node, key: str, values: Mapping[str, float]) -> Claim:
    node.check_keys(
        required=("id", "stated", "decimals", "unit", "relation", "formula", "of", "follows"),
        optional=("total", "note"),
    )
    formula = FORMULAS[node["formula"].one_of(tuple(FORMULAS))]
    if formula.takes_total != ("total" in node):
        node.fail(f"{formula.signature} takes {'a' if formula.takes_total else 'no'} total")
    follows = node["follows"].value
    if not isinstance(follows, bool):
        node["follows"].fail(f"{named(follows)} where true or false is expected")
    if not follows and not _note(node):
        node.fail("does not follow, and no note says why")
    groups = tuple(_figures_of(group, formula.figures, values) for group in node["of"].items())
    if not groups:
        node["of"].fail("of no figure; a claim is computed from at least one")
    return Claim(
        id=_id(node["id"], f"{key}/claims"),
        stated=node["stated"].number(),
        decimals=_decimals(node["decimals"]),
        unit=_said(node["unit"]),
        relation=cast("Relation", node["relation"].one_of(RELATIONS)),
        formula=node["formula"].text(),
        of=groups,
        total=node["total"].number(positive=True) if formula.takes_total else None,
        follows=follows,
        note=_note(node),
    )


def _decimals(node: Node) -> int:
    if not -9 <= node.integer() <= 9:
        node.fail(f"{named(node.value)} is not a number of decimals between -9 and 9")
    return node.integer()


def _figures_of(group: Node, count: int | None, values: Mapping[str, float]) -> tuple[str, ...]:
    nodes = group.items()
    if not nodes or (count is not None and len(nodes) != count):
        group.fail(f"{len(nodes)} figures where {count or 'at least 1'} are expected")
    for node in nodes:
        if node.text() not in values:
            alike = grammar.closest(node.text(), values, limit=1)
            hint = f"; did you mean {json.dumps(alike[0])}?" if alike else ""
            node.fail(f"{named(node.value)} is no figure of this file{hint}")
    return tuple(node.text() for node in nodes)


def _id(node: Node, beginning: str) -> str:
    text = node.text()
    if not all(_SEGMENT.fullmatch(segment) for segment in text.split("/")):
        node.fail(f"{named(text)} is no path of lower case segments such as olivia/single/baseline/gh200")
    if not text.startswith(f"{beginning}/"):
        node.fail(f"{named(text)} does not begin with {json.dumps(beginning + '/')}")
    return text


def _platform(node: Node) -> str:
    try:
        grammar.parse(node.text())
    except grammar.PlatformNameError as error:
        node.fail(str(error))
    return node.text()


def _flags(node: Node) -> tuple[str, ...]:
    flags = tuple(flag.one_of(tuple(FLAGS)) for flag in node["flags"].items()) if "flags" in node else ()
    if len(set(flags)) < len(flags):
        node["flags"].fail("a flag appears twice")
    return flags


def _said(node: Node) -> str:
    if not node.text().strip():
        node.fail("is empty")
    return node.text()


def _note(node: Node) -> str:
    return _said(node["note"]) if "note" in node else ""


# --- what a site expects ----------------------------------------------------------------------------


def read_expectations(pyproject: Path) -> Mapping[str, Mapping[str, Expectation]]:
    """`[tool.pytest-accel.references]`: by node id or pattern of one, then by platform; empty without such a table."""
    tables = _tables(pyproject)
    return {
        name: _expectations(table, pyproject, f"{PYPROJECT_TABLE}.{json.dumps(name, ensure_ascii=False)}")
        for name, table in tables.items()
    }


def _tables(pyproject: Path) -> Mapping[str, Any]:
    try:
        data = pyproject.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ExpectationError(f"{pyproject}: cannot be read: {error.strerror}. Make it readable.") from None
    if b"references" not in data:  # most projects: nothing to parse
        return {}
    import tomllib  # 3 ms that only a reader pays

    try:
        table: Any = tomllib.loads(data.decode())
    except ValueError as error:
        raise ExpectationError(f"{pyproject}: {error}. Mend the file.") from None
    for key in PYPROJECT_TABLE.split("."):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise ExpectationError(
                f"{pyproject}: {PYPROJECT_TABLE}: {table!r} is not a table of expectations. {_EXAMPLE}"
            )
    return cast("Mapping[str, Any]", table)


_EXAMPLE = (
    f'Write [{PYPROJECT_TABLE}."bench_suites/test_wide_resnet.py::test_single[optimised]"] and below it '
    'gh200 = [4200, -0.05, 0.10, "images/s"].'
)


_NO_FOLDER = (
    "this is no platform. Write the name of a marker, such as cpu or gh200, not of a folder of baselines."
)


def _expectations(table: object, pyproject: Path, where: str) -> Mapping[str, Expectation]:
    if not isinstance(table, dict) or not table:
        raise ExpectationError(f"{pyproject}: {where}: {table!r} is not a table of platforms. {_EXAMPLE}")
    found = {}
    for platform, entry in table.items():
        place = f"{pyproject}: {where}.{platform}"
        if "-" in platform:  # a folder of baselines is named so
            raise ExpectationError(f"{place}: {_NO_FOLDER}")
        try:
            grammar.parse(platform)
            # Its name alone: what it is known by in CI must not change with the folder of a checkout.
            found[platform] = _expectation(entry, f"{pyproject.name}: {where}.{platform}")
        except ValueError as error:
            raise ExpectationError(f"{place}: {error}") from None
    return found


def _expectation(entry: object, origin: str) -> Expectation:
    if not isinstance(entry, list) or len(entry) != 4:
        raise ValueError(
            f'{entry!r} is not a list of value, lower, upper and unit. Write [4200, -0.05, 0.10, "images/s"].'
        )
    value, lower, upper, unit = entry
    if not isinstance(unit, str):
        problem = f'the unit {unit!r} is not text. Write it last, such as "images/s".'
        raise ValueError(problem)  # noqa: TRY004 - what a user wrote, not what a caller passed
    return Expectation(
        value=_number("value", value),
        lower=None if lower == OPEN else _number("lower bound", lower),
        upper=None if upper == OPEN else _number("upper bound", upper),
        unit=unit,
        origin=origin,
    )


def _number(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        example = "4200" if what == "value" else f'-0.05 or 0.1, or "{OPEN}" for no bound'
        problem = f"the {what} {value!r} is not a number. Write one, such as {example}."
        raise ValueError(problem)  # noqa: TRY004 - what a user wrote, not what a caller passed
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"the {what} has too many digits for a number.") from None
