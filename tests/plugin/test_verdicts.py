"""A verdict is a test outcome: in the terminal, in JUnit, in the exit status."""

import re

import pytest

from pytest_accel.stats.environment import fingerprint

OPEN = ("test_open", "test_also_open")
SUITE = """
    @pytest.mark.accel(tolerance="20%")
    def test_ok(accel, clock):
        measure(accel, clock.step)

    @pytest.mark.accel(tolerance="99%")
    def test_wide(accel):
        measure(accel)

    def test_new(accel, clock):
        measure(accel, clock.step)

    def test_slower(accel):
        measure(accel)

    def test_figures(accel, clock):
        clock.step_s = 0.0013
        measure(accel, clock.step)

    def test_faster(accel):
        measure(accel)

    @pytest.mark.accel(tolerance="10%")
    def test_open(accel, clock):
        clock.step_s = 0.001088
        measure(accel, clock.step)

    @pytest.mark.accel(tolerance="10%")
    def test_also_open(accel, clock):
        clock.step_s = 0.001088
        measure(accel, clock.step)

    def test_undecidable(accel):
        measure(accel)

    @pytest.mark.xfail(reason="slow driver", strict=False)
    def test_lenient(accel):
        measure(accel)

    @pytest.mark.xfail(reason="slow driver", strict=True)
    def test_strict(accel):
        measure(accel)

    def test_plain():
        pass
    """


@pytest.fixture(scope="module")
def night(shared):
    """A session with benchmarks of every verdict."""
    shared.virtual_clock()
    shared.write(SUITE)
    slower = dict.fromkeys(("test_slower", "test_lenient", "test_strict"), shared.FASTER)
    shared.virtual_baseline(test_figures=0.001, test_ok=0.001, **dict.fromkeys(OPEN, 0.001))
    exact = shared.load_baseline()["benchmarks"]
    for name in OPEN:
        stored = exact[f"test_suite.py::{name}"]["runs"]
        stored[:] = [
            {**run, "rounds_s": [step_s] * 6} for run, step_s in zip(stored, (0.00098, 0.00102), strict=False)
        ]
    shared.baseline(test_wide=shared.SAME, test_faster=shared.SLOWER, test_undecidable=shared.APART, **slower)
    content = shared.load_baseline()
    content["benchmarks"] |= exact
    shared.save_baseline(content)
    shared.doctor_environment(lambda stored: stored["context"].update(torch="2.9.1", python="3.11.0"))
    return shared.run_apart(
        "-v",
        "-rxf",
        "--accel-repeats=3",
        "--junitxml=out.xml",
        "--benchmark-json=out.json",
        "--accel-json=a.json",
    )


def test_each_benchmark_is_reported_once_and_open_ones_after_the_others(night):
    night.assert_outcomes(passed=8, failed=2, xfailed=2)
    assert night.ret == pytest.ExitCode.TESTS_FAILED
    counted = (
        "2 regressed, 3 inconclusive, 1 not gated, 1 no baseline, 1 improved, 1 ok, 1 passed, 2 xfailed in "
    )
    assert counted in night.outlines[-1], "test_plain alone passed"
    progress = [line for line in night.outlines if "test_suite.py::" in line and "%]" in line]
    words = [line.split("::")[1].split()[:2] for line in progress]
    assert words[:5] == [
        ["test_ok", "PASSED"],
        ["test_wide", "NOT-GATED"],
        ["test_new", "NO-BASELINE"],
        ["test_undecidable", "INCONCLUSIVE"],
        ["test_plain", "PASSED"],
    ]
    assert sorted(words[5:]) == [
        ["test_also_open", "INCONCLUSIVE"],
        ["test_faster", "PASSED"],
        ["test_figures", "FAILED"],
        ["test_lenient", "XFAIL"],
        ["test_open", "INCONCLUSIVE"],
        ["test_slower", "FAILED"],
        ["test_strict", "XFAIL"],
    ]


