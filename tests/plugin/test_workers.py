"""Worker processes: one measures all benchmarks, and its death fails one of them."""

from __future__ import annotations

import os

import pytest

DEATHS = {
    "hang": ("time.sleep(600)", "no answer within 4 s"),
    "loop_in_c": ("sum(iter(int, 1))", "no answer within 4 s"),
    "segfault": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "exit": ("os._exit(0)", "exit status 0"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_death_of_a_worker_fails_its_benchmark_alone(bench, death):
    statement, cause = DEATHS[death]
    bench.write(
        f"""
        def test_before(accel):
            measure(accel)

        def test_dies(accel):
            {statement}
            measure(accel)

        def test_after(accel):
            measure(accel)
        """
    )
    result = bench.run_with_workers("--accel-timeout=4s", "--accel-json=out.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines([f"*{cause}*"])
    if death in {"hang", "loop_in_c", "segfault"}:  # the others leave no stack
        result.stdout.fnmatch_lines(["*test_suite.py*test_dies*"])
    before, after = bench.processes("test_before"), bench.processes("test_after")
    assert len(before) == len(after) == 1
    assert before != after, "another worker measured what came after"
    statuses = {each["benchmark"]: each["status"] for each in bench.json()["results"]}
    assert statuses["test_suite.py::test_dies"] == "failed"
    assert statuses["test_suite.py::test_after"] == "no-baseline"
    assert bench.left_behind() == []


def test_one_worker_measures_all_benchmarks_and_keeps_shared_fixtures(bench):
    bench.write(
        """
        @pytest.fixture(scope="module")
        def shared():
            note("fixture", "made")
            yield
            note("fixture", "gone")

        def test_a(accel, shared):
            measure(accel)

        def test_b(accel, shared):
            measure(accel)

        def test_c(accel):
            note("fixture", "c")
            measure(accel)
        """
    )
    bench.run_with_workers().assert_outcomes(passed=3)
    (first,) = bench.processes("test_a")
    assert first != os.getpid()
    assert bench.processes("test_b") == bench.processes("test_c") == [first]
    assert bench.path("fixture").read_text().split() == ["made", "c", "gone"]


def test_failed_benchmark_gets_the_next_one_a_new_worker(bench):
    bench.write(
        """
        def test_a(accel):
            measure(accel)
            assert [1, 2] == [1, 3]

        def test_b(accel):
            measure(accel)
        """
    )
    result = bench.run_with_workers()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*At index 1 diff: 2 != 3*"])
    assert bench.processes("test_a") != bench.processes("test_b")


def test_output_warnings_and_durations_of_a_worker_are_shown(bench):
    bench.write(
        """
        import warnings

        def test_a(accel):
            print("said by a")
            warnings.warn("beware of a", RuntimeWarning)
            time.sleep(0.02)
            measure(accel)
        """
    )
    result = bench.run_with_workers("-s", "--durations=1")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*said by a*", "*RuntimeWarning: beware of a*", "*s call *test_a*"])


def test_skips_and_expected_failures_of_a_worker_are_reported_as_such(bench):
    bench.write(
        """
        def test_skipped(accel):
            pytest.skip("not today")

        @pytest.mark.xfail(reason="known")
        def test_expected(accel):
            raise ValueError

        def test_skipped_in_fixture(accel, request):
            request.getfixturevalue("never")

        @pytest.fixture
        def never():
            pytest.skip("never")

        def test_measured(accel):
            measure(accel)
        """
    )
    result = bench.run_with_workers("-rs")
    result.assert_outcomes(passed=1, skipped=2, xfailed=1)
    result.stdout.fnmatch_lines(["*not today*"])


def test_device_fixture_alone_runs_in_the_session(bench):
    bench.write(
        """
        def test_device(accel_device):
            note("device", os.getpid())

        def test_step(accel):
            measure(accel)
        """
    )
    bench.run_with_workers().assert_outcomes(passed=2)
    assert bench.path("device").read_text().split() == [str(os.getpid())]
    assert bench.processes("test_step") != [os.getpid()]


def test_first_failure_stops_the_session_and_its_worker(bench):
    bench.write(
        """
        def test_a(accel):
            raise ValueError("first")

        def test_b(accel):
            measure(accel)
        """
    )
    result = bench.run_with_workers("-x")
    result.assert_outcomes(failed=1)
    assert bench.processes("test_b") == []
    assert bench.left_behind() == []


@pytest.mark.parametrize("option", ["--accel-in-process", "--setup-show"])
def test_debugging_options_measure_in_the_session(bench, option):
    bench.benchmarks("test_step")
    bench.run_with_workers(option).assert_outcomes(passed=1)
    assert bench.processes("test_step") == [os.getpid()]
