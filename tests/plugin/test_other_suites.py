"""Suites of other projects behave with this plugin as without it."""

import json
import re

import pytest

THEIRS = """
import pytest


@pytest.mark.parametrize("size", [10, 20])
def test_sum(benchmark, size):
    assert benchmark(sum, range(size)) > 0


@pytest.mark.benchmark(group="sorting")
def test_sort(benchmark):
    benchmark.extra_info["note"] = "theirs"
    benchmark.pedantic(sorted, args=([3, 1, 2],), rounds=5, iterations=2)


def test_fails(benchmark):
    benchmark(lambda: None)
    assert False


@pytest.mark.skip
def test_skipped(benchmark):
    benchmark(lambda: None)


def test_plain():
    pass
"""

SHORT = ("--benchmark-max-time=0.001", "--benchmark-min-rounds=2", "--benchmark-warmup=off")


@pytest.fixture
def theirs(bench):
    bench.pytester.makepyfile(test_theirs=THEIRS)
    return bench


def without(bench, *arguments: str) -> pytest.RunResult:
    """As a project that has only pytest-benchmark; the option is the one a user would type."""
    return bench.pytester.runpytest_inprocess("-p", "benchmark", "-p", "no:accel", *SHORT, *arguments)


def with_accel(bench, *arguments: str) -> pytest.RunResult:
    return bench.pytester.runpytest_inprocess("-p", "benchmark", "-p", "accel", *SHORT, *arguments)


def shape(value: object) -> object:
    """The keys and types of JSON, without its figures."""
    match value:
        case dict():
            return {key: shape(each) for key, each in value.items()}
        case [int() | float(), *_]:
            return "numbers"  # as many as there was time for
        case list():
            return [shape(each) for each in value]
        case int() | float():
            return "number"
        case _:
            return type(value).__name__


def plain(result: pytest.RunResult) -> list[str]:
    """The output without figures, their units, and what names plugins and folders."""
    told = [line for line in result.outlines if not line.startswith(("plugins:", "rootdir:"))]
    return [
        re.sub(r"0x[0-9a-f]+|\(>[\d.,]+\)|\d[\d.,]*|[-=]+|\b([munk]s|[MKG]?ops)\b", " ", line)
        for line in told
    ]


@pytest.mark.parametrize("arguments", [("-v",), ("--benchmark-disable",)])
def test_outcomes_and_output_are_the_same(theirs, arguments):
    alone, ours = without(theirs, *arguments), with_accel(theirs, *arguments)
    assert ours.parseoutcomes() == alone.parseoutcomes()
    assert ours.ret == alone.ret
    # Which of two columns is best, and so their order, is chance; the words are not.
    assert sorted(set(" ".join(plain(ours)).split())) == sorted(set(" ".join(plain(alone)).split()))


def test_json_has_the_same_keys(theirs):
    without(theirs, "--benchmark-json=alone.json")
    with_accel(theirs, "--benchmark-json=ours.json")
    alone, ours = (json.loads(theirs.path(f"{name}.json").read_text()) for name in ("alone", "ours"))
    by_name = [sorted(out["benchmarks"], key=lambda each: each["fullname"]) for out in (alone, ours)]
    assert shape(by_name[0]) == shape(by_name[1])
    assert [each["options"] for each in by_name[0]] == [each["options"] for each in by_name[1]]
    assert ours["machine_info"].keys() == alone["machine_info"].keys()
    assert ours.keys() == alone.keys()


