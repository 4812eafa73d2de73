"""`pytest-accel platform`: what it says here, and on machines with GPUs."""

import json
import subprocess
import sys

import pytest

from pytest_accel import cli
from pytest_accel.commands import registry
from tests.support.fake_nvml import FakeGpu

pytest_plugins = ("tests.support.fake_nvml",)


@pytest.fixture
def on(fake_nvml, tmp_path):
    """Run the command on a machine with these GPUs, in an empty project."""

    def run(gpus, *arguments, pyproject="", status=0):
        (tmp_path / "pyproject.toml").write_text(pyproject)
        result = subprocess.run(
            [sys.executable, "-m", "pytest_accel.cli", "platform", *arguments],
            env=fake_nvml.environment(gpus), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert result.returncode == status, result.stderr
        return result.stdout if status == 0 else result.stderr

    return run


def test_an_h200(on):
    text = on([FakeGpu()])
    assert "NVIDIA H200, 140.4 GiB: h200" in text
    assert "bf16 989.4" in text
    assert "700 W" in text
    assert "baselines/h200/" in text
    assert "h200x2       needs 2 x H200; this machine has 1 x NVIDIA H200" in text
    assert "gh200x4" not in text


def test_all_gives_every_marker_its_reason(on):
    text = on([FakeGpu()], "--all")
    assert "gh200x4n2    needs 2 nodes of 4 x GH200; this machine has 1 x NVIDIA H200" in text
    assert "mi300xx8" in text


def test_json_is_for_scripts(on):
    gpus = [
        FakeGpu(name="NVIDIA A100-SXM4-80GB", uuid=f"GPU-{index}", memory_mib=81920) for index in range(4)
    ]
    data = json.loads(on(gpus, "--json"))
    assert data["satisfied"]["a100x4"] == "a100x4-sxm4-80gb"
    assert data["missing"]["a100x8"] == "needs 8 x A100; this machine has 4 x NVIDIA A100-SXM4-80GB"
    assert data["machine"]["devices"][0]["variant"]["peaks_tflops"]["bf16"] == 312


def test_platforms_of_the_project_are_known(on):
    pyproject = "[tool.pytest-accel.platforms.mybox]\npatterns = ['NVIDIA A40']\n"
    gpus = [FakeGpu(name="NVIDIA A40", memory_mib=46068)]
    assert "not in the catalogue" in on(gpus)
    assert "mybox        baselines/mybox/" in on(gpus, pyproject=pyproject)


def test_a_wrong_project_file_is_one_clear_error(on):
    text = on([], pyproject="[tool.pytest-accel.platforms.mybox]\npatterns = 3\n", status=2)
    assert text.startswith(
        "pytest-accel platform: pyproject.toml: tool.pytest-accel.platforms.mybox.patterns: 3 "
    )
    assert "Traceback" not in text


def test_here(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["platform"]) == 0
    assert "cpu          baselines/cpu-" in capsys.readouterr().out


def test_a_command_is_needed(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([])
    assert caught.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_a_command_is_one_function(monkeypatch):
    monkeypatch.setattr(cli, "COMMANDS", {})
    monkeypatch.setattr(registry, "COMMANDS", cli.COMMANDS)
    monkeypatch.setitem(cli.GROUPS, "people", "Whom to greet.")

    @registry.command(registry.argument("name"), registry.argument("--twice", action="store_true"))
    def greet(args):
        """Greet somebody."""
        return 2 if args.twice else len(args.name)

    @registry.command(group="people", name="list")
    def list_(_args):
        """List them."""
        return 7

    assert cli.main(["greet", "abc"]) == 3
    assert cli.main(["greet", "abc", "--twice"]) == 2
    assert cli.main(["people", "list"]) == 7


def test_a_group_alone_is_wrong_usage(capsys, monkeypatch):
    monkeypatch.setattr(cli, "COMMANDS", {})
    monkeypatch.setitem(cli.GROUPS, "people", "Whom to greet.")
    with pytest.raises(SystemExit) as caught:
        cli.main(["people"])
    assert caught.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
