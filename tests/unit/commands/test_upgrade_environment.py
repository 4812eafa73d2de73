"""Environments of an upgrade: how they are named, and what their probe may answer."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from pytest_accel import __version__
from pytest_accel.commands.upgrade import environment_of


def runner(change=lambda words: words, output=None):
    """A runner that starts the real command, or only writes this output."""

    def run(words, log, **_):
        if output is not None:
            log.write_text(output)
            return 0
        with log.open("wb") as stream:
            return subprocess.run(
                change(words), stdout=stream, stderr=subprocess.STDOUT, check=False
            ).returncode

    return SimpleNamespace(run=run)


@pytest.mark.parametrize(
    ("given", "called"),
    [
        ("env A=1", "env A=1 python3 -m pytest"),
        ("env A=1 python3.12", "env A=1 python3.12 -m pytest"),
        (sys.executable, f"{sys.executable} -m pytest"),
        ("env --chdir /opt/python3/images", "env --chdir /opt/python3/images python3 -m pytest"),
        ("env python-image", "env python-image python3 -m pytest"),
        (sys.prefix, f"{sys.prefix}/bin/python -m pytest"),
    ],
)
def test_command_is_put_before_python_unless_it_ends_with_one(given, called):
    assert " ".join(environment_of("OLD", given).python("-m", "pytest")) == called


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "it is empty"),
        ("nowhere/python", "there is no program 'nowhere/python' here"),
        ("$HOME/new/bin/python", "the shell's to fill in"),
        ("env 'a", "no closing quotation"),
    ],
)
def test_command_that_cannot_be_started_is_refused_with_a_remedy(given, message):
    with pytest.raises(ValueError, match=message.replace("$", r"\$")):
        environment_of("NEW", given)


def test_credentials_are_not_shown():
    token = "hf_" + "aB3dE6gH9jK2mN5pQ8sT" * 2
    assert token not in environment_of("NEW", f"env HF_TOKEN={token}").shown


def test_probe_finds_the_versions_and_removes_its_token(tmp_path):
    facts = environment_of("NEW", sys.executable).probe(runner(), tmp_path)
    assert facts["pytest_accel"] == __version__
    assert facts["executable"] == sys.executable
    assert [each.name for each in tmp_path.iterdir()] == ["new-probe.log"]


def test_probe_refuses_an_environment_that_sees_another_folder_of_that_name(tmp_path):
    def elsewhere(words):
        *others, token = words
        return [*others, token.replace("probe", "other")]

    with pytest.raises(ValueError, match="cannot be seen"):
        environment_of("NEW", sys.executable).probe(runner(elsewhere), tmp_path)


@pytest.mark.parametrize("answer", ["", '{"python": "3.1'])
def test_answer_that_is_not_complete_is_refused_with_the_log(tmp_path, answer):
    output = f"a banner\npytest-accel-probe {answer}\n"
    with pytest.raises(ValueError, match=r"no Python answered there(.|\n)*a banner"):
        environment_of("NEW", sys.executable).probe(runner(output=output), tmp_path)
