import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import stdtrit

from pytest_accel.stats.gate import (
    Difference,
    Outcome,
    Policy,
    baseline_centre,
    capped,
    centre,
    decide,
    interval,
    judge,
    loss,
    policy_at_noise,
    pooled_scale,
    resolution_factor,
    slowest_loss,
    t_quantile,
    unit_standard_error,
)
from pytest_accel.stats.run import LONGEST_STEP_S, SHORTEST_STEP_S, Run

POLICY = Policy()
DELTA = -math.log(0.95)
FLOAT_NOISE = 1e-9  # how far float noise may move a bound that was computed twice


def run_at(log_time, session="s", spread=0.0, rounds=6):
    """A run whose summary is log_time, its rounds spread evenly about it."""
    offsets = [spread * (2 * i / (rounds - 1) - 1) for i in range(rounds)]
    return Run(session=session, rounds_s=tuple(math.exp(log_time + x) for x in offsets), steps_per_round=10)


def nights(*log_times):
    return [run_at(value, session=f"night {i}") for i, value in enumerate(log_times)]


def tonight(*log_times):
    return [run_at(value, session="tonight") for value in log_times]


# Realistic spreads and wild ones, so that every outcome and the cap are reached.
LOG_TIMES = st.one_of(st.floats(-0.1, 0.1), st.floats(-0.02, 0.02), st.floats(-3, 3))
BASELINES = st.lists(LOG_TIMES, min_size=1, max_size=10)
CANDIDATES = st.lists(LOG_TIMES, min_size=1, max_size=5)
SHIFTS = st.floats(-0.15, 0.15)
SPREADS = st.floats(0, 0.05)


@st.composite
def comparisons(draw):
    """A baseline from one or several sessions, and a candidate."""
    sessions = draw(st.integers(1, 10))
    spread = draw(SPREADS)
    shift = draw(SHIFTS)
    baseline = [run_at(y, f"night {i % sessions}", spread) for i, y in enumerate(draw(BASELINES))]
    candidate = [run_at(y + shift, "tonight", spread) for y in draw(CANDIDATES)]
    return baseline, candidate


def scaled(runs, factor):
    return [replace(run, rounds_s=tuple(seconds * factor for seconds in run.rounds_s)) for run in runs]


# --- the parts, by hand ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "middle"),
    [
        ([3.0], 3.0),
        ([1.0, 2.0], 1.5),
        ([0.0, 1.0, 10.0], 3.0),  # averages with self-pairs: 0, .5, 1, 5, 5.5, 10
        ([0.0, 0.0, 0.0, 0.0, 0.1], 0.0),  # one throttled run of five is forgotten
    ],
)
def test_centre(values, middle):
    assert centre(values) == middle


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([-0.02, 0.0, 0.0, 0.1, 0.01], [-0.02, 0.0, 0.0, 0.04, 0.01]),  # twice the reach of the fastest
        ([0.0, 0.0, 0.0, 0.05], [0.0, 0.0, 0.0, 0.01]),  # a hundredth where the fast side is tight
        ([-1.0, 0.0, 0.001], [-1.0, 0.0, 0.001]),  # fast runs are never touched
    ],
)
def test_cap(values, kept):
    assert capped(values, POLICY) == pytest.approx(kept)


@pytest.mark.parametrize(("is_capped", "middle"), [(False, 0.03), (True, 0.003)])
def test_two_throttled_runs_of_five_hardly_move_a_capped_baseline(is_capped, middle):
    stored = nights(0.0, 0.001, -0.001, 0.06, 0.062)
    policy = Policy(prior_noise=0.003, caps_baseline=is_capped)
    assert baseline_centre(stored, policy) == pytest.approx(middle, abs=5e-4)


