"""Pages of docs/reference and tables in other pages, generated from the code: `python -m tests.docs.reference`.

A page repeats the help texts, docstrings and field comments of the package. To change its words, change them there.
"""

import inspect
import io
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import pytest_accel
from pytest_accel import cli, fixtures, hookspecs, options
from pytest_accel.commands.registry import COMMANDS
from pytest_accel.measure.rounds import Ranks
from pytest_accel.options import MARKER_OPTIONS, OPTIONS, Option, Settings
from pytest_accel.platforms.catalogue import (
    DEVICE_FIELDS,
    PRECISIONS,
    VARIANT_FIELDS,
    DeviceKind,
    Variant,
    load_catalogue,
)
from pytest_accel.report.baselines import ShownBenchmark
from pytest_accel.report.columns import COLUMNS
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.session.accel import Accel
from pytest_accel.stats.baseline_quality import platform_prior
from pytest_accel.stats.environment import (
    PREFIXES_SINCE_2,
    TITLES,
    VARIABLE_PREFIX,
    VARIABLE_PREFIXES,
    VARIABLES_SINCE_2,
)
from pytest_accel.stats.gate import Policy, loss, policy_at_noise, resolution_factor
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.metric_gates import MEASURED, NAMES
from pytest_accel.stats.quantities import (
    gibibytes,
    noise_percent,
    parse_fraction,
    parse_seconds,
    percent,
    seconds,
    si,
)
from pytest_accel.stats.results import Status
from pytest_accel.storage.baselines import BaselineStore
from pytest_accel.storage.comparison import CHOICES
from pytest_accel.storage.references import METRICS as PUBLISHED
from tests.docs import picture, schemas
from tests.docs.pages import ROOT

FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Generated from the code. Change the code, then run `make docs`. -->\n"
_STEP_KEYWORDS = "Keywords of `train`, `infer` and `converge`"
_SET_BY_SESSION = ("model", "task", "device", "ranks", "autocast", "data_root", "data_required")


