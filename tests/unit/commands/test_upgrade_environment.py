"""Environments of an upgrade: how they are named."""

import sys

import pytest

from pytest_accel.commands.upgrade import environment_of


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
        *((given, "cannot be started here") for given in ("", "nowhere/python", "$HOME/python", "env 'a")),
        ("env PYTHONPATH=/no/such/base python", "PYTHONPATH names /no/such/base, which does not exist"),
    ],
)
def test_command_that_cannot_be_started_is_refused_with_a_remedy(given, message):
    with pytest.raises(ValueError, match=message):
        environment_of("NEW", given)


def test_credentials_are_not_shown():
    token = "hf_" + "aB3dE6gH9jK2mN5pQ8sT" * 2
    assert token not in environment_of("NEW", f"env HF_TOKEN={token}").shown