@pytest.mark.parametrize(
    ("baseline", "candidate", "variance", "degrees"),
    [
        (nights(0.0), tonight(0.05), 0.01**2, 3),  # the prior
        # SSx = 2e-4 (cap .02: untouched); SSy = 2 x .005^2 / .8; nu = 3 + 2 + 1.
        (nights(-0.01, 0.0, 0.01), tonight(0.0, 0.01), (3 * 0.01**2 + 2e-4 + 5e-5 / 0.8) / 6, 6),
        # A baseline of one session hides the variance between sessions.
        (tonight(-0.01, 0.0, 0.01), tonight(0.0), (3 * 0.01**2 + 2e-4 / 0.8) / 5, 5),
    ],
)
def test_scale(baseline, candidate, variance, degrees):
    scale = pooled_scale(baseline, candidate, POLICY)
    assert scale.noise**2 == pytest.approx(variance)
    assert scale.degrees_of_freedom == degrees


@pytest.mark.parametrize(
    ("runs", "sessions", "repeats", "variance"),
    [
        (1, 1, 1, 2),
        (2, 2, 2, 1 / 2 + 1.2 / 2),
        (5, 5, 3, 1.08 / 5 + 1.08 * 1.4 / 3),
        (5, 1, 1, 1.08 * 1.8 / 5 + 1),
        (10, 5, 1, 1.08 * 1.2 / 10 + 1),
    ],
)
def test_standard_error(runs, sessions, repeats, variance):
    assert unit_standard_error(runs, sessions, repeats, POLICY) == pytest.approx(math.sqrt(variance))


def test_scale_is_floored_at_the_median_within_run_standard_error():
    baseline = [run_at(0.0, "night", spread=0.3) for _ in range(5)]
    scale = pooled_scale(baseline, tonight(0.0), POLICY)
    assert scale.noise == pytest.approx(baseline[0].standard_error)
    assert scale.noise > 0.01


@pytest.mark.parametrize(
    ("noise", "rho"), [(0.0, 0.2), (0.01, 0.2), (0.04, 0.2), (0.06, 0.35), (0.08, 0.5), (3.0, 0.5)]
)
def test_where_noise_is_large_runs_of_one_session_resemble_each_other_more(noise, rho):
    assert policy_at_noise(POLICY, noise).session_correlation == pytest.approx(rho)
    known = replace(POLICY, session_correlation=0.8)
    assert policy_at_noise(known, noise) == known  # what is known to be more stays


def test_a_machine_that_drifts_is_left_open_where_a_quiet_one_regressed():
    """Ten times the noise, ten times the loss: the same question, but of a machine that may just have changed its speed."""
    quiet = judge(tonight(0.0, 0.01, -0.01, 0.02, -0.02), tonight(0.07, 0.08, 0.06, 0.09, 0.05), POLICY)
    assert quiet.outcome is Outcome.REGRESSED
    noisy = tonight(0.0, 0.1, -0.1, 0.2, -0.2), tonight(0.4, 0.5, 0.3, 0.6, 0.2)
    assert judge(*noisy, replace(POLICY, drifting_correlation=0.2)).outcome is Outcome.REGRESSED
    assert judge(*noisy, POLICY).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("runs", "factor"), [(1, 6.6), (3, 4.7), (5, 4.2), (10, 3.7)])
def test_resolution_factors_are_those_of_the_design(runs, factor):
    assert resolution_factor(runs, runs, POLICY) == pytest.approx(factor, abs=0.05)


# --- verdicts -------------------------------------------------------------------------------------

QUIET, NOISY, WILD = nights(0, 0, 0, 0, 0), nights(-0.05, 0.05, 0.0), nights(-0.1, 0.1, 0.0)


