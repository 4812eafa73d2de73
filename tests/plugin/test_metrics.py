"""Metrics that are gated beside throughput."""

import pytest

# Accuracies as measured and as stored, with the tolerance of each; the throughput is tolerated to lose 99 %.
BENCHMARKS = {
    "test_dropped": (0.8, 0.9, 0.05),
    "test_kept": (0.895, 0.9, 0.05),
    "test_undecided": (0.87, 0.9, 0.05),  # 3.4 % less: open after one and two runs, decided by the third
    "test_gained": (0.9, 0.5, 0.05),
    "test_not_stored": (0.8, None, 0.05),
    "test_tolerant": (0.8, 0.9, 0.5),  # another tolerance makes no baseline stale
    "test_both": (0.8, 0.9, 0.05),  # it is slower too
}


def write(bench, *names):
    source = "".join(
        f"""
@pytest.mark.accel(tolerance={0.05 if name == "test_both" else 0.99})
def {name}(accel):
    measure(accel, metrics=lambda _: {{"accuracy": {now}, "other": 1.0}}, gates={{"accuracy": {tolerance}}})
"""
        for name, (now, _, tolerance) in BENCHMARKS.items()
        if name in names
    )
    bench.write(source)
    bench.baseline(**{name: bench.FASTER if name == "test_both" else bench.SAME for name in names})
    content = bench.load_baseline()
    for name in names:
        stored = BENCHMARKS[name][1]
        for run in content["benchmarks"][f"test_suite.py::{name}"]["runs"]:
            run["metrics"] |= {} if stored is None else {"accuracy": stored}
    bench.save_baseline(content)


@pytest.fixture(scope="module")
def night(shared):
    write(shared, *BENCHMARKS)
    return shared.run_apart(
        "-v",
        "--accel-missing-baseline=fail",
        "--junitxml=out.xml",
        "--benchmark-json=out.json",
        "--accel-json=a.json",
    )


def test_metric_that_drops_beyond_its_tolerance_is_a_regression(night, shared):
    night.assert_outcomes(failed=2, passed=5)
    night.stdout.re_match_lines(
        [
            (
                r"^REGRESSED  test_dropped \(cpu\) accuracy: 11\.1 % lower \(at least \d+\.\d %; tolerance 5\.0 %\), "
                r"2 runs vs 3 baseline runs, run-to-run noise \d\.\d %$"
            ),
            r"^test_dropped +REGRESSED accuracy 11\.1 % lower .* 80\.00 % ",
        ]
    )
    (failure,) = shared.testcase("test_dropped").findall("failure")
    assert failure.get("message").startswith("accuracy 11.1 % lower (at least")
    properties = shared.properties("test_dropped")
    assert properties["accel.verdict"] == "regressed"
    assert properties["accel.accuracy.loss"] == "0.1111"
    found, info = shared.verdicts("test_dropped"), shared.accel_info("test_dropped")
    assert found["accuracy"]["outcome"] == "regressed"
    assert found["throughput"]["outcome"] in {"ok", "improved"}  # which is not to blame
    assert found["accuracy"]["slowdown"]["point"] == pytest.approx(1 - 0.8 / 0.9)
    assert info["gates"] == {"accuracy": 0.05}
    assert info["run"]["metrics"]["accuracy"] == 0.8


def test_every_regressed_metric_has_a_line(night):
    night.stdout.re_match_lines(
        [
            r"^REGRESSED  test_both \(cpu\): .* slower",
            r"^REGRESSED  test_both \(cpu\) accuracy: 11\.1 % lower",
            r"^(changed since|nothing in the recorded)",
        ]
    )


def test_metric_within_its_tolerance_is_ok(night, shared):
    night.stdout.fnmatch_lines(["*::test_kept NOT-GATED*", "*::test_tolerant NOT-GATED*"])
    for name in ("test_kept", "test_tolerant"):
        assert shared.verdicts(name)["accuracy"]["outcome"] == "ok"


def test_undecided_metric_is_measured_again_in_new_processes(night, shared):
    assert len(set(shared.processes("test_undecided"))) == 3
    found = shared.verdicts("test_undecided")["accuracy"]
    assert (found["outcome"], found["runs"]) == ("ok", 3)


def test_metric_that_stays_undecided_is_inconclusive(bench):
    write(bench, "test_undecided")
    result = bench.run("--accel-repeats=1", "--accel-inconclusive=fail", "-v")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines([r"^INCONCLUSIVE  test_undecided \(cpu\) accuracy: 3\.3 % lower \("])


def test_gain_of_a_metric_alone_is_a_remark(night, shared):
    night.stdout.fnmatch_lines(["improved  test_gained (cpu) accuracy: 80.0 % higher*"])
    assert shared.verdicts("test_gained")["accuracy"]["outcome"] == "improved"


def test_baseline_without_the_metric_is_remarked_once(night):
    (line,) = [line for line in night.outlines if line.startswith("NO-BASELINE")]
    assert line.startswith("NO-BASELINE  test_not_stored (cpu) accuracy: no stored run has it")
    night.stdout.no_fnmatch_line("No baseline on *")


def test_metrics_function_is_called_once_after_the_check_and_not_where_measuring_is_off(bench):
    bench.write(
        """
        def test_step(accel):
            asked = []

            def metrics(step_s):
                asked.append(tuple(asked))
                return {"calls": 1.0}

            found = measure(
                accel, lambda: asked.clear(), check=lambda: asked.append("check"), metrics=metrics
            )
            assert asked == (["check", ("check",)] if found else [])
        """
    )
    bench.run().assert_outcomes(passed=1)
    bench.run("--benchmark-disable").assert_outcomes(passed=1)
