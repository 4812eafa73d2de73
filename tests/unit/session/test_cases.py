"""Policy and tolerances that a case is judged by."""

from dataclasses import replace

import pytest

from pytest_accel.session.results import lines_of
from pytest_accel.stats.baseline_quality import DEFAULT_PRIOR, NoisePrior
from pytest_accel.stats.gate import Outcome, Policy
from pytest_accel.stats.run import SOURCE, both_keys
from pytest_accel.storage.history import Point
from tests.support.kernels import row, table
from tests.support.measured import make_case, measurement
from tests.support.stored import H200, KEY, OTHER, UPGRADED, baseline, runs

QUIET = NoisePrior(noise=0.004, degrees_of_freedom=6.0, benchmarks=20)


def with_energy(made):
    return [replace(run, metrics={"energy_j": 2.0 + 0.05 * number}) for number, run in enumerate(made)]


def test_prior_of_a_platform_is_of_step_times_and_not_of_other_metrics(tmp_path):
    baseline(tmp_path, stored=with_energy(runs()))
    plain, quiet = (
        make_case(tmp_path, runs=with_energy(runs(2)), gates={"energy_j": 0.1}, prior=prior)
        for prior in (DEFAULT_PRIOR, QUIET)
    )
    for case in (plain, quiet):
        case.judge()
    assert quiet.verdict.noise < plain.verdict.noise
    assert quiet.metric_verdicts == plain.metric_verdicts
    assert quiet.plain_policy == Policy()


@pytest.mark.parametrize(
    ("stored", "given", "tolerated"),
    [
        (None, None, 0.05),
        (0.6, None, 0.6),
        (0.03, None, 0.05),  # of step times that are quiet
        (0.6, 0.03, 0.03),
    ],
)
def test_metric_without_tolerance_takes_that_of_noisy_throughput(tmp_path, stored, given, tolerated):
    baseline(tmp_path, stored=with_energy(runs()), tolerance=stored)
    settings = {} if given is None else {"tolerance": given}
    case = make_case(
        tmp_path, runs=with_energy(runs(2)), gates={"energy_j": None, "accuracy": 0.02}, **settings
    )
    assert case.gates == {"energy_j": tolerated, "accuracy": 0.02}
    case.judge()
    assert case.metric_verdicts[0].tolerance == tolerated


def test_gated_metric_without_a_column_is_noted(tmp_path):
    (run,) = runs(1)
    measured = replace(run, metrics={"decode_s": 0.5, "energy_per_step_j": 2.0})
    gates = {"decode_s": 0.1, "energy_per_step_j": 0.1, "prefill_s": 0.1}
    case = make_case(tmp_path, runs=[measured], gates=gates)
    case.judge()
    assert [line.text for line in lines_of(case) if line.status is None] == ["decode_s 0.5"]


class TestProfiledRuns:
    """Which fresh run is profiled after its rounds."""

    def test_recording_profiles_its_last_run(self, tmp_path):
        wanted = [make_case(tmp_path, runs=runs(count), record=3).profile_above_s for count in range(4)]
        assert wanted == [None, None, 0.0, 0.0]

    def test_repeat_is_profiled_where_it_is_slower_than_half_of_what_is_tolerated(self, tmp_path):
        baseline(tmp_path, stored=runs(step_s=0.01))
        case = make_case(tmp_path, runs=runs(1, step_s=0.02), tolerance=0.1)
        assert case.profile_above_s == pytest.approx(0.0105, rel=0.01)

    def test_one_table_is_enough(self, tmp_path):
        baseline(tmp_path, stored=runs())
        profiled = [replace(run, kernels=table(20.0, row("relu", 10.0))) for run in runs(1, step_s=0.02)]
        assert make_case(tmp_path, runs=profiled).profile_above_s is None

    def test_without_a_baseline_nothing_is_profiled(self, tmp_path):
        assert make_case(tmp_path, runs=runs(1)).profile_above_s is None


def night(loss: float, *step_times_s: float, environment: str = H200.key) -> Point:
    return Point(
        session="s",
        at="2026-03-01T02:00:00+00:00",
        host="",
        revision="",
        status="ok",
        loss=loss,
        step_times_s=step_times_s or (0.01,),
        work_per_step=256.0,
        unit="images",
        environment=environment,
        configuration="c",
        tolerance=0.05,
    )


FINE, LONE = night(0.0), night(0.0, 0.016, 0.01, 0.01, 0.01)