@pytest.mark.parametrize(
    ("baseline", "candidate", "repeats", "outcome", "wants_another"),
    [
        (QUIET, [0.0], 5, Outcome.OK, False),
        (QUIET, [0.5], 5, Outcome.INCONCLUSIVE, True),
        (QUIET, [-0.2], 5, Outcome.OK, True),  # improved needs a second run
        (QUIET, [-0.2], 1, Outcome.OK, False),
        (QUIET, [-0.2, -0.2], 5, Outcome.IMPROVED, False),
        (QUIET, [0.08, 0.08], 5, Outcome.REGRESSED, False),
        (QUIET, [0.04] * 8, 5, Outcome.REGRESSED, False),  # beyond the last repeat, at its levels
        (NOISY, [0.04, -0.06], 5, Outcome.INCONCLUSIVE, True),
        (NOISY, [0.04], 5, Outcome.INCONCLUSIVE, True),  # resolves less than three times 5 %
        (WILD, [0.04], 5, Outcome.INCONCLUSIVE, False),  # even the last repeat would hardly decide it
        (WILD, [0.15], 5, Outcome.INCONCLUSIVE, True),  # such a loss could be shown
        (WILD, [-0.1], 5, Outcome.INCONCLUSIVE, True),  # that it is not slower, too
        (QUIET, [0.0, 0.3], 5, Outcome.INCONCLUSIVE, True),  # one wild run of the candidate proves no noise
        (NOISY, [0.04, -0.06], 2, Outcome.INCONCLUSIVE, False),
        (NOISY, [0.04, -0.06, 0.1, 0.0, 0.09], 5, Outcome.INCONCLUSIVE, False),
    ],
)
def test_outcomes(baseline, candidate, repeats, outcome, wants_another):
    verdict = judge(baseline, tonight(*candidate), Policy(max_repeats=repeats))
    assert (verdict.outcome, verdict.wants_another_run) == (outcome, wants_another)


ALPHA, BETA = (None, 0.005, 0.01, 0.02, 0.05), (0.02, 0.02, 0.03, 0.05, 0.10)


@pytest.mark.parametrize("repeat", range(1, 6))
def test_outcome_changes_exactly_at_its_bound(repeat):
    def outcomes(edge, se):
        differences = (
            Difference(d=edge + nudge, se=se, degrees_of_freedom=9, repeat=repeat) for nudge in (-1e-9, 1e-9)
        )
        return [decide(each, POLICY) for each in differences]

    ok = DELTA - t_quantile(BETA[repeat - 1], 9) * 0.03
    assert outcomes(ok, 0.03) == [Outcome.OK, Outcome.INCONCLUSIVE]
    if repeat > 1:
        regressed = DELTA / 2 + t_quantile(ALPHA[repeat - 1], 9) * 0.05
        assert outcomes(regressed, 0.05) == [Outcome.INCONCLUSIVE, Outcome.REGRESSED]
        improved = -DELTA / 2 - t_quantile(0.01, 9) * 0.02
        assert outcomes(improved, 0.02) == [Outcome.IMPROVED, Outcome.OK]


def test_verdict_by_hand():
    baseline, candidate = nights(-0.01, 0.0, 0.01), tonight(0.07, 0.08)
    verdict = judge(baseline, candidate, POLICY)
    s = math.sqrt((3 * 0.01**2 + 2e-4 + 5e-5 / 0.8) / 6)
    se = s * math.sqrt(1.08 / 3 + 1.2 / 2)
    assert verdict.slowdown.point == pytest.approx(1 - math.exp(-0.075))
    assert verdict.slowdown.low == pytest.approx(1 - math.exp(-(0.075 - t_quantile(0.005, 6) * se)))
    assert verdict.slowdown.high == pytest.approx(1 - math.exp(-(0.075 + t_quantile(0.02, 6) * se)))
    assert verdict.outcome is Outcome.REGRESSED
    assert (verdict.runs, verdict.baseline_runs, verdict.tolerance) == (2, 3, 0.05)
    assert verdict.noise == pytest.approx(s)
    assert verdict.resolution == pytest.approx(loss(s * resolution_factor(3, 3, POLICY)))
    assert not verdict.wants_another_run


# --- properties -----------------------------------------------------------------------------------


@given(comparisons(), st.randoms(use_true_random=False))
def test_order_of_runs_changes_nothing_at_all(comparison, random):
    baseline, candidate = comparison
    verdict = judge(baseline, candidate, POLICY)
    random.shuffle(baseline)
    random.shuffle(candidate)
    assert judge(baseline, candidate, POLICY) == verdict


