"""A comparison as it is printed: verdicts, what is not alike, three formats."""

import json
import re
from dataclasses import replace

import pytest

from pytest_accel.report.comparison import render
from pytest_accel.stats.results import Ending, Result
from pytest_accel.storage.comparison import Side, compare
from tests.support.stored import CAPPED, H200, KEY, UPGRADED, runs

ENVIRONMENTS = {each.key: each for each in (H200, UPGRADED, CAPPED)}


@pytest.fixture
def two():
    """A set of runs and a slower one."""

    def side(label, **more):
        result = Result(
            benchmark=KEY,
            status=Ending.RECORDED,
            configuration={"batch_size": 256},
            work_per_step=256,
            unit="images",
            runs=runs(**more),
        )
        return Side(
            label=label,
            group=label,
            platform="h200",
            about="somewhere",
            results={KEY: result},
            environments=ENVIRONMENTS,
        )

    return [side("before"), side("after", step_s=0.0125, session="s2", environment=UPGRADED)]


class TestTable:
    def test_verdict_stands_in_the_row_and_below_with_what_changed(self, two):
        text = render(compare(two), "table")
        assert re.search(r"REGRESSED \d+\.\d % slower .* 0\.80 ", text.splitlines()[2])
        assert re.search(r"REGRESSED  test_cnn\[resnet50\] \(after\): 2.* % slower \(at least", text)
        assert "changed since before: driver 570.124.06 -> 580.159.04, torch 2.10.0 -> 2.11.0" in text

    def test_what_was_not_judged_says_why(self, two):
        result = replace(two[1].results[KEY], configuration={"batch_size": 512})
        two[1] = replace(two[1], results={KEY: result})
        text = render(compare(two), "table")
        assert "not judged" in text
        assert "note: test_cnn[resnet50]: not judged: the benchmark changed (batch_size 256 -> 512)" in text
        assert "* test_cnn[resnet50], after: batch_size 256 -> 512" in text

    def test_set_that_was_slowed_on_purpose_says_so(self, two):
        assert "delayed on purpose" not in render(compare(two), "table")
        result = two[1].results[KEY]
        slowed = tuple(replace(run, metrics={"slowdown_felt": 0.1}) for run in result.runs)
        two[1] = replace(two[1], results={KEY: replace(result, runs=slowed)})
        assert "note: after: 5 runs delayed on purpose" in render(compare(two), "table")


class TestOtherFormats:
    def test_json_has_all_of_it(self, two):
        content = json.loads(render(compare(two), "json"))
        assert [each["label"] for each in content["sets"]] == ["before", "after"]
        (row,) = content["rows"]
        assert row["cells"][1]["ratio"] == pytest.approx(0.8, abs=0.01)
        (judged,) = content["judged"]
        assert judged["outcome"] == "regressed"
        assert judged["verdicts"][0]["slowdown"]["point"] == pytest.approx(0.2, abs=0.01)
        assert {change["name"] for change in judged["changes"]} == {"driver", "torch"}

    def test_markdown_is_a_table(self, two):
        lines = render(compare(two), "markdown").splitlines()
        assert lines[2].startswith("| benchmark | verdict | before | after | x | unit |")
        assert lines[3].startswith("| --- | --- | ---: |")
        assert r"test_cnn\[resnet50\]" in lines[4]
        assert {line.count("|") for line in lines[2:5]} == {lines[2].count("|")}
