"""Image: checks on values, and the real import of packages in another process."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from pytest_accel.cli import main
from pytest_accel.doctor import image
from pytest_accel.doctor.findings import Level, worst
from pytest_accel.doctor.image import NEEDED, PACKAGES, Imports, Packages, is_within, try_imports

ALL = dict.fromkeys(PACKAGES, "9.9")
WORKS = Imports(errors={module: "" for module, _ in PACKAGES.values()}, nccl="2.27.5")
WHOLE = Packages(
    versions={"pytest": "9.2.0", "pytest-benchmark": "5.3.1", "pytest-accel": "0.1.0", **ALL},
    required={"pytest": ">=8.2", "pytest-benchmark": ">=5.1", "torch": ">=2.6"},
)


def without(*names: str) -> dict[str, str]:
    return {name: version for name, version in WHOLE.versions.items() if name not in names}


@pytest.fixture
def examined(tmp_path):
    def run(found=WHOLE, tried=WORKS, **environ):
        return image.examine(environ, root=tmp_path, found=found, imports=lambda names: tried)

    return run


@pytest.fixture
def subject(examined):
    def find(name, group=None, **given):
        (found,) = (
            each for each in examined(**given) if each.subject == name and group in (None, each.group)
        )
        return found

    return find


def test_complete_image_needs_nothing(examined, monkeypatch):
    monkeypatch.setattr(os, "geteuid", os.getuid)
    found = [each for each in examined() if each.group in ("needed", "for the suites")]
    assert worst(found) is Level.OK
    assert {each.subject for each in found} == {"pytest", "pytest-benchmark", "plugin", *PACKAGES}


@pytest.mark.parametrize(
    ("fields", "name", "words"),
    [
        ({"versions": without("pytest")}, "pytest", "not installed"),
        ({"versions": {**WHOLE.versions, "pytest": "8.1.1"}}, "pytest", "8.1.1, and >=8.2 is needed"),
        ({"versions": {**WHOLE.versions, "pytest-benchmark": "4.0"}}, "pytest-benchmark", ">=5.1 is needed"),
        ({"is_registered": False}, "plugin", "no entry point"),
    ],
)
def test_missing_requirement_is_a_problem(subject, fields, name, words):
    found = subject(name, found=replace(WHOLE, **fields))
    assert found.level is Level.PROBLEM
    assert words in found.text


def test_plugin_that_pytest_does_not_load_is_a_warning(subject):
    assert subject("plugin", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1").level is Level.WARNING


@pytest.mark.parametrize("name", PACKAGES)
def test_missing_package_says_what_does_not_work(subject, name):
    found = subject(name, "for the suites", found=replace(WHOLE, versions=without(name)))
    assert found.level in (Level.WARNING, Level.PROBLEM)
    assert PACKAGES[name][1] in found.text
    # The image's own build of torch must stay.
    pinned = " 'torch==9.9'" if name in ("torchvision", "timm") else ""
    assert found.remedy == f"pip install {name}{pinned}"


def test_package_that_cannot_be_imported_is_a_problem(subject):
    broken = Imports(errors={"torch": "ImportError: libcudart.so.12: cannot open shared object file"})
    found = subject("torch", "for the suites", tried=broken)
    assert found.level is Level.PROBLEM
    assert "9.9 cannot be imported: ImportError: libcudart.so.12" in found.text
    assert subject("timm", tried=broken).level is Level.WARNING  # not reached


@pytest.mark.parametrize(
    ("version", "wanted", "within"),
    [
        ("2.6.0", ">=2.6", True),
        ("2.5.1", ">=2.6", False),
        ("2.6.0a0+ecf3bae40a.nv25.01", ">=2.6", True),  # NVIDIA's container of January 2025
        ("2.10.0+cu128", ">=2.6", True),
        ("by hand", ">=2.6", True),
        ("1", "", True),
    ],
)
def test_versions(version, wanted, within):
    assert is_within(version, wanted) is within


class TestImports:
    @pytest.fixture
    def module(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

        def write(name: str, text: str) -> None:
            (tmp_path / f"{name}.py").write_text(text)

        return write

    def test_what_is_imported_and_what_is_not(self, module):
        module("good", "print('I print at import')")
        module("bad", "raise ImportError('libfoo.so.1: cannot open shared object file\\nand more')")
        assert try_imports(["good", "bad", "json"]).errors == {
            "good": "",
            "bad": "ImportError: libfoo.so.1: cannot open shared object file",
            "json": "",
        }

    def test_one_that_ends_the_process_is_named_and_the_rest_is_not_told(self, module):
        module("crash", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        assert try_imports(["json", "crash", "good"]).errors == {
            "json": "",
            "crash": "it ended the process that imported it",
        }

    def test_one_that_never_ends_is_named(self, module):
        module("forever", "import signal; signal.pause()")
        assert try_imports(["json", "forever"], limit_s=2).errors == {
            "json": "",
            "forever": "it did not end within 2 s",
        }


@pytest.mark.parametrize(
    ("text", "level", "words"),
    [
        (
            '{"name": "bench:1", "revision": "abc123", "base": "python:3.12"}',
            Level.OK,
            "bench:1, revision abc123, on python:3.12",
        ),
        (None, Level.WARNING, "there is no /etc"),
        ("{", Level.WARNING, "image.json has no name"),
    ],
)
def test_name_of_the_image(subject, tmp_path, text, level, words):
    if text is not None:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc/pytest-accel-image.json").write_text(text)
    found = subject("name")
    assert found.level is level
    assert words in found.text


@pytest.mark.parametrize("environ", [{"PATH": "/nowhere"}, {"CC": "/nowhere/cc", "PATH": os.defpath}])
def test_missing_compiler_is_a_warning(subject, environ):
    found = subject("compiler", **environ)
    assert found.level is Level.WARNING
    assert "--accel-compile=off" in found.remedy


@pytest.mark.parametrize(
    ("environ", "name", "level"),
    [
        ({"HOME": ""}, "home", Level.WARNING),
        ({"HOME": "/"}, "home", Level.WARNING),
        ({"HOME": "/proc/self"}, "home", Level.PROBLEM),
        ({"TRITON_CACHE_DIR": "/proc/self/x"}, "cache", Level.PROBLEM),
        ({"TMPDIR": "/dev/null"}, "scratch", Level.PROBLEM),
    ],
)
def test_folder_that_cannot_be_written_to(subject, environ, name, level):
    assert subject(name, **environ).level is level


@pytest.mark.parametrize(
    ("number", "environ", "level"),
    [(0, {}, Level.WARNING), (987654, {}, Level.WARNING), (987654, {"USER": "bench"}, Level.OK)],
    ids=["root", "nameless", "named"],
)
def test_user_of_the_image(subject, monkeypatch, number, environ, level):
    monkeypatch.setattr(os, "geteuid", lambda: number)
    assert subject("user", **environ).level is level


def test_command_fails_where_there_is_a_problem(monkeypatch, capsys):
    bad = NEEDED.problem("plugin", "missing", "Install it.")
    monkeypatch.setattr(image, "examine", lambda environ: (bad,))
    assert main(["doctor", "--image"]) == 1
    assert "PROBLEM  plugin" in capsys.readouterr().out
    monkeypatch.setattr(image, "examine", lambda environ: (NEEDED.ok("plugin", "found"),))
    assert main(["doctor", "--image", "--json"]) == 0
    assert [each["level"] for each in json.loads(capsys.readouterr().out)["findings"]] == ["ok"]
