"""Published figures and a site's expectations: links, ratios, bounds, and errors with their place and remedy."""

import json
import math
from pathlib import Path

import pytest

from pytest_accel.storage.references import (
    DOUBTS,
    METRICS,
    Expectation,
    Figure,
    PublishedError,
    configuration_differences,
    expectation_of,
    expected_for,
    linked_figures,
    ratio_to,
    read_expectations,
    read_published,
    similar_links,
)
from tests.support.damage import damaged

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


def write(folder: Path, content: object, name: str = "study.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def a_figure(**changes) -> Figure:
    values = {**OTHER, "id": "olivia/single/baseline/gh200", "platform": "gh200", "value": 2640.0}
    return Figure(**{**values, **changes})


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


class TestFaults:
    @pytest.mark.parametrize(
        ("place", "value", "says"),
        [
            ("schema_version", 2, "2 is not the schema"),
            ("source.kind", "rumour", "none of paper"),
            ("figures[0].value", math.nan, "NaN is not a finite number"),
            ("figures[0].value", 0, "0.0 is not positive"),
            ("figures[0].value", "2470", "where a number is expected"),
            ("figures[0].metric", "speed", "none of throughput"),
        ],
    )
    def test_fault_is_reported_with_file_place_and_remedy(self, tmp_path, place, value, says):
        path = write(tmp_path, damaged(GOOD, place, value))
        with pytest.raises(PublishedError) as caught:
            read_published(tmp_path)
        assert (caught.value.file, caught.value.place) == (str(path), place)
        assert says in caught.value.problem
        assert caught.value.remedy.endswith(".")

    @pytest.mark.parametrize(
        ("text", "says"), [(json.dumps(GOOD)[:200], "not JSON"), ("[]", "this is not a study")]
    )
    def test_text_that_is_no_study_is_one_error(self, tmp_path, text, says):
        path = write(tmp_path, text)
        with pytest.raises(PublishedError, match=says) as caught:
            read_published(tmp_path)
        assert f"git checkout -- {path}" in str(caught.value)


class TestLinks:
    @pytest.mark.parametrize("link", ["nrp/train/resnet", "nrp/train/resnet50/", "train/resnet50", "", "/"])
    def test_link_leads_to_ids_that_begin_with_its_segments(self, link):
        figures = [a_figure(id="nrp/train/resnet50/gh200")]
        assert linked_figures(figures, link) == ()
        assert list(linked_figures(figures, "nrp/train")) == figures

    def test_unknown_link_has_a_suggestion(self):
        figures = [a_figure(id="nrp/train/resnet50/a100")]
        assert "nrp/train/resnet50" in similar_links(figures, "nrp/trian/resnet50")


class TestRatios:
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
    def test_figure_that_is_not_comparable_has_none(self, figure):
        assert ratio_to(figure, {("throughput", "images/s"): 6600.0, ("tdp", "images/s"): 700.0}) is None

    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
    def test_measurement_that_is_no_rate_has_none(self, value):
        assert ratio_to(a_figure(), {("throughput", "images/s"): value}) is None

    @pytest.mark.parametrize("metric", [name for name, better in METRICS.items() if better])
    def test_ratio_above_one_is_better_on_this_machine(self, metric):
        ratio = ratio_to(a_figure(metric=metric, unit="s", value=2.0), {(metric, "s"): 8.0})
        assert ratio == (4.0 if METRICS[metric] == "more" else 0.25)


def an_expectation(**changes) -> Expectation:
    values = {"value": 4200.0, "lower": -0.05, "upper": 0.1, "unit": "images/s", "origin": "pyproject.toml"}
    return Expectation(**{**values, **changes})


@pytest.mark.parametrize(
    ("here", "flags", "said"),
    [
        ({"batch_size": 256, "precision": "fp32", "data_source": "imagenet"}, (), ""),
        ({"data_source": "imagenet"}, (), ""),  # names nothing else
        ({"batch_size": 128, "data_source": "imagenet"}, (), "batch size 256 there, 128 here"),
        ({"precision": "tf32", "data_source": "imagenet"}, (), "precision fp32 there, tf32 here"),
        ({"precision": "tf32", "data_source": "imagenet"}, ("read-as-tf32",), ""),
        ({"batch_size": 256, "data_source": "synthetic"}, (), "synthetic data here"),
    ],
)
def test_difference_from_a_published_configuration_is_named(here, flags, said):
    figure = a_figure(configuration={"batch_size": 256, "precision": "fp32", "data": "imagenet"}, flags=flags)
    assert configuration_differences(figure, here) == said


class TestExpectations:
    @pytest.mark.parametrize(
        ("measured", "unit", "text"),
        [
            (3900, "images/s", "3,900 images/s is 7.1 % below the 4,200 of pyproject.toml, outside its bounds (at least 3,990)"),
            (5250, "images/s", "5,250 images/s is 25.0 % above the 4,200 of pyproject.toml, outside its bounds (at most 4,620)"),
            (4200, "tokens/s", "pyproject.toml expects images/s, and the measurement is in tokens/s."),
            (math.nan, "images/s", "nan"),
        ],
    )  # fmt: skip
    def test_shortfall_has_the_deviation_and_the_bound(self, measured, unit, text):
        assert an_expectation().shortfall(measured, unit).startswith(text)

    @pytest.mark.parametrize("measured", [3990, 4200, 4620])
    def test_bounds_are_allowed(self, measured):
        assert an_expectation().shortfall(measured, "images/s") == ""

    def test_no_bound_allows_everything(self):
        assert an_expectation(lower=None, upper=None).shortfall(1e-6, "images/s") == ""

    def test_figure_allows_what_is_better_and_the_tolerance(self):
        expected = expectation_of(a_figure(), 0.1)
        assert [not expected.shortfall(value, "images/s") for value in (2375, 2377, 1e9)] == [0, 1, 1]

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
        "line",
        [
            "gh200 = 4200",
            "gh200 = [4200, -0.05, 0.1]",
            'gh200 = ["fast", -0.05, 0.1, "images/s"]',
            'gh200 = [nan, -0.05, 0.1, "images/s"]',
            'gh200 = [4200, 0.05, 0.1, "images/s"]',
            'gh200 = [4200, -0.05, -0.1, "images/s"]',
            'gh200 = [4200, -0.05, 0.1, ""]',
        ],
    )
    def test_a_fault_names_its_place_and_what_to_write(self, tmp_path, line):
        path = project(tmp_path, f'[tool.pytest-accel.references."test_x[a]"]\n{line}\n')
        with pytest.raises(ValueError, match=r"is not \[value, lower, upper, unit\]") as caught:
            read_expectations(path)
        assert str(caught.value).startswith(
            'pyproject.toml: tool.pytest-accel.references."test_x[a]".gh200: '
        )
        assert 'Write [4200, -0.05, 0.10, "images/s"].' in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("[tool.pytest-accel]\nreferences = 3", "3 is not a table"),
            ("[tool.pytest-accel.references]\ntest_x = [1, 0, 0, 's']", "is not a table of platforms. Write"),
            ("[tool.pytest-accel.references", "Correct the file"),
        ],
    )
    def test_what_is_no_table_is_one_error(self, tmp_path, text, says):
        with pytest.raises(ValueError, match=r"pyproject\.toml: ") as caught:
            read_expectations(project(tmp_path, text))
        assert says in str(caught.value)
