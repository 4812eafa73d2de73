"""Worker processes: one measures all benchmarks, and its death fails one of them."""

import os
import re

import pytest

from tests.plugin.conftest import PLUGINS

DEATHS = {
    "test_hangs": "no answer within 2 s",
    "test_loops_in_c": "no answer within 2 s",
    "test_crashes": "SIGSEGV",
    "test_exits": "exit status 0",
    "test_killed": "killed by SIGKILL (the kernel's out-of-memory killer sends it too: see dmesg)",
}


def test_death_of_a_worker_fails_its_benchmark_alone(bench):
    bench.write(
        """
        import ctypes

        def test_before(accel):
            measure(accel)

        @pytest.mark.accel(timeout="2s")
        def test_hangs(accel):
            time.sleep(600)

        @pytest.mark.accel(timeout="2s")
        def test_loops_in_c(accel):
            sum(iter(int, 1))

        def test_crashes(accel):
            ctypes.string_at(0)

        def test_exits(accel):
            os._exit(0)

        def test_killed(accel):
            os.kill(os.getpid(), 9)

        def test_after(accel):
            measure(accel)
        """
    )
    result = bench.run_with_workers("--accel-json=out.json", "--junitxml=out.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, failed=5)
    for name, cause in DEATHS.items():
        (failure,) = bench.testcase(name).findall("failure")
        assert cause in failure.text
        if name not in ("test_exits", "test_killed"):  # which leave no stack
            assert re.search(rf"test_suite\.py.*{name}", failure.text)
    before, after = bench.processes("test_before"), bench.processes("test_after")
    assert len(before) == len(after) == 1
    assert before != after, "another worker measured what came after"
    statuses = {each["benchmark"].partition("::")[2]: each["status"] for each in bench.json()["results"]}
    assert statuses == {
        **dict.fromkeys(DEATHS, "failed"),
        **dict.fromkeys(("test_before", "test_after"), "no-baseline"),
    }
    assert bench.left_behind() == []


def test_one_worker_measures_all_benchmarks_keeps_shared_fixtures_and_leaves_by_itself(bench):
    """What is registered with atexit runs, as coverage in subprocesses needs it. A device alone needs no worker."""
    bench.write(
        """
        import atexit

        @pytest.fixture(scope="module")
        def shared():
            note("fixture", "made")
            yield
            note("fixture", "gone")

        def test_device(accel_device):
            note("device", os.getpid())

        def test_a(accel, shared):
            atexit.register(note, "left", os.getpid())
            measure(accel)

        def test_b(accel, shared):
            measure(accel)

        def test_c(accel):
            note("fixture", "c")
            measure(accel)
        """
    )
    bench.run_with_workers().assert_outcomes(passed=4)
    (first,) = bench.processes("test_a")
    assert first != os.getpid()
    assert bench.processes("test_b") == bench.processes("test_c") == [first]
    assert bench.path("fixture").read_text().split() == ["made", "c", "gone"]
    assert bench.path("left").read_text().split() == [str(first)]
    assert bench.path("device").read_text().split() == [str(os.getpid())]


def test_settings_of_torch_that_a_test_leaves_behind_end_its_worker(bench):
    """A fixture of the session sets them for all, and importing torch sets none."""
    bench.write(
        """
        @pytest.fixture(scope="session")
        def torch():
            import torch

            torch.backends.mkldnn.enabled = False
            return torch

        def test_a(accel, torch):
            measure(accel)

        def test_b(accel, torch):
            torch.set_float32_matmul_precision("high")
            measure(accel)

        def test_imports(accel):
            import torch

            measure(accel)

        def test_imports_again(accel):
            import torch

            measure(accel)

        def test_c(accel, torch):
            assert torch.get_float32_matmul_precision() == "highest"
            measure(accel)

        def test_threads(accel, torch):
            threads = set()
            accel.measure(lambda: threads.add(torch.get_num_threads()), work=1, unit="calls")
            assert threads == {2}
        """
    )
    bench.run_with_workers("-oaccel_threads=2").assert_outcomes(passed=6)
    (first,) = bench.processes("test_a")
    assert bench.processes("test_b") == [first]
    (second,) = bench.processes("test_imports")
    assert second != first
    assert bench.processes("test_imports_again") == bench.processes("test_c") == [second]


def test_reports_of_a_worker_are_those_of_the_session(bench):
    bench.write(
        """
        import warnings

        def test_said(accel):
            print("said by a test")
            warnings.warn("beware of it", RuntimeWarning)
            time.sleep(0.02)
            measure(accel)

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

        def test_failed(accel):
            measure(accel)
            assert [1, 2] == [1, 3]

        def test_next(accel):
            measure(accel)
        """
    )
    result = bench.run_with_workers("-s", "-rs", "--durations=3")
    result.assert_outcomes(passed=2, failed=1, skipped=2, xfailed=1, warnings=1)
    for line in (
        "*said by a test*",
        "*RuntimeWarning: beware of it*",
        "*s call *test_said*",
        "*not today*",
        "*At index 1 diff: 2 != 3*",
    ):
        result.stdout.fnmatch_lines([line])
    assert bench.processes("test_failed") != bench.processes("test_next"), (
        "a failure may leave anything behind"
    )


def test_option_measures_in_the_session(bench):
    bench.benchmarks("test_step")
    bench.run_with_workers("--accel-in-process").assert_outcomes(passed=1)
    assert bench.processes("test_step") == [os.getpid()]


def test_rubbish_in_the_variable_of_workers_is_one_clear_error(bench, monkeypatch):
    monkeypatch.setenv("PYTEST_ACCEL_WORKER", "{rubbish")
    result = bench.pytester.runpytest_subprocess(*PLUGINS)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: PYTEST_ACCEL_WORKER: *not JSON*. A session sets it *: unset it."])
    result.stderr.no_fnmatch_line("*Traceback*")
