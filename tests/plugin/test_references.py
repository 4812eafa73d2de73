"""Published figures and expectations of a site beside measured ones: shown, and gated by option."""

from __future__ import annotations

import json

import pytest

from pytest_accel.stats.results import Ending
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage.results import read_results

SUITE = """
    @pytest.mark.accel(reference="study/{variant}")
    @pytest.mark.parametrize("variant", ["plain"])
    def test_step(accel, variant):
        measure(accel, unit="images")
    """


def figure(name, value, **fields):
    row = {"id": f"study/{name}", "table": "Table 1", "row": "a row", "platform": name.rpartition("/")[2]}
    kind = {"metric": "throughput", "unit": "images/s", "workload": "sums", "configuration": {}}
    return {**row, **kind, "value": value, **fields}


@pytest.fixture
def published(bench):
    """Write a suite that links to a study, and the study's figures."""

    def write(*figures, suite=SUITE):
        bench.write(suite)
        folder = bench.path("baselines/published")
        folder.mkdir(parents=True)
        study = {"key": "study", "title": "A study", "authors": "A. Uthor", "year": 2026, "venue": "here"}
        content = {"schema_version": 1, "source": {**study, "kind": "paper", "note": "made up"}}
        content |= {"figures": list(figures), "claims": []}
        (folder / "study.json").write_text(json.dumps(content))
        return bench

    return write


def test_published_figures_are_shown_with_the_ratio(published):
    bench = published(figure("plain/cpu", 1.0), figure("plain/gh200", 1e12), figure("other/cpu", 1.0))
    result = bench.run("--accel-reference", "--accel-json=r.json", "--junitxml=out.xml")
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines(
        [
            r"^note: test_step\[plain\] \(cpu\): \d+\.\d\d x cpu in throughput \(study, Table 1: 1\.000 images/s\)$",
            r"^note: test_step\[plain\] \(cpu\): 0\.00 x gh200 in throughput .*$",
        ]
    )
    (measured,) = read_results(bench.path("r.json")).results
    assert [each.id for each in measured.references] == ["study/plain/cpu", "study/plain/gh200"]
    assert measured.references[0].ratio == pytest.approx(measured.throughput, rel=1e-6)
    assert not any(each.gated for each in measured.references)
    names = {each.get("name") for each in bench.testcase("test_step[plain]").iter("property")}
    assert "accel.reference.study/plain/cpu" in names


def test_published_figures_are_not_shown_by_default(published):
    published(figure("plain/cpu", 1.0)).run().stdout.no_fnmatch_line("note: test_step* x *")


def test_relative_figure_is_compared_with_nothing(published):
    bench = published(figure("plain/cpu", 12.0, metric="training_time", unit="min", flags=["relative-only"]))
    result = bench.run("--accel-reference")
    result.stdout.fnmatch_lines(["note: nothing was published that these benchmarks could stand beside"])


class TestGate:
    def test_throughput_below_the_figure_of_this_platform_fails(self, published):
        bench = published(figure("plain/cpu", 1e12), figure("plain/gh200", 1e15))
        result = bench.run("--accel-reference=10%", "--junitxml=out.xml", "--accel-json=r.json")
        result.assert_outcomes(failed=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.re_match_lines(
            [r"^FAILED  test_step\[plain\] \(cpu\): .* below the 1,000,000,000,000 of study/plain/cpu"]
        )
        result.stdout.no_fnmatch_line("*study/plain/gh200*")  # another machine's
        (failure,) = bench.testcase("test_step[plain]").findall("failure")
        assert failure.get("message").startswith("FAILED")
        (measured,) = read_results(bench.path("r.json")).results
        assert measured.failed
        assert "below" in measured.text

    def test_throughput_above_the_figure_passes(self, published):
        published(figure("plain/cpu", 1.0)).run("--accel-reference=10%").assert_outcomes(passed=1)

    @pytest.mark.parametrize("flag", ["contradictory", "implausible"])
    def test_doubtful_figure_gates_nothing_and_is_named(self, published, flag):
        bench = published(figure("plain/cpu", 1e12, flags=[flag], note="it cannot be"))
        result = bench.run("--accel-reference=10%")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["--accel-reference: *nothing was gated on*"])

    def test_expected_failures_stay_expected(self, published):
        marked = SUITE.replace("    @pytest", '    @pytest.mark.xfail(reason="known")\n    @pytest', 1)
        bench = published(figure("plain/cpu", 1e12), suite=marked)
        bench.run("--accel-reference=10%").assert_outcomes(xfailed=1)


