"""`pytest-accel doctor`: the platforms of this machine and of machines with GPUs; and the command line itself."""

import json
import shlex
import subprocess
import sys

import pytest

from pytest_accel import cli
from pytest_accel.commands.registry import COMMANDS, PARSER
from tests.support.fake_nvml import FakeGpu

pytest_plugins = ("tests.support.fake_nvml",)


@pytest.fixture
def on(fake_nvml, tmp_path):
    """Run the command on a machine with these GPUs, in an empty project."""

    def run(gpus, *arguments, pyproject="", is_usage_error=False):
        (tmp_path / "pyproject.toml").write_text(pyproject)
        result = subprocess.run(
            [sys.executable, "-m", "pytest_accel", "doctor", *arguments],
            env=fake_nvml.environment(gpus), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (result.returncode == 2) == is_usage_error, result.stderr  # 1: this machine may be busy
        return result.stderr if is_usage_error else result.stdout

    return run


def test_an_h200(on):
    text = on([FakeGpu()])
    assert "NVIDIA H200, 140.4 GiB: h200" in text
    assert "baselines/h200/" in text
    assert "h200x2       no: needs 2 x H200; this machine has 1 x NVIDIA H200" in text
    assert "gh200x4" not in text
    assert text.index("device 0") < text.index("platforms") < text.index("devices\n")


def test_json_is_for_scripts(on):
    gpus = [
        FakeGpu(name="NVIDIA A100-SXM4-80GB", uuid=f"GPU-{index}", memory_mib=81920) for index in range(4)
    ]
    data = json.loads(on(gpus, "--json"))
    assert data["platforms"]["a100x4"] == "a100x4-sxm4-80gb"
    assert data["missing"]["a100x8"] == "needs 8 x A100; this machine has 4 x NVIDIA A100-SXM4-80GB"
    assert data["machine"]["devices"][0]["variant"]["peaks_tflops"]["bf16"] == 312
    assert {"group", "subject", "text", "level"} <= data["findings"][0].keys()


def test_platforms_of_the_project_are_known(on):
    pyproject = "[tool.pytest-accel.platforms.mybox]\npatterns = ['NVIDIA A40']\n"
    gpus = [FakeGpu(name="NVIDIA A40", memory_mib=46068)]
    assert "not in the catalogue" in on(gpus)
    assert "mybox        kept/mybox/" in on(gpus, "--baselines", "kept", pyproject=pyproject)


def test_a_wrong_project_file_is_one_clear_error(on):
    text = on([], pyproject="[tool.pytest-accel.platforms.mybox]\npatterns = 3\n", is_usage_error=True)
    assert text.startswith(
        "pytest-accel doctor: pyproject.toml: tool.pytest-accel.platforms.mybox.patterns: 3 "
    )
    assert "Traceback" not in text


@pytest.mark.parametrize("words", [[], ["baseline"]], ids=" ".join)
def test_without_a_command_all_are_listed_with_one_line_each(capsys, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(words) == 2
    lines = capsys.readouterr().out.splitlines()
    begin, end = lines.index("  COMMAND") + 1, lines.index("options:") - 1
    shown = [line.split()[0] for line in lines[begin:end]]
    depth = len(words)
    assert set(shown) == {name[depth] for name in COMMANDS if list(name[:depth]) == words}


@pytest.mark.parametrize(
    ("words", "usage"),
    [((), "[-h] [--version]"), (("report",), "report [-h]"), (("baseline", "show"), "baseline show [-h]")],
)
def test_an_unknown_option_is_named_with_the_usage_of_its_command(words, usage, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([*words, "--bogus"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: pytest-accel {usage}")
    assert "unrecognized arguments: --bogus" in said


@pytest.mark.parametrize(("words", "nearest"), [(["dcotor"], "'doctor'"), (["baseline", "shwo"], "'show'")])
def test_unknown_command_is_refused_with_those_that_there_are(words, nearest, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    said = capsys.readouterr().err
    assert f"invalid choice: '{words[-1]}' (choose from " in said
    assert nearest in said


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_help_fits_a_screen_and_ends_with_an_example_that_parses(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as caught:
        cli.main([*words, "--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 50
    assert max(map(len, said.splitlines())) <= 100
    if words:
        example = said.rpartition("\nexample: pytest-accel ")[2]
        assert PARSER.parse_args(cli._divide(shlex.split(example))[0]).called == words
