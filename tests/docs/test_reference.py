"""docs/reference says what the code says, and the code says something of every part."""

from __future__ import annotations

import re

import pytest
from pytest_accel.session.own_metrics import OURS

from pytest_accel.options import MARKER_KEYS, OPTIONS
from pytest_accel.session.table import COLUMNS, METRICS_IN_COLUMNS
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.metric_gates import MEASURED
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import THROUGHPUT
from tests.docs import reference, reference_files, source

PAGES = reference.pages()


@pytest.mark.parametrize("name", PAGES)
def test_what_is_committed_is_what_the_code_says(name):
    path = reference.FOLDER / name
    told = f"docs/reference is not what the code says: run {reference.COMMAND}"
    assert path.is_file(), told
    assert path.read_text(encoding="utf-8") == PAGES[name], told


def test_no_page_is_left_of_what_is_gone():
    left = {path.name for path in reference.FOLDER.iterdir()} - PAGES.keys()
    assert left == set(), f"run {reference.COMMAND}"


def test_the_command_writes_what_is_asked_for_and_removes_the_rest(tmp_path, capsys):
    (tmp_path / "old.md").write_text("of what is gone")
    assert reference.main(tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == PAGES.keys()
    assert str(len(PAGES)) in capsys.readouterr().out


# --- nothing is left out, and nothing is silent -----------------------------------------------------


def test_every_option_has_a_heading_its_variable_and_its_ini_key():
    page = PAGES["options.md"]
    for option in OPTIONS:
        assert re.search(rf"^## `{option.flag}[ =\[`]", page, re.MULTILINE), option.flag
        assert (f"`{option.variable}`" in page) == option.in_ini
        assert (f"`{option.key}`" in page) == option.in_ini


def test_every_keyword_of_the_mark_is_there():
    for key in MARKER_KEYS:
        assert f"`{key}=...`" in PAGES["markers.md"]


def test_every_fixture_of_the_plugin_is_there_with_words():
    import pytest_accel.plugin

    registered = {
        name
        for name, value in vars(pytest_accel.plugin).items()
        if type(value).__name__ == "FixtureFunctionDefinition"
    }
    described = {each.name for each in source.decorated("fixtures.py", "pytest.fixture")}
    assert registered == described
    assert registered, "pytest names fixtures differently now: mend this test"
    assert all(source.docstring("fixtures.py", name) for name in described)


def test_every_hook_is_there_with_an_example():
    import pytest_accel.hookspecs

    specs = [name for name in vars(pytest_accel.hookspecs) if name.startswith("pytest_accel_")]
    for name in specs:
        assert f"## `{name}(" in PAGES["hooks.md"]
        assert f"def {name}(" in PAGES["hooks.md"]


def test_every_command_and_argument_is_there_with_words():
    import pytest_accel.cli  # noqa: F401 - registers them
    from pytest_accel.commands.registry import COMMANDS

    for command in COMMANDS.values():
        assert f"# {' '.join(command.name)}\n" in PAGES["commands.md"]
        assert command.help
        for names, given in command.arguments:
            assert given.get("help"), f"{command.name}: {names} says nothing of itself"


def test_commands_that_call_pytest_say_where_its_arguments_go():
    import pytest_accel.cli  # noqa: F401 - registers them
    from pytest_accel.commands.registry import COMMANDS

    calling = {" ".join(command.name) for command in COMMANDS.values() if command.runs_pytest}
    usages = re.findall(r"^pytest-accel (.*) -- PYTEST_ARGS$", PAGES["commands.md"], re.MULTILINE)
    assert {usage.split()[0] for usage in usages} == calling == {"compile", "upgrade"}


@pytest.mark.parametrize("fixture", ["train", "infer", "converge"])
def test_a_fixture_that_takes_choices_leads_to_them(fixture):
    part = PAGES["fixtures.md"].partition(f"## `{fixture}`\n")[2].partition("\n## ")[0]
    assert "**choices" in part
    assert "(#what-train-infer-and-converge-take)" in part


@pytest.mark.parametrize("name", PAGES)
def test_every_column_of_every_table_has_a_heading(name):
    heads = re.findall(r"^(\|.*\|)\n\|(?: --- \|)+$", PAGES[name], re.MULTILINE)
    assert all(cell.strip() for head in heads for cell in head.strip("|").split("|")), heads


def test_every_column_has_words():
    assert all(column.meaning for column in COLUMNS)


@pytest.mark.parametrize("owner", ["Outcome", "Policy", "Verdict"])
def test_every_part_of_a_verdict_has_words(owner):
    silent = [field.name for field in source.fields("core/verdict.py", owner) if not field.note]
    assert silent == []


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("core/results.py", "Ending"),
        ("core/ranks.py", "RankResult"),
        ("measure/measurement.py", "Measurement"),
        ("platforms/catalogue.py", "Variant"),
        ("platforms/catalogue.py", "DeviceKind"),
        ("workloads/feeding.py", "DataChoices"),
    ],
)
def test_every_field_of_a_page_has_words(path, owner):
    told = {"work_per_step", "rounds_s"}
    silent = [field.name for field in source.fields(path, owner) if not field.note and field.name not in told]
    assert silent == []


