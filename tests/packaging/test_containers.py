"""deploy/containers as far as it can be checked where no registry is: linted, and asked what it would do.

An image was built from it for real, and looked into: docs/containers.md says how.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_accel.platforms import environment as image
from tests.support.processes import finished

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/containers"
BUILD, INSTALL, CONTAINERFILE, DEFINITION = (
    FOLDER / name for name in ("build.sh", "install.sh", "Containerfile", "pytest-accel.def")
)


def tool(name: str) -> str:
    """Beside this Python, or on the path."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def ran(*command: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = finished(*command)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def sections() -> dict[str, str]:
    """Of the definition; the header, which has no name, is under the empty one."""
    parts = re.split(r"^%(\w+)\n", DEFINITION.read_text(), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def test_the_containerfile_is_clean():
    ran(tool("hadolint"), "--no-color", CONTAINERFILE)


def test_scripts_and_the_shell_of_the_definition_are_clean(tmp_path):
    """Apptainer puts the arguments in before a shell sees them."""
    ran(tool("shellcheck"), BUILD, INSTALL)
    parts = [tmp_path / name for name in ("post", "environment", "runscript", "test")]
    for part in parts:
        part.write_text(re.sub(r"\{\{ \w+ \}\}", "x", sections()[part.name]))
    ran(tool("shellcheck"), "--shell=sh", *parts)


def test_it_runs_as_nobody_special_and_checks_itself():
    lines = CONTAINERFILE.read_text().splitlines()
    user = lines.index("USER ${USER_ID}")
    collect = "pytest --pyargs pytest_accel.suites --collect-only -q --strict-markers -p no:cacheprovider"
    assert f"RUN {collect}" in lines[user:]
    assert not [line for line in lines[user + 1 :] if line.startswith("USER")]
    assert collect in sections()["test"]


def test_both_kinds_of_image_take_the_same_arguments_and_tell_the_same_name():
    declared = set(re.findall(r"^ARG (\w+)", CONTAINERFILE.read_text(), re.MULTILINE))
    given = set(re.findall(r"^ +(\w+)=", sections()["arguments"], re.MULTILINE))
    # Apptainer gets the wheel from outside, and runs as whoever calls it.
    assert declared - {"USER_ID"} == given - {"WHEEL"}
    used = set(re.findall(r"\{\{ (\w+) \}\}", DEFINITION.read_text()))
    assert used == given
    assert f"/{image.IMAGE_PATH}" in INSTALL.read_text()
    for name in image.IMAGE_FIELDS:
        assert f"{name.upper()}=" in sections()["post"]


def test_everything_that_is_copied_is_in_the_context():
    copied = {
        word
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINERFILE.read_text(), re.MULTILINE)
        for word in line.split()
    }
    kept = (ROOT / ".containerignore").read_text()
    assert [name for name in copied if f"!{name}" not in kept.splitlines()] == []
    assert [name for name in copied if not (ROOT / name).exists()] == []
    # Docker reads the one, podman and buildah the other.
    assert (FOLDER / "Containerfile.dockerignore").read_text() == kept


@pytest.mark.parametrize("name", ["podman", "docker", "buildah", "apptainer"])
def test_every_tool_is_told_what_the_image_is(name):
    given = ("--base", "base:1", "--tag", "bench:1", "--extras", "suites,report")
    command = ran(BUILD, "--dry-run", "--tool", name, *given).stdout.splitlines()[-1]
    assert command.startswith(name)
    for argument in ("BASE=base:1", "IMAGE=bench:1", r"EXTRAS=suites\,report", "VERSION=0."):
        assert argument in command
    assert "bench-1.sif" in command if name == "apptainer" else "--tag bench:1" in command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--arch", "riscv"), "--arch riscv: write amd64, arm64 or both."),
        (("--tool", "make"), "write podman, docker, buildah or apptainer."),
        (("--tag",), "--tag needs a value"),
        (("--pull",), "What is the tool's own goes after --."),
        (
            ("--tool", "apptainer", "--arch", "both", "--dry-run"),
            "apptainer builds for the machine it runs on",
        ),
    ],
)
def test_wrong_usage_ends_with_what_is_right(arguments, words):
    assert words in ran(BUILD, *arguments, status=2).stderr
