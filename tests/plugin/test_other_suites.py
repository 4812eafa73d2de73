"""Suites of other projects behave with this plugin as without it."""

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


def test_installed_plugin_needs_no_option(pytester):
    """Through its entry point, among all plugins of this environment."""
    pytester.makepyfile(test_theirs=THEIRS)
    result = pytester.runpytest_subprocess(*SHORT, timeout=120)
    result.assert_outcomes(passed=4, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["plugins:*accel-*"])


def test_their_fixtures_and_parameters_of_our_names_win(bench):
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
        import pytest

        def test_theirs(accel, train, infer, device):
            assert [accel, train, infer, device] == [
                "their accel", "their train on their accel", "their infer", "their device"
            ]

        def test_train(train):
            pass

        @pytest.mark.parametrize("accel", [9.81, 1.62])
        def test_fall(accel):
            assert accel > 0
        """
    )
    result = bench.run()
    result.assert_outcomes(passed=4)
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


def test_without_pytest_benchmark_plain_tests_run_and_a_benchmark_says_what_is_missing(bench):
    arguments = ("-p", "accel", "-p", "no:benchmark")
    bench.pytester.makepyfile(test_plain="def test_plain(): pass")
    bench.pytester.runpytest_inprocess(*arguments).assert_outcomes(passed=1)
    bench.benchmarks("test_step")
    result = bench.pytester.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*timed by pytest-benchmark: leave out -p no:benchmark*"])


@pytest.mark.parametrize("disabled", ["terminal", "cacheprovider"])
def test_works_without_other_plugins_of_pytest(bench, disabled):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.SAME)
    result = bench.run(f"-pno:{disabled}", bench.TOLERANT)
    assert result.ret == pytest.ExitCode.OK
