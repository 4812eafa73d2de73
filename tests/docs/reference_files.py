"""Pages of what is on disk: every field of the JSON files, from their schemas."""

from __future__ import annotations

from typing import Any

from pytest_accel.stats.environment import TITLES, VARIABLE_PREFIX, VARIABLE_PREFIXES
from tests.docs import schemas, source
from tests.docs.reference import capital, code, table


def results() -> str:
    return _page("results", "Results as JSON")


def baseline() -> str:
    return _page("baseline", "Baselines as JSON")


def _page(name: str, title: str) -> str:
    schema = schemas.load(name)
    parts = [
        (
            f"# {title}\n\n{schema['description']}\n\n"
            f"The schema is a file: [{name}.schema.json](../../pytest_accel/schemas/{name}.schema.json), in the package under "
            "`pytest_accel/schemas/`, JSON Schema 2020-12. Readers refuse a key that is unknown.\n\n"
        )
    ]
    for definition, each in schemas.objects(schema):
        if definition:
            parts.append(f"## {each['title']}\n\n{each['description']}\n\n")
        rows = [
            (
                code(field),
                _type(schema, told),
                "yes" if field in each.get("required", ()) else "no",
                _about(schema, told),
            )
            for field, told in each["properties"].items()
        ]
        parts.append(table(("field", "type", "required", "meaning"), rows))
    return "".join(parts)


def _about(schema: dict[str, Any], told: dict[str, Any]) -> str:
    return str(schemas.resolved(schema, told).get("description", ""))


def _type(schema: dict[str, Any], told: dict[str, Any]) -> str:
    """In words, with a link to the object that it is."""
    target = schemas.defined(told)
    if target and "properties" in schema["$defs"][target]:
        title = schema["$defs"][target]["title"]
        return f"[{title.lower()}](#{title.lower().replace(' ', '-')})"
    field = schemas.resolved(schema, told)
    if "anyOf" in field:
        return " or ".join(_type(schema, each) for each in field["anyOf"])
    if "const" in field:
        return code(str(field["const"]))
    if "enum" in field:
        return ", ".join(map(code, field["enum"]))
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    if kinds == ["array"]:
        return f"list of {_type(schema, field['items'])}"
    if kinds == ["object"]:
        return f"by name: {_type(schema, field['additionalProperties'])}"
    return " or ".join(kinds) + _bounds(field)


def _bounds(field: dict[str, Any]) -> str:
    words = {
        "exclusiveMinimum": "above",
        "minimum": "at least",
        "exclusiveMaximum": "below",
        "maximum": "at most",
    }
    said = [f"{word} {field[key]}" for key, word in words.items() if key in field]
    return f" {' and '.join(said)}" if said else ""


# Of `extra_info.accel`, beside the fields of a measurement; `test_reference.py` holds them to what is written.
DERIVED = {
    "schema_version": "Of this layout.",
    "platform": "The platform that it ran as.",
    "throughput": "Work a second of the first run.",
    "unit": "Of the throughput: `images/s`.",
    "work_unit": "Of the work: `images`.",
    "step_time_s": "The median over rounds of the mean step time, in seconds.",
    "stall_share": "How much slower the mean of all steps is than that: 0 when steady.",
}
JUDGED = {
    "verdict": "`outcome`, `slowdown` (`point`, `low`, `high`), `noise`, `tolerance`, `runs`, `baseline_runs`, `reason`; where "
    "metrics are gated, also `throughput`, the outcome of that alone, and `metrics` with the same of each.",
    "further_runs": "The runs that it took beyond the first.",
    "gang": "What the ranks did before they measured: how fast each device is alone, and all-reduces by size.",
}


def benchmark() -> str:
    """What pytest-benchmark's own file holds of ours."""
    measured = {field.name: field.note for field in source.fields("measure/measurement.py", "Measurement")}
    rows = [(code(name), capital(about)) for name, about in (measured | DERIVED | JUDGED).items()]
    return (
        "# In pytest-benchmark's JSON\n\n"
        "`--benchmark-json` is pytest-benchmark's own file; under `extra_info.accel` of each benchmark stands what we measured.\n\n"
        "`pytest-accel compare` and `report` read it too.\n\n"
        + table(("field", "meaning"), rows)
        + "`run` is as in [baselines](baseline-json.md#run), with every field. Of a gang, `ranks` has for each rank:\n\n"
        + _fields(source.fields("core/ranks.py", "RankResult"))
    )


def _fields(fields: list[source.Field]) -> str:
    return table(
        ("field", "type", "meaning"),
        [(code(each.name), code(each.type), capital(each.note)) for each in fields],
    )


def environment() -> str:
    prefixes = ", ".join(code(f"{prefix}*") for prefix in VARIABLE_PREFIXES)
    return (
        "# The environment\n\n"
        "Facts of a machine and its software that go with every run, the most telling first.\n\n"
        "Identity must be equal for two runs to be compared; context may differ, and what differs is printed as a suspect. A fact "
        "that could not be read is absent.\n\n"
        + table(("field", "shown as"), [(code(name), title) for name, title in TITLES.items()])
        + f"Variables that decide speed ({prefixes}, but for two that scikit-learn sets when it is imported) are context too, as `{VARIABLE_PREFIX}NAME`; what may be a credential is redacted.\n"
    )
