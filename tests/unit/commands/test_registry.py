"""Where commands find a project's root and settings: where a session of pytest that is called there finds them."""

import argparse
import json
from pathlib import Path

import pytest

from pytest_accel import cli
from pytest_accel.commands.registry import (
    baselines_folder,
    data_folder,
    find_project,
    history_file,
    required_history,
)
from pytest_accel.options import SETTINGS
from pytest_accel.options import baselines_root as of_session_baselines
from pytest_accel.options import data_root as of_session_data
from pytest_accel.options import history_file as of_session_history

NOTHING_TOLD = argparse.Namespace(baselines=None, history=None, data=None)
IS_9 = pytest.version_tuple >= (9,)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dcotor"], "Did you mean 'doctor'?"),
        (["baseline", "shwo"], "Did you mean 'baseline show'"),
        (["record"], "pytest does it: `pytest --accel-record`."),
        (["run"], "pytest does it: `pytest`."),
    ],
)
def test_command_that_does_not_exist_names_the_nearest(words, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert f"there is no command '{' '.join(words)}'. {said}" in capsys.readouterr().err


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
    assert find_project(folder).root == asked.root
    assert absolute(baselines_folder(NOTHING_TOLD)) == asked.baselines
    assert absolute(history_file(NOTHING_TOLD)) == asked.history
    assert absolute(data_folder(NOTHING_TOLD)) == asked.data


@pytest.fixture
def below(tmp_path) -> Path:
    folder = tmp_path / "bench" / "deep"
    (tmp_path / "sets").mkdir()
    (folder / "sets").mkdir(parents=True)
    (tmp_path / "bench" / "sets").mkdir()
    return folder


class TestAsASession:
    @pytest.mark.parametrize("name", LAYOUTS)
    def test_every_file_that_pytest_reads(self, tmp_path, below, name, monkeypatch):
        (tmp_path / name).write_text(LAYOUTS[name])
        for folder in (tmp_path, below):
            assert find_project(folder).root == tmp_path
            assert find_project(folder).ini == VALUES
            assert_as_a_session(folder, monkeypatch)

    @pytest.mark.skipif(not IS_9, reason="pytest 8 has no [tool.pytest]")
    @pytest.mark.parametrize(
        ("name", "table"), [("pyproject.toml", "tool.pytest"), ("pytest.toml", "pytest")]
    )
    def test_tables_of_pytest_9(self, tmp_path, below, name, table, monkeypatch):
        (tmp_path / name).write_text(f"[{table}]\naccel_require = false\naddopts = ['-x']\n{TOML}\n")
        assert find_project(below).ini == {**VALUES, "accel_require": "False"}
        assert_as_a_session(below, monkeypatch)

    @pytest.mark.parametrize(
        "files",
        [
            {},
            {"pyproject.toml": "[project]\nname = 'x'\n"},
            {"pytest.ini": "", "pyproject.toml": LAYOUTS["pyproject.toml"]},
            {
                "bench/pytest.ini": "[pytest]\naccel_history = off\n",
                "pyproject.toml": LAYOUTS["pyproject.toml"],
            },
            {"pytest.ini": "[pytest]\naccel_baselines =\naccel_history = none\n"},
        ],
        ids=str,
    )
    def test_roots_and_who_goes_first(self, tmp_path, below, files, monkeypatch):
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
    def test_variables(self, tmp_path, below, variables, monkeypatch):
        (tmp_path / "pyproject.toml").write_text(LAYOUTS["pyproject.toml"])
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert_as_a_session(below, monkeypatch)


class TestWords:
    def test_what_is_told_goes_first_and_is_relative_to_here(self, tmp_path, below, monkeypatch):
        (tmp_path / "pytest.ini").write_text("[pytest\n")  # is not even read
        monkeypatch.chdir(below)
        monkeypatch.setenv("PYTEST_ACCEL_HISTORY", "off")
        told = argparse.Namespace(baselines="../b", history="h.sqlite", data="sets")
        assert baselines_folder(told) == Path("../b")
        assert history_file(told) == Path("h.sqlite")
        assert data_folder(told) == Path("sets")

    @pytest.mark.parametrize(
        ("files", "problem"),
        [
            ({"pytest.ini": "[pytest\n"}, "unexpected value continuation"),
            ({"pyproject.toml": "[tool"}, "configuration cannot be read"),
            ({"pyproject.toml": "[tool]\npytest = 3\n"}, "configuration cannot be read"),
            ({"setup.cfg": "[pytest]\n"}, "no longer supported"),
        ],
        ids=str,
    )
    def test_what_pytest_cannot_read_is_one_error(self, tmp_path, files, problem, monkeypatch, capsys):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        monkeypatch.chdir(tmp_path)
        assert cli.main(["history"]) == 2
        said = capsys.readouterr().err
        assert problem in said
        assert "Traceback" not in said

    @pytest.mark.parametrize("value", ["off", "None"])
    def test_off_is_no_file(self, tmp_path, value, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTEST_ACCEL_HISTORY", value)
        assert history_file(NOTHING_TOLD) is None
        for command in (["history", "list"], ["report"]):
            assert cli.main(command) == 2
            said = capsys.readouterr().err
            assert "no history is kept here: PYTEST_ACCEL_HISTORY says off" in said
            assert "--history" in said
        with pytest.raises(ValueError, match="--history says off"):
            required_history(argparse.Namespace(history="off"))
        assert list(tmp_path.iterdir()) == []


def test_the_doctor_looks_where_a_session_would(tmp_path, below, monkeypatch, capsys):
    from pytest_accel.doctor import doctor

    (tmp_path / "pytest.ini").write_text(LAYOUTS["pytest.ini"])
    monkeypatch.chdir(below)
    looked = []
    monkeypatch.setattr(doctor, "examine", lambda **folders: looked.append(folders) or ())
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert looked == [{"data": tmp_path / "sets", "baselines": tmp_path / "b" / "c"}]
