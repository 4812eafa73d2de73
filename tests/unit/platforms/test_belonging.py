"""Whether runs belong into the folder of a platform, by the machine that they were measured on."""

from __future__ import annotations

import pytest

from pytest_accel.platforms.belonging import misplaced
from pytest_accel.platforms.catalogue import load_catalogue
from pytest_accel.platforms.cpu import slug

XEON = {"cpu_model": "Intel Xeon Processor (6-207)", "architecture": "x86_64", "threads": "1"}
H200 = {"device_name": "NVIDIA H200", "device_memory_gb": "140", "device_count": "1", "power_limit_w": "700"}


@pytest.mark.parametrize(
    ("folder", "identity", "machine"),
    [
        ("h200", H200, ""),
        ("h200", {"device_name": "NVIDIA H200"}, ""),
        ("h200", XEON, "Intel Xeon Processor (6-207)"),
        ("h200x4", H200, "1 x NVIDIA H200"),
        ("a100", H200, "NVIDIA H200"),
        ("cpu-intel-xeon-processor-6-207", XEON, ""),
        ("cpu", XEON, ""),
        ("cpu-amd-epyc", XEON, "Intel Xeon Processor (6-207)"),
        ("cpu-intel-xeon-processor-6-207", H200, "NVIDIA H200"),
        ("h200", {"device_name": "Something New"}, ""),
        ("h200", {}, ""),
        ("mine", XEON, ""),
        ("h200", {**H200, "device_memory_gb": "much"}, ""),
    ],
)
def test_where_runs_belong(folder, identity, machine):
    assert misplaced(folder, identity, load_catalogue()) == machine


def test_every_variant_of_the_catalogue_belongs_into_its_own_folder():
    from pytest_accel.platforms.catalogue import load_catalogue
    from pytest_accel.platforms.names import PlatformName

    catalogue = load_catalogue()
    for kind in catalogue.devices.values():
        for variant in kind.variants:
            folder = "-".join(filter(None, [str(PlatformName(kind.key)), variant.key]))
            identity = {"device_name": variant.title or kind.title, "device_count": "1"}
            found = catalogue.identify(identity["device_name"], None)
            if found == (kind.key, variant):
                assert misplaced(folder, identity, catalogue) == ""


def test_a_cpus_folder_is_found_from_what_a_run_keeps_of_it():
    assert slug("Neoverse-V2", "41-d4f") == slug("Neoverse-V2 (41-d4f)", "")
    assert slug("Some CPU", "") == slug("Some CPU ()", "")
