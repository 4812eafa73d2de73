"""Tolerances against what the machine can tell, and what becomes of the runs of a calibration."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_accel.measure.measurement import Measurement
from pytest_accel.platforms.names import PlatformName
from pytest_accel.session.calibrating import Calibrations
from pytest_accel.session.case import Case
from pytest_accel.settings import Settings
from pytest_accel.stats.calibration import Conditions
from pytest_accel.storage.baselines import BaselineStore
from pytest_accel.storage.calibrations import CalibrationStore
from tests.support.calibrated import calibration
from tests.support.stored import H200, KEY, OTHER, baseline, runs


@pytest.fixture
def root(tmp_path):
    return tmp_path / "baselines"


def case(root, key=KEY, *, measured=0, origin="", off=(), **settings) -> Case:
    config = SimpleNamespace(getoption=lambda name, default: name in off or default)
    item = SimpleNamespace(name=key.partition("::")[2], nodeid=key, config=config)
    made = Settings(**settings, origins={"tolerance": origin} if origin else {})
    return Case(
        item=item,
        platform=PlatformName("h200"),
        disk_name="h200",
        suite="cnn",
        settings=made,
        baseline=BaselineStore(root).read("h200", "cnn"),
        measurements=[
            Measurement(
                run=replace(run, metrics={"energy_j": 1.0}, peak_memory_bytes=5),
                work_per_step=256.0,
                unit="images",
                configuration={"batch_size": 256},
                environment=H200,
                steady=True,
            )
            for run in runs(measured, noise=0.01)
        ],
    )


def refused(root, *cases) -> str:
    with pytest.raises(pytest.UsageError) as caught:
        Calibrations(root).refuse_below(cases)
    return str(caught.value)


class TestRefusal:
    def test_names_benchmark_tolerance_origin_figure_and_remedies(self, root):
        figures = calibration(root, noise=0.03).figures
        said = refused(root, case(root, tolerance=0.02, origin="--accel-tolerance"))
        shown = f"{100 * figures.detectable_loss:.1f} %"
        assert said.startswith(
            "test_cnn[resnet50] (h200): a tolerance of 2.0 % (from --accel-tolerance) is less than the smallest loss that "
            f"can be detected, {shown} (calibrated on 2026-02-01 for h200 with a budget of 5 s and 1 thread: 12 runs, noise "
        )
        assert "Tolerate at least " in said
        assert "pytest-accel doctor" in said
        assert said.endswith("--accel-calibrate=12.")

    def test_what_it_proposes_is_not_refused(self, root):
        calibration(root, noise=0.03)
        said = refused(root, case(root, tolerance=0.02, origin="pytest.ini"))
        proposed = float(said.partition("--accel-tolerance=")[2].partition("%")[0]) / 100
        Calibrations(root).refuse_below([case(root, tolerance=proposed, origin="pytest.ini")])

    def test_proposes_no_tolerance_that_gates_nothing(self, root):
        calibration(root, noise=0.2)
        said = refused(root, case(root, tolerance=0.02, origin="pytest.ini"))
        assert "which is no gate: quieten the machine (pytest-accel doctor), and calibrate again" in said
        assert "Tolerate at least" not in said

    def test_takes_the_tolerance_of_the_baseline(self, root):
        calibration(root, noise=0.03)
        baseline(root, tolerance=0.03)
        assert "a tolerance of 3.0 % (from its baseline)" in refused(root, case(root))
        # An update leaves it where it is, and whatever is given goes before.
        assert "(from its baseline)" in refused(root, case(root, record=5, update=True, reason="new"))
        Calibrations(root).refuse_below([case(root, tolerance=0.5, origin="pytest.ini")])
        given = case(root, tolerance=0.5, origin="x", record=5, update=True, reason="new")
        Calibrations(root).refuse_below([given])

    def test_says_all_at_once(self, root):
        for number in range(7):
            calibration(root, f"{OTHER}-{number}")
        cases = [case(root, f"{OTHER}-{number}", tolerance=0.01, origin="x") for number in range(7)]
        said = refused(root, *cases)
        assert said.count("a tolerance of 1.0 % (from x)") == 5
        assert "... and 2 further benchmarks." in said

    def test_knows_that_a_larger_baseline_resolves_more(self, root):
        figures = calibration(root, noise=0.03).figures
        between = case(root, tolerance=0.97 * figures.detectable_loss, origin="x")
        assert "can be detected" in refused(root, between)
        days = [run for day in range(10) for run in runs(1, session=f"day {day}")]
        baseline(root, stored=days)
        Calibrations(root).refuse_below([case(root, tolerance=between.settings.tolerance, origin="x")])

    def test_does_not_stand_in_the_way_of_calibrating_again(self, root):
        calibration(root, noise=0.03)
        Calibrations(root).refuse_below([case(root, tolerance=0.01, origin="pytest.ini", calibrate=12)])

    def test_needs_a_calibration_of_this_benchmark_on_this_platform(self, root):
        calibration(root, OTHER)
        calibration(root, platform="a100")
        found = Calibrations(root)
        found.refuse_below([case(root, tolerance=0.01, origin="x")])
        assert found.remark == ""

    def test_a_bad_file_is_a_usage_error(self, root):
        calibration(root)
        CalibrationStore(root).path("h200", "cnn").write_text("{")
        assert "calibrate again" in refused(root, case(root))
        assert "calibrate again" in refused(root, case(root, calibrate=12))  # before the runs, not after them

    @pytest.mark.parametrize("option", ["benchmark_disable", "benchmark_skip"])
    def test_is_not_of_a_session_that_measures_nothing(self, root, option):
        calibration(root, noise=0.03)
        Calibrations(root).refuse_below([case(root, tolerance=0.01, origin="x", off={option})])
        CalibrationStore(root).path("h200", "cnn").write_text("{")
        Calibrations(root).refuse_below([case(root, off={option})])


class TestOtherConditions:
    """What was calibrated with another budget, or other threads, says nothing sure of this session."""

    @pytest.mark.parametrize(
        ("kept", "said"),
        [
            (Conditions(budget_s=0.1, threads=1), "a budget of 100 ms and 1 thread"),
            (Conditions(budget_s=5.0, threads=4), "a budget of 5 s and 4 threads"),
            (None, "an unknown budget"),
        ],
    )
    def test_are_not_refused_but_said_once(self, root, kept, said):
        for key in (KEY, OTHER):
            figures = calibration(root, key, noise=0.03, conditions=kept).figures
        found = Calibrations(root)
        found.refuse_below([case(root, tolerance=0.02, origin="x"), case(root, OTHER)])
        resolved = f"noise {100 * figures.noise:.1f} % resolves {100 * figures.detectable_loss:.1f} %"
        assert found.remark == (
            f"calibrated on 2026-02-01 for h200 with {said}: {resolved} for test_cnn[resnet50] (h200) (and for 1 further "
            "benchmark); its tolerance is 2.0 %. This session has a budget of 5 s and 1 thread, so that this may not hold "
            "for it. Calibrate again with these: --accel-calibrate=12."
        )

    def test_of_the_benchmarks_own_budget(self, root):
        calibration(root, noise=0.03, conditions=Conditions(budget_s=8.0, threads=1))
        assert "a budget of 8 s" in refused(root, case(root, tolerance=0.02, origin="x", budget_s=8.0))

    def test_are_not_spoken_of_where_the_tolerance_would_hold(self, root):
        calibration(root, noise=0.03, conditions=None)
        found = Calibrations(root)
        found.refuse_below([case(root, tolerance=0.5, origin="x")])
        assert found.remark == ""


class TestDefaultTolerance:
    def test_is_not_refused_and_said_once(self, root):
        calibration(root, noise=0.02)
        worst = calibration(root, OTHER, noise=0.06).figures
        found = Calibrations(root)
        found.refuse_below([case(root), case(root, OTHER)])
        shown = f"{100 * worst.noise:.1f} % resolves {100 * worst.detectable_loss:.1f} %"
        assert found.remark.startswith(
            f"calibrated on 2026-02-01 for h200 with a budget of 5 s and 1 thread: noise {shown} for test_gpt[117m] (h200) "
            "(and for 1 further benchmark): the default tolerance of 5.0 % does not hold here."
        )

    def test_that_holds_is_not_spoken_of(self, root):
        calibration(root, noise=0.001)
        found = Calibrations(root)
        found.refuse_below([case(root)])
        assert found.remark == ""


class TestWritingDown:
    def test_stores_what_the_noise_is(self, root):
        measured = case(root, measured=8, calibrate=8, tolerance=0.1, budget_s=0.5, threads=2)
        Calibrations(root).write_down(measured, "s1")
        kept = CalibrationStore(root).read("h200", "cnn").benchmarks[KEY]
        assert measured.calibrated.startswith("8 runs, noise ")
        assert "56 draws: " in measured.calibrated
        assert kept.conditions == Conditions(budget_s=0.5, threads=2)
        assert (len(kept.runs), kept.session, kept.figures.tolerance) == (8, "s1", 0.1)
        assert kept.runs[0].metrics == {}  # of a run only what noise is computed from
        assert measured.problem == ""

    def test_is_of_the_configuration_that_a_baseline_would_have(self, root):
        Calibrations(root).write_down(case(root, measured=6, calibrate=6), "s1")
        baseline(root)
        kept = CalibrationStore(root).read("h200", "cnn").benchmarks[KEY]
        stored = BaselineStore(root).read("h200", "cnn").benchmarks[KEY]
        assert kept.configuration_hash == stored.configuration_hash

    def test_says_when_there_is_nothing_to_draw_from(self, root):
        measured = case(root, measured=6, calibrate=6)
        Calibrations(root).write_down(measured, "s1")
        assert measured.calibrated.endswith(
            "false alarms not counted: 5 runs for a baseline and 2 to judge are 7"
        )

    def test_an_interrupted_one_counts_where_it_has_runs_enough(self, root):
        enough, few = case(root, measured=6, calibrate=12), case(root, OTHER, measured=5, calibrate=12)
        for each in (enough, few):
            Calibrations(root).write_down(each, "s1")
        assert enough.calibrated.startswith("6 runs, ")
        assert few.calibrated == ""
        assert "needs at least 6 runs\nNothing was stored of this calibration (5 runs)." in few.problem
        assert set(CalibrationStore(root).read("h200", "cnn").benchmarks) == {KEY}

    def test_one_of_nothing_but_disturbed_runs_fails(self, root):
        measured = case(root, measured=1, calibrate=12)
        measured.disturbed, measured.measurements = measured.measurements, []
        Calibrations(root).write_down(measured, "s1")
        assert "Nothing was stored of this calibration (0 runs)." in measured.problem

    def test_one_with_a_failed_run_does_not_count(self, root):
        measured = case(root, measured=7, calibrate=12)
        measured.problem = "a process died"
        Calibrations(root).write_down(measured, "s1")
        assert measured.problem == "a process died\nNothing was stored of this calibration (7 runs)."
        assert CalibrationStore(root).read("h200", "cnn") is None

    def test_what_was_found_out_is_said_even_where_it_cannot_be_stored(self, root):
        root.mkdir()
        (root / "h200").mkdir()
        (root / "h200" / "calibration").write_text("in the way")
        measured = case(root, measured=6, calibrate=6)
        Calibrations(root).write_down(measured, "s1")
        assert "calibration" in measured.problem
        assert "6 runs, noise " in measured.problem
        assert measured.calibrated == ""