@pytest.mark.parametrize("quick", [-0.01, 0.0, DELTA / 2 - 1e-6])
def test_one_run_that_lost_no_more_than_should_pass_makes_it_no_regression(quick):
    """A machine of two speeds: the baseline shows which of them is new."""
    verdict = judge(nights(*[0.0] * 10), tonight(0.3, 0.3, quick, 0.3, 0.3), POLICY)
    assert verdict.outcome is Outcome.UNSTABLE
    known = judge(nights(*[0.0] * 9, 0.3), tonight(0.3, 0.3, quick, 0.3, 0.3), POLICY)
    assert known.outcome is Outcome.INCONCLUSIVE
    assert verdict.slowdown.low <= loss(quick) + FLOAT_NOISE
    assert judge(nights(*[0.0] * 10), tonight(*[0.3] * 5), POLICY).outcome is Outcome.REGRESSED


def test_of_many_runs_some_may_be_quick():
    """Compared are all runs that a file has: among thirty one is quick by chance."""
    many = [*[0.3] * 28, 0.0, 0.0]
    assert judge(nights(*[0.0] * 10), tonight(*many), POLICY).outcome is Outcome.REGRESSED
    assert judge(nights(*[0.0] * 10), tonight(*[0.0] * 6, *many), POLICY).outcome is Outcome.UNSTABLE


def test_where_noise_has_two_sides_one_quick_run_says_nothing():
    runs = nights(-0.021, *[0.0] * 8, 0.02), tonight(0.06, 0.06, 0.02, 0.06, 0.06)
    assert judge(*runs, POLICY).outcome is Outcome.INCONCLUSIVE
    assert judge(*runs, POLICY, noise_only_slows=False).outcome is Outcome.REGRESSED


@given(comparisons(), st.floats(1e-6, 3))
@example((nights(0), tonight(0, 0.0625, 0.09375, 1)), 0.25)  # one stored run shows no groups
@example((nights(0, 0, 0), tonight(0, 0.0625, 0.09375, 1)), 0.25)
def test_slowing_the_whole_candidate_keeps_it_regressed(comparison, slowing):
    baseline, candidate = comparison
    rank = [Outcome.IMPROVED, Outcome.OK, Outcome.INCONCLUSIVE, Outcome.UNSTABLE, Outcome.REGRESSED].index
    before = judge(baseline, candidate, POLICY).outcome
    after = judge(baseline, scaled(candidate, math.exp(slowing)), POLICY).outcome
    assert rank(after) >= rank(before)


@given(comparisons())
def test_bounds_enclose_the_point_and_agree_with_the_outcome(comparison):
    verdict = judge(*comparison, POLICY)
    estimate = verdict.slowdown
    assert estimate.low <= estimate.point <= estimate.high
    match verdict.outcome:
        case Outcome.REGRESSED:
            assert estimate.low > loss(DELTA / 2)
        case Outcome.IMPROVED:
            assert estimate.high < loss(-DELTA / 2)
        case Outcome.OK:
            assert estimate.high < 0.05 + 1e-12
        case _:
            assert estimate.high > 0.05 - 1e-12


EXTREME_SECONDS = st.floats(SHORTEST_STEP_S, LONGEST_STEP_S)
EXTREME_RUNS = st.lists(
    st.builds(
        Run,
        session=st.sampled_from(["a", "b"]),
        rounds_s=st.lists(EXTREME_SECONDS, min_size=1, max_size=6).map(tuple),
        steps_per_round=st.just(10),
    ),
    min_size=1,
    max_size=7,
)


@given(EXTREME_RUNS, EXTREME_RUNS, st.floats(1e-6, 0.999))
def test_no_measurable_times_make_a_nan_or_an_infinity(baseline, candidate, tolerance):
    verdict = judge(baseline, candidate, Policy(tolerance=tolerance))
    figures = (verdict.noise, verdict.resolution)
    bounds = (verdict.slowdown.low, verdict.slowdown.point, verdict.slowdown.high)
    assert all(math.isfinite(figure) for figure in figures + bounds)


# --- two groups of runs ---------------------------------------------------------------------------

QUIET = nights(0.002, -0.003, 0.0, 0.004, -0.002)
MODE = math.log(1.6)


