"""Baselines of one benchmark with real and with synthetic data, kept apart."""

import pytest

from pytest_accel.storage.baselines import configuration_hash

SYNTHETIC, REAL = "test_suite.py::test_step", "test_suite.py::test_step (data)"


@pytest.fixture
def fed(bench):
    """Write a benchmark whose data is of a source, on a virtual clock."""
    bench.virtual_clock()

    def feed(source):
        bench.write(
            f"""
            def test_step(accel, clock):
                measure(accel, clock.step, configuration={configuration(source)})
            """
        )
        return bench

    return feed


def configuration(source):
    return {"data": "digits", "data_source": source}


@pytest.fixture
def both(bench, fed):
    """The same with stored runs of both kinds."""
    bench.virtual_baseline(test_step=0.001)
    content = bench.load_baseline()
    entry = content["benchmarks"].pop(SYNTHETIC)
    for key, source in ((SYNTHETIC, "synthetic"), (REAL, "files")):
        hashed = configuration_hash(configuration(source), entry["work_per_step"], entry["unit"])
        content["benchmarks"][key] = {
            **entry,
            "configuration": configuration(source),
            "configuration_hash": hashed,
        }
    bench.save_baseline(content)
    return fed


def test_each_kind_is_judged_by_its_own_baseline(both):
    bench = both("files")
    content = bench.load_baseline()
    for run in content["benchmarks"][SYNTHETIC]["runs"]:
        run["rounds_s"] = [0.0005] * 6
    bench.save_baseline(content)
    strict = ("--accel-vanished=fail", "--accel-missing-baseline=fail")
    bench.run(*strict).assert_outcomes(passed=1)
    result = both("synthetic").run(*strict)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["REGRESSED  test_step *"])


def test_update_of_one_kind_leaves_the_other(both):
    bench = both("files")
    before = bench.load_baseline()["benchmarks"]
    bench.run("--accel-update", "--accel-record=1", "--accel-reason=why").assert_outcomes(passed=1)
    after = bench.load_baseline()["benchmarks"]
    assert after[SYNTHETIC] == before[SYNTHETIC]
    assert len(after[REAL]["runs"]) == 1


def test_benchmark_stored_with_both_kinds_vanishes_once(both):
    bench = both("files")
    bench.benchmarks("test_other")
    result = bench.run("--accel-vanished=fail")
    result.assert_outcomes(passed=1, failed=1)
    assert sum(line.startswith(f"VANISHED  {SYNTHETIC}: ") for line in result.outlines) == 1
    result.stdout.no_fnmatch_line("*VANISHED*(data)*")


@pytest.mark.parametrize(("full", "arguments"), [(SYNTHETIC, ()), (REAL, ("--accel-data=.",))])
def test_full_baseline_of_the_kind_in_use_is_refused_before_measuring(both, full, arguments):
    bench = both("synthetic" if full == SYNTHETIC else "files")
    content = bench.load_baseline()
    content["benchmarks"][full]["runs"] *= 3
    bench.save_baseline(content)
    bench.refuses("*its baseline has 9 runs, 2 more would exceed 10*", "--accel-record=2", *arguments)