# --- metrics ----------------------------------------------------------------------------------------

# Where figures of a run are made; what of a step or a run is named alike is none of them.
MAKERS = (
    "session/accel.py",
    "workloads/measured_step.py",
    "session/observing.py",
    "session/rates.py",
    "session/scaling.py",
    "measure/fairness.py",
    "workloads/rates.py",
    "workloads/convergence.py",
)
NO_METRICS = frozenset(
    {"first_step_s", "warmup_s", "step_s", "latency_p_s", "epoch_steps", "budget_s", "_s", "_j"}
)


def test_every_metric_that_is_measured_has_words():
    text = "\n".join((source.PACKAGE / path).read_text(encoding="utf-8") for path in MAKERS)
    named = set(
        re.findall(
            r'"([a-z0-9_]*(?:_s|_j|_share|_felt|_per_step|_efficiency|_size|_w|_mhz|_c|mfu|tflops|accuracy))"',
            text,
        )
    )
    assert named - NO_METRICS <= MEASURED.keys()
    assert MEASURED.keys() - named == {
        *(f"latency_p{share}_s" for share in (50, 90, 99)),
        *(f"node_{kind}_energy_per_step_j" for kind in ("cpu", "module")),
    }
    assert OURS - {THROUGHPUT} <= MEASURED.keys()
    assert MEASURED.keys() >= METRICS_IN_COLUMNS


# --- pytest-benchmark's JSON ------------------------------------------------------------------------


def test_every_field_of_extra_info_is_described():
    found = Measurement(
        run=Run(session="s", rounds_s=(0.1,), steps_per_round=1),
        work_per_step=1.0,
        unit="images",
        configuration={},
        environment=Environment(identity={}, context={}),
        steady=True,
        gates={"accuracy": 0.02},
        invalid="throttled",
        notes=("hot",),
        no_energy="MIG",
        missed=("energy is gated",),
    )
    written = {*found.to_plain(), "platform", "ranks"}
    of_measurement = {field.name for field in source.fields("measure/measurement.py", "Measurement")}
    assert written == of_measurement | reference_files.DERIVED.keys()


# --- how pages are made -----------------------------------------------------------------------------


def test_a_bar_does_not_end_a_cell():
    assert (
        reference.table(("a", "b"), [("x|y", "`int \\| None`")]).splitlines()[2]
        == "| x\\|y | `int \\| None` |"
    )


def test_a_docstrings_example_is_a_block_of_python():
    assert reference.prose("Paste::\n\n    x = 1\n\n    y = 2\n\nEnd.") == (
        "Paste:\n\n```python\nx = 1\n\ny = 2\n```\n\nEnd.\n"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("time for it", "Time for it."),
        ("auto, contiguous", "auto, contiguous."),
        ("fp32, tf32", "fp32, tf32."),
        ("`nvidia`", "`nvidia`."),
        ("git:REV", "git:REV."),
        ("", ""),
    ],
)
def test_help_texts_become_sentences(text, shown):
    assert reference.capital(text) == shown