@pytest.mark.parametrize(
    ("stored_in", "past", "least"),
    [
        (H200, (), 1),  # no history
        (H200, (FINE,) * 9, 1),
        (H200, (FINE, LONE, *(FINE,) * 5), 2),  # a slow run, though its verdict was ok
        (H200, (LONE, *(FINE,) * 6), 1),  # long ago
        (H200, (night(0.0, 0.0107, 0.01, 0.01),), 1),  # no slower than throttling makes it
        (UPGRADED, (night(0.0, environment=UPGRADED.key),) * 9, 2),  # another environment than the baseline's
        (UPGRADED, (FINE,) * 9, 1),  # and known for days
    ],
)
def test_single_ok_run_is_doubted_after_a_slow_one_and_in_a_new_environment(tmp_path, stored_in, past, least):
    baseline(tmp_path, stored=runs(environment=stored_in), environments=(stored_in,))
    case = make_case(tmp_path, runs=runs(1, session="now"))
    case.past = past
    assert case.policy.least_runs == least
    assert case.plain_policy.least_runs == 1  # metrics have no such mode


def test_disturbed_first_run_is_replaced_in_a_project_with_a_history(tmp_path):
    case = make_case(tmp_path, runs=[])
    case.past = (FINE,) * 9
    case.add(replace(measurement(runs(1)[0]), invalid="throttled"))
    case.judge()
    assert (case.outcome, case.undecided) == (Outcome.INVALID, True)


def test_slow_run_that_was_not_confirmed_is_noted_and_counted(tmp_path):
    baseline(tmp_path, stored=runs())
    fast = runs(4, session="now")
    (slow,) = runs(1, session="now", step_s=0.016)
    case = make_case(tmp_path, runs=[slow, *fast])
    case.past = (*(FINE,) * 14, LONE, FINE, LONE)
    case.judge()
    assert case.outcome is Outcome.OK
    notes = [line.text for line in lines_of(case) if line.status is None]
    assert [note.partition(",")[0] for note in notes] == [
        "1 of 5 runs 37.5 % slower",
        "slow runs in 3 of the last 6 sessions",
    ]


@pytest.mark.parametrize(
    ("wait_s", "outcome"), [(0.006, Outcome.INVALID), (0.002, Outcome.REGRESSED)], ids=["waiting", "own"]
)
def test_loss_of_other_work_on_the_cpus_is_not_judged(tmp_path, wait_s, outcome):
    baseline(tmp_path, stored=with_waiting(runs(), 0.0, 0.02))
    case = make_case(tmp_path, runs=with_waiting(runs(2, session="now", step_s=0.016), wait_s, 0.9))
    case.judge()
    assert case.outcome is outcome
    assert not case.undecided
    (line, *_) = lines_of(case)
    assert ("other processes used 90 % of its CPUs' time" in line.text) == (outcome is Outcome.INVALID)


def with_waiting(made, wait_s, other):
    metrics = {"cpu_wait_s_per_step": wait_s, "other_cpu_share": other}
    return [replace(run, metrics=metrics) for run in made]


@pytest.mark.parametrize(("step_s", "tolerance", "times"), [(0.02, 0.25, 2.0), (0.0125, 0.1, 2.0)])
def test_loss_is_compared_with_its_tolerance(tmp_path, step_s, tolerance, times):
    case = make_case(tmp_path, runs=runs(2, session="now", step_s=step_s), tolerance=tolerance)
    case.judge()
    assert case.relative_loss == 0.0  # nothing is stored
    baseline(tmp_path)
    case = make_case(tmp_path, runs=runs(2, session="now", step_s=step_s), tolerance=tolerance)
    case.judge()
    assert case.relative_loss == pytest.approx(times, rel=0.02)
    assert case.throughput == pytest.approx(256 / step_s, rel=0.01)


SYNTHETIC, REAL = both_keys(KEY)


@pytest.mark.parametrize(
    ("stored", "source", "said"),
    [
        (OTHER, "synthetic", "hold no test_cnn[resnet50]"),
        (REAL, "synthetic", "hold test_cnn[resnet50] with real data, and not with synthetic data"),
        (SYNTHETIC, "imagenet", "hold test_cnn[resnet50] with synthetic data, and not with real data"),
    ],
)
def test_missing_entry_is_named_with_the_remedy(tmp_path, stored, source, said):
    baseline(tmp_path, stored)
    case = make_case(tmp_path, runs=runs(1))
    case.measurements[0] = replace(case.latest, configuration={SOURCE: source})
    case.judge()
    assert case.outcome is Outcome.NO_BASELINE
    assert case.verdict.reason == f"baselines of h200 {said}; record it with --accel-record"
