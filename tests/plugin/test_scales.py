"""--accel-scale=learned through the plugin."""

from __future__ import annotations

from dataclasses import replace

from pytest_accel.storage.history import History
from pytest_accel.storage.results import read_results

SUITE = """
def test_step(accel, clock):
    measure(accel, clock.step)


def test_new(accel, clock):
    measure(accel, clock.step)
"""


def suite(bench):
    bench.virtual_clock()
    bench.write(SUITE)
    bench.virtual_baseline(test_step=0.001, test_new=0.001)


def noise(bench, name):
    (found,) = [each for each in bench.json()["results"] if each["benchmark"].endswith(name)]
    return found["verdicts"][0]["noise"]


def test_takes_the_noise_from_the_nights_that_were_kept(bench):
    suite(bench)
    plain = bench.run("--accel-json=out.json", "-k", "test_step")
    plain.assert_outcomes(passed=1, deselected=1)
    plain.stdout.no_fnmatch_line("SCALE*")
    before = noise(bench, "test_step")
    night = read_results(bench.path("out.json"))
    history = History(bench.path(".accel/history.sqlite"))
    for number in range(1, 9):
        history.append(replace(night, session=f"night-{number}", at=f"2027-01-0{number}T00:00:00+00:00"))

    learned = bench.run("--accel-json=out.json", "--accel-scale=learned")
    learned.assert_outcomes(passed=2)
    learned.stdout.fnmatch_lines(
        [
            "SCALE  learned: 1 benchmark by 9 nights of their own, noise 0.0 % *; 1 benchmark by the median of the *, 0.3 %"
        ]
    )
    assert noise(bench, "test_step") < 0.8 * before
    assert noise(bench, "test_new") < before


def test_without_nights_judges_as_ever_and_says_so(bench):
    suite(bench)
    bench.run("--accel-json=out.json", "--accel-history=off").assert_outcomes(passed=2)
    before = noise(bench, "test_step")
    result = bench.run("--accel-json=out.json", "--accel-history=off", "--accel-scale=learned")
    result.stdout.fnmatch_lines(
        ["SCALE  learned: the history was not read: no history is kept (--accel-history)"]
    )
    assert noise(bench, "test_step") == before
    bench.path("broken.sqlite").write_text("no database")
    result = bench.run("--accel-json=out.json", "--accel-history=broken.sqlite", "--accel-scale=learned")
    result.stdout.fnmatch_lines(["SCALE  learned: the history was not read: *broken.sqlite*"])
    assert noise(bench, "test_step") == before