def test_compare_fail_is_pytest_benchmarks_own(theirs):
    without(theirs, "--benchmark-save=before")
    (saved,) = theirs.path(".benchmarks").rglob("0001_before.json")
    content = json.loads(saved.read_text())
    for benchmark in content["benchmarks"]:
        benchmark["stats"] = {
            name: value / 1000 if isinstance(value, float) else value
            for name, value in benchmark["stats"].items()
        }
    saved.write_text(json.dumps(content))
    arguments = ("--benchmark-compare=0001", "--benchmark-compare-fail=min:5%", "-k", "test_sum")
    alone, ours = without(theirs, *arguments), with_accel(theirs, *arguments)
    assert alone.ret == ours.ret != pytest.ExitCode.OK
    for result in (alone, ours):
        assert "Performance has regressed" in result.stdout.str() + result.stderr.str()
        result.stdout.fnmatch_lines(["*test_sum*(0001_before)*"])
        assert "machine_info is different" not in result.stdout.str() + result.stderr.str()


def test_installed_plugin_needs_no_option(pytester):
    """Through its entry point, among all plugins of this environment."""
    pytester.makepyfile(test_theirs=THEIRS)
    result = pytester.runpytest_subprocess(*SHORT, timeout=120)
    result.assert_outcomes(passed=4, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["plugins:*accel-*"])


def test_their_fixtures_of_our_names_win(bench):
    bench.pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def accel():
            return "their accel"

        @pytest.fixture
        def train(accel):
            return f"their train on {accel}"

        @pytest.fixture
        def infer():
            return "their infer"

        @pytest.fixture
        def device():
            return "their device"
        """
    )
    bench.pytester.makepyfile(
        """
        def test_theirs(accel, train, infer, device):
            assert [accel, train, infer, device] == [
                "their accel", "their train on their accel", "their infer", "their device"
            ]

        def test_train(train):
            pass
        """
    )
    result = bench.run()
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*accelerator*")


def test_their_fixture_that_wraps_ours_is_still_a_benchmark(bench):
    bench.pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def accel(accel):
            return accel
        """
    )
    bench.benchmarks("test_step")
    result = bench.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_step * NO-BASELINE *"])


def test_parameter_named_accel_is_theirs(bench):
    bench.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("accel", [9.81, 1.62])
        def test_fall(accel):
            assert accel > 0
        """
    )
    bench.run().assert_outcomes(passed=2)


def test_their_markers_stay_strict(bench):
    bench.pytester.makeini("[pytest]\naddopts = --strict-markers\nmarkers =\n    nightly: at night\n")
    bench.pytester.makepyfile(
        test_known="import pytest\n\n@pytest.mark.nightly\ndef test_x(): pass\n",
        test_unknown="import pytest\n\n@pytest.mark.nightlyy\ndef test_x(): pass\n",
    )
    result = bench.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*'nightlyy' not found in `markers`*"])
    bench.run("test_known.py", "-m", "nightly").assert_outcomes(passed=1)


def test_without_pytest_benchmark_plain_tests_run(bench):
    bench.pytester.makepyfile("def test_plain(): pass")
    bench.pytester.runpytest_inprocess("-p", "accel").assert_outcomes(passed=1)
    bench.pytester.runpytest_inprocess("-p", "accel", "-p", "no:benchmark").assert_outcomes(passed=1)


def test_without_pytest_benchmark_a_benchmark_says_what_is_missing(bench):
    bench.benchmarks("test_step")
    result = bench.pytester.runpytest_inprocess("-p", "accel", "-p", "no:benchmark")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*timed by pytest-benchmark: leave out -p no:benchmark*"])


@pytest.mark.parametrize("disabled", ["terminal", "cacheprovider"])
def test_works_without_other_plugins_of_pytest(bench, disabled):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.SAME)
    result = bench.run(f"-pno:{disabled}", bench.TOLERANT)
    assert result.ret == pytest.ExitCode.OK


def test_option_of_a_conftest_file_may_begin_like_ours(bench):
    bench.write(
        "def test_step(request):\n    assert request.config.getoption('--accel-recordings') == 'mine'\n"
    )
    bench.pytester.makeconftest("def pytest_addoption(parser):\n    parser.addoption('--accel-recordings')\n")
    bench.run("--accel-recordings=mine").assert_outcomes(passed=1)