def test_figure_of_another_configuration_names_the_difference(published):
    there = {"batch_size": 1024, "precision": "fp32", "data": "imagenet"}
    suite = SUITE.replace(
        'unit="images")', 'unit="images", configuration={"batch_size": 4, "precision": "fp32"})'
    )
    bench = published(figure("plain/cpu", 1.0, configuration=there), suite=suite)
    bench.run("--accel-reference").stdout.fnmatch_lines(
        ["note: test_step*(batch size 1024 there, 4 here, synthetic data here)"]
    )


class TestExpectations:
    def expect(self, bench, line):
        bench.path("pyproject.toml").write_text(f'[tool.pytest-accel.references."*::test_step"]\n{line}\n')

    @pytest.mark.parametrize(
        ("line", "failed"),
        [
            ('cpu = [1e12, -0.05, "none", "images/s"]', 1),
            ('cpu = [1.0, -0.05, "none", "images/s"]', 0),
            ('cpu = [1.0, -0.05, 0.1, "images/s"]', 1),
            ('gh200 = [1e12, -0.05, "none", "images/s"]', 0),
            ('cpu = [1.0, -0.05, "none", "tokens/s"]', 1),
        ],
    )
    def test_expectations_are_always_gated(self, bench, line, failed):
        bench.write('def test_step(accel):\n    measure(accel, unit="images")\n')
        self.expect(bench, line)
        bench.run().assert_outcomes(failed=failed, passed=1 - failed)

    def test_missed_expectation_is_a_failure_in_every_output(self, bench):
        bench.write('def test_step(accel):\n    measure(accel, unit="images")\n')
        self.expect(bench, 'cpu = [1e12, -0.05, "none", "images/s"]')
        result = bench.run("--accel-json=r.json", "--accel-report=r.md")
        result.stdout.re_match_lines([r"^test_step .* FAILED$"])
        (measured,) = read_results(bench.path("r.json")).results
        assert measured.status is Ending.FAILED
        assert measured.measured_as is Outcome.NO_BASELINE  # compare, upgrade and accept take its runs
        summary = bench.path("r.md").read_text()
        assert "1 of 1 benchmark failed: 1 FAILED" in summary
        assert summary.count("of pyproject.toml: ") == 1  # its sentence, once

    def test_expectation_of_no_benchmark_is_noted(self, bench):
        bench.benchmarks("test_stop")
        self.expect(bench, 'cpu = [1e12, -0.05, "none", "numbers/s"]')
        result = bench.run()
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["note: pyproject.toml expects something of '[*]::test_step'*"])

    def test_unknown_platform_is_refused_with_the_known_ones(self, bench):
        bench.benchmarks("test_step")
        self.expect(bench, '"cpu-intel-xeon" = [1e12, -0.05, "none", "numbers/s"]')
        result = bench.run()
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: *'cpu-intel-xeon' is no platform*gh200*"])


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("study/plian", "*leads to no published figure. Did you mean 'study/plain'?"),
        ("study/{colour}", "*'colour' is no parameter of it. Its parameters: variant."),
    ],
)
def test_wrong_link_is_refused_before_anything_is_measured(published, link, said):
    bench = published(figure("plain/cpu", 1.0), suite=SUITE.replace("study/{variant}", link))
    result = bench.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])
    assert not bench.processes("test_step[plain]")


def test_row_that_the_study_lacks_is_no_error(published):
    bench = published(figure("plain/cpu", 1.0), suite=SUITE.replace('["plain"]', '["plain", "fancy"]'))
    bench.run("--accel-reference").assert_outcomes(passed=2)


def test_torn_file_of_figures_is_one_error(published):
    bench = published(figure("plain/cpu", 1.0))
    bench.path("baselines/published/study.json").write_text("{")
    result = bench.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *study.json*cut off*"])
