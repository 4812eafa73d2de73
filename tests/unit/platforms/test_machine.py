"""This machine: platforms that it satisfies, missing hardware, baseline folders, its processor."""

import pytest

from pytest_accel.platforms import machine as detection
from pytest_accel.platforms.catalogue import DetectedDevice, load_catalogue
from pytest_accel.platforms.machine import Cpu, Machine, describe_cpu

MIB = 1 << 20
CPU = Cpu(name="Intel Xeon Processor", model="6-207", slug="intel-xeon-processor-6-207", cores=2)


def machine(*models, cpu=CPU, problems=(), nodes=1):
    """A machine with devices of (name, MiB)."""
    catalogue = load_catalogue()
    devices = [
        detection.identified(DetectedDevice(index=index, name=name, memory_bytes=mib * MIB), catalogue)
        for index, (name, mib) in enumerate(models)
    ]
    return Machine(cpu=cpu, devices=tuple(devices), problems=problems, nodes=nodes)


def parse(name):
    return load_catalogue().parse(name)


def missing(found, *names):
    return found.missing([parse(name) for name in names], load_catalogue())


H200 = ("NVIDIA H200", 143771)
A100 = ("NVIDIA A100-SXM4-40GB", 40960)
A100_80 = ("NVIDIA A100-SXM4-80GB", 81920)
GH200 = ("NVIDIA GH200 120GB", 97871)


def test_a_node_with_four_is_three_platforms():
    names = machine(*[A100] * 4).satisfied(load_catalogue())
    assert names == ["a100", "a100x2", "a100x4", "cpu", "cpux2"]


@pytest.mark.parametrize(
    ("devices", "wanted", "reason"),
    [
        ([H200], "gh200", "needs 1 x GH200; this machine has 1 x NVIDIA H200"),
        ([A100] * 2, "a100x4", "needs 4 x A100; this machine has 2 x NVIDIA A100-SXM4-40GB"),
        (
            [GH200] * 4,
            "gh200x4n2",
            "needs 2 nodes of 4 x GH200; this process sees 1 node with 4 x NVIDIA GH200 120GB: start it with torchrun or srun",
        ),
        ([H200], "gh200x4n2", "needs 2 nodes of 4 x GH200; this machine has 1 x NVIDIA H200"),
        ([], "cpux4", "needs 4 CPU cores; this process may use 2 cores of Intel Xeon Processor"),
        ([A100, H200], "l4", "needs 1 x L4; this machine has 1 x NVIDIA A100-SXM4-40GB, 1 x NVIDIA H200"),
    ],
)
def test_says_what_is_missing(devices, wanted, reason):
    assert missing(machine(*devices), wanted) == reason


def test_without_accelerator_it_says_why():
    found = machine(problems=("NVML: no driver",))
    assert missing(found, "gh200") == (
        "needs 1 x GH200; this machine has no accelerator (NVML: no driver), only CPU Intel Xeon Processor"
    )
    assert "no accelerator, only CPU" in missing(machine(), "gh200")


def test_several_wanted_are_alternatives():
    said = "needs 1 x GH200 or 4 x A100; this machine has 1 x NVIDIA H200"
    assert missing(machine(H200), "gh200", "a100x4") == said
    assert missing(machine(*[GH200] * 4), "gh200x4n2", "l4") == (
        "needs 2 nodes of 4 x GH200 or 1 x L4; this process sees 1 node with 4 x NVIDIA GH200 120GB"
        ": start it with torchrun or srun"
    )


def test_many_alternatives_are_counted():
    assert missing(machine(H200), "gh200", "h100", "b200", "a100", "l4", "t4") == (
        "needs 1 x GH200 or 1 x H100 or 1 x B200 or 3 other platforms; this machine has 1 x NVIDIA H200"
    )


def test_a_platform_of_the_project_is_called_by_its_title():
    catalogue = load_catalogue({"mybox": {"patterns": ["A40"], "title": "My Box"}})
    assert machine(H200).missing([catalogue.parse("mybox")], catalogue).startswith("needs 1 x My Box;")


