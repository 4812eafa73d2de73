"""Packages of an environment: copies that another one imports first, and those that cannot be copied."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_accel.commands.overlay import copy_package, installed, overlay_variables

FILES = {
    "my_name/__init__.py": "from my_name.part import X\n",
    "my_name/part.py": "X = 'swapped'\n",
    "my_name-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: My.Name\nVersion: 2.0\n",
}


@pytest.fixture
def packages(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(folder))
    return folder


RECORD = "my_name-2.0.dist-info/RECORD"


def install(folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> None:
    files = {**FILES, **more}
    files.setdefault(RECORD, "".join(f"{name},,\n" for name in [*files, "../../bin/my-name"]))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_copy_goes_before_the_package_and_its_version_is_seen(packages, tmp_path):
    install(packages)
    assert installed()["my-name"] == "2.0"
    copy_package("my-name", tmp_path / "overlay")
    (variable,) = overlay_variables(tmp_path / "overlay", {"PYTHONPATH": "/own", "LD_PRELOAD": ""})
    assert variable == f"PYTHONPATH={tmp_path / 'overlay'}:/own"
    program = (
        "import my_name, importlib.metadata as m; print(my_name.__file__, my_name.X, m.version('my.name'))"
    )
    (packages / "my_name" / "part.py").unlink()  # a copy does not need what it was made of
    done = subprocess.run(
        ["env", variable, sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(tmp_path / "overlay" / "my_name" / "__init__.py"), "swapped", "2.0"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"hook.pth": "import os\n"}, "hook.pth, as an editable install, which works in site-packages only"),
        ({RECORD: ""}, "has no RECORD of its files"),
    ],
)
def test_package_that_cannot_be_copied_is_refused_with_the_reason(packages, tmp_path, more, why):
    install(packages, more)
    with pytest.raises(ValueError, match=why):
        copy_package("my-name", tmp_path / "overlay")


def test_cuda_libraries_are_preloaded_and_modules_of_other_wheels_are_still_found(packages, tmp_path):
    libraries = ["nvidia/nccl/lib/libnccl.so.2", "nvidia/cublas/lib/libnvblas.so.12"]
    install(packages, {"nvidia/__init__.py": "", **dict.fromkeys(libraries, "")})
    overlay = tmp_path / "overlay"
    copy_package("my-name", overlay)
    (packages / "nvidia" / "other.py").write_text("X = 3\n")
    path, preloaded = overlay_variables(overlay, {"PYTHONPATH": str(packages), "LD_PRELOAD": "/lib/own.so"})
    assert (
        preloaded == f"LD_PRELOAD={overlay / libraries[0]}:/lib/own.so"
    )  # libnvblas would take BLAS calls over
    program = "import nvidia.other; print(nvidia.other.X)"
    done = subprocess.run(
        ["env", path, sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "3\n"
