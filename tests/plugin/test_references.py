"""Published figures and expectations of a site beside measured ones: shown, and gated by option."""

import json

import pytest

from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.results import Ending
from pytest_accel.storage.results import read_results

SUITE = """
    @pytest.mark.accel(reference="study/{variant}")
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_step(accel, variant):
        configuration = {"batch_size": 4, "precision": "fp32"} if variant == "configured" else {}
        measure(accel, unit="images", configuration=configuration)
    """


def figure(name, value, **fields):
    row = {"id": f"study/{name}", "table": "Table 1", "row": "a row", "platform": name.rpartition("/")[2]}
    kind = {"metric": "throughput", "unit": "images/s", "workload": "sums", "configuration": {}}
    return {**row, **kind, "value": value, **fields}


@pytest.fixture
def published(bench):
    """Write a suite that links to a study, and the study's figures."""

    def write(*figures, variants="['plain']", suite=SUITE):
        bench.write(suite.replace("VARIANTS", variants))
        folder = bench.path("baselines/published")
        folder.mkdir(parents=True)
        study = {"key": "study", "title": "A study", "authors": "A. Uthor", "year": 2026, "venue": "here"}
        content = {"schema_version": 1, "source": {**study, "kind": "paper", "note": "made up"}}
        content |= {"figures": list(figures), "claims": []}
        (folder / "study.json").write_text(json.dumps(content))
        return bench

    return write


def test_published_figures_are_shown_with_the_ratio(published):
    there = {"batch_size": 1024, "precision": "fp32", "data": "imagenet"}
    bench = published(
        figure("plain/cpu", 1.0),
        figure("plain/gh200", 1e12),
        figure("other/cpu", 1.0),
        figure("configured/cpu", 1.0, configuration=there),
        variants='["plain", "configured", "lacking"]',
    )
    result = bench.run("--accel-reference", "--accel-json=r.json")
    result.assert_outcomes(passed=3)
    result.stdout.re_match_lines(
        [
            r"^note: test_step\[plain\] \(cpu\): \d+\.\d\d x cpu in throughput \(study, Table 1: 1\.000 images/s\)$",
            r"^note: test_step\[plain\] \(cpu\): 0\.00 x gh200 in throughput .*$",
            r"^note: test_step\[configured\].*\(batch size 1024 there, 4 here, synthetic data here\)$",
        ]
    )
    plain, _, lacking = read_results(bench.path("r.json")).results
    assert [each.id for each in plain.references] == ["study/plain/cpu", "study/plain/gh200"]
    assert plain.references[0].ratio == pytest.approx(plain.throughput, rel=1e-6)
    assert not any(each.gated for each in plain.references)
    assert lacking.references == ()
    bench.run("-k", "plain").stdout.no_fnmatch_line("note: test_step* x *")  # not asked for


def test_relative_figure_is_compared_with_nothing(published):
    bench = published(figure("plain/cpu", 12.0, metric="training_time", unit="min", flags=["relative-only"]))
    result = bench.run("--accel-reference")
    result.stdout.fnmatch_lines(["note: nothing was published that these benchmarks could stand beside"])


def test_throughput_below_the_figure_of_this_platform_fails(published):
    bench = published(
        figure("plain/cpu", 1.0),
        figure("much/cpu", 1e12),
        figure("much/gh200", 1e15),
        figure("known/cpu", 1e12),
        variants='["plain", "much", pytest.param("known", marks=pytest.mark.xfail(reason="known"))]',
    )
    result = bench.run("--accel-reference=10%", "--junitxml=out.xml", "--accel-json=r.json")
    result.assert_outcomes(failed=1, passed=1, xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.re_match_lines(
        [r"^FAILED  test_step\[much\] \(cpu\): .* below the 1,000,000,000,000 of study/much/cpu"]
    )
    result.stdout.no_fnmatch_line("*below*study/much/gh200*")  # another machine's
    (failure,) = bench.testcase("test_step[much]").findall("failure")
    assert "below" in failure.get("message")
    measured = read_results(bench.path("r.json")).results[1]
    assert measured.failed
    assert "below" in measured.text


def test_doubtful_figure_gates_nothing_and_is_named(published):
    bench = published(figure("plain/cpu", 1e12, flags=["contradictory"], note="it cannot be"))
    result = bench.run("--accel-reference=10%")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["--accel-reference: *nothing was gated on*"])


EXPECTED = {
    "test_low": 'cpu = [1e12, -0.05, "none", "images/s"]',
    "test_fine": 'cpu = [1.0, -0.05, "none", "images/s"]',
    "test_high": 'cpu = [1.0, -0.05, 0.1, "images/s"]',
    "test_elsewhere": 'gh200 = [1e12, -0.05, "none", "images/s"]',
    "test_unit": 'cpu = [1.0, -0.05, "none", "tokens/s"]',
    "test_gone": 'cpu = [1.0, -0.05, "none", "images/s"]',
}


def expect(bench, **lines):
    tables = [f'[tool.pytest-accel.references."*::{name}"]\n{line}\n' for name, line in lines.items()]
    bench.path("pyproject.toml").write_text("\n".join(tables))


def test_expectations_are_always_gated_in_every_output(bench):
    names = [name for name in EXPECTED if name != "test_gone"]
    bench.write("\n\n".join(f"def {name}(accel):\n    measure(accel, unit='images')\n" for name in names))
    expect(bench, **EXPECTED)
    result = bench.run("--accel-json=r.json", "--accel-report=r.md")
    result.assert_outcomes(failed=3, passed=2)
    result.stdout.re_match_lines([r"^test_low +FAILED "])
    result.stdout.fnmatch_lines(["note: pyproject.toml expects something of '[*]::test_gone'*"])
    results = {each.name: each for each in read_results(bench.path("r.json")).results}
    assert {name for name in names if results[name].failed} == {"test_low", "test_high", "test_unit"}
    assert results["test_low"].status is Ending.FAILED
    assert results["test_low"].measured_as is Outcome.NO_BASELINE  # compare, upgrade and accept take its runs
    summary = bench.path("r.md").read_text()
    assert "3 of 5 benchmarks failed: 3 FAILED" in summary
    assert summary.count("of pyproject.toml: ") == 2  # each sentence once; that of the unit has other words


def test_unknown_platform_is_refused_with_the_known_ones(bench):
    bench.benchmarks("test_step")
    expect(bench, test_step='"cpu-intel-xeon" = [1e12, -0.05, "none", "numbers/s"]')
    bench.refuses("ERROR: *'cpu-intel-xeon' is no platform*gh200*")


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("study/plian", "*leads to no published figure. Did you mean 'study/plain'*"),
        ("study/{colour}", "*'colour' is no parameter of it. Its parameters: variant."),
    ],
)
def test_wrong_link_is_refused_before_anything_is_measured(published, link, said):
    bench = published(figure("plain/cpu", 1.0), suite=SUITE.replace("study/{variant}", link))
    bench.refuses(f"ERROR: {said}")
