"""Pages of what people type: options, marks, platforms, commands."""

from __future__ import annotations

from typing import Any

from pytest_accel.options import (
    COMPILE_MODES,
    MARKER_KEYS,
    MARKER_OPTIONS,
    OPTIONS,
    Option,
    Settings,
)
from pytest_accel.platforms.catalogue import PRECISIONS
from pytest_accel.stats.metric_gates import NAMES
from pytest_accel.stats.quantities import parse_fraction, parse_seconds
from tests.docs import source
from tests.docs.reference import capital, code, table


def options() -> str:
    parts = [
        (
            "# Options\n\n"
            "Every setting of a session: on the command line, as a variable of the environment, in the ini file.\n\n"
            "A mark on a benchmark goes before the command line, that before the environment, that before the ini file. A value "
            "that cannot be read is exit status 4 with its place and what is valid there.\n\n"
        )
    ]
    parts += map(_option, OPTIONS)
    parts.append("## How values are written\n\n")
    written = {
        "FRACTION": parse_fraction.__doc__,
        "SECONDS": parse_seconds.__doc__,
        "METRICS": f"separated by commas: {', '.join(map(code, NAMES))}; each with a tolerance of its own where it needs one, "
        "`energy=8%`",
        "MODE": f"of torch.compile: {', '.join(map(code, COMPILE_MODES))}",
        "a flag": "`true`, `yes`, `on` or `1`, and their opposites, in the environment and the ini file",
    }
    parts.append(
        table(
            ("value", "written as"),
            [(code(name) if name.isupper() else name, said or "") for name, said in written.items()],
        )
    )
    return "".join(parts)


def _option(option: Option) -> str:
    value = f"[={option.metavar}]" if option.kind == "optional" else f" {option.metavar}".rstrip()
    rows = [
        ("environment", code(option.variable) if option.in_ini else ""),
        ("ini file", code(option.key) if option.in_ini else ""),
        # The mark of that name is another setting: which published figures stand beside a benchmark.
        (
            "mark",
            code(f"@pytest.mark.accel({option.name}=...)")
            if option.name in MARKER_KEYS and option.field != "references"
            else "",
        ),
        ("default", _default(option)),
    ]
    found = [row for row in rows if row[1]]
    places = table(("where", "as"), found) if found else "On the command line alone.\n\n"
    return f"## `{option.flag}{value}`\n\n{capital(option.help.replace('%%', '%'))}\n\n{places}"


def _default(option: Option) -> str:
    """As the settings have it; what is off or not there by default needs no words."""
    value = getattr(Settings(), option.field)
    if value in (None, False, "", (), {}, 0):
        return ""
    return code(f"{value:g} s" if option.field.endswith("_s") else str(value))


def markers() -> str:
    rows = [
        (code(f"{key}=..."), capital(option.help.replace("%%", "%")))
        for key, option in MARKER_OPTIONS.items()
    ]
    described = source.docstring("__init__.py", "on")
    return (
        "# Marks\n\n"
        "What a test carries: the platforms that it can run as, and settings of its own.\n\n"
        "## Platforms\n\n"
        "Every [platform](platforms.md) is a mark: `@gh200` after `from pytest_accel import gh200`, or `@pytest.mark.gh200`. "
        "A name that is only a shape of a known device (`gh200x4n16`) is one too, without being registered.\n\n"
        f"`on(*platforms)`: {described}\n\n"
        f"`accelerators(...)`: {source.docstring('__init__.py', 'accelerators')}\n\n"
        "## `@pytest.mark.accel(...)`\n\n"
        "Settings of one benchmark, before those of the session. It takes keywords only; of several marks the closest counts.\n\n"
        + table(("keyword", "meaning"), rows)
        + "They are written as the [option](options.md) of their name is, numbers as text or as numbers.\n"
    )