# --- Markdown ---------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table without the columns that are empty in every row."""
    cells = [[re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in row] for row in rows]
    kept = [at for at in range(len(heads)) if any(row[at] for row in cells)]
    lines = [[heads[at] for at in kept], ["---"] * len(kept), *([row[at] for at in kept] for row in cells)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def sentence(text: str) -> str:
    """Return a help text or a comment as a sentence."""
    text = text.strip().replace("%%", "%")
    if re.match(r"(?!auto\b)[a-z]{2,}(?:[\s,;.-]|:\s|$)", text):
        text = text[0].upper() + text[1:]
    return text if not text or text.endswith((".", "!", "?", ":")) else f"{text}."


def prose(function: object) -> str:
    """Return a docstring as Markdown; an indented block after `::` becomes Python."""
    text = inspect.getdoc(function) or ""
    block = re.compile(r"::\n\n((?:    .*\n?|\n)+)")
    made = block.sub(
        lambda found: f":\n\n```python\n{textwrap.dedent(found[1]).rstrip()}\n```\n\n", f"{text}\n"
    )
    return made.rstrip() + "\n\n"


def signature(name: str, function: Callable[..., object]) -> str:
    """Return a call with its defaults, on several lines where it is long."""
    shown = []
    for each in inspect.signature(function).parameters.values():
        if each.name == "self":
            continue
        prefix = "**" if each.kind is each.VAR_KEYWORD else ""
        default = "" if each.default is each.empty else f"={each.default!r}"
        shown.append(f"{prefix}{each.name}{default}")
    line = f"{name}({', '.join(shown)})"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + ")"


def fields_table(kind: Any, *, without: Sequence[str] = ()) -> str:
    """Return the fields of a dataclass with types, defaults and comments."""
    comments = schemas.comments(kind)
    rows = []
    for each in fields(kind):
        if each.name in without:
            continue
        default = "" if each.default is MISSING else repr(each.default)
        rows.append(
            (code(each.name), code(str(each.type)), code(default), sentence(_spelled(comments[each.name])))
        )
    return table(("name", "type", "default", "meaning"), rows)


def _spelled(comment: str) -> str:
    """Replace `a name of CONSTANT` by the names."""
    from pytest_accel.workloads import config
    from pytest_accel.workloads.build import DATA_NAMES

    names = {
        "DATA_NAMES": DATA_NAMES,
        "SOURCES": config.SOURCES,
        "DECODERS": config.DECODERS,
        "COMPILE_MODES": options.COMPILE_MODES,
    }
    return re.sub(r"a name of ([A-Z_]+)", lambda found: ", ".join(map(code, names[found[1]])), comment)


# --- what users type --------------------------------------------------------------------------------


def options_page() -> str:
    values = (
        ("`FRACTION`", parse_fraction.__doc__ or ""),
        ("`SECONDS`", parse_seconds.__doc__ or ""),
        (
            "`METRICS`",
            f"Separated by commas: {', '.join(map(code, NAMES))}; `energy=8%` sets the tolerance of one.",
        ),
        ("`MODE`", f"Of torch.compile: {', '.join(map(code, options.COMPILE_MODES))}."),
        ("a flag", "In the environment and the ini file: `true`, `yes`, `on` or `1`, or their opposites."),
    )
    return (
        "# Options\n\nEvery setting of a session: command line, environment variable, ini key.\n\n"
        "A marker has precedence over the command line, then the environment, then the ini file. A value that cannot be "
        "read ends the session with exit status 4; the message names its origin and the valid values.\n\n"
        + "".join(map(_option, OPTIONS))
        + "## Values\n\n"
        + table(("value", "written as"), values)
    )


def _option(option: Option) -> str:
    value = f"[={option.metavar}]" if option.kind == "optional" else f" {option.metavar}".rstrip()
    title = f"{option.flag}{value}" if option.on_command_line else option.key
    # The marker keyword `reference` is another setting than the option of that name.
    in_marker = option.in_marker and option.field != "references"
    rows = [
        ("environment", code(option.variable) if option.in_ini else ""),
        ("ini file", code(option.key) if option.in_ini else ""),
        ("marker", code(f"@pytest.mark.accel({option.name}=...)") if in_marker else ""),
        ("default", _default(option)),
    ]
    shown = [row for row in rows if row[1]]
    places = table(("where", "as"), shown) if shown else "On the command line only.\n\n"
    return f"## `{title}`\n\n{sentence(option.help)}\n\n{places}"


def _default(option: Option) -> str:
    value = getattr(Settings(), option.field)
    if value in (None, False, "", (), {}, 0):
        return ""
    return code(f"{value:g} s" if option.field.endswith("_s") else str(value))


def markers_page() -> str:
    rows = [(code(f"{key}=..."), sentence(option.help)) for key, option in MARKER_OPTIONS.items()]
    return (
        "# Markers\n\nThe platforms of a test, and settings of its own.\n\n## Platforms\n\n"
        "Every [platform](platforms.md) is a marker: `@gh200` after `from pytest_accel import gh200`, or "
        "`@pytest.mark.gh200`. Other counts of a known device (`gh200x4n16`) are markers too.\n\n"
        f"`on(*platforms)`: {prose(pytest_accel.on)}`accelerators(...)`: {prose(pytest_accel.accelerators)}"
        "## `@pytest.mark.accel(...)`\n\n"
        "Settings of one benchmark. It takes keywords only; of several markers the closest counts.\n\n"
        + table(("keyword", "meaning"), rows)
        + "Values are written as those of the [option](options.md) of that name; numbers may be numbers.\n"
    )


# What stands for the hardware where there was none.
_REPLAYED = {
    "nvidia": "no; the driver's calls are those of an H200",
    "amd": "no: replayed answers of amdsmi",
    "graphcore": "no: modules with the interfaces of gcipuinfo and poptorch",
}


def platforms_page() -> str:
    catalogue = load_catalogue()
    measured = {"cpu", *(path.name for path in (ROOT / "baselines").iterdir())}
    marks = [
        (
            kind.title,
            ", ".join(code(kind.key + shape) for shape in ("", *kind.shapes)),
            ("yes" if kind.key == "cpu" else "one device")
            if kind.key in measured
            else _REPLAYED[kind.vendor],
        )
        for kind in catalogue.devices.values()
    ]
    products = []
    for kind in catalogue.devices.values():
        for variant in kind.variants if kind.key != "cpu" else ():
            folder = f"{kind.key}-{variant.key}".rstrip("-")
            figures = [variant.memory_gb, variant.bandwidth_gb_s, variant.tdp_w]
            figures += [variant.peaks_tflops.get(precision) for precision in PRECISIONS]
            texts = ("" if value is None else f"{value:g}" for value in figures)
            products.append((variant.title or kind.title, code(folder), *texts))
    comments = schemas.comments(DeviceKind) | schemas.comments(Variant)
    own = [
        (code(name), sentence(comments[name])) for name in dict.fromkeys((*DEVICE_FIELDS, *VARIANT_FIELDS))
    ]
    return (
        "# Platforms\n\nThe catalogue: all platform markers, and the devices behind them.\n\n"
        "A name is device, `x` per node, `n` nodes. Other counts than those listed work too (`gh200x4n16`).\n\n"
        + table(("device", "markers", "tried on hardware"), marks)
        + "AMD GPUs run as torch's `cuda` devices; amdsmi, which comes with ROCm, gives their clocks, temperature, power, "
        "throttling and other processes. A Graphcore IPU runs through poptorch alone ([suites](../suites/README.md#ipus)).\n\n"
        "## Products\n\nEach product of a device has its own baselines. Memory in GB, bandwidth in GB/s, power in W, "
        "dense peaks in TFLOP/s; MFU is a share of these peaks.\n\n"
        + table(("product", "folder", "memory", "bandwidth", "power", *PRECISIONS), products)
        + "## Your own\n\nWrite `[tool.pytest-accel.platforms.NAME]` in pyproject.toml, or use the hook "
        "[`pytest_accel_platforms`](hooks.md). A table with a known name extends that device. Fields of a variant may stand "
        "at the top level; they apply to all variants.\n\n" + table(("field", "meaning"), own)
    )


def commands_page() -> str:
    parts = [
        (
            "# The command `pytest-accel`\n\nCommands for the machine, baselines, history and upgrades.\n\n"
            "Exit status: 0 success, 1 a finding (such as a regression), 2 wrong usage or a file that cannot be read.\n\n"
        )
    ]
    for name, parser in sorted(COMMANDS.items()):
        parts.append(f"## {' '.join(name)}\n\n```text\n{parser.format_help().rstrip()}\n```\n\n")
    return "".join(parts)


# --- what code uses ---------------------------------------------------------------------------------


def fixture_functions() -> dict[str, Callable[..., object]]:
    """Return the plugin's fixtures as plain functions, benchmarks first."""
    found = {
        name: value._get_wrapped_function()
        for name, value in vars(fixtures).items()
        if type(value).__name__ == "FixtureFunctionDefinition"
    }
    return dict(sorted(found.items(), key=lambda each: each[0] != "accel" and "accel" not in _takes(each[1])))


def _takes(function: Callable[..., object]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "request"]


def fixtures_page() -> str:
    from pytest_accel.workloads.config import StepConfig
    from pytest_accel.workloads.measured_step import Converge, Infer, Train

    calls = {"train": Train, "infer": Infer, "converge": Converge}
    link = f"[{_STEP_KEYWORDS}](#keywords-of-train-infer-and-converge)"
    parts = [
        (
            "# Fixtures\n\nArguments of a benchmark: the measurement, models and batches, and their parts.\n\n"
            "A test that takes `accel`, `train`, `infer` or `converge` is a benchmark.\n\n"
        )
    ]
    for name, function in fixture_functions().items():
        parts.append(f"## `{name}`\n\n{prose(function)}")
        if name in calls:
            shown = signature(name, calls[name].__call__)
            parts.append(f"```python\n{shown}\n```\n\n`options`: see {link}.\n\n")
        takes = _takes(function)
        parts.append(f"Uses the fixtures {', '.join(map(code, takes))}.\n\n" if takes else "")
        if name == "accel":
            parts.append(
                f"## `accel.measure`\n\n```python\n{signature('accel.measure', Accel.measure)}\n```\n\n{prose(Accel.measure)}"
                f"`accel.device`: {prose(Accel.device)}It returns a `Measurement`:\n\n{fields_table(Measurement)}"
            )
        if name == "process_group":
            methods = [each for each in vars(Ranks) if not each.startswith("_")]
            parts.append(f"Methods and properties: {', '.join(map(code, methods))}.\n\n")
    parts.append(
        f"## {_STEP_KEYWORDS}\n\nThe model is the first argument, a name or a callable. All others are keywords. The last ones, from "
        "`optimizer` on, are for `train` and `converge` only. [Data](../data.md) describes the input pipeline.\n\n"
        + fields_table(StepConfig, without=_SET_BY_SESSION)
    )
    return "".join(parts)


def hooks_page() -> str:
    parts = ["# Hooks\n\nHooks that plugins and conftest files may implement.\n\n"]
    for name, function in vars(hookspecs).items():
        if name.startswith("pytest_accel_"):
            returns = inspect.signature(function).return_annotation
            parts.append(f"## `{signature(name, function)}`\n\n{prose(function)}Returns {code(returns)}.\n\n")
    return "".join(parts)


def metrics_page() -> str:
    better = {"more": "more", "less": "less", None: "neither: it is a description"}
    return (
        "# Metrics\n\nColumns of the table, figures stored with a run, figures that studies publish.\n\n"
        "## Columns of the table\n\nThe benchmark and its verdict come first. A column is shown where a row has something in it; a "
        "terminal that is too narrow leaves out the last ones, and names them, with the `COLUMNS` that show them; a file has them all.\n\n"
        + table(("column", "meaning"), [(column.title, column.meaning) for column in COLUMNS])
        + "## Of a run\n\n`metrics` of a run in baselines, results and the history; `accel.measure(..., metrics=...)` adds your "
        "own. In a process group they are means over ranks; names that end in `_j` are summed over devices.\n\n"
        + table(("name", "meaning"), [(code(name), about) for name, about in MEASURED.items()])
        + "## Of a published figure\n\n"
        + table(("metric", "better is"), [(code(name), better[way]) for name, way in PUBLISHED.items()])
        + "## `pytest-accel compare --metric`\n\nOr the name of any metric of a run.\n\n"
        + table(
            ("name", "shows"), [(code(name), ", ".join(map(code, shown))) for name, shown in CHOICES.items()]
        )
    )


# --- files ------------------------------------------------------------------------------------------


def results_page() -> str:
    return _format_page("results", "Results as JSON") + environment_section() + benchmark_section()


def baseline_page() -> str:
    return _format_page("baseline", "Baselines as JSON")


def _format_page(name: str, title: str) -> str:
    parts = [
        (
            f"# {title}\n\n{schemas.FILES[name][2]}\n\n"
            f"The schema is a file: [{name}.schema.json](../../pytest_accel/schemas/{name}.schema.json) (JSON Schema 2020-12). "
            "Unknown keys are refused. Fields with a default may be absent.\n\n"
        )
    ]
    for kind in schemas.kinds(name):
        derived = [(code(key), about["description"]) for key, about in schemas.DERIVED.get(kind, {}).items()]
        parts.append(f"## {kind.__name__}\n\n{prose(kind)}{fields_table(kind)}")
        parts.append(table(("also written", "meaning"), derived) if derived else "")
    return "".join(parts)


def benchmark_section() -> str:
    return (
        "## In pytest-benchmark's JSON\n\n`extra_info.accel` of each benchmark in the file of `--benchmark-json` has the fields of "
        "the `Measurement` that [`accel.measure`](fixtures.md#accelmeasure) returns, `schema_version`, `platform`, `throughput` "
        "(work per second of the first run), `work_unit` (such as `images`), `step_time_s` (median over rounds of the mean step "
        "time) and `stall_share` (by how much the mean of all steps is slower than that; 0 when steady).\n"
    )


def environment_section() -> str:
    named = (
        *(f"{prefix}*" for prefix in (*VARIABLE_PREFIXES, *PREFIXES_SINCE_2)),
        *sorted(VARIABLES_SINCE_2),
    )
    prefixes = ", ".join(map(code, named))
    return (
        "## Facts of an environment\n\nFacts of the machine and its software that are stored with every run.\n\n"
        "Identity facts must be equal for two runs to be compared. Context facts may differ; differences are printed as "
        "suspects. A fact that could not be read is absent.\n\n"
        + table(("field", "shown as"), [(code(name), title) for name, title in TITLES.items()])
        + "Others, such as clocks, firmware and the container, are shown under the names of their fields.\n\n"
        + f"Environment variables that affect speed ({prefixes}) are context, as `{VARIABLE_PREFIX}NAME`. Values that may be "
        "credentials are redacted.\n\n"
    )


# --- tables in other pages --------------------------------------------------------------------------


def throughput_table(platform: str = "h200") -> str:
    """Return one row for each stored benchmark of a platform."""
    files = BaselineStore(ROOT / "baselines").files(platform)
    prior = platform_prior(entry.runs for file in files for entry in file.benchmarks.values())
    stored = [
        ShownBenchmark(file=file, key=key, entry=entry, prior=prior)
        for file in files
        for key, entry in file.benchmarks.items()
    ]
    heads = ("suite", "benchmark", "throughput", "±", "tolerance", "step", "memory", "MFU", "power", "runs")
    return table(heads, map(_throughput_row, stored))


def _throughput_row(each: ShownBenchmark) -> tuple[str, ...]:
    runs, quality = each.entry.runs, each.quality

    def typical(values: Iterable[float | None], show: Callable[[float], str]) -> str:
        known = [value for value in values if value is not None]
        return show(median(known)) if known else ""

    return (
        each.file.suite,
        code(each.key.partition("::")[2]),
        f"{si(each.throughput.value)} {each.entry.unit}/s",
        noise_percent(quality.step.relative_high, len(runs)),
        percent(quality.tolerance),
        seconds(each.entry.work_per_step / each.throughput.value),
        typical((run.peak_memory_bytes for run in runs), lambda value: gibibytes(round(value))),
        typical((run.metrics.get("mfu") for run in runs), percent),
        typical((run.metrics.get("power_mean_w") for run in runs), lambda value: f"{value:.0f} W"),
        str(len(runs)),
    )


def noise_table() -> str:
    """Return the loss that the gate catches in 80 % of cases, by noise and stored runs."""
    stored = ((5, 1), (5, 3), (10, 3), (10, 10))
    heads = [f"{runs} runs, {sessions} session{'s' * (sessions > 1)}" for runs, sessions in stored]
    rows = []
    for noise in (0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08):
        policy = policy_at_noise(Policy(), noise)
        losses = (percent(loss(noise * resolution_factor(*each, policy))) for each in stored)
        rows.append((f"{100 * noise:g} %", *losses))
    return table(("noise", *heads), rows)


def with_part(text: str, name: str, made: str) -> str:
    """Return a page with its part between two comments made anew."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    assert begin in text, f"a page has no {begin}"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{made.strip()}\n\n{end}{rest.partition(end)[2]}"


# Commands whose output pages show, in full or the first lines and `...`; it depends on nothing but the committed files.
SHOWN_COMMANDS = (
    "baseline show h200 -k single_rank",
    "baseline show --check",
    'compare h200 -k "117m or fine_tuning" --metric mfu --format markdown',
)
_OUTPUT = re.compile(r"^```\n\$ pytest-accel ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def with_outputs(text: str) -> str:
    """Return a page with the current output of the commands that it shows."""

    def printed(block: re.Match[str]) -> str:
        if block[1] not in SHOWN_COMMANDS:
            return block[0]
        output = io.StringIO()
        with chdir(ROOT), redirect_stdout(output):
            assert cli.main(shlex.split(block[1])) == 0, block[1]
        lines, shown = output.getvalue().splitlines(), block[2].splitlines()
        if shown[-1:] == ["..."]:
            lines[len(shown) - 1 :] = ["..."]
        return "\n".join([f"```\n$ pytest-accel {block[1]}", *lines, "```"])

    return _OUTPUT.sub(printed, text)


def effect_text(status: Status) -> str:
    """Return the effect on the test in words, with the option that changes it."""
    effect = VERDICTS[status].effect
    if effect in ("passes", "fails"):
        return effect
    default = str(getattr(Settings(), effect))
    verb, other = ("fails", "passes") if default == "fail" else ("passes", "fails")
    changed = "warn" if default == "fail" else "fail"
    return f"{verb}; with `--accel-{effect.replace('_', '-')}={changed}` it {other}"


def outcome_table() -> str:
    return table(
        ("outcome", "the test", "meaning"),
        [
            (f"[{row.word}](#{row.word.lower()})", effect_text(status), row.meaning)
            for status, row in VERDICTS.items()
        ],
    )


def outcome_part(status: Status) -> str:
    row = VERDICTS[status]
    shown = re.sub(r"(?<![`\w-])(pytest-accel \w+( edit --\w+)?|--accel-[a-z-]+)(?!`)", r"`\1`", row.remedy)
    remedy = f"\n\n**What to do.** {shown}" if shown else ""
    return f"{row.meaning} The test {effect_text(status)}. In files: `{status.value}`.{remedy}"


def policy_table() -> str:
    return f"{prose(Policy)}{fields_table(Policy)}"


PARTS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("docs/results.md", "throughput", throughput_table),
    ("docs/guide/tolerance.md", "noise", noise_table),
    ("docs/gate.md", "policy", policy_table),
    ("docs/guide/verdicts.md", "outcomes", outcome_table),
    *(("docs/guide/verdicts.md", status.value, partial(outcome_part, status)) for status in VERDICTS),
)
PAGES: dict[str, Callable[[], str]] = {
    "options.md": options_page,
    "markers.md": markers_page,
    "platforms.md": platforms_page,
    "fixtures.md": fixtures_page,
    "hooks.md": hooks_page,
    "commands.md": commands_page,
    "metrics.md": metrics_page,
    "results-json.md": results_page,
    "baseline-json.md": baseline_page,
}


@mock.patch.dict(os.environ, COLUMNS="100")  # of argparse and of tables
def pages() -> dict[Path, str]:
    """Return every generated page, every page with a generated part, and the picture of the README, by their paths."""
    made = {name: make() for name, make in PAGES.items()}
    rows = [
        (f"[{text.removeprefix('# ').partition(chr(10))[0]}]({name})", text.split("\n\n")[1])
        for name, text in made.items()
    ]
    made = {"README.md": "# Reference\n\n" + table(("page", "content"), rows), **made}
    found = {}
    for name, text in made.items():
        title, _, rest = text.partition("\n")
        found[FOLDER / name] = f"{title}\n\n{NOTE}{rest.rstrip()}\n"
    for path in (ROOT / "docs").rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        if any(f"$ pytest-accel {command}\n" in text for command in SHOWN_COMMANDS):
            found[path] = with_outputs(text)
    found[picture.SVG] = picture.draw(picture.RECORDED.read_text(encoding="utf-8"))
    for page, name, make in PARTS:
        path = ROOT / page
        found[path] = with_part(found.get(path) or path.read_text(encoding="utf-8"), name, make())
    return found


def main() -> int:
    for name in schemas.NAMES:
        (schemas.FOLDER / f"{name}.schema.json").write_text(schemas.render(name), encoding="utf-8")
    made = pages()
    for path in FOLDER.glob("*.md"):
        if path not in made:
            path.unlink()
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    print(f"{len(made)} pages")  # noqa: T201 - a command
    return 0


if __name__ == "__main__":
    sys.exit(main())
