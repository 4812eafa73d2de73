"""A suite in which all benchmarks got slower fails once."""

from __future__ import annotations

import pytest

NAMES = tuple(f"test_step{number}" for number in range(8))


def suite(bench, *, slower=1.0, **own):
    """Eight benchmarks on a clock of their own; stored runs of 1 ms a step, and now slower by these factors."""
    bench.virtual_clock()
    bench.write(
        "\n\n".join(
            f"def {name}(accel, clock):\n    clock.step_s = {0.001 * own.get(name, slower)}\n    measure(accel, clock.step)\n"
            for name in NAMES
        )
    )
    bench.virtual_baseline(**{name: 0.001 * (1 + 0.0003 * number) for number, name in enumerate(NAMES)})


def test_loss_of_all_benchmarks_is_one_failure_of_the_platform(bench):
    suite(bench, slower=1.1, test_step3=1.3)
    result = bench.run("--accel-json=out.json", "--junitxml=out.xml", "--accel-report=out.md")
    result.assert_outcomes(passed=7, failed=2)  # one lost more than the others, and fails by the rest
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "REGRESSED  test_step3 (cpu): 1* % slower *; beside * % that all on this platform lost",
            "REGRESSED  *: 8 of 8 benchmarks slower together, by 9.* % (at least 8.* %; tolerance 5.0 %): check the machine *",
            "nothing in the recorded environment changed since the baseline",
            "Each benchmark was judged on what it lost beside that.",
            "test_step0 * ok 0.* % * than the platform",
            "FAILED cpu-* - REGRESSED*",
        ]
    )
    assert sum(line.startswith("REGRESSED") and "slower together" in line for line in result.outlines) == 1
    assert bench.junit().find("testsuite").get("failures") == "2"
    kept = {each.get("name"): each.get("value") for each in bench.testcase("test_step0").iter("property")}
    assert float(kept["accel.loss"]) == pytest.approx(
        0.09, abs=0.01
    )  # against the baseline, whatever it was judged on
    assert float(kept["accel.common"]) == pytest.approx(0.09, abs=0.01)
    assert {len(bench.processes(name)) for name in NAMES} == {2}
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


def test_suite_without_loss_has_no_platform_shift(bench):
    suite(bench)
    result = bench.run("--accel-json=out.json")
    result.assert_outcomes(passed=8)
    result.stdout.no_fnmatch_line("*slower together*")
    assert not any("common" in verdict for each in bench.json()["results"] for verdict in each["verdicts"])
