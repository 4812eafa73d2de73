"""AMD GPUs: energy counters and power, from a fake amdsmi."""

import sys
from types import SimpleNamespace

import pytest

from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.power.amd import AmdSource
from tests.support.fake_amdsmi import Smi


def gpu(serial, *, ticks=1_000_000, current="N/A", average="N/A"):
    return {
        "serial": f"0x{serial:016X}",
        "energy": {"energy_accumulator": ticks, "counter_resolution": 15.3, "timestamp": 1},
        "power": {"current_socket_power": current, "average_socket_power": average, "power_limit": 750},
    }


def devices(*serials):
    return [
        DetectedDevice(vendor="amd", uuid=f"GPU-{serial:016x}", index=index)
        for index, serial in enumerate(serials)
    ]


@pytest.fixture
def smi(monkeypatch):
    def install(*gpus):
        made = Smi(*gpus)
        monkeypatch.setitem(sys.modules, "amdsmi", made)
        return made

    return install


def test_joules_and_watts_of_the_gpus_that_were_named(smi):
    made = smi(gpu(0xA, current=100), gpu(0xB, ticks=2_000_000, current=300))
    source = AmdSource(devices(0xB, 0xA))
    assert [(rail.name, rail.scope, rail.kind) for rail in source.rails] == [
        ("gpu0", "device", "gpu"),
        ("gpu1", "device", "gpu"),
    ]
    assert source.joules() == pytest.approx({"gpu0": 30.6, "gpu1": 15.3})
    assert source.watts() == {"gpu0": 300.0, "gpu1": 100.0}
    assert source.problem == ""
    source.close()
    assert made.open == 0
    assert source.joules() == source.watts() == {}


@pytest.mark.parametrize("none", ["N/A", 65535, 0xFFFF_FFFF, -1])
def test_power_that_is_none_is_missing_and_said_once(smi, none):
    smi(gpu(0xA, current=none))
    source = AmdSource(devices(0xA))
    assert source.watts() == source.watts() == {}
    assert source.problem == (
        f"gpu0: power cannot be read (current_socket_power {none!r}, average_socket_power 'N/A')"
    )


class TestTwoDiesOfOneBoard:
    """As an MI250 tells them: the first for both, the second 0."""

    BOARDS = (gpu(1, average=89), gpu(2, ticks=0, average=0), gpu(3, average=93), gpu(4, ticks=0, average=0))

    def test_a_board_is_counted_once(self, smi):
        smi(*self.BOARDS)
        source = AmdSource(devices(1, 2, 3, 4))
        assert [rail.name for rail in source.rails] == ["gpu0", "gpu2"]
        assert source.joules() == pytest.approx({"gpu0": 15.3, "gpu2": 15.3})
        assert source.problem == ""

    def test_the_first_die_alone_tells_of_the_whole_board(self, smi):
        smi(*self.BOARDS)
        source = AmdSource(devices(3))
        assert source.watts() == {"gpu0": 93.0}
        assert source.problem == "gpu0: its energy is that of the whole board, the other die included"

    def test_the_second_die_alone_has_no_energy(self, smi):
        smi(*self.BOARDS)
        source = AmdSource(devices(2))
        assert source.rails == ()
        assert source.problem == (
            "gpu0: the second die of a board, whose energy only the first reports: measure both"
        )


def test_partitions_of_one_gpu_are_counted_once(smi):
    smi(gpu(0xA, current=100), gpu(0xA, current="N/A"))
    assert AmdSource(devices(0xA, 0xA)).watts() == {"gpu0": 100.0}


@pytest.mark.parametrize("serial", ["N/A", "0x0"])
def test_a_gpu_without_a_serial_number_is_not_taken_for_another(smi, serial):
    smi(gpu(0xA) | {"serial": serial})
    source = AmdSource(devices(0))
    assert source.rails == ()
    assert source.problem == "gpu0: amdsmi does not know this device (GPU-0000000000000000)"


def test_an_amdsmi_without_rocm_is_the_problem(monkeypatch):
    monkeypatch.setitem(sys.modules, "amdsmi", SimpleNamespace(amdsmi_init=lambda: {}["ROCM"]))
    source = AmdSource(devices(0xA))
    assert source.problem == "amdsmi does not start; it needs ROCm (KeyError: 'ROCM')"
    assert source.joules() == source.watts() == {}
