"""What is read beside the timed rounds, with sensors that answer as they are told."""

import platform
import sys
from types import SimpleNamespace

import pytest

from pytest_accel.measure.rounds import Alone
from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.session import observation
from pytest_accel.session.observation import Observation, energy_metrics
from pytest_accel.stats.energy import Energy, EnergyWindow, Rail
from tests.support.fake_amdsmi import Smi, SmiError

GPU0, GPU1 = (Rail(name=f"gpu{index}", scope="device", kind="gpu") for index in (0, 1))
MODULE = Rail(name="module0", scope="node", kind="module")
GRACE = Rail(name="cpu0", scope="node", kind="cpu", within="grace0")
PACKAGE = Rail(name="package-0", scope="node", kind="cpu")


class Meter:
    """Counts what it is told to; its power is constant."""

    name = "meter"
    problem = ""

    def __init__(self, *counts_j, rail=PACKAGE, power_w=None):
        self.rails = (rail,)
        self._counts_j = iter(counts_j)
        self._power_w = power_w
        self.closed = 0

    def joules(self):
        return {self.rails[0].name: next(self._counts_j)}

    def watts(self):
        return {} if self._power_w is None else {self.rails[0].name: self._power_w}

    def close(self):
        self.closed += 1


class Ranks:
    """One of two ranks, and what the other one says."""

    size = 2

    def __init__(self, rank, other):
        self.rank = rank
        self._other = other

    def gather(self, mine):
        return [mine, self._other] if self.rank == 0 else [self._other, mine]


def config(*meters, asked=None):
    def hook(config):
        if asked is not None:
            asked.append(True)
        return [list(meters)] if meters else []

    return SimpleNamespace(hook=SimpleNamespace(pytest_accel_power_sources=hook))


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(observation, "time", SimpleNamespace(perf_counter=lambda: made.now_s))
    return made


@pytest.fixture(autouse=True)
def no_sensors_of_this_machine(monkeypatch):
    monkeypatch.setattr(observation, "open_sources", lambda devices, more=(): tuple(more))


def observe(clock, meter, *, seconds=4.0, steps=10, ranks=None):
    observation = Observation(config(meter), None, ranks or Alone())
    with observation:
        observation.begin()
        clock.now_s += seconds
        observation.end()
        return observation.observed(steps)


def test_energy_is_the_difference_over_the_window(clock):
    meter = Meter(50.0, 450.0, power_w=100.0)
    found = observe(clock, meter)
    assert found.figures == pytest.approx(
        {
            "energy_j": 400.0,
            "energy_per_step_j": 40.0,
            "energy_sampled_per_step_j": 40.0,
            "power_mean_w": 100.0,
        }
    )
    assert (found.invalid, found.notes, found.no_energy) == ((), (), "")
    assert meter.closed == 1


def test_counter_that_goes_backwards_gives_no_energy_and_a_reason(clock):
    found = observe(clock, Meter(450.0, 50.0))
    assert "energy_j" not in found.figures
    assert "package-0" in found.no_energy


def test_missing_sensors_are_the_reason_for_no_energy(clock, monkeypatch):
    monkeypatch.setattr(observation, "open_sources", lambda devices, more=(): ())
    found = observe(clock, Meter(0.0, 0.0))
    assert (found.figures, found.no_energy) == ({}, "nothing here counts it")


@pytest.mark.parametrize(("rank", "reads"), [(0, True), (1, False)])
def test_lowest_rank_of_a_node_reads_its_sensors(clock, rank, reads):
    other = (platform.node(), [4711], DetectedDevice(vendor="nvidia", uuid="GPU-b", index=1))
    asked = []
    observation = Observation(config(Meter(0.0, 0.0), asked=asked), None, Ranks(rank, other))
    assert bool(asked) is reads
    with observation:
        observation.begin()
        clock.now_s += 1
        observation.end()
        found = observation.observed(1)
    assert bool(found.no_energy or found.figures) is reads  # the other one has nothing to say


def test_each_node_reads_its_sensors(clock):
    asked = []
    Observation(config(asked=asked), None, Ranks(1, ("another node", [4711], None)))
    assert asked


def test_hook_without_valid_sources_is_noted(clock):
    found = observe(clock, object())
    assert "pytest_accel_power_sources" in found.no_energy
    assert "pytest_accel_power_sources" in "".join(found.notes)


def test_hook_that_raises_is_noted(clock, monkeypatch):
    def hook(config):
        raise OSError("unplugged")

    broken = SimpleNamespace(hook=SimpleNamespace(pytest_accel_power_sources=hook))
    observation = Observation(broken, None, Alone())
    with observation:
        observation.begin()
        clock.now_s += 1
        observation.end()
        assert "unplugged" in "".join(observation.observed(1).notes)


def test_reset_counter_is_noted_and_samples_are_used(clock):
    found = observe(clock, Meter(1000.0, 1.0, power_w=100.0))  # it was reset: the samples are taken
    assert found.figures["energy_j"] == pytest.approx(400.0)
    assert any("package-0" in note for note in found.notes)


def window(*rails, seconds=1.0):
    return EnergyWindow(begin_s=0.0, end_s=seconds, rails=rails)


def test_energy_of_devices_is_summed_and_power_is_per_device():
    energy = Energy(
        energy_j={"gpu0": 300.0, "gpu1": 500.0},
        sampled_j={"gpu0": 290.0, "gpu1": 510.0},
        peak_w={"gpu0": 350.0, "gpu1": 600.0},
    )
    found = energy_metrics(energy, window(GPU0, GPU1, seconds=2.0), steps=10, devices=2, tdp_w=400.0)
    assert found == pytest.approx(
        {
            "energy_j": 800.0,
            "energy_per_step_j": 80.0,
            "energy_sampled_per_step_j": 80.0,
            "power_mean_w": 200.0,
            "power_peak_w": 600.0,
            "tdp_share": 0.5,
        }
    )


def test_energy_of_a_module_is_not_added_to_its_gpu():
    rails = [Rail(name="gpu0", scope="device", kind="gpu", within="module0"), MODULE, GRACE]
    energy = Energy(energy_j={"gpu0": 300.0, "module0": 500.0, "cpu0": 120.0})
    found = energy_metrics(energy, window(*rails), steps=10, devices=1, tdp_w=None)
    assert found["energy_j"] == 300.0
    assert found["node_module_energy_per_step_j"] == 50.0
    assert found["node_cpu_energy_per_step_j"] == 12.0


def test_device_without_reading_leaves_no_sum():
    energy = Energy(energy_j={"gpu0": 300.0}, peak_w={"gpu0": 350.0})
    found = energy_metrics(energy, window(GPU0, GPU1, seconds=2.0), steps=10, devices=2, tdp_w=400.0)
    assert "energy_j" not in found


def test_throttled_amd_gpu_makes_a_run_invalid(monkeypatch):
    hot = {"current_gfxclk": 1700, "temperature_hotspot": 99, "indep_throttle_status": 1 << 36}
    smi = Smi({"serial": "0xAA", "metrics": [hot], "energy": SmiError("NO"), "power": SmiError("NO")})
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    device = DetectedDevice(index=0, name="AMD Instinct MI250", vendor="amd", uuid="GPU-00000000000000aa")
    with Observation(config(), device, Alone()) as observed:
        observed.begin()
        observed.end()
        found = observed.observed(steps=1)
    assert found.invalid == ("throttled (HW thermal, 100 % of the window)",)
    assert found.figures["temperature_c"] == 99
    assert smi.open == 0
