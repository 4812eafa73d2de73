"""Published figures and a site's expectations: links, ratios, bounds, and errors with their place and remedy."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_accel.storage.references import (
    DOUBTS,
    METRICS,
    Expectation,
    ExpectationError,
    Figure,
    MeasuredFigure,
    PublishedError,
    check_expectation,
    expectation_of,
    expected_for,
    linked_figures,
    pair_figures,
    read_expectations,
    read_published,
    similar_links,
)
from tests.support.damage import ABSENT, damaged

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
SOURCE = {"key": "study", "title": "A study", "authors": "A. Nonymous", "year": 2024, "venue": "nowhere"}
GOOD = {"schema_version": 1, "source": {**SOURCE, "kind": "paper"}, "figures": [FIGURE, OTHER]}
POSITIVE = st.floats(1e-6, 1e9)
IDS = st.lists(st.sampled_from(["a", "b", "ab", "resnet50", "resnet"]), min_size=1, max_size=4).map("/".join)


def write(folder: Path, content: object, name: str = "study.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def a_figure(**changes) -> Figure:
    values = {**OTHER, "id": "olivia/single/baseline/gh200", "platform": "gh200", "value": 2640.0}
    return Figure(**{**values, **changes})


def rate(value: float, unit: str = "images/s") -> MeasuredFigure:
    return MeasuredFigure(metric="throughput", value=value, unit=unit)


class TestReading:
    def test_good_file_is_a_study(self, tmp_path):
        write(tmp_path, GOOD)
        write(tmp_path, "not JSON", ".study.json")
        write(tmp_path, "not JSON", "readme.md")
        (study,) = read_published(tmp_path)
        first, second = study.figures
        assert (study.source.key, study.source.year, first.is_doubtful) == ("study", 2024, True)
        assert (second.value, second.flags, second.note) == (650.5, (), "")

    def test_missing_folder_has_no_study(self, tmp_path):
        assert read_published(tmp_path / "missing") == ()

    def test_reading_imports_nothing_heavy(self):
        code = (
            "import sys, pytest_accel.storage.references as r; "
            "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'tomllib')))"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Each fault: a place, what it holds there, and what the error says; a fourth is the place that the error names.
FAULTS = [
    ("schema_version", 2, "2 is no schema"),
    ("schema_version", ABSENT, "this is not a file of published figures", "top level"),
    ("source.key", "x", 'in a file named "study.json"'),
    ("source.kind", "rumour", "none of paper"),
    ("source.title", "", "is empty"),
    ("source.year", "2024", "whole number"),
    ("figures[0].batch", 1, 'the key "batch" is unknown here', "figures[0]"),
    ("figures[0].unit", ABSENT, 'the key "unit" is missing', "figures[0]"),
    ("figures[0].value", math.nan, "NaN is not a finite number"),
    ("figures[0].value", 0, "0.0 is not positive"),
    ("figures[0].value", "2470", "where a number is expected"),
    ("figures[0].flags", ["odd"], '"odd" is none of contradictory', "figures[0].flags[0]"),
    ("figures[0].flags", ["approximate"] * 2, "appears twice"),
    ("figures[0].note", ABSENT, "contradictory, so say why"),
    ("figures[0].unit", "img/s", '"img/s" is none of images/s'),
    ("figures[0].metric", "speed", "none of throughput"),
    ("figures[0].configuration", {"a": [1]}, "a list where text", 'figures[0].configuration["a"]'),
    ("figures[0].platform", "A100x4", "Write a100x4."),
    ("figures[0].platform", "a100x1", "Write a100."),
    ("figures[0].platform", "a100", "does not end with its platform, a100", "figures[0].id"),
    ("figures[0].id", "other/a100x4", 'does not begin with "study/"'),
    ("figures[0].id", "study/ResNet/a100x4", "lower case segments"),
    ("figures[0].id", "study//a100x4", "lower case segments"),
    ("figures", [OTHER, OTHER], '"study/train/resnet50/a100" appears twice', "figures[1].id"),
]


class TestFaults:
    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0]} {fault[2]}")
    def test_fault_is_reported_with_file_place_and_remedy(self, tmp_path, fault):
        place, value, says, *reported = fault
        path = write(tmp_path, damaged(GOOD, place, value))
        with pytest.raises(PublishedError) as caught:
            read_published(tmp_path)
        assert (caught.value.file, caught.value.place) == (str(path), (reported or [place])[0])
        assert says in caught.value.problem
        assert "record again" not in str(caught.value)
        assert caught.value.remedy.endswith(".")

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "the file is empty"),
            (json.dumps(GOOD)[:200], "cut off"),
            ("[]", "a list where an object is expected"),
            ('{"schema_version": 1, "schema_version": 1}', "appears twice"),
        ],
    )
    def test_text_that_is_no_study_is_one_error(self, tmp_path, text, says):
        path = write(tmp_path, text)
        with pytest.raises(PublishedError, match=says) as caught:
            read_published(tmp_path)
        assert f"git checkout -- {path}" in str(caught.value)

    def test_pipe_is_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "study.json")
        with pytest.raises(PublishedError, match="not a regular file"):
            read_published(tmp_path)

    @settings(max_examples=100)
    @given(
        at=st.integers(0, len(json.dumps(GOOD)) - 1),
        character=st.sampled_from('"{}[],:0-9eNx\\ \n') | st.characters(codec="utf-8"),
    )
    def test_damaged_character_is_an_error_or_a_good_file(self, tmp_path_factory, at, character):
        text, folder = json.dumps(GOOD), tmp_path_factory.mktemp("damaged")
        (folder / "study.json").write_text(text[:at] + character + text[at + 1 :], encoding="utf-8")
        try:
            (study,) = read_published(folder)
        except PublishedError as error:
            found = bool(error.problem and error.remedy)
        else:
            found = len(study.figures) == 2
        assert found


class TestLinks:
    @pytest.mark.parametrize("link", ["nrp/train/resnet", "nrp/train/resnet50/", "train/resnet50", "", "/"])
    def test_half_a_segment_links_to_nothing(self, link):
        assert linked_figures([a_figure(id="nrp/train/resnet50/gh200")], link) == ()

    @given(st.lists(IDS, unique=True), IDS)
    def test_link_leads_to_ids_that_begin_with_its_segments(self, ids, link):
        wanted = [each for each in ids if each.split("/")[: len(link.split("/"))] == link.split("/")]
        assert [figure.id for figure in linked_figures([a_figure(id=each) for each in ids], link)] == wanted

    def test_unknown_link_has_a_suggestion(self):
        figures = [a_figure(id="nrp/train/resnet50/a100")]
        assert "nrp/train/resnet50" in similar_links(figures, "nrp/trian/resnet50")


class TestPairs:
    @pytest.mark.parametrize(
        "figure",
        [
            a_figure(flags=("relative-only",)),
            a_figure(flags=("per-device",)),
            a_figure(unit="tokens/s"),
            a_figure(metric="first_epoch_throughput"),
            a_figure(metric="tdp"),
        ],
    )
    def test_figure_that_is_not_comparable_has_no_pair(self, figure):
        measured = [rate(6600), MeasuredFigure(metric="tdp", value=700.0, unit="images/s")]
        assert pair_figures(measured, [figure]) == ()

    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
    def test_measurement_without_a_ratio_has_no_pair(self, value):
        assert pair_figures([rate(value)], [a_figure()]) == ()

    def test_doubtful_figure_is_shown(self):
        assert len(pair_figures([rate(1.0)], [a_figure(flags=("contradictory",))])) == 1

    @given(
        metric=st.sampled_from([name for name, better in METRICS.items() if better]),
        mine=POSITIVE,
        theirs=POSITIVE,
    )
    def test_ratio_above_one_is_better_on_this_machine(self, metric, mine, theirs):
        assume(mine != theirs)
        (found,) = pair_figures(
            [MeasuredFigure(metric=metric, value=mine, unit="s")],
            [a_figure(metric=metric, unit="s", value=theirs)],
        )
        is_better = mine > theirs if METRICS[metric] == "more" else mine < theirs
        assert (found.ratio >= 1) if is_better else (found.ratio <= 1)
        assert math.isclose(abs(math.log(found.ratio)), abs(math.log(mine / theirs)), abs_tol=1e-12)


def an_expectation(**changes) -> Expectation:
    values = {"value": 4200.0, "lower": -0.05, "upper": 0.1, "unit": "images/s", "origin": "pyproject.toml"}
    return Expectation(**{**values, **changes})


FRACTIONS = st.none() | st.floats(0, 1)
EXPECTATIONS = st.builds(
    an_expectation, value=POSITIVE, lower=FRACTIONS.map(lambda bound: bound and -bound), upper=FRACTIONS
)


class TestExpectations:
    @pytest.mark.parametrize(
        ("measured", "text"),
        [
            (3900, "3,900 images/s is 7.1 % below the 4,200 of pyproject.toml, outside its lower bound of 5.0 %"),
            (5250, "5,250 images/s is 25.0 % above the 4,200 of pyproject.toml, outside its upper bound of 10.0 %"),
        ],
    )  # fmt: skip
    def test_shortfall_has_the_deviation_and_the_bound(self, measured, text):
        assert str(check_expectation(an_expectation(), rate(measured))).startswith(text)

    @pytest.mark.parametrize("measured", [3990, 4200, 4620])
    def test_bounds_are_allowed(self, measured):
        assert check_expectation(an_expectation(), rate(measured)) is None

    @pytest.mark.parametrize(("measured", "says"), [(rate(1, "tokens/s"), 'in "tokens/s"'), (rate(math.nan), "finite")])  # fmt: skip
    def test_other_unit_or_nan_is_refused(self, measured, says):
        with pytest.raises(ValueError, match=says):
            check_expectation(an_expectation(), measured)

    @given(EXPECTATIONS, POSITIVE)
    def test_shortfall_is_exactly_what_is_not_between_the_bounds(self, expectation, measured):
        found = check_expectation(expectation, rate(measured))
        assert (found is None) == (expectation.least <= measured <= expectation.most)
        if found is not None:
            assert found.bound == ("lower" if measured < expectation.value else "upper")
            assert str(found)

    def test_figure_allows_what_is_better_and_the_tolerance(self):
        throughput = expectation_of(a_figure(), 0.1)
        assert [check_expectation(throughput, rate(value)) is None for value in (2375, 2377, 1e9)] == [
            0,
            1,
            1,
        ]
        epoch_time = expectation_of(a_figure(metric="epoch_time", unit="s", value=10.0), 0.1)
        measured = [MeasuredFigure(metric="epoch_time", value=value, unit="s") for value in (11.1, 10.9, 1.0)]
        assert [check_expectation(epoch_time, each) is None for each in measured] == [0, 1, 1]

    @pytest.mark.parametrize("flag", [*sorted(DOUBTS), "relative-only", "per-device"])
    def test_doubtful_or_relative_figure_is_no_expectation(self, flag):
        assert expectation_of(a_figure(flags=(flag,)), 0.1) is None

    TABLE = {  # noqa: RUF012 - read only
        "*::test_cnn*": {"gh200": an_expectation(value=1.0), "a100": an_expectation(value=2.0)},
        "test_cnn.py::test_cnn[resnet50]": {"gh200": an_expectation(value=3.0)},
        "*": {"a100": an_expectation(value=4.0), "t4": an_expectation(value=5.0)},
        "*[resnet?0]": {"v100": an_expectation(value=6.0)},
    }

    @pytest.mark.parametrize(
        ("platform", "value"), [("gh200", 3.0), ("a100", 2.0), ("t4", 5.0), ("v100", 6.0), ("mi250", None)]
    )
    def test_node_id_goes_before_the_first_pattern_with_the_platform(self, platform, value):
        found = expected_for(self.TABLE, "test_cnn.py::test_cnn[resnet50]", platform)
        assert (found and found.value) == value

    def test_brackets_are_those_of_the_node_id(self):
        table = {"*test_x[ab]": {"cpu": an_expectation()}}
        assert expected_for(table, "t.py::test_x[ab]", "cpu") is not None
        assert expected_for(table, "t.py::test_xa", "cpu") is None


def project(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


class TestPyproject:
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
