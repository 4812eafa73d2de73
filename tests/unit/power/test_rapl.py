"""The CPUs' counters, replayed from a tree in the layout of the kernel's powercap."""

from types import SimpleNamespace

import pytest

from pytest_accel.platforms.host import REFUSED
from pytest_accel.power import source as source_module
from pytest_accel.power.rapl import REMEDY, RaplSource
from pytest_accel.stats.energy import EnergyWindow, energy_of

RANGE_UJ = 262_143_328_850  # an Intel server's
SERVER = {
    "intel-rapl:0": ("package-0", 1_000_000),
    "intel-rapl:0:0": ("core", 1),
    "intel-rapl:0:1": ("dram", 5_000_000),
    "intel-rapl:1": ("package-1", 2_000_000),
    "intel-rapl:1:0": ("dram", 6_000_000),
    "intel-rapl:2": ("psys", 1_000_000),
    "intel-rapl-mmio:0": ("package-0", 1_000_000),
}


@pytest.fixture
def tree(tmp_path):
    """Write zones, folder to (name, microjoules); give back the path of each counter."""

    def write(zones, *, range_uj=RANGE_UJ):
        powercap = tmp_path / "sys" / "class" / "powercap"
        (powercap / "intel-rapl").mkdir(parents=True)  # the control type: it has no counter
        counters = {}
        for folder, (name, microjoules) in zones.items():
            (powercap / folder).mkdir()
            (powercap / folder / "name").write_text(f"{name}\n")
            (powercap / folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
            counters[folder] = powercap / folder / "energy_uj"
            counters[folder].write_text(f"{microjoules}\n")
        return counters

    return write


@pytest.fixture
def clock():
    """Seconds that pass when a test says so."""
    return SimpleNamespace(now_s=100.0)


@pytest.fixture
def opened(tmp_path, clock):
    return lambda: RaplSource(tmp_path, clock=lambda: clock.now_s)


def test_sockets_and_their_memory_are_counted_and_parts_of_a_socket_are_not(tree, opened):
    counters = tree(SERVER)
    source = opened()
    assert [(rail.name, rail.kind, rail.scope, rail.within) for rail in source.rails] == [
        ("package-0", "cpu", "node", ""),
        ("package-0 dram", "dram", "node", ""),
        ("package-1", "cpu", "node", ""),
        ("package-1 dram", "dram", "node", ""),
    ]
    before_j = source.joules()
    counters["intel-rapl:0"].write_text("4000000\n")
    counters["intel-rapl:1:0"].write_text("6500000\n")
    gained = {rail: after_j - before_j[rail] for rail, after_j in source.joules().items()}
    assert gained == {"package-0": 3.0, "package-0 dram": 0.0, "package-1": 0.0, "package-1 dram": 0.5}
    assert source.problem == ""


def test_a_window_of_several_turns_is_counted_whole_where_power_is_sampled(tree, opened, clock):
    """A busy EPYC goes around in minutes: the ends alone would tell too little."""
    range_j, power_w = 65_532.0, 300.0
    counters = tree({"intel-rapl:0": ("package-0", 0)}, range_uj=int(range_j * 1e6))
    source = opened()
    before_j = source.joules()
    for second in range(0, 1000, 50):
        clock.now_s = 100.0 + second
        counters["intel-rapl:0"].write_text(f"{int(power_w * second % range_j * 1e6)}\n")
        source.watts()
    clock.now_s = 1100.0
    counters["intel-rapl:0"].write_text(f"{int(power_w * 1000 % range_j * 1e6)}\n")
    after_j = source.joules()
    window = EnergyWindow(begin_s=100, end_s=1100, before_j=before_j, after_j=after_j, rails=source.rails)
    assert energy_of(window).energy_j["package-0"] == pytest.approx(300_000)


def test_a_counter_that_was_reset_is_dropped_and_not_taken_for_a_turn(tree, opened, clock):
    counters = tree({"intel-rapl:0": ("package-0", 1_000_000)})
    source = opened()
    clock.now_s += 0.1
    counters["intel-rapl:0"].write_text("0")
    assert source.joules() == {}
    clock.now_s += 0.1
    counters["intel-rapl:0"].write_text("1000001")
    assert source.joules() == {}  # not to be trusted again
    assert source.problem == (
        f"package-0: no energy counter ({counters['intel-rapl:0']} went from 1 J to 0 J)"
    )


def test_permission_refused_is_said_once_with_the_remedy(tree, opened, monkeypatch):
    tree(SERVER)
    real = source_module.read_file

    def refuse(path):  # tests may run as root, who may read all
        return ("", REFUSED) if path.name == "energy_uj" else real(path)

    monkeypatch.setattr(source_module, "read_file", refuse)
    source = opened()
    assert source.rails == ()
    assert source.joules() == source.watts() == {}
    assert source.problem == REMEDY


@pytest.mark.parametrize("garbage", ["", "-5", "nan"])
def test_a_socket_that_says_garbage_from_the_start_stays_a_rail_so_that_no_sum_leaves_it_out(
    tree, opened, garbage
):
    counters = tree(SERVER)
    counters["intel-rapl:1"].write_text(garbage)
    source = opened()
    assert "package-1" in [rail.name for rail in source.rails]
    assert set(source.joules()) == {"package-0", "package-0 dram", "package-1 dram"}
    assert source.problem.startswith(f"{counters['intel-rapl:1']} says ")


def test_a_counter_that_vanishes_mid_run_is_left_out_and_the_others_go_on(tree, opened):
    counters = tree(SERVER)
    source = opened()
    counters["intel-rapl:0"].unlink()
    assert set(source.joules()) == {"package-0 dram", "package-1", "package-1 dram"}
    assert source.problem == (
        f"package-0: no energy counter ({counters['intel-rapl:0']} no such file or directory)"
    )
