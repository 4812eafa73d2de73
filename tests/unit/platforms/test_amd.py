"""AMD GPUs: the kernel's topology, and HIP's rules of visibility."""

import pytest

from pytest_accel.platforms.catalogue import DetectedDevice, load_catalogue
from pytest_accel.platforms.host import HostFiles
from pytest_accel.platforms.machine import find_amd, identified, visible_devices

GIB = 1 << 30


@pytest.fixture
def sysfs(tmp_path):
    """Write nodes as the kernel does: a CPU, then GPUs of (device id, simds, GiB, product name)."""

    def write(*gpus):
        topology, drm = tmp_path / "sys/class/kfd/kfd/topology/nodes", tmp_path / "sys/class/drm"
        _node(topology / "0", {"cpu_cores_count": 64, "simd_count": 0}, [(0, 512 * GIB)])
        for index, (device_id, simds, gib, product) in enumerate(gpus, 1):
            properties = {
                "cpu_cores_count": 0, "simd_count": simds, "simd_per_cu": 4, "vendor_id": 4098,
                "device_id": device_id, "unique_id": 0xABC0 + index, "drm_render_minor": 127 + index,
            }  # fmt: skip
            _node(topology / str(index), properties, [(1, gib * GIB), (4, 65536)])
            if product:
                folder = drm / f"renderD{127 + index}" / "device"
                folder.mkdir(parents=True)
                (folder / "product_name").write_text(product + "\n")
        return HostFiles(root=tmp_path)

    return write


def _node(folder, properties, banks):
    folder.mkdir(parents=True)
    (folder / "properties").write_text("".join(f"{key} {value}\n" for key, value in properties.items()))
    for index, (heap, size) in enumerate(banks):
        bank = folder / "mem_banks" / str(index)
        bank.mkdir(parents=True)
        (bank / "properties").write_text(f"heap_type {heap}\nsize_in_bytes {size}\nflags 0\n")


def keys(devices):
    found = [identified(device, load_catalogue()) for device in devices]
    return [(device.key, device.variant.key if device.variant else None) for device in found]


def test_a_machine_without_the_driver_has_nothing_and_no_problem(tmp_path):
    assert find_amd({}, HostFiles(root=tmp_path)) == ([], [])


def test_mi300x_from_the_topology(sysfs):
    devices, problems = find_amd({}, sysfs(*[(0x74A1, 1216, 192, "")] * 8))
    assert problems == []
    assert keys(devices) == [("mi300x", "")] * 8
    assert devices[0].name == "AMD Instinct MI300X"
    assert devices[0].uuid == "GPU-000000000000abc1"
    assert devices[0].memory_bytes == 192 * GIB


@pytest.mark.parametrize(
    ("simds", "product", "variant"),
    [(440, "", "mi250x"), (416, "", ""), (416, "AMD INSTINCT MI250 (MCM) OAM AC MBA", "")],
)
def test_the_gcds_of_an_mi250_are_told_apart_by_their_compute_units(sysfs, simds, product, variant):
    devices, _ = find_amd({}, sysfs(*[(0x740C, simds, 64, product)] * 2))
    assert keys(devices) == [("mi250", variant)] * 2


def test_a_partition_is_not_the_device_and_an_unknown_card_is_named_by_its_id(sysfs):
    partition, unknown = find_amd({}, sysfs((0x74A1, 152, 24, ""), (0x1234, 240, 16, "")))[0]
    assert keys([partition, unknown]) == [(None, None)] * 2
    assert unknown.name == "AMD device 0x1234"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "abcd"),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, "ca"),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, "a"),
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, "db"),
        ({"ROCR_VISIBLE_DEVICES": "0,GPU-c"}, "ac"),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"}, "b"),  # counts what ROCR left
    ],
)
def test_visible_devices_as_hip_reads_them(environ, expected):
    gpus = [DetectedDevice(index=0, name="X", uuid=f"GPU-{letter}") for letter in "abcd"]
    devices = visible_devices(gpus, environ)
    assert [device.uuid for device in devices] == [f"GPU-{letter}" for letter in expected]
    assert [device.index for device in devices] == list(range(len(expected)))


def test_hidden_gpus_are_told(sysfs):
    devices, problems = find_amd({"HIP_VISIBLE_DEVICES": ""}, sysfs((0x74A1, 1216, 192, "")))
    assert devices == []
    assert "leaves none of 1 x AMD Instinct MI300X" in problems[0]
