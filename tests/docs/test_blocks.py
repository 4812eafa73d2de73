"""Blocks of code in the documentation do what they show: Python runs, files parse, commands have the options they name."""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pytest_accel.cli import _divide, _parser
from pytest_accel.commands.registry import COMMANDS, GROUPS
from pytest_accel.options import OPTIONS
from pytest_accel.storage.results import KIND
from tests.docs.pages import ROOT, Block, all_blocks, inline_code, named, pages

FLAGS = {option.flag: option for option in OPTIONS}
PYTHON = all_blocks("python", "py")
EXCUSED = [block for block in all_blocks() if block.excuse]
NO_OUTPUT = ("...",)


def of(block: Block) -> str:
    return block.place


# --- Python -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", PYTHON, ids=of)
def test_python_compiles_and_imports_what_there_is(block):
    tree = ast.parse(textwrap.dedent(block.text), block.place)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pytest_accel":
            line = ast.unparse(node)
            exec(compile(line, block.place, "exec"), {})  # an import of ours, and nothing else


def benchmarks_in(block: Block) -> list[str]:
    tree = ast.parse(textwrap.dedent(block.text))
    return [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


BENCHMARKS = [block for block in PYTHON if benchmarks_in(block) and not block.excuse]


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> dict[str, str]:
    """What became of every benchmark in the documentation, by `page:line test`: one session has them all."""
    folder = tmp_path_factory.mktemp("blocks")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers --import-mode=importlib\n")
    for block in BENCHMARKS:
        text = textwrap.dedent(block.text)
        (folder / _file(block)).write_text(text if "import pytest\n" in text else f"import pytest\n{text}")
    quick = ("--accel-budget=50ms", "-oaccel_warmup=50ms", "--accel-history=off", "--accel-compile=off")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *quick, "-q", "-rA", "--junitxml=out.xml", "--accel-json=out.json"],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (folder / "out.json").is_file(), done.stdout + done.stderr
    content = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    return {
        result["benchmark"].partition("[")[0]: f"{result['status']} {result.get('text', '')}"
        for result in content["results"]
    }


def _file(block: Block) -> str:
    return f"test_{re.sub(r'[^a-z0-9]', '_', named(block.page).lower())}_{block.line}.py"


def _environment() -> dict[str, str]:
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "GITHUB_", "CI_"))
    }
    return ours | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p benchmark -p accel"}


@pytest.mark.parametrize("block", BENCHMARKS, ids=of)
def test_a_benchmark_runs_here_or_says_what_hardware_it_needs(block, ran):
    for name in benchmarks_in(block):
        became = ran[f"{_file(block)}::{name}"]
        assert re.match(r"no-baseline|skipped needs ", became), f"{name}: {became}"


def test_some_benchmarks_of_the_documentation_really_run(ran):
    assert [became for became in ran.values() if became.startswith("no-baseline")]


def test_an_excuse_is_one_of_a_few_and_has_a_block(record_property):
    """The comment excuses a block that cannot run anywhere but on its own hardware; it must not become a habit."""
    record_property("excused", len(EXCUSED))
    commented = sum(page.read_text(encoding="utf-8").count("<!-- not run:") for page in pages())
    assert len(EXCUSED) == commented, "a comment `<!-- not run: reason -->` stands right before a block"
    assert len(EXCUSED) <= MOST_EXCUSED, [f"{block.place}: {block.excuse}" for block in EXCUSED]


MOST_EXCUSED = 6


# --- files ------------------------------------------------------------------------------------------


def parse_ini(text: str) -> None:
    configparser.ConfigParser().read_string(text)


PARSERS = {
    "toml": tomllib.loads,
    "json": json.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "yml": lambda text: list(yaml.safe_load_all(text)),
    "ini": parse_ini,
    "cfg": parse_ini,
}
FILES = [block for block in all_blocks(*PARSERS) if not block.excuse]


@pytest.mark.parametrize("block", FILES, ids=of)
def test_a_file_can_be_read(block):
    PARSERS[block.language](textwrap.dedent(block.text))


@pytest.mark.parametrize("page", pages(), ids=named)
def test_ini_keys_and_variables_are_real(page):
    keys = {option.key for option in OPTIONS if option.in_ini}
    variables = {option.variable for option in OPTIONS if option.in_ini}
    text = page.read_text(encoding="utf-8")
    unknown = set(re.findall(r"^(accel_\w+)\s*=", text, re.MULTILINE)) - keys
    unknown |= set(re.findall(r"\bPYTEST_ACCEL_[A-Z_]*[A-Z]", text)) - variables - OUR_OWN_VARIABLES
    assert unknown == set()


# Set by what we deploy, and by a session for its ranks; no settings. Or of a machine, not of a session.
OUR_OWN_VARIABLES = frozenset({"PYTEST_ACCEL_GANG", "PYTEST_ACCEL_GANG_ID", "PYTEST_ACCEL_LOCKS"})


# --- commands ---------------------------------------------------------------------------------------


