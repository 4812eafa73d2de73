"""A verdict is a test outcome: in the terminal, in JUnit, in the exit status."""

from __future__ import annotations

import pytest


def test_ok_benchmark_passes(bench):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.SAME)
    result = bench.run("-v", bench.TOLERANT)
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*::test_step PASSED*", "test_step * ok *"])


def test_regression_is_a_failed_test_confirmed_in_another_process(bench):
    bench.benchmarks("test_step", "test_other")
    bench.baseline(test_step=bench.FASTER)
    result = bench.run("--benchmark-json=out.json")
    result.assert_outcomes(failed=1, passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    here, fresh = bench.processes("test_step")
    assert here != fresh
    assert len(bench.processes("test_other")) == 1
    (info,) = (
        each["extra_info"]["accel"] for each in bench.json()["benchmarks"] if each["name"] == "test_step"
    )
    assert info["verdict"]["outcome"] == "regressed"
    assert (info["verdict"]["runs"], info["verdict"]["baseline_runs"]) == (2, 3)
    assert info["verdict"]["slowdown"]["low"] > 0
    assert len(info["further_runs"]) == 1


def test_regression_is_one_line_without_traceback_and_the_same_in_junit(bench):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.FASTER)
    bench.doctor_environment(lambda stored: stored["context"].update(torch="2.9.1", python="3.11.0"))
    result = bench.run("--junitxml=out.xml")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            (
                r"^REGRESSED  test_step \(cpu\): \d+\.\d % slower \(at least \d+\.\d %; tolerance 5\.0 %\), "
                r"2 runs vs 3 baseline runs, run-to-run noise \d+\.\d %$"
            ),
            r"^changed since the baseline: .*torch 2\.9\.1 -> \S+.*, Python 3\.11\.0 -> \S+",
        ]
    )
    assert sum(line.startswith("REGRESSED") for line in result.outlines) == 1
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_re_match_line(r".*test_suite\.py:\d+")
    result.stdout.fnmatch_lines(["FAILED test_suite.py::test_step - REGRESSED  test_step*"])

    assert bench.junit().find("testsuite").get("failures") == "1"
    case = bench.testcase("test_step")
    (failure,) = case.findall("failure")
    assert failure.get("message").startswith("REGRESSED  test_step (cpu): ")
    assert "changed since the baseline" in failure.text
    properties = {each.get("name"): each.get("value") for each in case.iter("property")}
    assert len(properties) == len(list(case.iter("property")))
    assert properties["accel.verdict"] == "regressed"
    assert properties["accel.platform"] == "cpu"
    assert properties["accel.unit"] == "numbers/s"
    assert float(properties["accel.throughput"]) > 0
    assert float(properties["accel.loss"]) > 0.05


def test_improvement_passes_and_asks_for_a_new_baseline(bench):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.SLOWER)
    result = bench.run("-v")
    result.assert_outcomes(passed=1)
    assert len(bench.processes("test_step")) == 2
    result.stdout.re_match_lines(
        [
            r".*::test_step PASSED",
            r"^test_step .* improved \S+ % faster$",
            (
                r"^improved  test_step \(cpu\): \S+ % faster \(at least .* faster; tolerance 5\.0 %\), 2 runs: "
                r"refresh the baseline with --accel-update"
            ),
        ]
    )


def test_figures_of_a_verdict_are_those_of_the_clock(bench):
    """On a clock that only the steps move: 30 % more time is 23.1 % less throughput."""
    bench.virtual_clock()
    bench.write(
        """
        def test_step(accel, clock):
            clock.step_s = 0.0013
            measure(accel, clock.step)
        """
    )
    bench.virtual_baseline(test_step=0.001)
    result = bench.run("--benchmark-json=out.json")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [r"^REGRESSED  test_step \(cpu\): 23\.1 % slower .* 2 runs vs 3 baseline runs"]
    )
    assert bench.accel_info()["step_time_s"] == pytest.approx(0.0013)
    assert bench.accel_info()["throughput"] == pytest.approx(2000 / 0.0013)


