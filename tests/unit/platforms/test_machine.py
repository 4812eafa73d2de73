"""This machine: platforms that it satisfies, missing hardware, baseline folders, its processor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.platforms import machine as detection
from pytest_accel.platforms.catalogue import DetectedDevice, PlatformName, load_catalogue
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
            "needs 2 nodes of 4 x GH200; this process sees 1 node: start it with torchrun or srun",
        ),
        ([H200], "gh200x4n2", "needs 2 nodes of 4 x GH200; this machine has 1 x NVIDIA H200"),
        ([], "cpux4", "needs 4 CPU cores; this process may use 2 cores of Intel Xeon Processor"),
        ([A100, H200], "l4", "needs 1 x L4; this machine has 1 x NVIDIA A100-SXM4-40GB, 1 x NVIDIA H200"),
    ],
)
def test_says_what_is_missing(devices, wanted, reason):
    assert machine(*devices).missing(parse(wanted)) == reason


def test_without_accelerator_it_says_why():
    found = machine(problems=("NVML: driver library not found",))
    assert found.missing(parse("gh200")) == (
        "needs 1 x GH200; this machine has no accelerator (NVML: driver library not found),"
        " only CPU Intel Xeon Processor"
    )
    assert "no accelerator, only CPU" in machine().missing(parse("gh200"))


def test_several_wanted_are_alternatives():
    wanted = [parse("gh200"), parse("a100x4")]
    assert machine(H200).missing(wanted) == "needs 1 x GH200 or 4 x A100; this machine has 1 x NVIDIA H200"
    assert machine(*[A100] * 4).missing(wanted) == ""
    assert machine(*[GH200] * 4).missing([parse("gh200x4n2"), parse("l4")]) == (
        "needs 2 nodes of 4 x GH200 or 1 x L4; this process sees 1 node with 4 x NVIDIA GH200 120GB"
        ": start it with torchrun or srun"
    )


def test_many_alternatives_are_counted():
    wanted = [parse(name) for name in ("gh200", "h100", "b200", "a100", "l4", "t4")]
    assert machine(H200).missing(wanted) == (
        "needs 1 x GH200 or 1 x H100 or 1 x B200 or 3 other platforms; this machine has 1 x NVIDIA H200"
    )


def test_a_platform_of_the_project_is_called_by_its_title():
    catalogue = load_catalogue({"mybox": {"patterns": ["A40"], "title": "My Box"}})
    assert machine(H200).missing(catalogue.parse("mybox"), catalogue).startswith("needs 1 x My Box;")


@pytest.mark.parametrize(
    ("devices", "platform", "directory"),
    [
        ([H200], "h200", "h200"),
        ([("NVIDIA H200 NVL", 143771)], "h200", "h200-nvl"),
        ([A100_80] * 4, "a100x4", "a100x4-sxm4-80gb"),
        ([GH200], "gh200", "gh200-96gb"),
        ([("NVIDIA GH200 144G HBM3e", 146831)], "gh200", "gh200-144gb"),
        ([("NVIDIA L4", 23034)], "l4", "l4"),
        ([A100, A100_80], "a100x2", "a100x2-sxm4-40gb-sxm4-80gb"),
        ([A100, A100_80], "a100", "a100-sxm4-40gb"),
        ([H200], "cpu", "cpu-intel-xeon-processor-6-207"),
        ([H200], "cpux2", "cpux2-intel-xeon-processor-6-207"),
    ],
)
def test_baselines_have_a_directory_by_variant(devices, platform, directory):
    assert machine(*devices).disk_name(parse(platform)) == directory


def test_a_platform_that_is_not_here_has_no_directory():
    with pytest.raises(ValueError, match="needs 1 x GH200; this machine has 1 x NVIDIA H200"):
        machine(H200).disk_name(parse("gh200"))


@given(st.integers(0, 8), st.integers(1, 8), st.integers(1, 3))
def test_what_is_missing_is_empty_exactly_if_satisfied(have, per_node, nodes):
    found, wanted = machine(*[A100] * have), PlatformName("a100", per_node, nodes)
    assert found.satisfies(wanted) == (have >= per_node and nodes == 1)
    assert (found.missing(wanted) == "") == found.satisfies(wanted)


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
        ("0xd0c", "", "Arm Neoverse-N1", "arm-neoverse-n1-41-d0c"),
        ("0xd40", "", "Arm Neoverse-V1", "arm-neoverse-v1-41-d40"),
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
        ("Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", "Intel Core i7-8700K"),
    ],
)
def test_cpu_name_has_no_trademark_clock_or_core_count(raw, name):
    assert describe_cpu(f"cpu family: 6\nmodel name: {raw}\n", cores=1).name == name


@pytest.mark.parametrize("text", ["", "nonsense", "processor : 0\n", "cpu\t\t: POWER9, altivec supported\n"])
def test_an_unknown_architecture_still_has_a_slug(text):
    found = describe_cpu(text, cores=1)
    assert found.slug
    assert "/" not in found.slug
