"""The CPUs' counters, replayed from a tree in the layout of the kernel's powercap."""

import pytest

from pytest_accel.platforms.host import REFUSED
from pytest_accel.power import source as source_module
from pytest_accel.power.rapl import RaplSource
from pytest_accel.stats.energy import EnergyWindow, energy_of, total_j

RANGE_UJ = 262_143_328_850  # an Intel server's
SERVER = {
    "intel-rapl:0": ("package-0", 1_000_000),
    "intel-rapl:0:0": ("core", 1),
    "intel-rapl:0:1": ("dram", 5_000_000),
    "intel-rapl:1": ("package-1", 2_000_000),
    "intel-rapl:1:0": ("dram", 6_000_000),
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


class Clock:
    """Seconds that pass when a test says so."""

    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def opened(tmp_path, clock):
    return lambda: RaplSource(tmp_path, clock=clock)


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


def test_the_board_holds_the_sockets(tree, opened):
    counters = tree(SERVER | {"intel-rapl:2": ("psys", 1_000_000)})
    source = opened()
    before_j = source.joules()
    for counter in counters.values():
        counter.write_text("9000000\n")
    window = EnergyWindow(begin_s=0, end_s=1, before_j=before_j, after_j=source.joules(), rails=source.rails)
    assert total_j(energy_of(window).energy_j, source.rails, scope="node") == 8.0  # psys alone
    assert {rail.within for rail in source.rails if rail.name != "psys"} == {"psys"}


def test_a_board_that_is_not_wired_does_not_stand_for_the_sockets(tree, opened):
    counters = tree(SERVER | {"intel-rapl:2": ("psys", 0)})
    source = opened()
    assert {rail.within for rail in source.rails} == {""}
    assert source.problem == f"psys: {counters['intel-rapl:2']} stands at 0; left out"


def test_a_counter_that_begins_again_goes_on(tree, opened, clock):
    counters = tree({"intel-rapl:0": ("package-0", 65_000_000)}, range_uj=65_532_610)
    source = opened()
    before_j = source.joules()["package-0"]
    clock.now_s += 1
    counters["intel-rapl:0"].write_text("1000000\n")
    assert source.joules()["package-0"] - before_j == pytest.approx(0.53261 + 1)


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
    assert source.problem == f"package-0: {counters['intel-rapl:0']} went from 1 J to 0 J; left out"


def test_permission_refused_is_said_once_with_the_remedy(tree, opened, monkeypatch):
    counters = tree(SERVER)
    real = source_module.read_file

    def refuse(path):  # tests may run as root, who may read all
        return ("", REFUSED) if path.name == "energy_uj" else real(path)

    monkeypatch.setattr(source_module, "read_file", refuse)
    source = opened()
    assert source.rails == ()
    assert source.joules() == source.watts() == {}
    assert source.problem == (
        f"{counters['intel-rapl:0']} may be read by root only; an administrator may allow it: "
        "chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj, or a udev rule that does"
    )


@pytest.mark.parametrize("garbage", ["", "-5", "nan", "12.5", "9" * 30])
def test_a_socket_that_says_garbage_from_the_start_stays_a_rail_so_that_no_sum_leaves_it_out(
    tree, opened, garbage
):
    counters = tree(SERVER)
    counters["intel-rapl:1"].write_text(garbage)
    source = opened()
    assert "package-1" in [rail.name for rail in source.rails]
    assert set(source.joules()) == {"package-0", "package-0 dram", "package-1 dram"}
    assert source.problem.startswith(f"package-1: {counters['intel-rapl:1']} says ")


def test_a_counter_that_vanishes_mid_run_is_dropped_and_the_others_go_on(tree, opened, clock):
    counters = tree(SERVER)
    source = opened()
    before_j = source.joules()
    counters["intel-rapl:0"].unlink()
    clock.now_s += 1
    after_j = source.joules()
    assert set(after_j) == {"package-0 dram", "package-1", "package-1 dram"}
    assert source.problem == (f"package-0: {counters['intel-rapl:0']} no such file or directory; left out")
    window = EnergyWindow(begin_s=100, end_s=101, before_j=before_j, after_j=after_j, rails=source.rails)
    assert total_j(energy_of(window).energy_j, source.rails, scope="node") is None