def platforms() -> str:
    from pytest_accel.platforms.catalogue import DEVICE_FIELDS, VARIANT_FIELDS, load_catalogue

    catalogue = load_catalogue()
    marks = [(kind.title, ", ".join(map(code, kind.names()))) for kind in catalogue.devices.values()]
    products = [
        (variant.title or kind.title, code(f"{kind.key}-{variant.key}".rstrip("-")), *_figures(variant))
        for kind in catalogue.devices.values()
        for variant in kind.variants
        if kind.key != "cpu"
    ]
    notes = {
        field.name: field.note
        for name in ("DeviceKind", "Variant")  # a key is a variant's: that of a device is the table's name
        for field in source.fields("platforms/catalogue.py", name)
    }
    own = [(code(name), capital(notes[name])) for name in dict.fromkeys((*DEVICE_FIELDS, *VARIANT_FIELDS))]
    own.append((code("alias"), 'Instead of all others: another name of a platform, `alias = "gh200x4"`.'))
    return (
        "# Platforms\n\n"
        "The catalogue: every name that is a mark, and what is known of the devices behind it.\n\n"
        "A name is device, `x` per node, `n` nodes; other counts than those listed are marks too (`gh200x4n16`).\n\n"
        + table(("device", "marks"), marks)
        + "## Products\n\n"
        "A device may be sold as several products, and each has baselines of its own. Memory in GB, bandwidth in GB/s, power in W, "
        "dense peaks in TFLOP/s with matrix units included: MFU is a share of them.\n\n"
        + table(("product", "folder", "memory", "bandwidth", "power", *PRECISIONS), products)
        + "## Your own\n\n"
        "`[tool.pytest-accel.platforms.NAME]` in pyproject.toml, or the hook [`pytest_accel_platforms`](hooks.md). A table of a "
        "known name extends that device. Fields of a variant may stand at the top, for all variants or for the only one.\n\n"
        + table(("field", "meaning"), own)
    )


def _figures(variant: Any) -> list[str]:
    numbers = (
        variant.memory_gb,
        variant.bandwidth_gb_s,
        variant.tdp_w,
        *map(variant.peak_tflops, PRECISIONS),
    )
    return ["" if value is None else f"{value:g}" for value in numbers]


def commands() -> str:
    import pytest_accel.cli  # noqa: F401 - registers them
    from pytest_accel.commands.registry import COMMANDS, GROUPS

    parts = [
        (
            "# The command `pytest-accel`\n\n"
            "Commands for the machine, baselines, history and upgrades.\n\n"
            "Exit status 0 if all is well, 1 where it found what it looks for, 2 for wrong usage or a wrong file.\n\n"
        )
    ]
    told: set[str] = set()
    for command in sorted(COMMANDS.values(), key=lambda each: each.name):
        group = command.name[0] if len(command.name) > 1 else ""
        if group and group not in told:
            told.add(group)
            parts.append(f"## {group}\n\n{GROUPS[group]}\n\n")
        words = " ".join(command.name)
        level = "###" if group else "##"
        usage = " ".join(("pytest-accel", words, *(_usage(*each) for each in command.arguments)))
        if command.runs_pytest:
            usage += " -- PYTEST_ARGS"
        about = (command.run.__doc__ or "").strip()
        rows = [(code(_named(names, given)), _help(given)) for names, given in command.arguments]
        if command.runs_pytest:
            rows.append((code("-- PYTEST_ARGS"), "What pytest is called with: `-- bench_suites -m gh200`."))
        parts.append(
            f"{level} {words}\n\n```text\n{usage}\n```\n\n{about}\n\n"
            + (table(("argument", "meaning"), rows) if rows else "")
        )
    return "".join(parts)


def _metavar(names: tuple[str, ...], given: dict[str, Any]) -> str:
    if given.get("action") in ("store_true", "store_false", "store_const", "version"):
        return ""
    if given.get("choices"):
        return "{" + ",".join(map(str, given["choices"])) + "}"
    return str(given.get("metavar") or names[-1].lstrip("-").upper())


def _named(names: tuple[str, ...], given: dict[str, Any]) -> str:
    shown = _metavar(names, given)
    return f"{', '.join(names)} {shown}".rstrip() if names[0].startswith("-") else shown


def _usage(names: tuple[str, ...], given: dict[str, Any]) -> str:
    shown = _metavar(names, given)
    if not names[0].startswith("-"):
        return {"?": f"[{shown}]", "+": f"{shown} ...", "*": f"[{shown} ...]"}.get(
            given.get("nargs", ""), shown
        )
    whole = f"{names[-1]} {shown}".rstrip()
    return whole if given.get("required") else f"[{whole}]"


def _help(given: dict[str, Any]) -> str:
    return capital(str(given.get("help", "")).replace("%%", "%"))
