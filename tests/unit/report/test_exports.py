"""Exports: the fields that other tools read, and nothing that they stumble over."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_accel.report.exports import csv_text, github_action_benchmark, json_lines, render_metrics
from pytest_accel.report.history import Track
from pytest_accel.stats.results import Ending, ReferenceFigure
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage.history import HistoryRun, Point
from tests.support.results import make_result, make_session


def point(night=1, **more) -> Point:
    facts = {
        "session": f"s{night}",
        "at": f"2026-03-{night:02d}T02:00:00+00:00",
        "host": "node-7",
        "revision": "abc",
        "status": "ok",
        "loss": None,
        "runs": (
            HistoryRun(step_time_s=0.05, metrics={"mfu": 0.3}),
            HistoryRun(step_time_s=0.04, peak_memory_bytes=7, metrics={"mfu": 0.4, "energy_per_step_j": 2.5}),
        ),
        "work_per_step": 100.0,
        "unit": "images",
        "environment": "e1",
        "configuration": "c1",
    }
    return Point(**facts | more)


def track(*points, key="t.py::test_a[x, y]", platform="h200") -> Track:
    return Track(platform=platform, key=key, points=points or (point(1), point(2)))


class TestLinesAndTables:
    def test_line_is_a_point_with_all_its_runs(self):
        first, second = map(json.loads, json_lines([track()]))
        assert (first["platform"], first["benchmark"], first["session"]) == (
            "h200",
            "t.py::test_a[x, y]",
            "s1",
        )
        assert second["runs"] == [
            {"step_time_s": 0.05, "mfu": 0.3},
            {"step_time_s": 0.04, "mfu": 0.4, "energy_per_step_j": 2.5, "peak_memory_bytes": 7},
        ]
        assert first["throughput"] == pytest.approx(point().throughput)

    def test_row_is_a_run(self):
        rows = list(csv.DictReader(io.StringIO(csv_text([track(), track(key='"quoted"\nkey')]))))
        assert len(rows) == 8
        assert [row["run"] for row in rows[:2]] == ["0", "1"]
        assert [float(row["throughput"]) for row in rows[:2]] == [2000.0, 2500.0]
        assert rows[0]["metrics.energy_per_step_j"] == ""
        assert rows[1]["metrics.energy_per_step_j"] == "2.5"
        assert rows[0]["benchmark"] == "t.py::test_a[x, y]"
        assert rows[7]["benchmark"] == '"quoted"\nkey'


class TestGithubActionBenchmark:
    def test_array_that_it_reads(self):
        (entry,) = json.loads(github_action_benchmark(make_session([make_result()])))
        assert set(entry) == {"name", "unit", "value", "range", "extra"}
        assert entry["name"] == "bench_suites/test_cnn.py::test_cnn[resnet50-bf16-256] (gh200)"
        assert entry["unit"] == "images/s"
        assert entry["value"] == pytest.approx(make_result().throughput)
        assert re.fullmatch(r"± [\d.,]+", entry["range"])
        assert entry["extra"].startswith("ok: ")

    @pytest.mark.parametrize("status", [Outcome.INVALID, Ending.SKIPPED, Ending.FAILED])
    def test_what_is_not_valid_is_left_out(self, status):
        good, bad = make_result(), make_result(status, name="test_bad")
        slowed = replace(
            good, benchmark="t.py::test_slowed", runs=(replace(good.runs[0], metrics={"slowdown_felt": 0.1}),)
        )
        assert len(json.loads(github_action_benchmark(make_session([good, bad, slowed])))) == 1


# --- OpenMetrics -------------------------------------------------------------------------------------

# The ABNF of OpenMetrics 1.0, as far as a gauge and an info need it.
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
NUMBER = r"[+-]?\d+(?:\.\d*)?(?:e[+-]?\d+)?|[+-]?Inf|NaN"
SAMPLE = re.compile(rf"(?P<name>{NAME})(?:\{{(?P<labels>(?:{LABEL}(?:,{LABEL})*)?)\}})? (?P<value>{NUMBER})")
DESCRIPTOR = re.compile(rf"# (?P<what>TYPE|HELP|UNIT) (?P<name>{NAME}) (?P<text>[^\n]+)")
UNESCAPED = {r"\"": '"', r"\\": "\\", r"\n": "\n"}


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], str]:
    """Values by name and labels; an assertion fails where the text is not OpenMetrics."""
    assert text.endswith("# EOF\n")
    found: dict[tuple[str, frozenset[tuple[str, str]]], str] = {}
    described: dict[str, dict[str, str]] = {}
    family = ""
    for line in text[: -len("# EOF\n")].split("\n")[:-1]:
        if line.startswith("#"):
            head = DESCRIPTOR.fullmatch(line)
            assert head, line
            if head["name"] != family:
                family = head["name"]
                assert family not in described, f"{family} is torn apart"
                described[family] = {}
            assert head["what"] not in described[family]
            described[family][head["what"]] = head["text"]
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        facts = described[family]
        assert facts["TYPE"] in {"gauge", "info"}
        assert sample["name"] == family + ("_info" if facts["TYPE"] == "info" else "")
        assert family.endswith(facts.get("UNIT", ""))
        if facts["TYPE"] == "info":
            assert sample["value"] == "1"
        pairs = [each.partition("=") for each in re.findall(LABEL, sample["labels"])]
        labels = [(key, re.sub(r"\\.", lambda m: UNESCAPED[m[0]], value[1:-1])) for key, _, value in pairs]
        assert len(dict(labels)) == len(labels)
        key = sample["name"], frozenset(labels)
        assert key not in found, f"{line} stands there twice"
        found[key] = sample["value"]
    return found


def by_gitlab(text: str) -> dict[str, str]:
    """As GitLab reads it: comments cut off, then the words of a shell, the first the name and the second the value."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        words = shlex.split(re.sub(r"#.*$", "", line))
        if len(words) > 1:
            assert words[0] not in found
            found[words[0]] = words[1]
            assert len(words) == 2
    return found


