"""Real and synthetic data feed one benchmark in turn, and each has its own baseline."""

from __future__ import annotations

import pytest

SYNTHETIC, REAL = "test_suite.py::test_step", "test_suite.py::test_step (data)"


@pytest.fixture
def fed(bench):
    """Have the benchmark fed by a source."""

    def feed(source):
        bench.write(
            f"""
            def test_step(accel):
                measure(accel, configuration={{"data": "digits", "data_source": "{source}"}})
            """
        )
        return bench

    return feed


@pytest.fixture
def both(fed):
    fed("synthetic").run("--accel-record=1").assert_outcomes(passed=1)
    fed("files").run("--accel-record=1").assert_outcomes(passed=1)
    return fed


def test_both_kinds_coexist_and_neither_is_stale_or_vanished(both):
    for source in ("synthetic", "files"):
        bench = both(source)
        assert set(bench.load_baseline()["benchmarks"]) == {SYNTHETIC, REAL}
        result = bench.run(bench.TOLERANT, "--accel-vanished=fail", "--accel-missing-baseline=fail")
        result.assert_outcomes(passed=1)
        result.stdout.no_fnmatch_line("*STALE*")
        result.stdout.no_fnmatch_line("*VANISHED*")


def test_each_is_judged_by_its_own(both):
    bench = both("files")
    content = bench.load_baseline()
    for run in content["benchmarks"][SYNTHETIC]["runs"]:  # which would be a regression beyond doubt
        run["rounds_s"] = [seconds / 1000 for seconds in run["rounds_s"]]
    bench.save_baseline(content)
    bench.run(bench.TOLERANT, "--accel-repeats=2").assert_outcomes(passed=1)
    both("synthetic").run(bench.TOLERANT, "--accel-repeats=2").assert_outcomes(failed=1)


def test_an_update_of_one_leaves_the_other(both):
    bench = both("files")
    before = bench.load_baseline()["benchmarks"]
    bench.run("--accel-update", "--accel-record=2", "--accel-reason=why").assert_outcomes(passed=1)
    after = bench.load_baseline()["benchmarks"]
    assert after[SYNTHETIC] == before[SYNTHETIC]
    assert len(after[REAL]["runs"]) == 2


def test_a_benchmark_that_is_gone_has_vanished_once(both):
    bench = both("files")
    bench.benchmarks("test_other")
    result = bench.run("--accel-vanished=fail")
    result.assert_outcomes(passed=1, failed=1)
    assert (
        sum(line.startswith(f"VANISHED  {SYNTHETIC}: ") for line in result.outlines) == 2
    )  # failure, summary
    result.stdout.no_fnmatch_line("*VANISHED*(data)*")


def test_what_is_stored_of_the_other_kind_is_no_baseline_and_is_said(fed):
    fed("synthetic").run("--accel-record=1").assert_outcomes(passed=1)
    bench = fed("files")
    result = bench.run("--accel-missing-baseline=fail")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "NO-BASELINE  test_step (cpu): * hold test_step with synthetic data, and not with real data; record*"
        ]
    )


@pytest.mark.parametrize(("full", "arguments"), [(SYNTHETIC, ()), (REAL, ("--accel-data=.",))])
def test_before_it_is_built_it_is_taken_for_what_the_session_has_data_for(both, full, arguments):
    bench = both("synthetic" if full == SYNTHETIC else "files")
    content = bench.load_baseline()
    content["benchmarks"][full]["runs"] *= 9
    bench.save_baseline(content)
    result = bench.run("--accel-record=2", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*its baseline has 9 runs, 2 more would exceed 10*"])


def test_a_full_baseline_of_the_other_kind_is_no_hindrance(both):
    bench = both("synthetic")
    content = bench.load_baseline()
    content["benchmarks"][REAL]["runs"] *= 9
    bench.save_baseline(content)
    bench.run("--accel-record=2").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("source", "legend", "column"),
    [("synthetic", True, None), ("files", False, "digits"), ("host-synthetic", False, "host-synthetic")],
)
def test_the_table_says_which_data(fed, source, legend, column):
    result = fed(source).run()
    result.assert_outcomes(passed=1)
    assert any("Data is synthetic." in line for line in result.outlines) == legend
    (header,) = [line for line in result.outlines if line.startswith("benchmark ")]
    assert ("data" in header.split()) == bool(column)
    if column:
        result.stdout.fnmatch_lines([f"test_step * {column} *"])
