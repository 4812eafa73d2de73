"""The power of IPUs, from a gcipuinfo made for tests that answers in text, as Graphcore's does."""

import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_accel.platforms.machine import find_ipus
from pytest_accel.power.graphcore import GraphcoreSource
from tests import support

LIBRARY = Path(support.__path__[0], "poplar/gcipuinfo.py")


@pytest.fixture
def answer(monkeypatch):
    """Set the answers of the library, or what it raises."""
    library = SimpleNamespace(**runpy.run_path(str(LIBRARY)))
    monkeypatch.setitem(sys.modules, "gcipuinfo", library)

    def set_powers(*powers):
        def ask(self, attribute):
            if isinstance(powers[0], Exception):
                raise powers[0]
            return list(powers)

        library.gcipuinfo.getNamedAttributeForAll = ask

    return set_powers


@pytest.fixture
def devices(answer):
    found, problems = find_ipus()
    assert problems == []
    return found


def test_watts_of_the_ipus_that_were_named(devices):
    source = GraphcoreSource([replace(devices[1], index=0)])
    assert [(rail.name, rail.scope, rail.kind) for rail in source.rails] == [("ipu0", "device", "ipu")]
    assert source.watts() == {"ipu0": 58.25}
    assert source.joules() == {}
    assert GraphcoreSource(devices).watts() == {"ipu0": 62.1, "ipu1": 58.25}
    assert source.problem == ""


@pytest.mark.parametrize("text", ["N/A", "", "62.1C", "-3W", "nanW"])
def test_a_power_that_is_none_is_missing_and_said_once(answer, devices, text):
    source = GraphcoreSource(devices)
    answer(text, "58W")
    assert source.watts() == source.watts() == {"ipu1": 58.0}
    assert source.problem == f"ipu0: power cannot be read (it says {text!r})"
    answer("60W", "58W")
    assert source.watts() == {"ipu0": 60.0, "ipu1": 58.0}


def test_ipus_that_vanish_mid_run_are_missing(answer, devices):
    source = GraphcoreSource(devices)
    answer("62.1W")
    assert source.watts() == {"ipu0": 62.1}
    answer(RuntimeError("no connection to the IPU-M2000"))
    assert source.watts() == {}
    assert source.problem == (
        "ipu1: power cannot be read (IndexError: list index out of range); "
        "ipu0: power cannot be read (RuntimeError: no connection to the IPU-M2000)"
    )
    source.close()
    assert source.watts() == {}


def test_a_machine_without_the_sdk_says_where_it_comes_from(devices, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcipuinfo", None)
    source = GraphcoreSource(devices)
    assert source.problem == "gcipuinfo is not installed; it comes with the Poplar SDK"
    assert source.rails == ()
