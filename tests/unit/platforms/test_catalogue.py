"""Catalogue: built-in entries, identification, a project's own entries, selection by capability."""

import subprocess
import sys

import pytest

from pytest_accel.platforms.catalogue import (
    Accelerators,
    CatalogueError,
    PlatformName,
    PlatformNameError,
    load_catalogue,
    parse_name,
    project_table,
)

MIB = 1 << 20

# Device names as drivers report them, with the memory they report in MiB.
REPORTED = [
    ("NVIDIA GH200 480GB", 97871, "gh200", "96gb"),
    ("NVIDIA GH200 144G HBM3e", 146831, "gh200", "144gb"),
    ("NVIDIA H100 80GB HBM3", 81559, "h100", "sxm5"),
    ("NVIDIA H100 PCIe", 81559, "h100", "pcie"),
    ("NVIDIA H100 NVL", 95830, "h100", "nvl"),
    ("NVIDIA H200", 143771, "h200", ""),
    ("NVIDIA H200 NVL", 143771, "h200", "nvl"),
    ("NVIDIA B200", 183359, "b200", ""),
    ("NVIDIA GB200", 189471, "gb200", ""),
    ("NVIDIA A100-SXM4-40GB", 40960, "a100", "sxm4-40gb"),
    ("A100-SXM4-40GB", 40537, "a100", "sxm4-40gb"),
    ("NVIDIA A100-SXM4-80GB", 81920, "a100", "sxm4-80gb"),
    ("NVIDIA A100-PCIE-40GB", 40960, "a100", "pcie-40gb"),
    ("NVIDIA A100 80GB PCIe", 81920, "a100", "pcie-80gb"),
    ("Tesla V100-SXM2-16GB", 16160, "v100", "sxm2-16gb"),
    ("Tesla V100-SXM2-32GB", 32510, "v100", "sxm2-32gb"),
    ("Tesla V100-PCIE-16GB", 16384, "v100", "pcie-16gb"),
    ("Tesla V100-PCIE-32GB", 32768, "v100", "pcie-32gb"),
    ("Tesla T4", 15109, "t4", ""),
    ("Quadro RTX 6000", 22698, "rtx6000", ""),
    ("NVIDIA RTX 6000 Ada Generation", 46068, "rtx6000ada", ""),
    ("NVIDIA L4", 23034, "l4", ""),
    ("NVIDIA L40S", 46068, "l40s", ""),
    ("AMD Instinct MI250", 65520, "mi250", ""),
    ("AMD INSTINCT MI250 (MCM) OAM AC MBA", 65520, "mi250", ""),
    ("AMD Instinct MI250X", 65520, "mi250", "mi250x"),
    ("AMD Instinct MI300X", 196592, "mi300x", ""),
    ("AMD Instinct MI300X VF", 196288, "mi300x", ""),
]

# Names that must not be taken for a device of the catalogue.
OTHERS = [
    ("GRID A100-10C", 10240),
    ("NVIDIA A100-40C", 40960),
    ("NVIDIA L40", 46068),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887),
    ("NVIDIA H20", 97871),
    ("NVIDIA GB300", 284208),
    ("AMD Instinct MI300A", 131072),
    ("AMD Instinct MI300X", 24574),  # one of eight partitions
]


@pytest.fixture
def catalogue():
    return load_catalogue()


@pytest.mark.parametrize(("name", "memory_mib", "key", "variant"), REPORTED)
def test_reported_device_is_identified(catalogue, name, memory_mib, key, variant):
    found_key, found = catalogue.identify(name, memory_mib * MIB)
    assert (found_key, found.key) == (key, variant)


@pytest.mark.parametrize(("name", "memory_mib"), OTHERS)
def test_other_device_or_slice_is_not_identified(catalogue, name, memory_mib):
    assert catalogue.identify(name, memory_mib * MIB) is None


def test_every_built_in_entry_is_sound(catalogue):
    for kind in catalogue.devices.values():
        assert kind.title
        for variant in kind.variants:
            figures = (variant.memory_gb, variant.bandwidth_gb_s, variant.tdp_w, variant.source)
            assert all(figures), kind.key


def test_peaks_are_dense(catalogue):
    """Twice as fast for half the bits, not four times: the sparse figure of one beside the dense of another."""
    for kind in catalogue.devices.values():
        for variant in kind.variants:
            peaks = variant.peaks_tflops
            for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8")):
                if wide in peaks and narrow in peaks:
                    assert peaks[narrow] / peaks[wide] == pytest.approx(2, rel=0.05), (kind.key, variant.key)
            if "bf16" in peaks:
                assert peaks["bf16"] == peaks["fp16"]


def test_registered_names_parse_to_themselves(catalogue):
    names = catalogue.names()
    assert len(names) == len(set(names))
    assert {"gh200", "a100x4", "gh200x4n2", "cpu", "mi300xx8"} <= set(names)
    for name in names:
        assert str(catalogue.parse(name)) == name


