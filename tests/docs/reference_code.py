"""Pages of what code sees and what a session says: fixtures, hooks, verdicts, columns, metrics."""

from __future__ import annotations

import ast
import re

from pytest_accel.options import COMPILE_MODES
from pytest_accel.stats.metric_gates import MEASURED
from pytest_accel.storage.references import METRICS as PUBLISHED
from tests.docs import source
from tests.docs.reference import capital, code, prose, table

FIXTURES = "fixtures.py"
# What a step is built with is passed on by the fixtures: they choose these themselves.
_NOT_GIVEN = frozenset({"device", "ranks", "feeding", "data_root", "data_required", "model"})

_TAKEN = "What `train`, `infer` and `converge` take"


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def fixtures() -> str:
    parts = [
        (
            "# Fixtures\n\n"
            "What a benchmark takes by name: the measuring itself, models and batches built for it, and their parts.\n\n"
            "Whoever takes `accel`, or `train`, `infer` and `converge` that stand upon it, is a benchmark.\n\n"
        )
    ]
    found = source.decorated(FIXTURES, "pytest.fixture")
    for function in sorted(found, key=lambda each: not _measures(each)):
        name = function.name
        takes = [code(argument.arg) for argument in function.args.args if argument.arg != "request"]
        facts = f"Scope: {_scope(function)}. " + (f"Takes {', '.join(takes)}. " if takes else "")
        parts.append(f"## `{name}`\n\n{prose(source.docstring(FIXTURES, name))}\n{_calls(function)}")
        parts.append(f"{facts}Gives {code(_given(source.returned(FIXTURES, name)))}.\n\n")
        parts += [_measure()] if name == "accel" else []
    parts.append(_choices())
    return "".join(parts)


def _measures(function: ast.FunctionDef) -> bool:
    """Whether a test is a benchmark by taking it."""
    return function.name == "accel" or "accel" in [each.arg for each in function.args.args]


def _scope(function: ast.FunctionDef) -> str:
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call):
            for keyword in mark.keywords:
                if keyword.arg == "scope" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value)
    return "function"


def _given(annotation: str) -> str:
    inner = re.fullmatch(r"Iterator\[(.*)\]", annotation)
    shown = inner.group(1) if inner else annotation
    return "Callable[..., Any]" if shown == "Built" else shown


def _calls(function: ast.FunctionDef) -> str:
    """What the function takes that a fixture gives, where it gives one."""
    inner = [each for each in function.body if isinstance(each, ast.FunctionDef)]
    inner += [
        each
        for block in function.body
        if isinstance(block, ast.With)
        for each in block.body
        if isinstance(each, ast.FunctionDef)
    ]
    if not inner:
        return ""
    rest = inner[0].args.kwarg
    shown = _signature(function.name, source.arguments(FIXTURES, function.name, inner[0].name))
    if rest is None:
        return f"```python\n{shown}\n```\n\n"
    shown = f"{shown[:-1]}, **{rest.arg})"  # these are short
    told = f"`{rest.arg}` are listed under [{_TAKEN}](#{_slug(_TAKEN)}).\n\n" if rest.arg == "choices" else ""
    return f"```python\n{shown}\n```\n\n{told}"


def _signature(name: str, arguments: list[source.Field]) -> str:
    shown = [f"{each.name}={each.default}" if each.default else each.name for each in arguments]
    line = f"{name}({', '.join(shown)})"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + ")"


def _measure() -> str:
    path = "session/accel.py"
    shown = _signature("accel.measure", source.arguments(path, "Accel", "measure"))
    return (
        f"## `accel.measure`\n\n```python\n{shown}\n```\n\n{prose(source.docstring(path, 'Accel', 'measure'))}\n"
        f"`accel.device`: {source.docstring(path, 'Accel', 'device')}\n\n"
        "What comes back, and is None where nothing is measured:\n\n"
        + _table_of(source.fields("measure/measurement.py", "Measurement"))
    )