def test_regression_is_one_line_without_traceback_and_the_same_in_junit(night, shared):
    night.stdout.re_match_lines(
        [
            (
                r"^REGRESSED  test_slower \(cpu\): \d+\.\d % slower \(at least \d+\.\d %; tolerance 5\.0 %\), "
                r"2 runs vs 3 baseline runs, run-to-run noise \d+\.\d %$"
            ),
            r"^changed since the baseline: .*torch 2\.9\.1 -> \S+.*, Python 3\.11\.0 -> \S+",
        ]
    )
    assert sum(line.startswith("REGRESSED  test_slower") for line in night.outlines) == 1
    night.stdout.no_fnmatch_line("*Traceback*")
    night.stdout.no_re_match_line(r".*test_suite\.py:\d+")
    night.stdout.re_match_lines([r"^FAILED test_suite\.py::test_slower - \d+\.\d % slower \(at least"])
    assert shared.junit().find("testsuite").get("failures") == "2"
    case = shared.testcase("test_slower")
    (failure,) = case.findall("failure")
    short = r"\d+\.\d % slower \(at least \d+\.\d %\); torch 2\.9 -> 2\.\d+, Python 3\.11\.0 -> "
    assert re.match(short, failure.get("message"))
    assert failure.text.startswith("REGRESSED  test_slower (cpu): ")
    assert "changed since the baseline" in failure.text
    properties = shared.properties("test_slower")
    assert properties["accel.verdict"] == "regressed"
    assert properties["accel.platform"] == "cpu"
    assert properties["accel.unit"] == "numbers/s"
    assert float(properties["accel.throughput"]) > 0
    assert float(properties["accel.loss"]) > 0.05


def test_regression_is_confirmed_in_another_process(night, shared):
    here, fresh = shared.processes("test_slower")
    assert here != fresh
    assert len(shared.processes("test_ok")) == 1
    found = shared.verdicts("test_slower")["throughput"]
    assert (found["outcome"], found["runs"], found["baseline_runs"]) == ("regressed", 2, 3)
    assert found["slowdown"]["low"] > 0


def test_tolerance_that_is_no_gate_is_not_called_ok(night, shared):
    night.stdout.re_match_lines(
        [
            r"^test_wide +NOT-GATED \d+\.\d % \S+ ",
            (
                r"^NOT-GATED  test_wide \(cpu\): \d+\.\d % \S+ \(tolerance 99\.0 %, which is no gate\), \d runs?, "
                r"run-to-run noise \d+\.\d %: (quieten the machine \(pytest-accel doctor\), and )?tolerate 20 % or less$"
            ),
        ]
    )
    night.stdout.no_re_match_line(r"^ok  ")  # ok needs no sentence
    assert shared.properties("test_wide")["accel.verdict"] == "not-gated"
    statuses = {
        each["benchmark"].partition("::")[2]: each["status"] for each in shared.json("a.json")["results"]
    }
    assert (statuses["test_wide"], statuses["test_ok"]) == ("not-gated", "ok")


def test_figures_of_a_verdict_are_those_of_the_clock(night, shared):
    """On a clock that only the steps move: 30 % more time is 23.1 % less throughput."""
    night.stdout.re_match_lines(
        [r"^REGRESSED  test_figures \(cpu\): 23\.1 % slower .* 2 runs vs 3 baseline runs"]
    )
    assert shared.accel_info("test_figures")["step_time_s"] == pytest.approx(0.0013)
    assert shared.accel_info("test_figures")["throughput"] == pytest.approx(2000 / 0.0013)


def test_improvement_asks_for_a_new_baseline(night, shared):
    assert len(shared.processes("test_faster")) == 2
    night.stdout.re_match_lines(
        [
            r"^test_faster +improved \S+ % faster ",
            (
                r"^improved  test_faster \(cpu\): \S+ % faster \(at least .* faster; tolerance 5\.0 %\), 2 runs: "
                r"refresh the baseline with --accel-update"
            ),
        ]
    )


def test_open_benchmarks_take_turns_in_new_processes_and_stay_inconclusive(night, shared):
    for name in OPEN:
        assert len(shared.processes(name)) == len(set(shared.processes(name))) == 3
    night.stdout.re_match_lines(
        [r"^INCONCLUSIVE  test_open \(cpu\): .* \(.* to .*; tolerance 10\.0 %\), 3 runs; noise "]
    )


def test_benchmark_that_repeats_can_hardly_decide_is_not_repeated(night, shared):
    assert len(shared.processes("test_undecidable")) == 1
    night.stdout.re_match_lines(
        [
            r"^INCONCLUSIVE  test_undecidable \(cpu\): .*, 1 run; noise .* here, so that further runs would hardly decide it: "
        ]
    )
    assert shared.verdicts("test_undecidable")["throughput"]["undecidable"] is True