@pytest.mark.parametrize(
    ("devices", "platform", "directory"),
    [
        ([H200], "h200", "h200"),
        ([("NVIDIA H200 NVL", 143771)], "h200", "h200-nvl"),
        ([A100_80] * 4, "a100x4", "a100x4-sxm4-80gb"),
        ([GH200], "gh200", "gh200-96gb"),
        ([A100, A100_80], "a100x2", "a100x2-sxm4-40gb-sxm4-80gb"),
        ([H200], "cpu", "cpu-intel-xeon-processor-6-207"),
    ],
)
def test_baselines_have_a_directory_by_variant(devices, platform, directory):
    assert machine(*devices).disk_name(parse(platform)) == directory


@pytest.mark.parametrize(
    ("have", "name", "is_satisfied"),
    [(3, "a100x4", False), (4, "a100x4", True), (5, "a100x4", True), (4, "a100x4n2", False)],
)
def test_platform_is_satisfied_by_its_devices_and_nodes(have, name, is_satisfied):
    assert machine(*[A100] * have).satisfies(parse(name)) == is_satisfied
    assert machine(*[A100] * have, nodes=2).satisfies(parse(name)) == (have >= 4)


def test_detection_asks_once_a_process_and_names_by_the_catalogue_given(monkeypatch):
    asked = []

    def find():
        asked.append(1)
        return [DetectedDevice(index=0, name="NVIDIA A40", memory_bytes=46068 * MIB)], []

    monkeypatch.setattr("pytest_accel.platforms.nvidia.find", find)
    detection.probe.cache_clear()
    try:
        assert detection.detect().devices[0].key is None
        extra = load_catalogue({"mybox": {"patterns": ["NVIDIA A40"]}})
        assert detection.detect(extra).devices[0].key == "mybox"
        assert len(asked) == 1
    finally:
        detection.probe.cache_clear()


# --- the processor ----------------------------------------------------------------------------------

XEON = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 207
model name\t: Intel(R) Xeon(R) Processor
stepping\t: 2
flags\t\t: fpu vme

processor\t: 1
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 999
"""
ARM = """\
processor\t: 0
BogoMIPS\t: 2000.00
Features\t: fp asimd
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: {part}
CPU revision\t: 1
"""


def test_x86_cpu_is_named_by_its_model():
    found = describe_cpu(XEON, cores=2)
    assert (found.name, found.model, found.cores) == ("Intel Xeon Processor", "6-207", 2)
    assert found.slug == "intel-xeon-processor-6-207"


@pytest.mark.parametrize(
    ("part", "soc_id", "name", "slug"),
    [
        ("0xd4f", "", "Arm Neoverse-V2", "arm-neoverse-v2-41-d4f"),
        ("0xd4f", "jep106:036b:0241\n", "NVIDIA Grace", "nvidia-grace-41-d4f"),
        ("0xfff", "", "Arm 0x41 0xfff", "arm-0x41-0xfff-41-fff"),
    ],
)
def test_arm_cpu_is_named_by_its_part(part, soc_id, name, slug):
    found = describe_cpu(ARM.format(part=part), cores=4, soc_id=soc_id)
    assert (found.name, found.slug) == (name, slug)


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("Intel(R) Xeon(R) Gold 6226R CPU @ 2.90GHz", "Intel Xeon Gold 6226R"),
        ("AMD EPYC 9474F 48-Core Processor", "AMD EPYC 9474F Processor"),
    ],
)
def test_cpu_name_has_no_trademark_clock_or_core_count(raw, name):
    assert describe_cpu(f"cpu family: 6\nmodel name: {raw}\n", cores=1).name == name


@pytest.mark.parametrize("text", ["", "cpu\t\t: POWER9, altivec supported\n"])
def test_an_unknown_architecture_still_has_a_slug(text):
    assert describe_cpu(text, cores=1).slug