def words(line: str) -> list[str]:
    """A command line in words, without comments and what the shell does with its output."""
    try:
        split = shlex.split(line, comments=True)
    except ValueError:
        split = line.split()
    ends = [at for at, word in enumerate(split) if word in ("|", ">", ">>", "<", "&&", "||", ";", "&")]
    return split[: ends[0]] if ends else split


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every shown `pytest-accel ...`, with its place."""
    for block in all_blocks():
        for line in block.commands:
            for part in re.split(r"&&|\|\||;|\|", line):
                found = words(part.strip())
                while found and re.fullmatch(r"[A-Z_]+=.*", found[0]):
                    found = found[1:]
                if found and Path(found[0]).name == "pytest-accel":
                    yield block.place, found[1:]


def parses(argv: list[str]) -> bool:
    try:
        _parser().parse_args(argv)
    except SystemExit as ended:
        return not ended.code
    return True


SHOWN = [each for each in commands() if not set(each[1]) & {*NO_OUTPUT, "[...]", "--help"}]


@pytest.mark.parametrize(
    ("place", "argv"), SHOWN, ids=[f"{place} {' '.join(argv[:2])}" for place, argv in SHOWN]
)
def test_a_shown_command_has_the_arguments_that_it_is_given(place, argv, capsys):
    ours, _ = _divide(argv)
    assert parses(ours), f"{place}: pytest-accel {' '.join(argv)}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", pages(), ids=named)
def test_options_in_prose_are_real(page):
    named_there = set(re.findall(r"(?<![\w-])--accel-[a-z]+(?:-[a-z]+)*", page.read_text(encoding="utf-8")))
    assert named_there - FLAGS.keys() == set()


@pytest.mark.parametrize("page", pages(), ids=named)
def test_commands_in_prose_are_real(page):
    for text in inline_code(page):
        if text == KIND or not re.match(r"pytest-accel [a-z]", text):
            continue
        first, *rest = re.sub(r"[^\w\s-].*", "", text.removeprefix("pytest-accel ")).split()
        assert (first,) in COMMANDS or first in GROUPS, text
        if first in GROUPS and rest and re.fullmatch("[a-z]+", rest[0]):
            assert (first, rest[0]) in COMMANDS, text


def values() -> Iterator[tuple[str, str, str]]:
    """Every option of ours that a shown command gives a value to."""
    for block in all_blocks():
        for line in block.commands:
            found = words(line)
            for at, word in enumerate(found):
                flag, given, value = word.partition("=")
                if flag not in FLAGS or FLAGS[flag].kind == "flag":
                    continue
                if given:
                    yield block.place, flag, value
                elif FLAGS[flag].kind == "value":
                    yield block.place, flag, found[at + 1] if at + 1 < len(found) else ""


@pytest.mark.parametrize(("place", "flag", "value"), sorted(set(values())))
def test_an_option_is_shown_with_a_value_that_it_takes(place, flag, value):
    if re.fullmatch(r"[A-Z]+|\.\.\.|\$.*", value):  # stands for a value
        return
    FLAGS[flag].read(value, place)


# --- these tests find what is wrong -----------------------------------------------------------------


def a_page(tmp_path: Path, text: str) -> list[Block]:
    from tests.docs.pages import blocks

    page = tmp_path / "page.md"
    page.write_text(text)
    return list(blocks(page))


def test_commands_are_found_after_a_prompt_or_on_lines_of_their_own(tmp_path):
    prompted, plain, other = a_page(
        tmp_path,
        "```\n$ pytest-accel doctor\ncpu\n$ pytest x \\\n    --accel-require\n```\n\n"
        "```console\npytest a  # why\nA=1 .venv/bin/pytest b\ntest_x  cpu  12\n```\n\n```python\npytest = 1\n```\n",
    )
    assert prompted.commands == ["pytest-accel doctor", "pytest x  --accel-require"]
    assert plain.commands == ["pytest a  # why", "A=1 .venv/bin/pytest b"]
    assert other.commands == []


def test_an_excuse_stands_right_before_its_block(tmp_path):
    first, second = a_page(
        tmp_path, "<!-- not run: needs a GH200 -->\n\n```python\nx\n```\n\n```python\ny\n```\n"
    )
    assert (first.excuse, second.excuse) == ("needs a GH200", "")


def test_a_command_that_is_wrong_is_found(capsys):
    assert parses(["baseline", "show", "h200"])
    assert not parses(["baseline", "shew"])
    assert not parses(["baseline", "show", "--loud"])
    assert "--loud" in capsys.readouterr().err


def test_words_end_where_the_shell_begins():
    assert words("pytest x --accel-budget 5s  # as ever") == ["pytest", "x", "--accel-budget", "5s"]
    assert words("pytest --collect-only -q > list.txt") == ["pytest", "--collect-only", "-q"]


def test_all_pages_are_looked_at():
    looked = {named(page) for page in pages()}
    assert {"README.md", "docs/index.md", "docs/gangs.md", "docs/reference/hooks.md"} <= looked
    assert ROOT / "docs" / "design.md" in pages()
