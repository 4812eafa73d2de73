"""A few inputs of every reader of tests/fuzz.py; `make fuzz` reads more."""

import pytest

from tests import fuzz


@pytest.mark.parametrize("reader", fuzz.READERS)
def test_damaged_inputs_end_in_errors_of_ours(reader, tmp_path):
    for seed in range(20):
        assert fuzz.run(seed, reader, tmp_path) is None, f"--reader {reader} --seed {seed}"


def test_exception_of_python_is_a_fault(monkeypatch, tmp_path):
    def read(_source, _folder):
        int("x")

    monkeypatch.setitem(fuzz.READERS, "project", (read, (ValueError,)))
    assert isinstance(fuzz.run(0, "project", tmp_path), ValueError)
