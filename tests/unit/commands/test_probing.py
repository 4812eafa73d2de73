"""How a command becomes the way into an environment, and what its probe may say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_accel import __version__
from pytest_accel.commands.probing import last_lines, place_of, probe


@pytest.mark.parametrize(
    ("command", "called"),
    [
        ("env A=1", "env A=1 python3 -m pytest"),
        ("env A=1 python3.12", "env A=1 python3.12 -m pytest"),
        (sys.executable, f"{sys.executable} -m pytest"),
        ("env --chdir /opt/python3/images", "env --chdir /opt/python3/images python3 -m pytest"),
        ("env python-image", "env python-image python3 -m pytest"),
    ],
)
def test_a_command_is_put_before_python_unless_it_ends_with_one(command, called):
    assert " ".join(place_of("old", command).python("-m", "pytest")) == called


def test_variables_are_not_filled_in_and_that_is_said():
    with pytest.raises(ValueError, match="the shell's to fill in"):
        place_of("new", "$HOME/new/bin/python")


def run(words, log):
    with log.open("wb") as output:
        return subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, check=False).returncode


def test_a_probe_tells_what_is_there_and_leaves_nothing_behind(tmp_path):
    facts = probe(place_of("new", sys.executable), run, tmp_path / "log", tmp_path)
    assert facts["pytest_accel"] == __version__
    assert facts["executable"] == sys.executable
    assert [each.name for each in tmp_path.iterdir()] == ["log"]


def test_a_probe_looks_for_the_folder_itself_and_not_for_one_of_its_name(tmp_path):
    """As in a container that has a folder of that name, and not this one."""

    def elsewhere(words, log):
        *others, token = words
        return run([*others, token.replace("probe", "other")], log)

    with pytest.raises(ValueError, match="cannot be seen"):
        probe(place_of("new", sys.executable), elsewhere, tmp_path / "log", tmp_path)


def test_half_an_answer_is_none(tmp_path):
    def cut(words, log):
        log.write_text('pytest-accel-probe {"python": "3.1')
        return 0

    with pytest.raises(ValueError, match="no Python answered there"):
        probe(place_of("new", sys.executable), cut, tmp_path / "log", tmp_path)


def test_the_end_of_a_log_has_no_colours_and_no_empty_lines(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"first\n\n\x1b[31mred\x1b[0m\n\xff\x07\n")
    assert last_lines(log, 2) == ["red", "\ufffd\\x07"]
    assert last_lines(tmp_path / "none") == []


@pytest.mark.parametrize("answer", ["[]", "{}", "7", "{", '{"python": "3.12"}'])
def test_an_answer_that_is_not_ours_is_none(tmp_path, answer):
    def answering(words, log):
        mark = next(word for word in words if word.startswith("pytest-accel-probe"))
        log.write_text(f"{mark}{answer}\n")
        return 0

    with pytest.raises(ValueError, match="no Python answered there"):
        probe(place_of("new", sys.executable), answering, tmp_path / "log", tmp_path)


def test_a_token_in_a_command_is_not_repeated():
    token = "hf_" + "aB3dE6gH9jK2mN5pQ8sT" * 2
    assert token not in place_of("new", f"env HF_TOKEN={token}").option
