"""The energy counter of a GPU, through the real pynvml and a driver without a GPU."""

from __future__ import annotations

import json

import pytest

from pytest_accel.power.nvml import NvmlCounter
from tests.support.fake_nvml import FakeGpu

pytest_plugins = ("tests.support.fake_nvml",)

MINE = FakeGpu(uuid="GPU-aaaaaaaa-0000-0000-0000-000000000001", energy_mj=123_456_789)
OTHER = FakeGpu(uuid="GPU-aaaaaaaa-0000-0000-0000-000000000002", energy_mj=5)
NVML_ERROR_UNINITIALIZED, NVML_ERROR_DRIVER_NOT_LOADED = 1, 9

READ = """
import json
from pytest_accel.power.nvml import NvmlCounter
with NvmlCounter({uuid!r}) as counter:
    inside = counter.read_j()
print(json.dumps([inside, counter.read_j()]))
"""


def read(fake_nvml, gpus, uuid=MINE.uuid, **options):
    inside, afterwards = json.loads(fake_nvml.run(READ.format(uuid=uuid), gpus, **options))
    assert afterwards is None  # closed
    return inside


@pytest.mark.parametrize("gpus", [[MINE, OTHER], [OTHER, MINE]])
def test_joules_are_those_of_the_gpu_that_was_named(fake_nvml, gpus):
    assert read(fake_nvml, gpus) == 123_456.789


def test_a_gpu_that_is_not_there_has_no_energy(fake_nvml):
    assert read(fake_nvml, [OTHER]) is None
    assert read(fake_nvml, [OTHER], uuid="") is None


def test_a_gpu_that_does_not_count_has_no_energy(fake_nvml):
    silent = FakeGpu(uuid=MINE.uuid, energy_mj=None)
    assert read(fake_nvml, [silent]) is None


def test_a_gpu_that_is_lost_has_no_energy(fake_nvml):
    lost = FakeGpu(uuid=MINE.uuid, lost=1)
    assert read(fake_nvml, [lost]) is None


def test_a_driver_that_is_not_loaded_is_no_energy(fake_nvml):
    assert read(fake_nvml, [MINE], init_error=NVML_ERROR_DRIVER_NOT_LOADED) is None


def test_a_machine_without_a_driver_has_no_energy(monkeypatch):
    import pynvml

    def missing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    with NvmlCounter(MINE.uuid) as counter:
        assert counter.read_j() is None


def test_a_machine_without_pynvml_has_no_energy(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with NvmlCounter(MINE.uuid) as counter:
        assert counter.read_j() is None


def test_a_driver_that_fails_to_close_spoils_no_measurement(monkeypatch):
    import pynvml

    def fail():
        raise pynvml.NVMLError(NVML_ERROR_UNINITIALIZED)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: object())
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda handle: 1500)
    monkeypatch.setattr(pynvml, "nvmlShutdown", fail)
    with NvmlCounter(MINE.uuid) as counter:
        assert counter.read_j() == 1.5