def test_an_unknown_platform_names_those_alike_and_the_remedy(catalogue):
    with pytest.raises(PlatformNameError, match="Did you mean 'gh200x4'") as caught:
        catalogue.parse("gh20x4")
    assert "[tool.pytest-accel.platforms.NAME]" in str(caught.value)
    assert isinstance(caught.value, ValueError)


# --- entries of a project ---------------------------------------------------------------------------


def test_a_project_adds_a_device():
    table = {"patterns": ["NVIDIA A40"], "memory_gb": 48, "shapes": ["x2"], "peaks_tflops": {"bf16": 149.7}}
    catalogue = load_catalogue({"mybox": table})
    assert catalogue.names()[:2] == ["mybox", "myboxx2"]
    assert "myboxx2" in catalogue.matching(Accelerators(memory_gb=40, dtypes=("bf16",), devices=(2,)))
    key, variant = catalogue.identify("NVIDIA A40", 46068 * MIB)
    assert (key, variant.key, variant.peaks_tflops["bf16"]) == ("mybox", "", 149.7)
    assert "mybox" not in load_catalogue().devices


def test_a_project_adds_variants_with_shared_fields():
    table = {
        "tdp_w": 300,
        "variants": [{"key": "a", "patterns": ["A"]}, {"key": "b", "patterns": ["B"], "tdp_w": 350}],
    }
    kind = load_catalogue({"mybox": table}).devices["mybox"]
    assert [variant.tdp_w for variant in kind.variants] == [300, 350]


def test_a_project_extends_a_device_it_knows():
    extra = {
        "a100": {"shapes": ["x3"], "variants": [{"key": "sxm-64gb", "patterns": ["NVIDIA A100-SXM-64GB"]}]}
    }
    catalogue = load_catalogue(extra)
    assert {"a100x3", "a100x4"} <= set(catalogue.names())
    assert catalogue.identify("NVIDIA A100-SXM-64GB", 65536 * MIB)[1].key == "sxm-64gb"
    assert catalogue.identify("NVIDIA A100-SXM4-40GB", 40960 * MIB)[1].key == "sxm4-40gb"
    assert catalogue.devices["a100"].title == "A100"


@pytest.mark.parametrize(
    ("extra", "place", "says"),
    [
        ({"mybox": 3}, "mybox", "not a table"),
        ({"mybox": {}}, "mybox.patterns", "missing"),
        ({"mybox": {"patterns": "A40"}}, "mybox.patterns", "not a list of strings"),
        ({"mybox": {"patterns": ["("]}}, "mybox.patterns", "not a regular expression"),
        ({"mybox": {"patterns": ["a{99999999999}"]}}, "mybox.patterns", "not a regular expression"),
        ({"mybox": {"patterns": ["(" * 3000 + ")" * 3000]}}, "mybox.patterns", "not a regular expression"),
        ({"mybox": {"patterns": ["A"], "memory_gb": 10**400}}, "mybox.memory_gb", "not a positive number"),
        ({"mybox": {"pattern": ["A"]}}, "mybox.pattern", "Did you mean 'patterns'?"),
        ({"mybox": {"patterns": ["A"], "memory_gb": "48"}}, "mybox.memory_gb", "not a positive number"),
        ({"mybox": {"patterns": ["A"], "peaks_tflops": {"bf8": 1}}}, "mybox.peaks_tflops.bf8", "fp64, fp32"),
        ({"mybox": {"patterns": ["A"], "dtypes": ["bf8"]}}, "mybox.dtypes", "not one of fp64"),
        ({"mybox": {"patterns": ["A"], "shapes": [""]}}, "mybox.shapes", "the bare name is always there"),
        ({"mybox": {"patterns": ["A"], "title": 3}}, "mybox.title", "not a string"),
        ({"mybox": {"patterns": ["A"], "vendor": "nvdia"}}, "mybox.vendor", "nvidia, amd"),
        ({"mybox": {"variants": {}}}, "mybox.variants", "array of tables"),
        ({"mybox": {"variants": [{"key": "a b"}]}}, "mybox.variants[0].key", "Write 'a-b'"),
        ({"My-Box": {"patterns": ["A"]}}, "My-Box", "lower case"),
        ({"skip": {"patterns": ["A"]}}, "skip", "none of accel"),
        ({"a100x4": {"patterns": ["A"]}}, "a100x4", "would mean two platforms"),
    ],
)
def test_a_wrong_entry_names_its_place_and_what_is_valid(extra, place, says):
    with pytest.raises(CatalogueError) as caught:
        load_catalogue(extra)
    text = str(caught.value)
    assert text.startswith("pyproject.toml: tool.pytest-accel.platforms")
    assert place in text
    assert says in text


