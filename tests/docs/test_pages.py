"""Code blocks of pages parse, run, and use options and commands that exist."""

import ast
import configparser
import json
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import yaml

from pytest_accel.cli import _divide
from pytest_accel.commands.registry import COMMANDS, PARSER
from pytest_accel.options import OPTIONS
from pytest_accel.storage.results import KIND
from tests.docs.pages import ROOT, Block, blocks, inline_code, links, page_name, pages
from tests.support.processes import finished, inherited

FLAGS = {option.flag: option for option in OPTIONS if option.on_command_line}
KEYS = {option.key for option in OPTIONS if option.in_ini}
# Variables of the session's own processes, of the machine, or of the scripts in deploy/: no settings.
VARIABLES = {option.variable for option in OPTIONS if option.in_ini} | {
    "PYTEST_ACCEL_LOCKS",
    "PYTEST_ACCEL_SECRET",
}
CURRENT = [page for page in pages() if page.name != "CHANGELOG.md"]  # that one names what was removed


def test_every_decision_is_listed():
    index = ROOT / "docs" / "decisions" / "README.md"
    assert {path.name for path in index.parent.glob("[0-9]*.md")} == set(links(index))


def test_every_fault_has_a_test_that_provokes_it():
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (\d+) \| .* \| `(.*)::(.*)` \|$", text, re.MULTILINE)
    for _, file, test in rows:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")
    kinds = sum(int(count) for count, _, _ in rows)
    assert kinds >= 60
    assert f"name {kinds} kinds of faults" in text


# --- names ------------------------------------------------------------------------------------------


def unknown_names(text: str) -> set[str]:
    unknown = set(re.findall(r"(?<![\w-])--accel-[a-z]+(?:-[a-z]+)*", text)) - FLAGS.keys()
    unknown |= set(re.findall(r"^(accel_\w+)\s*=", text, re.MULTILINE)) - KEYS
    return unknown | set(re.findall(r"\bPYTEST_ACCEL_[A-Z_]*[A-Z]", text)) - VARIABLES


def test_options_keys_and_variables_exist():
    found = {page_name(page): unknown_names(page.read_text(encoding="utf-8")) for page in CURRENT}
    assert {page: unknown for page, unknown in found.items() if unknown} == {}


def test_commands_in_prose_exist():
    for place, text in ((page_name(page), text) for page in CURRENT for text in inline_code(page)):
        if text == KIND or not re.match(r"pytest-accel [a-z]", text):
            continue
        first, *rest = re.sub(r"[^\w\s-].*", "", text.removeprefix("pytest-accel ")).split()
        second = rest[:1] if first == "baseline" and re.fullmatch("[a-z]+", "".join(rest[:1])) else []
        known = {name[: 1 + len(second)] for name in COMMANDS}
        assert (first, *second) in known, (place, text)


# --- command lines ----------------------------------------------------------------------------------


def words(line: str) -> list[str]:
    """Split a command line, without comments, leading variables and what follows a shell operator."""
    split = shlex.split(line, comments=True)
    ends = [at for at, word in enumerate(split) if word in ("|", ">", ">>", "<", "&&", "||", ";", "&")]
    split = split[: ends[0]] if ends else split
    while split and re.fullmatch(r"[A-Z_]+=.*", split[0]):
        split = split[1:]
    return split


def shown_lines() -> list[tuple[str, list[str]]]:
    return [(block.place, words(line)) for block in blocks() for line in block.commands]


def test_shown_commands_parse(capsys):
    for place, (program, *argv) in filter(lambda shown: shown[1], shown_lines()):
        if Path(program).name != "pytest-accel" or set(argv) & {"...", "[...]", "--help"}:
            continue
        with suppress(SystemExit):  # also of --version
            PARSER.parse_args(_divide(argv)[0])
        assert not capsys.readouterr().err, place


def test_shown_option_values_are_valid():
    for place, line in shown_lines():
        for at, word in enumerate(line):
            flag, has_value, value = word.partition("=")
            if flag not in FLAGS or FLAGS[flag].kind == "flag":
                continue
            if not has_value and FLAGS[flag].kind in ("value", "list"):
                value = line[at + 1]
            if value and not re.fullmatch(r"[A-Z]+|\.\.\.|\$.*", value):
                FLAGS[flag].read(value, place)


# --- files and Python -------------------------------------------------------------------------------


PARSERS = {
    "toml": tomllib.loads,
    "json": json.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "ini": lambda text: configparser.ConfigParser().read_string(text),
}


def faults(check: Callable[[Block], object], checked: Iterable[Block]) -> dict[str, str]:
    """Return the error of each block that the check refuses, by place."""
    found = {}
    for block in checked:
        try:
            check(block)
        except Exception as error:  # noqa: BLE001 - whatever a parser or an import raises is the fault
            found[block.place] = repr(error)
    return found


def test_file_blocks_parse():
    shown = [block for block in blocks(*PARSERS) if not block.not_run]
    assert faults(lambda block: PARSERS[block.language](textwrap.dedent(block.text)), shown) == {}


def import_ours(block: Block) -> None:
    for node in ast.walk(ast.parse(textwrap.dedent(block.text), block.place)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pytest_accel":
            exec(compile(ast.unparse(node), block.place, "exec"), {})


def test_python_compiles_and_imports_what_exists():
    assert faults(import_ours, blocks("python")) == {}


def benchmarks_in(block: Block) -> list[str]:
    body = ast.parse(textwrap.dedent(block.text)).body
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def file_name(block: Block) -> str:
    return f"test_{re.sub(r'[^a-z0-9]', '_', block.place.lower())}.py"


def test_benchmarks_in_pages_run_or_name_the_missing_hardware(tmp_path):
    shown = [block for block in blocks("python") if benchmarks_in(block) and not block.not_run]
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers --import-mode=importlib\n")
    for block in shown:
        text = textwrap.dedent(block.text)
        (tmp_path / file_name(block)).write_text(
            text if "import pytest\n" in text else f"import pytest\n{text}"
        )
    plugins = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "-p tests.support.quick_sessions -p benchmark -p accel",
    }
    quick = ("--accel-budget=50ms", "-oaccel_warmup=50ms", "--accel-history=off", "--accel-compile=off")
    in_process = "--accel-in-process"  # importing torch, in a worker too, takes most of the time
    command = [sys.executable, "-m", "pytest", *quick, in_process, "-q", "--accel-json=out.json"]
    done = finished(*command, cwd=tmp_path, env=inherited("PYTEST_", "GITHUB_", "CI_") | plugins)
    assert (tmp_path / "out.json").is_file(), done.stdout + done.stderr
    assert "ERROR collecting" not in done.stdout, done.stdout
    results = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    found = {
        each["benchmark"].partition("[")[0]: f"{each['status']} {each.get('text', '')}" for each in results
    }
    for block in shown:
        for name in benchmarks_in(block):
            assert re.match(r"no-baseline|skipped needs ", found[f"{file_name(block)}::{name}"]), name
    assert any(text.startswith("no-baseline") for text in found.values())