class TestInconclusive:
    def test_benchmarks_take_turns_in_new_processes_and_pass_with_a_line(self, bench):
        bench.benchmarks("test_a", "test_b")
        bench.baseline(test_a=bench.APART, test_b=bench.APART)
        result = bench.run("-v", "--accel-repeats=3")
        result.assert_outcomes(passed=2)
        assert result.ret == pytest.ExitCode.OK
        for name in ("test_a", "test_b"):
            assert len(bench.processes(name)) == len(set(bench.processes(name))) == 3
        result.stdout.fnmatch_lines(
            [f"{name}: run {run} of 3 *" for run in (2, 3) for name in ("test_a", "test_b")]
        )
        result.stdout.re_match_lines(
            [
                r".*::test_a INCONCLUSIVE",
                (
                    r"^INCONCLUSIVE  test_a \(cpu\): .* \(.* to .*\), 3 runs; noise .* resolves .* here: "
                    r"(no gate holds on it: )?quieten the machine \(pytest-accel doctor\)(, or tolerate \d+ %)?"
                ),
            ]
        )

    @pytest.mark.parametrize(("policy", "outcome"), [("warn", "passed"), ("fail", "failed")])
    def test_single_run_decides_nothing_and_fails_by_option(self, bench, policy, outcome):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.FASTER)
        result = bench.run("--accel-repeats=1", f"--accel-inconclusive={policy}")
        result.assert_outcomes(**{outcome: 1})
        result.stdout.re_match_lines([r"^INCONCLUSIVE  test_step"])
        assert len(bench.processes("test_step")) == 1

    def test_report_is_held_until_the_others_have_run(self, bench):
        bench.write(
            """
            def test_open(accel):
                measure(accel)

            def test_plain():
                pass

            @pytest.mark.accel(tolerance="99%")
            def test_decided(accel):
                measure(accel)
            """
        )
        bench.baseline(test_open=bench.FASTER, test_decided=bench.SAME)
        result = bench.run("-v")
        result.assert_outcomes(failed=1, passed=2)
        result.stdout.fnmatch_lines(
            ["*::test_plain PASSED*", "*::test_decided PASSED*", "*::test_open FAILED*"]
        )
        # Each is told once.
        for name in ("test_open", "test_plain", "test_decided"):
            assert sum(f"::{name} " in line and "%]" in line for line in result.outlines) == 1


def test_session_without_time_to_repeat_says_what_it_left_undecided(bench):
    bench.benchmarks("test_step", "test_other")
    bench.baseline(test_step=bench.FASTER, test_other=bench.FASTER)
    result = bench.run("--accel-within=1ms", "--accel-json=out.json")
    result.assert_outcomes(passed=2)
    result.stdout.re_match_lines(
        [
            r"^INCONCLUSIVE  test_step \(cpu\): .*; one run decides nothing, and it was not measured again$",
            r"^note: 1 ms \(--accel-within\) left no time to repeat 2 benchmarks that another run may decide\.",
        ]
    )
    assert len(bench.processes("test_step")) == 1
    (remark,) = (each for each in bench.json()["remarks"] if "left no time to repeat" in each)
    assert "2 benchmarks" in remark


class TestTolerance:
    """Marker, command line, environment, ini, baseline, default: the first that is set counts."""

    @pytest.fixture
    def stored(self, bench):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.SLOWER)
        return bench

    def tolerance(self, bench, *arguments: str) -> float:
        arguments = ("--accel-repeats=1", "--benchmark-json=out.json", *arguments)
        bench.run(*arguments).assert_outcomes(passed=1)
        return bench.accel_info()["verdict"]["tolerance"]

    def test_tolerance_of_the_baseline_goes_before_the_default(self, stored):
        content = stored.load_baseline()
        content["benchmarks"]["test_suite.py::test_step"]["tolerance"] = 0.11
        stored.save_baseline(content)
        assert self.tolerance(stored) == 0.11

    def test_each_source_goes_before_the_next(self, stored, monkeypatch):
        stored.pytester.makeini("[pytest]\naccel_tolerance = 12%\n")
        assert self.tolerance(stored) == pytest.approx(0.12)
        monkeypatch.setenv("PYTEST_ACCEL_TOLERANCE", "0.13")
        assert self.tolerance(stored) == 0.13
        assert self.tolerance(stored, "--accel-tolerance=14%") == pytest.approx(0.14)
        stored.write(
            """
            @pytest.mark.accel(tolerance=0.15)
            def test_step(accel):
                measure(accel)
            """
        )
        assert self.tolerance(stored, "--accel-tolerance=14%") == 0.15

    @pytest.mark.parametrize(
        ("mark", "complaint"),
        [
            ("tolerence=0.1", "test_step: tolerence=... is unknown. It takes: tolerance, gate, "),
            ("0.1", "test_step takes keywords only: tolerance, gate, "),
            (
                "tolerance='much'",
                "accel_tolerance: 'much' (from @pytest.mark.accel of test_suite.py::test_step) is not a fraction",
            ),
        ],
    )
    def test_bad_marker_is_a_usage_error_before_anything_is_measured(self, bench, mark, complaint):
        bench.write(f"@pytest.mark.accel({mark})\ndef test_step(accel):\n    measure(accel)\n")
        result = bench.run()
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"*{complaint}*"])
        assert not bench.processes("test_step")


