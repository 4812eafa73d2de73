"""The processor, from what kernels of several architectures say."""

import pytest

from pytest_accel.platforms import cpu

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
EPYC = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7742 64-Core Processor
stepping\t: 1
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


def test_x86():
    found = cpu.describe(XEON, cores=2)
    assert (found.name, found.model, found.stepping, found.cores) == ("Intel Xeon Processor", "6-207", "2", 2)
    assert found.slug == "intel-xeon-processor-6-207"


def test_amd():
    found = cpu.describe(EPYC, cores=64)
    assert found.name == "AMD EPYC 7742 Processor"
    assert found.slug == "amd-epyc-7742-processor-25-1"


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
def test_arm(part, soc_id, name, slug):
    found = cpu.describe(ARM.format(part=part), cores=4, soc_id=soc_id)
    assert (found.name, found.slug, found.stepping) == (name, slug, "r0p1")


@pytest.mark.parametrize(
    ("raw", "tidy"),
    [
        ("Intel(R) Xeon(R) Gold 6226R CPU @ 2.90GHz", "Intel Xeon Gold 6226R"),
        ("AMD EPYC 9474F 48-Core Processor", "AMD EPYC 9474F Processor"),
        ("Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", "Intel Core i7-8700K"),
    ],
)
def test_names_lose_what_says_nothing(raw, tidy):
    assert cpu.tidy(raw) == tidy


def test_two_models_of_one_name_are_two_slugs():
    other = XEON.replace("207", "143")
    assert cpu.describe(XEON, cores=2).slug != cpu.describe(other, cores=2).slug


@pytest.mark.parametrize("text", ["", "nonsense", "processor : 0\n", "cpu\t\t: POWER9, altivec supported\n"])
def test_an_unknown_architecture_still_has_a_slug(text):
    found = cpu.describe(text, cores=1)
    assert found.slug
    assert "/" not in found.slug


def test_this_machine():
    found = cpu.find()
    assert found.name
    assert found.cores >= 1


def test_no_proc_is_no_crash(tmp_path):
    assert cpu.find(cpuinfo=tmp_path / "none", soc_id=tmp_path / "none").cores >= 1
