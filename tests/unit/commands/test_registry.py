"""Where commands find a project's root and settings: where a session of pytest that is called there finds them."""

import argparse
import json
from pathlib import Path

import pytest

from pytest_accel import cli
from pytest_accel.commands.registry import baselines_folder, find_project, located
from pytest_accel.doctor import doctor
from pytest_accel.options import SETTINGS
from pytest_accel.options import baselines_root as of_session_baselines
from pytest_accel.options import data_root as of_session_data
from pytest_accel.options import history_file as of_session_history

NOTHING_TOLD = argparse.Namespace(baselines=None)


@pytest.fixture(autouse=True)
def _no_settings_of_ours(monkeypatch):
    for name in ("BASELINES", "HISTORY", "DATA"):
        monkeypatch.delenv(f"PYTEST_ACCEL_{name}", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


class Asked:
    """A plugin of a real session: what pytest found, and where the session would have things."""

    def pytest_configure(self, config):
        settings = config.stash[SETTINGS]
        self.root = config.rootpath
        self.baselines = of_session_baselines(settings, config.rootpath)
        self.history = of_session_history(settings, config.rootpath)
        self.data = of_session_data(settings, config)
        raise pytest.exit.Exception("that is all")


def session_of(folder: Path, monkeypatch) -> Asked:
    monkeypatch.chdir(folder)
    asked = Asked()
    pytest.main(["-p", "no:cacheprovider", "-p", "no:terminal"], plugins=[asked])
    return asked


VALUES = {"accel_baselines": "b/c", "accel_history": "h.sqlite", "accel_data": "sets"}
INI = "\n".join(f"{key} = {value}" for key, value in VALUES.items())
TOML = "\n".join(f"{key} = '{value}'" for key, value in VALUES.items())
LAYOUTS = {
    "pytest.ini": f"[pytest]\n{INI}\n",
    "pyproject.toml": f"[tool.pytest.ini_options]\n{TOML}\n",
    "setup.cfg": f"[tool:pytest]\n{INI}\n",
}


def absolute(path: Path | None) -> Path | None:
    return None if path is None else path.resolve()


def assert_as_a_session(folder: Path, monkeypatch) -> None:
    asked = session_of(folder, monkeypatch)
    assert find_project(folder)[0] == asked.root
    assert absolute(baselines_folder(NOTHING_TOLD)) == asked.baselines
    assert absolute(located("history", None)) == asked.history
    assert absolute(located("data", None)) == asked.data


@pytest.fixture
def below(tmp_path) -> Path:
    folder = tmp_path / "bench" / "deep"
    (tmp_path / "sets").mkdir()
    (folder / "sets").mkdir(parents=True)
    (tmp_path / "bench" / "sets").mkdir()
    return folder


@pytest.mark.parametrize(
    "files",
    [
        *({name: text} for name, text in LAYOUTS.items()),
        {},
        {"pytest.ini": "", "pyproject.toml": LAYOUTS["pyproject.toml"]},
        {"bench/pytest.ini": "[pytest]\naccel_history = off\n", "pyproject.toml": LAYOUTS["pyproject.toml"]},
        {"pytest.ini": "[pytest]\naccel_baselines =\naccel_history = none\n"},
        pytest.param(
            {"pytest.toml": f"[pytest]\naccel_require = false\naddopts = ['-x']\n{TOML}\n"},
            marks=pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 8 has no pytest.toml"),
        ),
    ],
    ids=str,
)
def test_roots_and_who_goes_first(tmp_path, below, files, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for folder in (tmp_path, below):
        assert_as_a_session(folder, monkeypatch)


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTEST_ACCEL_HISTORY": "of-variable.sqlite", "PYTEST_ACCEL_BASELINES": "~/b"},
        {"PYTEST_ACCEL_HISTORY": "OFF", "PYTEST_ACCEL_DATA": "sets"},
        {"PYTEST_ACCEL_HISTORY": ""},
    ],
    ids=str,
)
def test_variables(tmp_path, below, variables, monkeypatch):
    (tmp_path / "pyproject.toml").write_text(LAYOUTS["pyproject.toml"])
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert_as_a_session(below, monkeypatch)


def test_what_is_told_goes_first_and_is_relative_to_here(tmp_path, below, monkeypatch):
    (tmp_path / "pytest.ini").write_text("[pytest\n")  # is not even read
    monkeypatch.chdir(below)
    monkeypatch.setenv("PYTEST_ACCEL_HISTORY", "off")
    assert baselines_folder(argparse.Namespace(baselines="../b")) == Path("../b")
    assert located("history", "h.sqlite") == Path("h.sqlite")
    assert located("data", "sets") == Path("sets")


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"pytest.ini": "[pytest\n"}, "unexpected value continuation"),
        ({"pyproject.toml": "[tool]\npytest = 3\n"}, "configuration cannot be read"),
        ({"pyproject.toml": f"x = {'[' * 3000}{']' * 3000}"}, "configuration cannot be read"),
        ({"setup.cfg": "[pytest]\n"}, "no longer supported"),
    ],
    ids=str,
)
def test_what_pytest_cannot_read_is_one_error(tmp_path, files, problem, monkeypatch, capsys):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["history"]) == 2
    assert problem in capsys.readouterr().err


def test_off_is_no_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ACCEL_HISTORY", "off")
    assert located("history", None) is None
    for command in ("history", "report"):
        assert cli.main([command]) == 2
        assert "no history is kept here: accel_history is off. Name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_looks_where_a_session_would(tmp_path, below, monkeypatch, capsys):
    (tmp_path / "pytest.ini").write_text(LAYOUTS["pytest.ini"])
    monkeypatch.chdir(below)
    looked = []
    monkeypatch.setattr(doctor, "examine", lambda **folders: looked.append(folders) or ())
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert looked == [{"data": tmp_path / "sets", "baselines": tmp_path / "b" / "c"}]