class TestExpectedFailure:
    @pytest.fixture
    def both(self, bench):
        bench.write(
            """
            @pytest.mark.xfail(reason="slow driver", strict=False)
            def test_lenient(accel):
                measure(accel)

            @pytest.mark.xfail(reason="slow driver", strict=True)
            def test_strict(accel):
                measure(accel)
            """
        )
        return bench

    def test_regression_of_an_xfail_benchmark_is_xfailed(self, both):
        both.baseline(test_lenient=both.FASTER, test_strict=both.FASTER)
        result = both.run("-rx")
        result.assert_outcomes(xfailed=2)
        assert result.ret == pytest.ExitCode.OK

    def test_ok_of_an_xfail_benchmark_is_unexpected(self, both):
        both.baseline(test_lenient=both.SAME, test_strict=both.SAME)
        result = both.run(both.TOLERANT, "-v")
        result.assert_outcomes(xpassed=1, failed=1)
        result.stdout.fnmatch_lines(["*::test_lenient XPASS*", "*::test_strict FAILED*"])


class TestSlowdown:
    def test_slowdown_delays_the_steps(self, bench):
        """By half: twice the time, on a clock that counts the delay and the step alike."""
        bench.write(
            """
            @pytest.mark.accel(budget="200ms")
            def test_step(accel):
                def step():
                    end = time.perf_counter() + 0.002
                    while time.perf_counter() < end:
                        pass

                measure(accel, step)
            """
        )
        bench.run("--accel-slowdown=50%", "--benchmark-json=out.json").assert_outcomes(passed=1)
        assert bench.accel_info()["step_time_s"] > 1.6 * 0.002

    def test_slowdown_is_named_at_the_failure(self, bench):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.FASTER)
        result = bench.run("--accel-slowdown=10%")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            ["--accel-slowdown * delayed every step on purpose (* % of throughput were lost to it)"]
        )


class TestStopping:
    def test_first_regression_stops_further_measurements(self, bench):
        bench.benchmarks("test_a", "test_b")
        bench.baseline(test_a=bench.FASTER, test_b=bench.FASTER)
        result = bench.run("--maxfail=1")  # which is what -x is
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        assert len(bench.processes("test_a")) == 2
        assert len(bench.processes("test_b")) == 1
        result.stdout.fnmatch_lines(["*1 failed*"])

    def test_held_report_is_not_lost_when_another_test_stops_the_session(self, bench):
        bench.write(
            """
            def test_open(accel):
                measure(accel)

            def test_broken():
                assert False
            """
        )
        bench.baseline(test_open=bench.FASTER)
        result = bench.run("-x", "-v")
        result.assert_outcomes(failed=1, passed=1)
        result.stdout.fnmatch_lines(["*::test_open INCONCLUSIVE*", "INCONCLUSIVE  test_open*"])
        assert len(bench.processes("test_open")) == 1


def test_module_that_cannot_be_imported_is_an_error_of_pytest(bench):
    bench.benchmarks("test_step")
    bench.pytester.makepyfile(test_torn="assert 0")
    result = bench.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["ERROR test_torn.py*"])
    assert "user_properties" not in result.stdout.str() + result.stderr.str()
