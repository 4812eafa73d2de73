"""References on disk: a bad file is one error with its place and remedy, and so is a bad expectation."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_accel.storage.files import StorageError
from pytest_accel.storage.references import (
    ExpectationError,
    PublishedError,
    read_expectations,
    read_published,
)

FIGURE = {
    "id": "study/train/resnet50/a100x4",
    "table": "Table 1",
    "row": "ResNet50",
    "platform": "a100x4",
    "workload": "resnet50 training",
    "configuration": {"batch_size": 256, "data": "imagenet"},
    "metric": "throughput",
    "unit": "images/s",
    "value": 2470,
    "flags": ["contradictory"],
    "note": "The row above disagrees.",
}
OTHER = {key: value for key, value in FIGURE.items() if key not in {"flags", "note"}} | {
    "id": "study/train/resnet50/a100",
    "platform": "a100",
    "value": 650.5,
}
CLAIM = {
    "id": "study/claims/faster",
    "stated": 3.8,
    "decimals": 1,
    "unit": "x",
    "relation": "equals",
    "formula": "ratio",
    "of": [["study/train/resnet50/a100x4", "study/train/resnet50/a100"]],
    "follows": True,
}
GOOD = {
    "schema_version": 1,
    "source": {
        "key": "study",
        "title": "A study",
        "authors": "Somebody",
        "year": 2024,
        "venue": "nowhere",
        "kind": "paper",
    },
    "figures": [FIGURE, OTHER],
    "claims": [CLAIM],
}


def write(folder: Path, content: object, name: str = "study.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


class TestReading:
    def test_a_good_file_is_a_source(self, tmp_path):
        write(tmp_path, GOOD)
        (source,) = read_published(tmp_path)
        assert (source.source.key, source.source.year, source.source.kind, source.source.note) == (
            "study",
            2024,
            "paper",
            "",
        )
        first, second = source.figures
        assert first.is_doubtful
        assert first.configuration == {"batch_size": 256, "data": "imagenet"}
        assert (second.value, second.flags, second.note) == (650.5, (), "")
        assert source.claims[0].of == (("study/train/resnet50/a100x4", "study/train/resnet50/a100"),)

    def test_no_folder_and_an_empty_one_hold_nothing(self, tmp_path):
        assert read_published(tmp_path / "missing") == ()
        assert read_published(tmp_path) == ()

    def test_what_is_no_study_is_left_alone(self, tmp_path):
        write(tmp_path, "not JSON", ".study.json")
        write(tmp_path, "not JSON", "readme.md")
        assert read_published(tmp_path) == ()

    def test_sources_come_by_name(self, tmp_path):
        for key in ("zebra", "aardvark"):
            write(tmp_path, json.dumps(GOOD).replace("study", key), f"{key}.json")
        assert [source.source.key for source in read_published(tmp_path)] == ["aardvark", "zebra"]

    def test_reading_imports_nothing_heavy(self):
        code = (
            "import sys, pytest_accel.storage.references as r; "
            "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'tomllib')))"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def figure(change):
    return lambda content: change(content["figures"][0])


def claim(change):
    return lambda content: change(content["claims"][0])


def setting(key, value):
    return lambda content: content.__setitem__(key, value)


def without(key):
    return lambda content: content.pop(key)


FAULTS = {
    "newer schema": (setting("schema_version", 2), "schema_version", "2 is no schema"),
    "no schema": (without("schema_version"), "top level", "this is not a file of published figures"),
    "no claims": (without("claims"), "top level", 'the key "claims" is missing'),
    "another key": (
        lambda c: c["source"].__setitem__("key", "x"),
        "source.key",
        'in a file named "study.json"',
    ),
    "unknown kind": (lambda c: c["source"].__setitem__("kind", "rumour"), "source.kind", "none of paper"),
    "no title": (lambda c: c["source"].__setitem__("title", ""), "source.title", "is empty"),
    "year as text": (lambda c: c["source"].__setitem__("year", "2024"), "source.year", "whole number"),
    "unknown key": (figure(setting("batch", 1)), "figures[0]", 'the key "batch" is unknown here'),
    "missing key": (figure(without("unit")), "figures[0]", 'the key "unit" is missing'),
    "NaN": (figure(setting("value", float("nan"))), "figures[0].value", "NaN is not a finite number"),
    "zero": (figure(setting("value", 0)), "figures[0].value", "0.0 is not positive"),
    "value as text": (figure(setting("value", "2470")), "figures[0].value", "where a number is expected"),
    "unknown flag": (
        figure(setting("flags", ["odd"])),
        "figures[0].flags[0]",
        '"odd" is none of contradictory',
    ),
    "flag twice": (figure(setting("flags", ["approximate"] * 2)), "figures[0].flags", "appears twice"),
    "doubt without a reason": (figure(without("note")), "figures[0].note", "contradictory, so say why"),
    "unknown unit": (figure(setting("unit", "img/s")), "figures[0].unit", '"img/s" is none of images/s'),
    "unknown metric": (figure(setting("metric", "speed")), "figures[0].metric", "none of throughput"),
    "nested configuration": (
        figure(setting("configuration", {"a": [1]})),
        'figures[0].configuration["a"]',
        "a list where text",
    ),
    "platform in capitals": (figure(setting("platform", "A100x4")), "figures[0].platform", "Write a100x4."),
    "platform of one": (figure(setting("platform", "a100x1")), "figures[0].platform", "Write a100."),
    "id of another platform": (
        figure(setting("platform", "a100")),
        "figures[0].id",
        "does not end with its platform, a100",
    ),
    "id of another source": (
        figure(setting("id", "other/a100x4")),
        "figures[0].id",
        'does not begin with "study/"',
    ),
    "id in capitals": (figure(setting("id", "study/ResNet/a100x4")), "figures[0].id", "lower case segments"),
    "id with a gap": (figure(setting("id", "study//a100x4")), "figures[0].id", "lower case segments"),
    "id twice": (
        lambda c: c["figures"].append(copy.deepcopy(FIGURE)),
        "figures[2].id",
        '"study/train/resnet50/a100x4" appears twice',
    ),
    "claim twice": (
        lambda c: c["claims"].append(copy.deepcopy(CLAIM)),
        "claims[1].id",
        '"study/claims/faster" appears twice',
    ),
    "claim of no figure": (
        claim(setting("of", [["study/train/resnet50/a100x4", "study/train/resnet50/a10"]])),
        "claims[0].of[0][1]",
        'is no figure of this file; did you mean "study/train/resnet50/a100"?',
    ),
    "claim of nothing": (claim(setting("of", [])), "claims[0].of", "of no figure"),
    "unknown relation": (claim(setting("relation", "about")), "claims[0].relation", "none of equals"),
    "false without a reason": (claim(setting("follows", False)), "claims[0].note", "so say why"),
    "follows as a number": (claim(setting("follows", 1)), "claims[0].follows", "where true or false"),
    "claim's id": (claim(setting("id", "study/faster")), "claims[0].id", 'begin with "study/claims/"'),
}


class TestFaults:
    @pytest.mark.parametrize(("damage", "place", "says"), FAULTS.values(), ids=FAULTS)
    def test_a_fault_names_its_file_its_place_and_a_remedy(self, tmp_path, damage, place, says):
        content = copy.deepcopy(GOOD)
        damage(content)
        path = write(tmp_path, content)
        with pytest.raises(PublishedError) as caught:
            read_published(tmp_path)
        error = caught.value
        assert (error.file, error.place) == (str(path), place)
        assert says in error.problem
        assert "record again" not in str(error)
        assert error.remedy.endswith(".")

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "the file is empty"),
            (json.dumps(GOOD)[:200], "cut off"),
            ("[]", "a list where an object is expected"),
            ('{"schema_version": 1, "schema_version": 1}', "appears twice"),
        ],
    )
    def test_what_is_no_study_is_one_error(self, tmp_path, text, says):
        path = write(tmp_path, text)
        with pytest.raises(PublishedError, match=says) as caught:
            read_published(tmp_path)
        assert f"git checkout -- {path}" in str(caught.value)

    def test_bytes_that_are_no_text(self, tmp_path):
        (tmp_path / "study.json").write_bytes(b"\xff{}")
        with pytest.raises(PublishedError, match="not UTF-8"):
            read_published(tmp_path)

    def test_a_pipe_is_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "study.json")
        with pytest.raises(PublishedError, match="not a regular file"):
            read_published(tmp_path)

    def test_the_error_is_one_of_baselines_and_survives_pickling(self, tmp_path):
        write(tmp_path, "")
        with pytest.raises(StorageError) as caught:
            read_published(tmp_path)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    @settings(max_examples=150)
    @given(
        at=st.integers(0, len(json.dumps(GOOD)) - 1),
        character=st.sampled_from('"{}[],:0-9eNx\\ \n') | st.characters(codec="utf-8"),
    )
    def test_a_damaged_character_is_an_error_or_a_good_file(self, tmp_path_factory, at, character):
        text = json.dumps(GOOD)
        folder = tmp_path_factory.mktemp("damaged")
        (folder / "study.json").write_text(text[:at] + character + text[at + 1 :], encoding="utf-8")
        try:
            (source,) = read_published(folder)
        except PublishedError as error:
            fault = error
        else:
            assert len(source.figures) == 2
            return
        assert fault.problem
        assert fault.remedy


def project(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


class TestExpectations:
    def test_by_node_id_and_platform(self, tmp_path):
        path = project(
            tmp_path,
            """
            [tool.pytest-accel.references."bench_suites/test_wide_resnet.py::test_single[optimised]"]
            gh200 = [4200, -0.05, 0.10, "images/s"]
            gh200x4 = [37510, -0.05, "none", "images/s"]

            [tool.pytest-accel.references."*::test_gpt*"]
            a100 = [22500.5, "none", "none", "tokens/s"]
            """,
        )
        found = read_expectations(path)
        assert list(found) == ["bench_suites/test_wide_resnet.py::test_single[optimised]", "*::test_gpt*"]
        single, gpt = found.values()
        gh200 = single["gh200"]
        assert (gh200.value, gh200.lower, gh200.upper, gh200.unit) == (4200.0, -0.05, 0.1, "images/s")
        assert gh200.origin == (
            "pyproject.toml: tool.pytest-accel.references."
            '"bench_suites/test_wide_resnet.py::test_single[optimised]".gh200'
        )
        assert single["gh200x4"].upper is None
        assert (gpt["a100"].lower, gpt["a100"].upper) == (None, None)

    @pytest.mark.parametrize(
        "text", ["", "[tool.other]\nreferences = 1", "[tool.pytest-accel.platforms.x]\nalias = 'a100'"]
    )
    def test_a_project_without_them_expects_nothing(self, tmp_path, text):
        assert read_expectations(project(tmp_path, text)) == {}

    def test_no_project_expects_nothing(self, tmp_path):
        assert read_expectations(tmp_path / "pyproject.toml") == {}

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ("gh200 = 4200", "is not a list of value, lower, upper and unit. Write [4200, -0.05"),
            ("gh200 = [4200, -0.05, 0.1]", "is not a list of value, lower, upper and unit"),
            ('gh200 = ["4200", -0.05, 0.1, "images/s"]', "the value '4200' is not a number. Write one"),
            ('gh200 = [true, -0.05, 0.1, "images/s"]', "the value True is not a number"),
            ('gh200 = [nan, -0.05, 0.1, "images/s"]', "the value nan is not a positive number"),
            ('gh200 = [-1, -0.05, 0.1, "images/s"]', "is not a positive number"),
            (f'gh200 = [1{"0" * 400}, -0.05, 0.1, "images/s"]', "too many digits"),
            ('gh200 = [4200, "null", 0.1, "images/s"]', '"none" for no bound'),
            ('gh200 = [4200, 0.05, 0.1, "images/s"]', "is not a fraction between -1 and 0. Write -0.05"),
            ('gh200 = [4200, -0.05, -0.1, "images/s"]', "is not a fraction of at least 0. Write 0.1"),
            ('gh200 = [4200, -0.05, 0.1, ""]', "the unit is empty"),
            ("gh200 = [4200, -0.05, 0.1, 7]", "the unit 7 is not text"),
            ('GH200 = [4200, -0.05, 0.1, "images/s"]', "Write gh200."),
            ('gh200x1 = [4200, -0.05, 0.1, "images/s"]', "a count of 1 is left out. Write gh200."),
        ],
    )
    def test_a_fault_names_its_place_and_what_to_write(self, tmp_path, line, says):
        path = project(tmp_path, f'[tool.pytest-accel.references."test_x[a]"]\n{line}\n')
        with pytest.raises(ExpectationError) as caught:
            read_expectations(path)
        platform = line.split(" ")[0]
        assert str(caught.value).startswith(f'{path}: tool.pytest-accel.references."test_x[a]".{platform}: ')
        assert says in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("[tool.pytest-accel]\nreferences = 3", "3 is not a table of expectations. Write [tool."),
            (
                "[tool.pytest-accel.references]\ntest_x = [1, 0, 0, 's']",
                "is not a table of platforms. Write [",
            ),
            ("[tool.pytest-accel.references.test_x]", "{} is not a table of platforms"),
            ("[tool.pytest-accel.references", "Correct the file"),
        ],
    )
    def test_what_is_no_table_is_one_error(self, tmp_path, text, says):
        path = project(tmp_path, text)
        with pytest.raises(ExpectationError) as caught:
            read_expectations(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert says in str(caught.value)
