"""The history in other tools' formats: the fields that those tools read, and nothing that they stumble over."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from pytest_accel.report.exports import (
    conbench_lines,
    csv_text,
    github_action_benchmark,
    json_lines,
    otava_files,
)
from pytest_accel.report.history import Track
from pytest_accel.stats.results import Ending
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage.history import Measured, Point
from tests.support.results import NOW, hostile, make_result, make_session

REPOSITORY = "https://github.com/org/repo"


def point(night=1, **more) -> Point:
    facts = {
        "session": f"s{night}",
        "at": f"2026-03-{night:02d}T02:00:00+00:00",
        "host": "node-7",
        "revision": "abc",
        "status": "ok",
        "loss": None,
        "runs": (
            Measured(step_time_s=0.05, metrics={"mfu": 0.3}),
            Measured(step_time_s=0.04, peak_memory_bytes=7, metrics={"mfu": 0.4, "energy_per_step_j": 2.5}),
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
    def test_a_line_is_a_point_with_all_its_runs(self):
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
        assert first["in_series"] is True

    def test_a_row_is_a_run(self):
        rows = list(csv.DictReader(io.StringIO(csv_text([track(), track(key='"quoted"\nkey')]))))
        assert len(rows) == 8
        assert [row["run"] for row in rows[:2]] == ["0", "1"]
        assert [float(row["throughput"]) for row in rows[:2]] == [2000.0, 2500.0]
        assert rows[0]["metrics.energy_per_step_j"] == ""
        assert rows[1]["metrics.energy_per_step_j"] == "2.5"
        assert rows[0]["benchmark"] == "t.py::test_a[x, y]"
        assert rows[7]["benchmark"] == '"quoted"\nkey'


class TestOtava:
    def test_its_configuration_names_every_table_and_its_columns(self):
        files = otava_files([track(), track(platform="a100")])
        tests = json.loads(files["otava.yaml"])["tests"]  # JSON is YAML
        assert len(tests) == 2
        for test in tests.values():
            header, *rows = csv.reader(io.StringIO(files[test["file"]]))
            assert test["type"] == "csv"
            assert {test["time_column"], *test["attributes"], *test["metrics"]} == set(header)
            for row in rows:
                assert len(row) == len(header)
                for metric in test["metrics"]:
                    float(row[header.index(metric)])

    def test_what_is_better_when_less_has_its_direction(self):
        (test,) = json.loads(otava_files([track()])["otava.yaml"])["tests"].values()
        directions = {name: metric["direction"] for name, metric in test["metrics"].items()}
        assert directions == {"throughput": 1, "mfu": 1, "energy_per_step_j": -1, "peak_memory_bytes": -1}

    def test_a_metric_that_one_session_lacks_is_left_out(self):
        """An empty cell ends Otava's import."""
        bare = point(3, runs=(Measured(step_time_s=0.05, metrics={"mfu": 0.3}),))
        (test,) = json.loads(otava_files([track(point(1), bare)])["otava.yaml"])["tests"].values()
        assert set(test["metrics"]) == {"throughput", "mfu"}

    def test_names_are_safe_and_do_not_meet(self):
        tracks = [
            track(key="t.py::test_a[x/y]"),
            track(key="t.py::test_a[x y]"),
            track(key="../../etc/passwd"),
        ]
        names = set(otava_files(tracks)) - {"otava.yaml"}
        assert len(names) == 3
        assert all(re.fullmatch(r"[A-Za-z0-9_-]+\.csv", name) for name in names)

    @pytest.mark.slow
    def test_otava_itself_reads_it(self, tmp_path):
        otava = shutil.which("otava")
        if otava is None:
            pytest.skip(
                "apache-otava is not installed: pip install apache-otava, in an environment of its own"
            )
        runs = [
            (Measured(step_time_s=(0.05 if night < 16 else 0.06) + night % 3 * 1e-4),)
            for night in range(1, 29)
        ]
        files = otava_files([track(*(point(night, runs=each) for night, each in enumerate(runs, 1)))])
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        (test,) = json.loads(files["otava.yaml"])["tests"]
        command = [otava, "analyze", test, "--config-file", "otava.yaml", "--since", "2026-01-01"]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
        assert re.search(r"-1[67]\.\d%[^%]*2026-03-16 02:00:00", found.stdout)


class TestConbench:
    def body(self, *results, **more):
        session = make_session(results or (make_result(),), **more)
        return [json.loads(line) for line in conbench_lines(session, REPOSITORY)]

    def test_what_its_schema_requires(self):
        (body,) = self.body()
        assert {"run_id", "batch_id", "timestamp", "tags", "context", "github", "stats"} <= set(body)
        assert ("machine_info" in body) != ("cluster_info" in body)
        assert set(body["cluster_info"]) == {"name", "info", "optional_info"}
        assert body["stats"]["unit"] == "i/s"
        assert len(body["stats"]["data"]) == len(body["stats"]["times"]) == 1
        assert body["stats"]["iterations"] == 130
        assert body["tags"]["name"].endswith("test_cnn[resnet50-bf16-256]")
        assert body["tags"]["work_unit"] == "images"

    def test_identity_breaks_its_history_and_context_does_not(self):
        (body,) = self.body()
        assert body["cluster_info"]["info"] == NOW.identity
        assert body["info"] == NOW.context
        assert body["context"] == {"benchmark_language": "Python"}

    def test_only_a_whole_hash_is_a_commit(self):
        (body,) = self.body()
        assert body["github"] == {
            "repository": REPOSITORY,
            "commit": "9c31d8905741dbab77aa78adffbf7da3806bc082",
        }
        (body,) = self.body(revision="v1.2-dirty")
        assert body["github"] == {"repository": REPOSITORY}

    def test_tags_are_text_and_not_empty(self):
        (body,) = self.body(make_result(configuration={"a": None, "b": "", "c": True, "d": 3, "name": "no"}))
        assert {"c": "True", "d": "3"}.items() <= body["tags"].items()
        assert not {"a", "b"} & set(body["tags"])
        assert body["tags"]["name"] != "no"

    def test_hostile_names_stay_on_their_line(self):
        lines = list(conbench_lines(make_session(hostile()), REPOSITORY))
        assert all("\n" not in line and json.loads(line) for line in lines)


class TestGithubActionBenchmark:
    def test_the_array_that_it_reads(self):
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