def test_single_run_that_was_slowed_decides_nothing_and_fails_by_option(bench):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.FASTER)
    options = ("--accel-repeats=1", "--accel-inconclusive=fail", "--benchmark-json=out.json")
    result = bench.run(*options, "--accel-slowdown=50%")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [r"^INCONCLUSIVE  test_step", r"--accel-slowdown 50\.0 %: every step was delayed on purpose\."]
    )
    assert bench.accel_info()["run"]["metrics"]["slowdown_felt"] > 0.3
    assert len(bench.processes("test_step")) == 1


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


def test_ok_of_an_xfail_benchmark_is_unexpected(bench):
    bench.write(SUITE)
    bench.baseline(test_lenient=bench.SAME, test_strict=bench.SAME)
    result = bench.run(bench.TOLERANT, "-v", "-k", "lenient or strict")
    result.assert_outcomes(xpassed=1, failed=1, deselected=10)
    result.stdout.fnmatch_lines(["*::test_lenient XPASS*", "*::test_strict FAILED*"])


def test_first_regression_stops_further_measurements(bench):
    bench.benchmarks("test_a", "test_b")
    bench.baseline(test_a=bench.FASTER, test_b=bench.FASTER)
    result = bench.run("--maxfail=1")  # which is what -x is
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert len(bench.processes("test_a")) == 2
    assert len(bench.processes("test_b")) == 1
    result.assert_outcomes(failed=1, passed=1)


def test_held_report_is_not_lost_when_another_test_stops_the_session(bench):
    bench.write("def test_open(accel):\n    measure(accel)\n\ndef test_broken():\n    assert False\n")
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


# --- tolerances -------------------------------------------------------------------------------------


@pytest.fixture
def steady(bench):
    """A step of exactly 1 ms, stored so and measured so; `bench.store(...)` changes what is stored."""
    bench.virtual_clock()
    bench.write("def test_step(accel, clock):\n    measure(accel, clock.step)\n")
    bench.virtual_baseline(test_step=0.001)
    return bench


def store(bench, **fields):
    content = bench.load_baseline()
    (entry,) = content["benchmarks"].values()
    entry.update(fields)
    bench.save_baseline(content)


def test_marker_goes_before_the_ini_file_and_that_before_the_baseline(steady):
    def tolerance():
        steady.run("--accel-repeats=1", "--accel-json=a.json").assert_outcomes(passed=1)
        return steady.verdicts()["throughput"]["tolerance"]

    store(steady, tolerance=0.11)
    assert tolerance() == 0.11
    steady.pytester.makeini("[pytest]\naccel_tolerance = 12%\n")
    assert tolerance() == pytest.approx(0.12)
    steady.write(
        "pytestmark = [pytest.mark.cpu, pytest.mark.accel(tolerance=0.15)]\n\ndef test_step(accel):\n    measure(accel)\n"
    )
    assert tolerance() == 0.15


def test_bad_marker_is_a_usage_error_before_anything_is_measured(bench):
    bench.write("@pytest.mark.accel(tolerence=0.1)\ndef test_step(accel):\n    measure(accel)\n")
    bench.refuses("*test_step: tolerence=... is unknown. It takes: tolerance, gate, *")


def test_stored_auto_tolerance_is_judged_by(steady):
    result = steady.run("--accel-json=out.json", "--accel-tolerance=auto")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["note: test_step (cpu): tolerance auto: no tolerance is stored, *5.0 % was tolerated*"]
    )
    store(steady, tolerance=0.065)
    result = steady.run("--accel-json=out.json", "--accel-tolerance=auto")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*tolerance auto*")
    assert steady.json()["results"][0]["verdicts"][0]["tolerance"] == pytest.approx(0.065)


def test_loss_since_the_anchor_fails_where_the_baseline_followed(steady):
    store(steady, anchor=[{**run, "rounds_s": [0.0009] * 6} for run in steady.entry("test_step")["runs"]])
    result = steady.run("--accel-json=out.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "REGRESSED  test_step (cpu) since the anchor: 10.0 % slower (at least * %; tolerance 7.5 %), 2 runs vs 3 *",
            "test_step * REGRESSED since the anchor 10.0 % slower *",
        ]
    )
    (found,) = steady.json()["results"]
    assert [each["outcome"] for each in found["verdicts"]] == ["ok", "regressed"]