def _choices() -> str:
    built = [
        field
        for field in source.arguments("workloads/steps.py", "TrainStep", "build")
        if field.name not in _NOT_GIVEN
    ]
    shared = [
        each for each in source.fields("workloads/choices.py", "Choices") if each.name not in _NOT_GIVEN
    ]
    fed = [
        each for each in source.fields("workloads/feeding.py", "DataChoices") if each.name not in _NOT_GIVEN
    ]
    return (
        f"## {_TAKEN}\n\n"
        "The model first, by name or as a callable; all others by name.\n\n"
        + _table_of(shared)
        + "How batches come to the step ([Data](../data.md)):\n\n"
        + _table_of(fed)
        + f"`train` and `converge` also: {', '.join(code(f'{each.name}={each.default}') for each in built)}.\n"
        + source.docstring("workloads/steps.py", "TrainStep", "build")
        .partition("\n\n")[2]
        .strip()
        .rpartition(" All other")[0]
        + "\n"
    )


def _table_of(fields: list[source.Field]) -> str:
    return table(
        ("name", "type", "default", "meaning"),
        [
            (code(each.name), code(each.type), code(each.default), capital(_spelt(each.note)))
            for each in fields
        ],
    )


def _spelt(note: str) -> str:
    """A note in which the names that a constant holds stand for the constant."""
    from pytest_accel.workloads.tasks import DATA_NAMES

    names = {
        "DATA_NAMES": DATA_NAMES,
        "SOURCES": source.literal("workloads/feeding.py", "SOURCES"),
        "DECODERS": source.literal("workloads/feeding.py", "DECODERS"),
        "COMPILE_MODES": COMPILE_MODES,
    }
    return re.sub(r"a name of ([A-Z_]+)", lambda found: ", ".join(map(code, names[found.group(1)])), note)


def hooks() -> str:
    path = "hookspecs.py"
    found = source.decorated(path, "pytest.hookspec")
    parts = ["# Hooks\n\nWhat other plugins and conftest files may add to pytest-accel.\n\n"]
    for function in found:
        shown = _signature(function.name, source.arguments(path, function.name))
        parts.append(f"## `{shown}`\n\n{prose(source.docstring(path, function.name))}\n")
        parts.append(f"Returns {code(source.returned(path, function.name))}.\n\n")
    return "".join(parts)


def verdicts() -> str:
    path = "stats/verdict.py"
    return (
        "# Verdicts\n\n"
        "[Reading a verdict](../guide/verdicts.md) lists all verdicts; [How the gate decides](../gate.md) has the "
        "statistics.\n\n"
        "## What a verdict holds\n\n"
        + prose(source.docstring(path, "Verdict"))
        + "\n"
        + _table_of(source.fields(path, "Verdict"))
        + "## The policy\n\n"
        + prose(source.docstring(path, "Policy"))
        + "\n"
        + _table_of(source.fields(path, "Policy"))
    )


def table_columns() -> str:
    from pytest_accel.session.table import COLUMNS

    rows = [(column.title, column.meaning) for column in COLUMNS]
    return (
        "# The table\n\n"
        "Columns of the table after a run. A column is shown where a row has something in it; the verdict comes last.\n\n"
        + table(("column", "meaning"), rows)
    )


def metrics() -> str:
    from pytest_accel.storage.comparison import CHOICES

    ours = [(code(name), about) for name, about in MEASURED.items()]
    better = {"more": "more", "less": "less", None: "neither: it describes, and is not measured"}
    return (
        "# Metrics\n\n"
        "Figures beside the throughput: those that a run stores, those that studies publish, and what `compare` calls them.\n\n"
        "## Of a run\n\n"
        "`metrics` of a run in baselines, results and the history; `accel.measure(..., metrics=...)` adds your own. In a gang they "
        "are means over the ranks; names that end in `_j` are summed over devices.\n\n"
        + table(("name", "meaning"), ours)
        + "## Of a published figure\n\n"
        + table(("metric", "better is"), [(code(name), better[way]) for name, way in PUBLISHED.items()])
        + "## `pytest-accel compare --metric`\n\n"
        "Or the name of any metric of a run.\n\n"
        + table(
            ("name", "shows"), [(code(name), ", ".join(map(code, shown))) for name, shown in CHOICES.items()]
        )
    )