def labelled(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def test_openmetrics_of_a_whole_session():
    text = render_metrics(make_session())
    found = parsed(text)
    gpt = {"benchmark": "bench_suites/test_gpt.py::test_gpt[800m]", "platform": "gh200"}
    assert found["accel_failed", labelled(**gpt)] == "1"
    assert found["accel_status_info", labelled(**gpt, status="regressed")] == "1"
    assert 80_000 < float(found["accel_throughput", labelled(**gpt, unit="tokens/s")]) < 90_000
    assert 0.07 < float(found["accel_slowdown_ratio", labelled(**gpt, of="throughput")]) < 0.09
    assert found["accel_peak_memory_bytes", labelled(**gpt)] == "12670000000"
    assert found["accel_metric", labelled(**gpt, metric="tflops")] == "162.9"
    assert found["accel_benchmarks", labelled(status="regressed")] == "2"
    scaled = {"benchmark": "bench_suites/test_cnn.py::test_scaling[resnet50]", "platform": "gh200x4"}
    assert found["accel_scaling_efficiency_ratio", labelled(**scaled, against="gh200")] == "0.9300"
    swept = {
        "benchmark": "bench_suites/test_resnet50_energy.py::test_resnet50_energy[16]",
        "platform": "gh200",
    }
    reference = labelled(**swept, reference="caraml/resnet50/16/a100")
    assert found["accel_reference_ratio", reference] == "2.9412"
    assert len(by_gitlab(text)) == len(found)


def test_order_and_names_do_not_depend_on_the_order_or_the_hour():
    session = make_session()
    later = replace(
        session,
        results=session.results[::-1],
        duration_s=9.0,
        at="2030-01-01T00:00:00+00:00",
        session="other",
    )
    assert render_metrics(later) == render_metrics(session)


def test_every_status_is_counted_even_where_nothing_came_to_it():
    found = parsed(render_metrics(make_session([])))
    assert found == {("accel_benchmarks", labelled(status=each.value)): "0" for each in [*Outcome, *Ending]}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (6714.123, "6714.1"),
        (91223.4, "91223"),
        (123456789.0, "123460000"),
        (0.00012345678, "0.00012346"),
        (1e-9, "1e-09"),
        (1e20, "1e+20"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_number_is_rounded_and_written_without_an_exponent(value, shown):
    run = Run(session="s", rounds_s=(0.1,) * 6, steps_per_round=1, metrics={"x": value})
    found = parsed(render_metrics(make_session([make_result(runs=(run,))])))
    assert [number for (name, _), number in found.items() if name == "accel_metric"] == [shown]


def test_ratio_near_nothing_has_no_sign():
    reference = ReferenceFigure(
        id="r", source="s", platform="p", metric="m", unit="u", value=1.0, ratio=-0.00001
    )
    found = parsed(render_metrics(make_session([make_result(references=(reference,))])))
    assert [value for (name, _), value in found.items() if name == "accel_reference_ratio"] == ["0.0000"]


def test_two_of_one_name_stand_there_once_and_the_failure_counts():
    results = [make_result(), make_result(failed=True)]
    found = parsed(render_metrics(make_session(results)))
    assert [value for (name, _), value in found.items() if name == "accel_failed"] == ["1"]


def test_unknown_platform_is_no_label():
    found = parsed(render_metrics(make_session([make_result(Outcome.VANISHED, platform="")])))
    assert (
        "accel_failed",
        labelled(benchmark="bench_suites/test_cnn.py::test_cnn[resnet50-bf16-256]"),
    ) in found


def test_encoded_names_stay_distinct():
    names = ["#1", "%231", "%25231", "\n", "%0A"]
    text = render_metrics(make_session(make_result(name=name) for name in names))
    assert sum(name == "accel_failed" for name, _ in parsed(text)) == len(names)
    assert "#1" not in text


anything = st.text(max_size=30) | st.text(alphabet="#%\"'\\`${} \n\r\t\0=,a\udc80", max_size=20)


@settings(max_examples=60)
@given(st.lists(st.tuples(anything, anything), min_size=1, max_size=4, unique=True))
def test_any_name_is_a_line_of_its_own(names):
    template = make_result(rounds=6)
    results = [
        replace(template, benchmark=f"a.py::{name}", platform=platform, unit=name) for name, platform in names
    ]
    text = render_metrics(make_session(results))
    text.encode("utf-8")
    found = parsed(text)
    assert sum(name == "accel_failed" for name, _ in found) == len(names)
    assert list(by_gitlab(text).values()) == list(found.values())
