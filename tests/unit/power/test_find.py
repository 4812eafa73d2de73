"""Sources of a node: built-in ones, those of plugins, and a fake driver library."""

import inspect
import platform
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from pytest_accel import hookspecs, power
from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.power.find import from_hook, open_sources, problems
from pytest_accel.power.source import PowerSource
from pytest_accel.stats.energy import Rail


@pytest.fixture
def rapl(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
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
    assert all(isinstance(source, PowerSource) for source in sources)
    return [source.name for source in sources]


@pytest.mark.parametrize(
    ("machine", "missing"),
    [
        ("x86_64", "RAPL: /sys/class/powercap has no intel-rapl:0 (virtual machines hide it"),
        ("aarch64", "Grace sensors: /sys/class/hwmon has no power meter of Grace"),
    ],
)
def test_a_host_without_sensors_says_which_it_could_have(tmp_path, monkeypatch, machine, missing):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    (source,) = open_sources([], root=tmp_path)
    assert problems([source])[0].startswith(missing)
    assert source.joules() == source.watts() == {}
    source.close()


def test_every_source_is_tried_for_itself(rapl, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setitem(sys.modules, "gcipuinfo", None)
    vendors = ("nvidia", "amd", "graphcore", "acme")
    devices = [DetectedDevice(vendor=vendor, uuid="GPU-1", index=0) for vendor in vendors]
    sources = open_sources(devices, root=rapl)
    assert names(sources) == ["NVML", "amdsmi", "gcipuinfo", "acme", "RAPL"]
    assert [said.partition(":")[0] for said in problems(sources)] == ["NVML", "amdsmi", "gcipuinfo", "acme"]
    assert list(sources[-1].joules()) == ["package-0"]


def test_a_source_that_breaks_when_it_is_opened_costs_only_itself(rapl, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcipuinfo", SimpleNamespace(gcipuinfo=lambda: 1 / 0))
    sources = open_sources([DetectedDevice(vendor="graphcore", uuid="1/0", index=0)], root=rapl)
    assert names(sources) == ["graphcore", "RAPL"]
    assert problems(sources) == ("graphcore: its power cannot be read (ZeroDivisionError: division by zero)",)
    assert sources[0].joules() == sources[0].watts() == {}


def test_a_source_of_the_host_that_breaks_costs_only_itself(rapl, monkeypatch):
    monkeypatch.setattr("pytest_accel.power.rapl.SOURCE", lambda root: 1 / 0)
    (source,) = open_sources([], root=rapl)
    assert problems([source]) == ("host: its power cannot be read (ZeroDivisionError: division by zero)",)


def test_new_source_is_one_file(tmp_path, monkeypatch):
    code = """
from pytest_accel.power.source import BaseSource

VENDOR = "acme"

def SOURCE(devices):
    return BaseSource("acme meter", f"reads {[device.uuid for device in devices]}")
"""
    (tmp_path / "acme.py").write_text(code)
    monkeypatch.setattr("pytest_accel.power.__path__", [*power.__path__, str(tmp_path)])
    sources = open_sources([DetectedDevice(vendor="acme", uuid="A-1", index=0)], root=tmp_path)
    assert problems(sources)[0] == "acme meter: reads ['A-1']"


def test_a_meter_of_the_node_takes_the_place_of_the_hosts_own_sensors(rapl):
    meter = Meter("outlet", scope="node")
    assert open_sources([], root=rapl, more=[Meter("npu0"), meter])[1:] == (meter,)
    assert names(open_sources([], root=rapl, more=[Meter("npu0"), meter])) == ["my meter", "my meter"]


def test_a_rail_of_a_name_that_is_taken_is_refused_with_the_remedy(rapl):
    meter, other = Meter("package-0"), Meter("outlet")
    sources = open_sources([], root=rapl, more=[meter, other])
    assert problems(sources) == (
        "my meter: another source has a rail 'package-0' already: give it a name of its own",
    )
    assert (meter.closed, other.closed) == (True, False)
    assert [rail.name for source in sources for rail in source.rails] == ["package-0", "outlet"]


def test_finding_imports_no_driver_that_is_not_asked_for():
    code = (
        "import sys; from pytest_accel.power.find import open_sources; open_sources([]);"
        "print({'pynvml', 'amdsmi', 'gcipuinfo', 'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"


# --- sources of plugins -----------------------------------------------------------------------------


def asked(root):
    """The sources of a conftest.py with the code that the hook's docstring tells to paste."""
    text = inspect.getdoc(hookspecs.pytest_accel_power_sources).partition("::\n")[2]
    conftest = {}
    exec(textwrap.dedent(text).replace("/run/node-meter", str(root)), conftest)
    return from_hook([conftest["pytest_accel_power_sources"](config=None)])


def test_the_example_works_as_it_is_pasted(tmp_path):
    (tmp_path / "energy_j").write_text("1234.5\n")
    (tmp_path / "power_w").write_text("310\n")
    (source,) = open_sources([], root=tmp_path, more=asked(tmp_path))
    assert (source.name, [rail.name for rail in source.rails]) == ("node meter", ["supply"])
    assert source.joules() == {"supply": 1234.5}
    assert source.watts() == {"supply": 310.0}
    assert source.problem == ""


def test_the_example_costs_nothing_where_its_sensor_is_gone(tmp_path):
    (source,) = asked(tmp_path)
    assert source.joules() == source.joules() == {}
    (said,) = problems([source])
    assert said.startswith("node meter: joules raised FileNotFoundError: ")
    assert said.count("joules") == 1
    source.close()


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -1.0, None, "much"])
def test_impossible_reading_is_left_out_and_the_others_stay(garbage):
    meter = Meter("a", "b")
    meter.joules = meter.watts = lambda: {"a": garbage, "b": 2, "c": 1.0}  # c is none of its rails
    (source,) = from_hook([[meter]])
    assert source.joules() == source.watts() == {"b": 2.0}
    assert f"joules() says 'a': {garbage!r}, which is no reading" in source.problem


def test_what_is_no_source_is_refused_with_its_members():
    wrong = Meter()
    wrong.rails = ("a",)
    for source in (object(), wrong):
        with pytest.raises(ValueError, match="is no power source: it has name, problem, rails, joules"):
            from_hook([[source]])