def test_reads_the_tables_of_a_pyproject(tmp_path):
    pyproject = tmp_path / "pyproject.toml"
    assert project_table(pyproject) == {}
    pyproject.write_text("[project]\nname = 'other'\n")
    assert project_table(pyproject) == {}
    pyproject.write_text("[tool.pytest-accel.platforms.mybox]\npatterns = ['A']\n")
    assert load_catalogue(project_table(pyproject)).devices["mybox"].title == "mybox"
    pyproject.write_text("[tool.pytest-accel]\nplatforms = 3\n")
    with pytest.raises(CatalogueError, match="not a table"):
        project_table(pyproject)
    (tmp_path / "folder").mkdir()
    deep = f"x = {'[' * 3000}{']' * 3000}", f"[tool.pytest-accel.platforms.{'.'.join('a' * 3000)}]"
    for text in ("[tool.pytest-accel\n", f"x = {'9' * 5000}", *deep):
        pyproject.write_text(text)
        with pytest.raises(CatalogueError, match=r"pyproject\.toml: .* Correct the file\."):
            project_table(pyproject)
    with pytest.raises(CatalogueError, match="Is a directory"):
        project_table(tmp_path / "folder")


def test_importing_reads_nothing_and_imports_no_driver():
    code = (
        "import sys, pytest_accel.platforms.catalogue, pytest_accel.platforms.machine;"
        "print([name for name in ('difflib', 'pynvml', 'torch', 'numpy', 'pytest') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# --- selection by capability ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "selected", "others"),
    [
        ({"memory_gb": 40, "dtypes": ("bf16",)}, "gh200 a100 h200 mi250 l40s", "v100 t4 l4 gc200 cpu a100x4"),
        ({"memory_gb": 16, "dtypes": ("fp16",)}, "v100 t4 rtx6000 mi250 h100", "gc200 cpu"),
        ({"memory_gb": 16, "dtypes": ("half",)}, "v100 t4 rtx6000 mi250 h200", "gc200 cpu"),
        ({"dtypes": ("tf32", "bf16")}, "a100 l4 mi300x", "mi250 v100"),
        ({"memory_gb": 40, "devices": (1, 4)}, "a100 a100x4 gh200x4", "a100x2 a100x8 a100x4n2 gh200x4n2"),
        ({"devices": (8,), "nodes": 2}, "gh200x4n2 h100x4n2", "h100x8 h100x8n2 gh200x4"),
        ({"vendor": "amd"}, "mi250 mi300x", "h200 gc200"),
        ({"memory_gb": 20}, "rtx6000 l4", "v100"),  # one of its products has 16 GB
    ],
)
def test_needs_select_every_platform_that_has_them(catalogue, needs, selected, others):
    found = set(catalogue.matching(Accelerators(**needs)))
    assert set(selected.split()) <= found
    assert not set(others.split()) & found


def test_needs_that_no_platform_has_are_an_error(catalogue):
    with pytest.raises(
        PlatformNameError, match=r"has Accelerators\(memory_gb=999, .*\. Ask for less, or add"
    ):
        catalogue.matching(Accelerators(memory_gb=999))


@pytest.mark.parametrize(
    ("needs", "complaint"),
    [
        ({"dtypes": ("bf8",)}, "'bf8' is not one of fp64, fp32"),
        ({"devices": (3,), "nodes": 2}, "devices=3 do not divide evenly over nodes=2"),
        ({"devices": ()}, "do not divide evenly"),
    ],
)
def test_wrong_needs_are_refused(needs, complaint):
    with pytest.raises(ValueError, match=complaint):
        Accelerators(**needs)


# --- names ------------------------------------------------------------------------------------------

DEVICES = ["gh200", "a100", "rtx6000", "rtx6000ada", "mi300x", "l4", "cpu"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gh200", PlatformName("gh200")),
        ("a100x4", PlatformName("a100", 4)),
        ("gh200x4n2", PlatformName("gh200", 4, 2)),
        ("gh200n2", PlatformName("gh200", 1, 2)),
        ("rtx6000", PlatformName("rtx6000")),
        ("rtx6000x4", PlatformName("rtx6000", 4)),
        ("mi300x", PlatformName("mi300x")),
        ("mi300xx8n2", PlatformName("mi300x", 8, 2)),
    ],
)
def test_reads_the_names_of_the_catalogue(text, expected):
    assert parse_name(text, DEVICES) == expected
    assert str(expected) == text
    assert expected.devices == expected.per_node * expected.nodes


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("a100x1", "Write a100."),
        ("a100x4n1", "Write a100x4."),
        ("a100x0", "Write a100."),
        ("a100x04", "Write a100x4."),
        ("A100", "there is no such platform"),
        ("", "there is no such platform"),
        ("a100x4n2!", "there is no such platform"),
        ("a100x1000", "there is no such platform"),
    ],
)
def test_a_bad_name_says_what_to_write(text, remedy):
    with pytest.raises(PlatformNameError) as caught:
        parse_name(text, DEVICES)
    assert remedy in str(caught.value)
    assert repr(text) in str(caught.value)