@pytest.mark.parametrize(
    ("baseline", "candidate", "expected"),
    [
        (QUIET, (MODE, 0.0, MODE), Outcome.UNSTABLE),
        (QUIET, (MODE, 0.02, 0.025, MODE, 0.02), Outcome.UNSTABLE),  # beside a loss of all
        (nights(0.0), (MODE, 0.0, MODE), Outcome.INCONCLUSIVE),  # one run shows no groups
        # Not apart from its slowest run.
        (nights(0.0, 0.001, 0.0, -0.002, 0.02), (0.058, -0.028, 0.058, 0.0, 0.059), Outcome.INCONCLUSIVE),
        (QUIET, (MODE, MODE), Outcome.REGRESSED),  # all slow
        (QUIET, (MODE, 0.0, 0.001, 0.0, 0.002), Outcome.OK),  # one alone
        # The baseline shows it.
        (nights(0.0, 0.001, 0.0, -0.001, MODE), (MODE, 0.0, MODE, 0.0, MODE), Outcome.INCONCLUSIVE),
        (QUIET, (0.08, 0.0, 0.07, 0.0, 0.001), Outcome.OK),  # as deep as throttling: chance
        (QUIET, (0.08, 0.0, 0.07, 0.0, 0.08), Outcome.UNSTABLE),  # three are none
        # A spread.
        (nights(0.0, 0.04, -0.05, 0.06, -0.03), (0.15, 0.0, 0.17, 0.06, 0.10), Outcome.INCONCLUSIVE),
    ],
)
def test_runs_in_two_groups_that_the_baseline_does_not_show_are_unstable(baseline, candidate, expected):
    assert judge(baseline, tonight(*candidate), POLICY).outcome is expected


def test_slow_run_is_followed_to_the_last_repeat_and_kept_in_the_verdict():
    runs = tonight(MODE, 0.0, 0.001, 0.0, 0.002)
    wanted = [judge(QUIET, runs[:count], POLICY).wants_another_run for count in range(1, 6)]
    assert wanted == [True, True, True, True, False]
    group = judge(QUIET, runs, POLICY).slow_group
    assert group is not None
    assert (group.runs, group.loss) == (1, pytest.approx(1 - 1 / 1.6, abs=0.01))


def test_doubted_benchmark_is_ok_only_after_a_second_run():
    doubting = Policy(least_runs=2)
    found = [judge(QUIET, tonight(*runs), doubting) for runs in ((0.0,), (0.0, 0.001))]
    assert [each.outcome for each in found] == [Outcome.INCONCLUSIVE, Outcome.OK]
    assert [each.wants_another_run for each in found] == [True, False]
    assert judge(QUIET, tonight(0.0), replace(doubting, max_repeats=1)).outcome is Outcome.OK, "as asked"


# --- intervals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "half"),
    [
        (nights(0.0), t_quantile(0.025, 3) * 0.01),  # as wide as the prior says
        (nights(-0.01, 0.0, 0.01), t_quantile(0.025, 5) * math.sqrt((3 * 0.01**2 + 2e-4) / 5 * 1.08 / 3)),
    ],
)
def test_interval(runs, half):
    step_time = interval(runs, POLICY)
    assert step_time.point_s == pytest.approx(1)
    assert math.log(step_time.high_s) == pytest.approx(half)
    assert math.log(step_time.low_s) == pytest.approx(-half)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"tolerance": 5}, {"tolerance": 0}, {"max_repeats": 0}, {"max_repeats": 6}]
)
def test_impossible_policy_is_refused_by_the_name_of_its_field(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Policy(**wrong)


# --- Student's t ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail_probability", [1e-4, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.499, 0.5])
def test_quantile_agrees_with_scipy(tail_probability):
    freedoms = (1, 1.5, 2, 3, 4.67, 7, 12, 17, 50, 199.5, 200)
    found = [t_quantile(tail_probability, freedom) for freedom in freedoms]
    expected = [-stdtrit(freedom, tail_probability) for freedom in freedoms]
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize(("logs", "lost"), [([0.3], 0.1), ([0.0, math.log(2)], 1 - 0.9 / math.sqrt(2))])
def test_slowest_run_lost_more_than_the_centre(logs, lost):
    assert slowest_loss(logs, 0.1) == pytest.approx(lost)
