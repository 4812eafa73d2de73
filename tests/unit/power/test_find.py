"""Which sources a node has, from trees of the kernel's files and a driver without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pytest_accel.power import find
from pytest_accel.power.find import close_sources, open_sources, problems
from pytest_accel.power.source import PowerDevice, Source
from pytest_accel.stats.energy import Rail
from tests.support.fake_nvml import FakeGpu

pytest_plugins = ("tests.support.fake_nvml",)

NO_RAPL = "RAPL: /sys/class/powercap is not there (virtual machines hide it)"


@pytest.fixture
def grace(tmp_path):
    for place, name in enumerate(("Module", "Grace")):
        folder = tmp_path / "sys" / "class" / "hwmon" / f"hwmon{place}" / "device"
        folder.mkdir(parents=True)
        (folder / "power1_oem_info").write_text(f"{name} Power Socket 0\n")
        (folder / "power1_average").write_text("500000000\n")
    return tmp_path


@pytest.fixture
def rapl(tmp_path):
    zone = tmp_path / "sys" / "class" / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name, content in {"name": "package-0", "energy_uj": "1", "max_energy_range_uj": "1000000"}.items():
        (zone / name).write_text(content)
    return tmp_path


class Meter:
    """Somebody's source."""

    problem = ""
    closed = False

    def __init__(self, *rails, scope="device"):
        self.name = "my meter"
        self.rails = tuple(Rail(name=rail, scope=scope) for rail in rails)

    def joules(self):
        return {}

    def watts(self):
        return {}

    def close(self):
        self.closed = True


def names(sources):
    assert all(isinstance(source, Source) for source in sources)
    return [source.name for source in sources]


def test_a_platform_without_accelerators_has_the_sources_of_its_host(rapl):
    sources = open_sources([], host=rapl)
    assert names(sources) == ["RAPL"]
    assert problems(sources) == ()


@pytest.mark.parametrize(
    ("machine", "missing"),
    [("x86_64", NO_RAPL), ("aarch64", "Grace sensors: /sys/class/hwmon has no power *")],
)
def test_a_host_without_sensors_says_which_it_could_have(tmp_path, machine, missing):
    sources = open_sources([], host=tmp_path, machine=machine)
    (said,) = problems(sources)
    assert said.startswith(missing.rstrip("*"))
    assert [source.joules() for source in sources] == [source.watts() for source in sources] == [{}]
    close_sources(sources)


def test_the_sensors_that_are_there_are_found_whatever_the_machine_is_called(grace):
    assert names(open_sources([], host=grace, machine="x86_64")) == ["Grace sensors"]


def test_every_source_is_tried_for_itself(rapl, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setitem(sys.modules, "gcipuinfo", None)
    vendors = ("nvidia", "amd", "graphcore", "acme")
    devices = [PowerDevice(vendor=vendor, uuid="GPU-1", index=0) for vendor in vendors]
    sources = open_sources(devices, host=rapl)
    assert names(sources) == ["NVML", "amdsmi", "gcipuinfo", "acme", "RAPL"]
    assert [said.partition(" ")[0] for said in problems(sources)] == [
        "NVML:",
        "amdsmi:",
        "gcipuinfo:",
        "acme:",
    ]
    assert list(sources[-1].joules()) == ["package-0"]


def test_a_source_that_breaks_when_it_is_opened_costs_only_itself(rapl, monkeypatch):
    monkeypatch.setattr(find, "NvmlSource", lambda *_, **__: 1 / 0)
    sources = open_sources([PowerDevice(vendor="nvidia", uuid="GPU-1", index=0)], host=rapl)
    assert names(sources) == ["NVML", "RAPL"]
    assert problems(sources) == ("NVML: cannot be opened (ZeroDivisionError: division by zero)",)
    assert sources[0].joules() == sources[0].watts() == {}


def test_sources_of_others_come_last(rapl):
    assert names(open_sources([], host=rapl, more=[Meter("outlet")])) == ["RAPL", "my meter"]


def test_a_meter_of_the_node_takes_the_place_of_the_hosts_own_sensors(rapl):
    meter = Meter("outlet", scope="node")
    assert open_sources([], host=rapl, more=[Meter("npu0"), meter])[1:] == (meter,)
    assert names(open_sources([], host=rapl, more=[Meter("npu0"), meter])) == ["my meter", "my meter"]


def test_and_that_of_a_grace_hopper_module(fake_nvml, tmp_path):
    code = f"""
from pathlib import Path
from types import SimpleNamespace
from pytest_accel.stats.energy import Rail
from pytest_accel.power.find import open_sources
from pytest_accel.power.source import PowerDevice
meter = SimpleNamespace(name="my meter", rails=(Rail(name="outlet", scope="node"),))
devices = [PowerDevice(vendor="nvidia", uuid="GPU-1", index=0)]
sources = open_sources(devices, host=Path({str(tmp_path)!r}), more=[meter])
print([rail.name for source in sources for rail in source.rails])
"""
    gpu = FakeGpu(name="NVIDIA GH200 480GB", uuid="GPU-1", power_instant_mw=1000, power_module_mw=2000)
    assert fake_nvml.run(code, [gpu]) == "['gpu0', 'outlet']\n"


def test_a_rail_of_a_name_that_is_taken_is_refused_with_the_remedy(rapl):
    meter, second, third = Meter("package-0"), Meter("outlet"), Meter("outlet")
    sources = open_sources([], host=rapl, more=[meter, second, third])
    assert problems(sources) == (
        "my meter: its rail 'package-0' is one of RAPL already: give it a name of its own",
        "my meter: its rail 'outlet' is one of my meter already: give it a name of its own",
    )
    assert (meter.closed, second.closed, third.closed) == (True, False, True)
    assert [rail.name for source in sources for rail in source.rails] == ["package-0", "outlet"]


def test_a_module_is_told_by_one_of_the_two_that_know_it(fake_nvml, grace, tmp_path_factory):
    code = """
import json
from pathlib import Path
from pytest_accel.power.find import open_sources
from pytest_accel.power.source import PowerDevice
sources = open_sources([PowerDevice(vendor="nvidia", uuid="GPU-1", index=0)], host=Path({host!r}), machine="aarch64")
print(json.dumps([[source.name, [rail.name for rail in source.rails]] for source in sources]))
"""
    gpu = FakeGpu(name="NVIDIA GH200 480GB", uuid="GPU-1", power_instant_mw=1000, power_module_mw=2000)
    with_sensors = json.loads(fake_nvml.run(code.format(host=str(grace)), [gpu]))
    assert with_sensors == [["NVML", ["gpu0"]], ["Grace sensors", ["grace0", "module0"]]]
    without = json.loads(fake_nvml.run(code.format(host=str(tmp_path_factory.mktemp("bare"))), [gpu]))
    assert without == [["NVML", ["gpu0", "module0"]], ["Grace sensors", []]]


def test_finding_imports_no_driver_that_is_not_asked_for():
    code = (
        "import sys; from pytest_accel.power.find import open_sources; open_sources([]);"
        "print({'pynvml', 'amdsmi', 'gcipuinfo', 'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"