def test_anchor_of_another_machine_is_noted_and_not_judged(steady):
    content = steady.load_baseline()
    (entry,) = content["benchmarks"].values()
    (known,) = content["environments"].values()
    other = {**known, "identity": {**known["identity"], "device_name": "another"}}
    content["environments"][fingerprint(other)] = other
    entry["anchor"] = [
        {**run, "rounds_s": [0.0005] * 6, "environment": fingerprint(other)} for run in entry["runs"]
    ]
    steady.save_baseline(content)
    result = steady.run("--accel-json=out.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["note: test_step (cpu): its anchor is of another machine*"])
    (found,) = steady.json()["results"]
    assert any("its anchor is of another machine" in line["text"] for line in found["lines"])


# --- a whole platform -------------------------------------------------------------------------------

EIGHT = tuple(f"test_step{number}" for number in range(8))


def test_loss_of_all_benchmarks_is_one_failure_of_the_platform(bench):
    """Eight benchmarks of 1 ms a step, now slower by a tenth; one of them by more."""
    bench.virtual_clock()
    bench.write(
        "\n\n".join(
            f"def {name}(accel, clock):\n    clock.step_s = {0.0013 if name == EIGHT[3] else 0.0011}\n"
            "    measure(accel, clock.step)\n"
            for name in EIGHT
        )
    )
    bench.virtual_baseline(**{name: 0.001 * (1 + 0.0003 * number) for number, name in enumerate(EIGHT)})
    result = bench.run("--accel-json=out.json", "--junitxml=out.xml", "--accel-report=out.md")
    result.assert_outcomes(passed=7, failed=2)  # one lost more than the others, and fails by the rest
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "REGRESSED  test_step3 (cpu): 1* % slower *; beside * % that all on this platform lost",
            "REGRESSED  *: 8 of 8 benchmarks slower together, by 9.* % (at least 8.* %; tolerance 5.0 %): check the machine *",
            "nothing in the recorded environment changed since the baseline; your own code and other packages are not recorded",
            "Each benchmark was judged on what it lost beside that.",
            "test_step0 * ok 0.* % * than the platform *",
            "FAILED cpu-* - 9.* % slower (at least 8.* %)*",
        ]
    )
    assert sum(line.startswith("REGRESSED") and "slower together" in line for line in result.outlines) == 1
    messages = [failure.get("message") for failure in bench.junit().iter("failure")]
    assert any("8 of 8 benchmarks together" in text for text in messages)
    kept = bench.properties("test_step0")  # against the baseline, whatever it was judged on
    found = [float(kept[name]) for name in ("accel.loss", "accel.common")]
    assert found == pytest.approx([0.09, 0.09], abs=0.01)
    assert {len(bench.processes(name)) for name in EIGHT} == {2}
    results = {each["benchmark"]: each for each in bench.json()["results"]}
    (platform,) = [each for each in results.values() if each["benchmark"] == each["disk_name"]]
    assert platform["status"] == "regressed"
    assert platform["failed"]
    assert "8 of 8 benchmarks slower together" in platform["text"]
    step = results["test_suite.py::test_step0"]
    assert step["status"] == "ok"
    assert step["verdicts"][0]["common"] == pytest.approx(0.09, abs=0.01)
    assert "that all on this platform lost" in step["text"]
    assert "slower together" in bench.path("out.md").read_text()


def test_mode_of_every_other_process_is_unstable_and_a_fast_run_after_it_is_repeated(bench):
    bench.virtual_clock()
    bench.write(
        """
        from pathlib import Path

        def test_mode(accel, clock):
            runs = Path(__file__).with_name("runs")
            number = len(runs.read_text()) if runs.exists() else 0
            runs.write_text("." * (number + 1))
            clock.step_s = 0.001 if number % 2 else 0.0016
            measure(accel, clock.step)
        """
    )
    bench.virtual_baseline(test_mode=0.001)
    first = bench.run()
    assert first.ret == pytest.ExitCode.TESTS_FAILED
    first.stdout.fnmatch_lines(
        [
            "UNSTABLE  test_mode (*): 2 of 3 runs 37.? % slower, the others * (tolerance 5.0 %) vs 3 baseline runs"
        ]
    )
    second = bench.run()  # its first run is fast, and the history doubts it
    assert second.ret == pytest.ExitCode.TESTS_FAILED
    second.stdout.fnmatch_lines(["UNSTABLE  test_mode (*): 2 of 4 runs *"])
    assert bench.run("--accel-history=off").ret == pytest.ExitCode.OK  # a fast first run, by luck
