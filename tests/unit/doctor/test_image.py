"""What an image is told of itself: the checks on values, and the import that really happens."""

from __future__ import annotations

import json
import os
import sys

import pytest

from pytest_accel.cli import main
from pytest_accel.doctor import image, packages
from pytest_accel.doctor.finding import Level, from_plain, worst
from pytest_accel.doctor.imports import Imports, try_imports
from pytest_accel.doctor.packages import EXTRAS, Packages, is_within

ALL = {each.name: "9.9" for each in EXTRAS}
WORKS = Imports(errors={each.module: "" for each in EXTRAS}, nccl="2.27.5")
WHOLE = Packages(
    versions={"pytest": "9.2.0", "pytest-benchmark": "5.3.1", "pytest-accel": "0.1.0", **ALL},
    demanded={"pytest": ">=8.2", "pytest-benchmark": ">=5.1", "torch": ">=2.6"},
    suites=8,
    studies=4,
)


def changed(**fields) -> Packages:
    return Packages(
        **{name: fields.get(name, getattr(WHOLE, name)) for name in Packages.__dataclass_fields__}
    )


def without(*names: str) -> dict[str, str]:
    return {name: version for name, version in WHOLE.versions.items() if name not in names}


def test_a_whole_image_needs_nothing(by_subject):
    found = [*packages.needed(WHOLE, {}), *packages.extras(WHOLE, WORKS, is_cuda=True)]
    assert worst(found) is Level.OK
    assert {"Python", "pytest", "plugin", "contents", "torch"} < by_subject(found).keys()


@pytest.mark.parametrize(
    ("fields", "subject", "words"),
    [
        ({"python": (3, 10)}, "Python", "3.10, and 3.11 is needed"),
        ({"versions": without("pytest")}, "pytest", "not installed"),
        ({"versions": {**WHOLE.versions, "pytest": "8.1.1"}}, "pytest", "8.1.1, and >=8.2 is needed"),
        ({"versions": {**WHOLE.versions, "pytest-benchmark": "4.0"}}, "pytest-benchmark", ">=5.1 is needed"),
        ({"is_registered": False}, "plugin", "no entry point"),
        ({"suites": 0}, "contents", "came without its suites"),
        ({"suites": 0, "studies": 0}, "contents", "without its suites and published figures"),
    ],
)
def test_what_nothing_runs_without_is_a_problem(by_subject, fields, subject, words):
    found = by_subject(packages.needed(changed(**fields), {}))
    assert found[subject].level is Level.PROBLEM
    assert words in found[subject].text
    assert [each.subject for each in found.values() if each.level is not Level.OK] == [subject]


def test_a_plugin_that_is_not_loaded_by_itself_is_a_warning(by_subject):
    found = by_subject(packages.needed(WHOLE, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}))
    assert found["plugin"].level is Level.WARNING


@pytest.mark.parametrize("each", EXTRAS, ids=lambda each: each.name)
def test_a_missing_package_says_what_does_not_work_then(by_subject, each):
    found = by_subject(packages.extras(changed(versions=without(each.name)), WORKS, is_cuda=False))[each.name]
    assert found.level is Level.WARNING
    assert each.without in found.text
    # Into an image without torch goes the extra; one with its own torch must keep it.
    assert found.remedy.startswith("pip install 'pytest-accel[" if each.name == "torch" else "pip install")
    assert ("[" in found.remedy) == (each.name == "torch")
    assert ("'torch==9.9'" in found.remedy) == (each.name in ("torchvision", "timm"))
    alone = by_subject(packages.extras(changed(versions=without(*ALL)), WORKS, is_cuda=False))[each.name]
    assert alone.remedy == f"pip install 'pytest-accel[{each.of}]'"


def test_a_torch_for_cuda_that_would_find_no_gpu_is_a_problem(by_subject):
    found = by_subject(packages.extras(changed(versions=without("nvidia-ml-py")), WORKS, is_cuda=True))
    assert found["nvidia-ml-py"].level is Level.PROBLEM


def test_a_package_that_cannot_be_imported_is_a_problem_and_quoted(by_subject):
    broken = Imports(errors={"torch": "ImportError: libcudart.so.12: cannot open shared object file"})
    found = by_subject(packages.extras(WHOLE, broken, is_cuda=True))
    assert found["torch"].level is Level.PROBLEM
    assert "9.9 cannot be imported: ImportError: libcudart.so.12" in found["torch"].text
    assert found["timm"].level is Level.WARNING  # it was not reached


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


