"""tolerance="auto", chosen when a baseline is recorded, frozen in it, and judged by; and the anchor beside it."""

from __future__ import annotations

import pytest

from pytest_accel.stats.environment import fingerprint

STEP = "def test_step(accel, clock):\n    measure(accel, clock.step)\n"


def store(bench, **fields):
    """Change what is stored of the one benchmark."""
    content = bench.load_baseline()
    (entry,) = content["benchmarks"].values()
    entry.update(fields)
    bench.save_baseline(content)


def test_auto_tolerance_is_stored_when_recorded_and_never_widened(bench):
    bench.virtual_clock()
    bench.write(STEP)
    result = bench.run("--accel-record=3", "--accel-tolerance=auto")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["note: test_step (cpu): tolerance auto: * %, frozen in its baseline"])
    frozen = bench.entry("test_step")["tolerance"]
    assert 0.03 <= frozen < 0.08

    content = bench.load_baseline()
    (entry,) = content["benchmarks"].values()
    for number, run in enumerate(entry["runs"]):
        run["rounds_s"] = [seconds * (1 + 0.1 * number) for seconds in run["rounds_s"]]
    bench.save_baseline(content)
    result = bench.run("--accel-record=1", "--accel-tolerance=auto")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["note: test_step (cpu): tolerance auto: * % stays, as it was frozen; its runs resolve *"]
    )
    assert bench.entry("test_step")["tolerance"] == frozen


def test_stored_auto_tolerance_is_judged_by(bench):
    bench.virtual_clock()
    bench.write(
        "@pytest.mark.accel(tolerance='auto')\ndef test_step(accel, clock):\n    measure(accel, clock.step)\n"
    )
    bench.virtual_baseline(test_step=0.001)
    result = bench.run("--accel-json=out.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["note: tolerance auto: the baselines of 1 benchmark have none stored, *5.0 % was tolerated*"]
    )
    store(bench, tolerance=0.065)
    result = bench.run("--accel-json=out.json")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*tolerance auto*")
    assert bench.json()["results"][0]["verdicts"][0]["tolerance"] == pytest.approx(0.065)


def test_loss_since_the_anchor_fails_where_the_baseline_followed(bench):
    bench.virtual_clock()
    bench.write(STEP)
    bench.virtual_baseline(test_step=0.001)
    store(bench, anchor=[{**run, "rounds_s": [0.0009] * 6} for run in bench.entry("test_step")["runs"]])
    result = bench.run("--accel-json=out.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "REGRESSED  test_step (cpu) since the anchor: 10.0 % slower (at least * %; tolerance 7.5 %), 2 runs vs 3 *",
            "test_step * REGRESSED since the anchor 10.0 % slower",
        ]
    )
    (found,) = bench.json()["results"]
    assert [each["outcome"] for each in found["verdicts"]] == ["ok", "regressed"]


def test_anchor_of_another_machine_is_noted_and_not_judged(bench):
    bench.virtual_clock()
    bench.write(STEP)
    bench.virtual_baseline(test_step=0.001)
    content = bench.load_baseline()
    (entry,) = content["benchmarks"].values()
    (known,) = content["environments"].values()
    other = {**known, "identity": {**known["identity"], "device_name": "another"}}
    content["environments"][fingerprint(other)] = other
    entry["anchor"] = [
        {**run, "rounds_s": [0.0005] * 6, "environment": fingerprint(other)} for run in entry["runs"]
    ]
    bench.save_baseline(content)
    result = bench.run("--accel-json=out.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["note: test_step (cpu): its anchor is of another machine*"])
    (found,) = bench.json()["results"]
    assert any("its anchor is of another machine" in line for line in found["details"])


def test_stored_tolerance_stays_when_runs_are_replaced(bench):
    bench.virtual_clock()
    bench.write(STEP)
    bench.virtual_baseline(test_step=0.002)
    store(bench, tolerance=0.08)
    bench.run("--accel-record=1", "--accel-update", "--accel-reason=faster").assert_outcomes(passed=1)
    stored = bench.entry("test_step")
    assert stored["tolerance"] == 0.08
    assert len(stored["runs"]) == 1
    bench.run(
        "--accel-record=1", "--accel-update", "--accel-reason=x", "--accel-tolerance=6%"
    ).assert_outcomes(passed=1)
    assert bench.entry("test_step")["tolerance"] == 0.06
