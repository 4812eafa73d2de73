"""Grace's power meters, replayed from a tree in the layout of the kernel."""

import pytest

from pytest_accel.power.grace import GraceSource

# As a node of two Grace Hopper modules tells it, in the order of its hwmon folders.
QUAD = {
    "Module Power Socket 0": 598_000_000,
    "Grace Power Socket 0": 139_000_000,
    "CPU Power Socket 0": 63_000_000,
    "SysIO Power Socket 0": 34_000_000,
    "Module Power Socket 1": 611_000_000,
    "CPU Power Socket 1": 64_000_000,
}


@pytest.fixture
def tree(tmp_path):
    """Write meters, name to microwatts; give back the path of each meter's reading."""

    def write(meters, *, inner="device"):
        hwmon = tmp_path / "sys" / "class" / "hwmon"
        (hwmon / "hwmon0").mkdir(parents=True)  # an NVMe disk: it has no power meter
        (hwmon / "hwmon0" / "name").write_text("nvme\n")
        paths = {}
        for place, (name, microwatts) in enumerate(meters.items(), 1):
            folder = hwmon / f"hwmon{place}" / inner
            folder.mkdir(parents=True)
            (folder / "power1_oem_info").write_text(f"{name}\n")
            paths[name] = folder / "power1_average"
            paths[name].write_text(f"{microwatts}\n")
        return paths

    return write


def test_watts_of_every_rail(tree, tmp_path):
    tree(QUAD)
    source = GraceSource(tmp_path)
    assert source.watts() == {
        "module0": 598.0, "grace0": 139.0, "cpu0": 63.0, "sysio0": 34.0,
        "module1": 611.0, "cpu1": 64.0,
    }  # fmt: skip
    assert source.joules() == {}
    assert source.problem == ""


@pytest.mark.parametrize(
    ("missing", "within"),
    [
        ("none", {"module0": "", "grace0": "module0", "cpu0": "grace0", "sysio0": "grace0"}),
        ("Grace", {"module0": "", "cpu0": "module0", "sysio0": "module0"}),
    ],
)
@pytest.mark.parametrize("inner", ["device", ""])
def test_rail_lies_within_the_smallest_that_is_present(tree, tmp_path, missing, within, inner):
    tree({name: value for name, value in QUAD.items() if missing not in name}, inner=inner)
    rails = GraceSource(tmp_path).rails
    assert {rail.name: rail.within for rail in rails if rail.name.endswith("0")} == within
    assert all(rail.scope == "node" and rail.name.startswith(rail.kind) for rail in rails)


def test_meters_of_others_are_left_alone(tree, tmp_path):
    tree({"Chassis Power": 1, "CPU Power Socket 0 (estimated)": 1, "": 1})
    source = GraceSource(tmp_path)
    assert source.rails == ()
    assert source.watts() == {}
    assert source.problem == (
        "/sys/class/hwmon has no power meter of Grace (the kernel's acpi_power_meter; a container may hide it)"
    )


@pytest.mark.parametrize("garbage", ["", "-1", "N/A", "999999999999999"])
def test_garbage_is_left_out_with_its_reason_and_the_others_go_on(tree, tmp_path, garbage):
    paths = tree(QUAD)
    source = GraceSource(tmp_path)
    paths["Module Power Socket 0"].write_text(garbage)
    assert (
        source.watts().keys() == source.watts().keys() == {rail.name for rail in source.rails} - {"module0"}
    )
    assert source.problem.startswith("module0: power cannot be read (")
    assert source.problem.count("module0:") == 1