class TestImporting:
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

    def test_this_process_imports_nothing(self):
        assert "this" not in sys.modules
        assert try_imports(["this"]).errors == {"this": ""}
        assert "this" not in sys.modules


class TestWhole:
    def examined(self, tmp_path, **environ):
        return image.examine(environ, root=tmp_path, found=WHOLE, imports=lambda names: WORKS)

    def test_findings_survive_json(self, tmp_path):
        from pytest_accel.doctor.finding import to_plain

        found = self.examined(tmp_path, HOME=str(tmp_path))
        assert from_plain(to_plain(found)) == found

    def test_the_name_is_told(self, tmp_path, by_subject):
        (tmp_path / "etc").mkdir()
        built = {"name": "bench:1", "revision": "abc123", "base": "python:3.12"}
        (tmp_path / "etc/pytest-accel-image.json").write_text(json.dumps(built))
        found = {each.subject: each for each in self.examined(tmp_path) if each.group == "image"}
        assert (found["name"].level, found["name"].text) == (
            Level.OK,
            "bench:1, revision abc123, on python:3.12",
        )

    @pytest.mark.parametrize(
        ("text", "words"), [(None, "there is no /etc"), ("{", "is there and has no name")]
    )
    def test_an_image_without_a_name_is_a_warning(self, tmp_path, text, words):
        if text is not None:
            (tmp_path / "etc").mkdir()
            (tmp_path / "etc/pytest-accel-image.json").write_text(text)
        (found,) = [each for each in self.examined(tmp_path) if each.subject == "name"]
        assert found.level is Level.WARNING
        assert words in found.text

    def test_an_image_of_nvidias_has_a_name(self, tmp_path):
        found = self.examined(tmp_path, NVIDIA_PRODUCT_NAME="PyTorch", NVIDIA_PYTORCH_VERSION="25.01")
        (name,) = [each for each in found if each.subject == "name"]
        assert name.text.startswith("PyTorch 25.01 (there is no")

    @pytest.mark.parametrize("environ", [{"PATH": "/nowhere"}, {"CC": "/nowhere/cc", "PATH": os.defpath}])
    def test_without_a_compiler_models_cannot_be_compiled(self, tmp_path, environ):
        (found,) = [each for each in self.examined(tmp_path, **environ) if each.subject == "compiler"]
        assert found.level is Level.WARNING
        assert "--accel-compile=off" in found.remedy

    @pytest.mark.parametrize(
        ("environ", "subject", "level"),
        [
            ({"HOME": ""}, "home", Level.WARNING),
            ({"HOME": "/"}, "home", Level.WARNING),
            ({"HOME": "/proc/self"}, "home", Level.PROBLEM),
            ({"TRITON_CACHE_DIR": "/proc/self/x"}, "cache", Level.PROBLEM),
            ({"TMPDIR": "/dev/null"}, "scratch", Level.PROBLEM),
        ],
    )
    def test_folders_that_cannot_be_written_to(self, tmp_path, environ, subject, level):
        (found,) = [each for each in self.examined(tmp_path, **environ) if each.subject == subject]
        assert found.level is level

    @pytest.mark.parametrize(
        ("number", "environ", "level"),
        [(0, {}, Level.WARNING), (987654, {}, Level.WARNING), (987654, {"USER": "bench"}, Level.OK)],
        ids=["root", "nameless", "named"],
    )
    def test_who_it_runs_as(self, tmp_path, monkeypatch, number, environ, level):
        monkeypatch.setattr(os, "geteuid", lambda: number)
        (found,) = [each for each in self.examined(tmp_path, **environ) if each.subject == "user"]
        assert found.level is level


def test_the_command_ends_with_one_where_there_is_a_problem(monkeypatch, capsys):
    monkeypatch.setattr(image, "try_imports", None)  # not called: nothing is imported in this test
    bad = packages.needed(changed(suites=0), {})
    monkeypatch.setattr(image, "examine", lambda environ: tuple(bad))
    assert main(["doctor", "--image"]) == 1
    assert "PROBLEM  contents" in capsys.readouterr().out
    monkeypatch.setattr(image, "examine", lambda environ: tuple(packages.needed(WHOLE, {})))
    assert main(["doctor", "--image", "--json"]) == 0
    assert worst(from_plain(json.loads(capsys.readouterr().out))) is Level.OK
