"""How a step that cannot be built or measured ends its test."""

from types import SimpleNamespace

import pytest

from pytest_accel.measure.errors import CannotFit, OutOfMemory
from pytest_accel.workloads import measured_step as built


class Ended(Exception):  # noqa: N818 - stands for pytest's own
    """In the place of pytest's outcomes."""


@pytest.mark.parametrize(
    ("error", "nothing_built"), [(CannotFit("175b"), True), (OutOfMemory("175b"), False)]
)
def test_what_was_known_before_it_was_built_is_told_apart(monkeypatch, error, nothing_built):
    told = []

    def end(item, text, **how):
        told.append((item, text, how))
        raise Ended

    monkeypatch.setattr(built, "does_not_fit", end)
    with pytest.raises(Ended), built.plain_ends(SimpleNamespace(item="test_gpt"), may_not_fit=True):
        raise error
    assert told == [("test_gpt", "175b", {"nothing_built": nothing_built})]
