"""DOES-NOT-FIT: in the session, in workers and in process groups."""

import pytest

import pytest_accel.distributed.group

PROPERTIES = {"accel.suite": "suite", "accel.tolerance": "0.0500"}
UNFIT = """
from pytest_accel.session.device import does_not_fit

TEXT = "resnet50: a batch of 4096 did not fit in the memory of cpu"
"""


@pytest.fixture
def sweep(bench):
    """A sweep of two batches, the larger of which does not fit."""
    bench.write(
        UNFIT
        + """
@pytest.mark.parametrize("batch", [1, 4096])
def test_step(accel, batch):
    if batch > 1:
        does_not_fit(accel.item, TEXT)
    measure(accel)
"""
    )
    return bench


def test_batch_that_does_not_fit_is_an_outcome_of_its_own(sweep):
    result = sweep.run("-v", "--junitxml=out.xml")
    result.assert_outcomes(passed=1, skipped=0)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.re_match_lines(
        [
            r".*::test_step\[4096\] DOES-NOT-FIT \(resnet50: ",
            r"^test_step\[1\] +NO-BASELINE ",
            r"^test_step\[4096\] +DOES-NOT-FIT .*cpu *$",
            r"^DOES-NOT-FIT  test_step\[4096\] \(cpu\): resnet50: a batch of 4096 did not fit in the memory of cpu$",
            r".*1 no baseline, 1 does not fit",
        ]
    )
    result.stdout.no_fnmatch_line("*fixture was not used*")
    case = sweep.testcase("test_step[4096]")
    (skipped,) = case.findall("skipped")
    assert skipped.get("message") == "resnet50: a batch of 4096 did not fit in the memory of cpu"
    assert sweep.properties("test_step[4096]") == {
        **PROPERTIES,
        "accel.platform": "cpu",
        "accel.verdict": "does-not-fit",
    }
    assert sweep.junit().find("testsuite").get("skipped") == "1"


def test_batch_that_does_not_fit_is_not_a_measurement(sweep):
    selected = "test_suite.py::test_step[4096]"
    assert sweep.run(selected).ret == pytest.ExitCode.OK
    result = sweep.run(selected, "--accel-require")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["--accel-require: this session measured nothing*"])


class TestUsedToFit:
    @pytest.fixture
    def stored(self, sweep):
        sweep.baseline(**{"test_step[4096]": sweep.SAME})
        content = sweep.load_baseline()
        for run in content["benchmarks"]["test_suite.py::test_step[4096]"]["runs"]:
            run["peak_memory_bytes"] = int(61.2 * 2**30)
        sweep.save_baseline(content)
        return sweep

    def test_batch_that_fitted_before_is_a_regression(self, stored):
        result = stored.run()
        result.assert_outcomes(failed=1, passed=1)
        result.stdout.fnmatch_lines(
            [
                (
                    "REGRESSED  test_step[[]4096[]] (cpu): does not fit any more: resnet50: a batch of 4096 did not "
                    "fit in the memory of cpu; its baseline peaked at 61.2 GiB"
                ),
                "*since the baseline*",
                "test_step[[]4096[]] * REGRESSED does not fit *",
            ]
        )

    @pytest.mark.parametrize(
        ("built", "fails"),
        [({}, True), ({"batch": 2}, False), ({"data_source": "files"}, False), (None, False)],
        ids=["the same", "another", "real data", "another machine"],
    )
    def test_other_configuration_or_machine_never_fitted(self, stored, built, fails):
        """The stored configuration is empty: another one, or other data, is another benchmark."""
        if built is None:
            stored.doctor_environment(lambda kept: kept["identity"].update(cpu="another"))
        stored.write(
            UNFIT
            + f"""
from pytest_accel.session.device import CONFIGURATION

@pytest.mark.parametrize("batch", [4096])
def test_step(accel, batch):
    accel.item.stash[CONFIGURATION] = {built or {}}
    does_not_fit(accel.item, TEXT)
"""
        )
        result = stored.run()
        result.assert_outcomes(failed=1 if fails else 0)
        word = "REGRESSED" if fails else "DOES-NOT-FIT"
        result.stdout.fnmatch_lines([f"{word}  test_step[[]4096[]] (cpu): *"])

    def test_batch_that_fitted_in_the_first_run_is_a_regression(self, bench):
        """The first look measured it, and the fresh process of the second one cannot."""
        bench.write(
            UNFIT
            + """
def test_step(accel):
    if FRESH:
        does_not_fit(accel.item, TEXT)
    measure(accel)
"""
        )
        bench.baseline(test_step=bench.FASTER)
        result = bench.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["REGRESSED  test_step (cpu): does not fit any more: *"])


class TestRecording:
    def test_recording_names_what_does_not_fit(self, sweep):
        result = sweep.run("--accel-record=1", "--junitxml=out.xml")
        result.assert_outcomes(passed=1)
        assert list(sweep.load_baseline()["benchmarks"]) == ["test_suite.py::test_step[1]"]
        result.stdout.re_match_lines([r"^DOES-NOT-FIT  test_step\[4096\] \(cpu\): resnet50: "])
        assert sweep.properties("test_step[4096]")["accel.verdict"] == "does-not-fit"

    def test_recording_that_stops_fitting_keeps_its_runs_aside(self, bench):
        bench.write(
            UNFIT
            + """
def test_step(accel):
    if pathlib.Path("pids-test_step").exists():
        does_not_fit(accel.item, TEXT)
    measure(accel)
"""
        )
        result = bench.run("--accel-record=2")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["resnet50: a batch of 4096*", "Nothing was recorded; * is kept in *"])
        assert not bench.baseline_path.exists()


class TestProcessGroup:
    def test_one_rank_without_memory_ends_the_group(self, bench, monkeypatch):
        """The other one waits for it for ever, and is ended soon."""
        monkeypatch.setattr(pytest_accel.distributed.group, "_FAILED_S", 0.5)
        bench.write(
            UNFIT
            + """
@pytest.mark.cpux2
def test_step(accel, rank, process_group):
    if rank == 1:
        does_not_fit(accel.item, TEXT)
    process_group.barrier()
    measure(accel)
"""
        )
        result = bench.run("-m", "cpux2", "-v")
        result.stdout.re_match_lines(
            [
                r".*::test_step DOES-NOT-FIT",
                r"^test_step +DOES-NOT-FIT +cpux2$",
                r"^DOES-NOT-FIT  test_step \(cpux2\): rank 1 of 2: resnet50: a batch of 4096 did not fit",
            ]
        )
        assert bench.left_behind() == []
