"""The power of IPUs, from a gcipuinfo made for the test that answers in text, as Graphcore's does."""

import sys
import types

import pytest

from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.platforms.machine import ipu_devices as detected
from pytest_accel.power.graphcore import GraphcoreSource

LISTED = [
    {"board serial number": "0024.0002.8203321", "board ipu index": str(place), "ipu architecture": "ipu21"}
    for place in (3, 2)
]
DEVICES = [
    DetectedDevice(vendor=device.vendor, uuid=device.uuid, index=device.index) for device in detected(LISTED)
]


class Info:
    """The library's own object."""

    powers: object = ("62.1W", "58.25W")
    updates = False

    def setUpdateMode(self, on):  # noqa: N802 -- the library's name
        self.updates = on

    def getDevices(self):  # noqa: N802 -- as above
        return LISTED

    def getNamedAttributeForAll(self, attribute):  # noqa: N802 -- as above
        assert attribute == "ipu power"
        assert self.updates
        if isinstance(self.powers, Exception):
            raise self.powers
        return self.powers


@pytest.fixture
def info(monkeypatch):
    made = Info()
    module = types.ModuleType("gcipuinfo")
    module.gcipuinfo = lambda: made
    module.IpuPower = "ipu power"
    monkeypatch.setitem(sys.modules, "gcipuinfo", module)
    return made


def test_watts_of_the_ipus_that_were_named(info):
    second = DetectedDevice(vendor="graphcore", uuid=DEVICES[1].uuid, index=0)
    source = GraphcoreSource([second])
    assert [(rail.name, rail.scope, rail.kind) for rail in source.rails] == [("ipu0", "device", "ipu")]
    assert source.watts() == {"ipu0": 58.25}
    assert source.joules() == {}
    assert GraphcoreSource(DEVICES).watts() == {"ipu0": 62.1, "ipu1": 58.25}
    assert source.problem == ""


@pytest.mark.parametrize("text", ["N/A", "", "W", "62.1", "62.1C", "-3W", "nanW", "infW"])
def test_a_power_that_is_none_is_missing_and_said_once(info, text):
    source = GraphcoreSource(DEVICES)
    info.powers = (text, "58W")
    assert source.watts() == source.watts() == {"ipu1": 58.0}
    assert source.problem == f"ipu0: power cannot be read (it says {text!r})"
    info.powers = ("other", "58W")
    source.watts()
    assert source.problem == f"ipu0: power cannot be read (it says {text!r})"
    info.powers = ("60W", "58W")
    assert source.watts() == {"ipu0": 60.0, "ipu1": 58.0}


def test_ipus_that_vanish_mid_run_are_missing(info):
    source = GraphcoreSource(DEVICES)
    info.powers = ("62.1W",)
    assert source.watts() == {"ipu0": 62.1}
    info.powers = RuntimeError("no connection to the IPU-M2000")
    assert source.watts() == {}
    assert source.problem == (
        "ipu1: power cannot be read (IndexError: list index out of range); "
        "power cannot be read (RuntimeError: no connection to the IPU-M2000)"
    )
    source.close()
    assert source.watts() == {}


def test_a_machine_without_the_sdk_says_where_it_comes_from(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcipuinfo", None)
    source = GraphcoreSource(DEVICES)
    assert source.problem == "gcipuinfo is not installed; it comes with the Poplar SDK"
    assert source.rails == ()
