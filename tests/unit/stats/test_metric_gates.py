"""Metrics beside throughput: judged by the same gate, and the worst decides."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.comparison import figures
from pytest_accel.stats.gate import Outcome, Policy, Verdict, judge
from pytest_accel.stats.metric_gates import (
    DESCRIPTIVE,
    MEASURED,
    NAMES,
    is_gateable,
    judge_metrics,
    less_is_better,
    parse_gates,
    shown_name,
    want_another_run,
    worst,
)
from pytest_accel.stats.run import Run

POLICY = Policy()
GATES = {"accuracy": 0.05}


def measured(*accuracies, session="s", name="accuracy", **more):
    """A run for each; None is a run that did not measure it."""
    return [
        Run(
            session=session,
            rounds_s=(0.01,) * 6,
            steps_per_round=10,
            metrics={} if accuracy is None else {name: accuracy},
            **more,
        )
        for accuracy in accuracies
    ]


def of_accuracy(baseline, runs, policy=POLICY, gates=GATES) -> Verdict:
    (verdict,) = judge_metrics(baseline, runs, gates, policy)
    assert verdict.of == "accuracy"
    return verdict


METRICS = st.floats(0.01, 100)
SPREADS = st.lists(st.floats(-0.02, 0.02), min_size=1, max_size=5)


def spread(level, offsets):
    return [level * (1 + offset) for offset in offsets]


class TestOneMetric:
    @pytest.mark.parametrize("stored", [None, 0.0, -1.0])
    def test_without_a_baseline_is_not_judged_and_says_so(self, stored):
        found = of_accuracy(measured(stored, stored), measured(0.9))
        assert found.outcome is Outcome.NO_BASELINE
        assert "--accel-record" in found.reason
        assert not found.wants_another_run

    def test_only_stored_runs_that_have_it_count(self):
        found = of_accuracy(measured(None, 0.9, None, 0.9), measured(0.9))
        assert found.outcome is not Outcome.NO_BASELINE
        assert found.baseline_runs == 2

    def test_every_gate_has_a_verdict_in_their_order(self):
        runs = [replace(run, metrics={"b": 1.0, "a": 1.0}) for run in measured(1.0, 1.0)]
        verdicts = judge_metrics(runs, runs, {"b": 0.1, "a": 0.2}, POLICY)
        assert [(verdict.of, verdict.tolerance) for verdict in verdicts] == [("b", 0.1), ("a", 0.2)]

    @pytest.mark.parametrize(
        ("tolerance", "stored", "look"),
        [(0.02, 5, 1), (0.015, 5, 2), (0.01, 5, 4), (0.005, 5, None), (0.005, 10, 5)],
    )
    def test_an_unchanged_metric_is_ok_at_the_look_that_the_docs_say(self, tolerance, stored, look):
        baseline, gates = measured(*[0.9] * stored), {"accuracy": tolerance}
        outcomes = [of_accuracy(baseline, measured(*[0.9] * k), gates=gates).outcome for k in range(1, 6)]
        assert next((k for k, outcome in enumerate(outcomes, 1) if outcome is Outcome.OK), None) == look

    @given(METRICS, SPREADS, SPREADS)
    def test_is_judged_as_a_step_time_of_its_reciprocal(self, level, before, after):
        def timed(values):
            return [Run(session="s", rounds_s=(1 / value,), steps_per_round=1) for value in values]

        then, now = spread(level, before), spread(level, after)
        as_time = judge(timed(then), timed(now), replace(POLICY, tolerance=0.05), noise_only_slows=False)
        assert of_accuracy(measured(*then), measured(*now)) == replace(as_time, of="accuracy")


def of_energy(then, now, tolerance=0.05) -> Verdict:
    name = "energy_per_step_j"
    (verdict,) = judge_metrics(
        measured(*then, name=name), measured(*now, name=name), {name: tolerance}, POLICY
    )
    return verdict


class TestLessIsBetter:
    @given(METRICS, SPREADS, SPREADS, st.floats(0.01, 0.5))
    def test_is_judged_as_what_it_buys_would_be(self, level, before, after, tolerance):
        """J/unit up by r, and units/J down by r/(1+r): one outcome."""
        then, now = spread(level, before), spread(level, after)
        bought = [measured(*(1 / v for v in values), name="units_per_j") for values in (then, now)]
        (verdict,) = judge_metrics(*bought, {"units_per_j": tolerance / (1 + tolerance)}, POLICY)
        assert of_energy(then, now, tolerance).outcome is verdict.outcome

    def test_an_absurd_increase_stays_a_number(self):
        found = of_energy([1e-30] * 5, [1e30] * 2)
        assert found.outcome is Outcome.REGRESSED
        assert math.isfinite(found.slowdown.high)


@pytest.mark.parametrize(
    ("value", "fits"), [(0.9, True), (1e300, True), (0.0, False), (-1.0, False), (5e-324, False)]
)
def test_what_can_be_gated_is_positive(value, fits):
    assert is_gateable(value) == fits


def said(outcome, *, wants=False, of="throughput"):
    return Verdict(outcome=outcome, tolerance=0.05, wants_another_run=wants, of=of)


def verdicts(*outcomes, wants=False):
    return [said(outcome, of="x", wants=wants) for outcome in outcomes]


OK, REGRESSED, OPEN = Outcome.OK, Outcome.REGRESSED, Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("throughput", "others", "together"),
    [
        (OK, [], OK),
        (OK, [OK], OK),
        (OK, [OK, REGRESSED], REGRESSED),
        (REGRESSED, [OK], REGRESSED),
        (OK, [OPEN], OPEN),
        (OPEN, [REGRESSED], REGRESSED),
        (REGRESSED, [OPEN], REGRESSED),
        (OK, [Outcome.IMPROVED], OK),
        (Outcome.IMPROVED, [OK], Outcome.IMPROVED),
        (Outcome.IMPROVED, [REGRESSED], REGRESSED),
        (OK, [Outcome.NO_BASELINE], OK),
        (Outcome.STALE_BASELINE, [], Outcome.STALE_BASELINE),
    ],
)
def test_the_worst_decides(throughput, others, together):
    assert worst(said(throughput), verdicts(*others)) is together


class TestAnotherRun:
    def test_an_open_metric_wants_it(self):
        assert want_another_run(said(OK), verdicts(OPEN, wants=True))

    def test_what_has_used_up_its_looks_does_not(self):
        assert not want_another_run(said(OK), verdicts(OPEN))

    def test_a_regression_ends_all_questions(self):
        assert not want_another_run(said(REGRESSED), verdicts(OPEN, wants=True))
        assert not want_another_run(said(OPEN, wants=True), verdicts(REGRESSED))


# --- names of metrics -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "less"),
    [
        ("throughput", False),
        ("energy_per_step_j", True),
        ("node_module_energy_per_step_j", True),
        ("latency_p99_s", True),
        ("host_cpu_s_per_step", True),
        ("accuracy", False),
        ("mfu", False),
        ("sm_clock_mhz", False),
        ("energy_j", False),  # of the window: no way is better
        # A user's own names: seconds and joules are costs, and what they buy is not.
        ("decode_s", True),
        ("decode_j", True),
        ("tokens_per_s", False),
        ("units_per_j", False),
        ("memory_gb_per_s", False),
        ("bandwidth_gb_s", False),
        ("requests_s", False),
        ("time_per_token_s", True),
        ("correct_digits", False),
    ],
)
def test_which_way_is_better(name, less):
    assert less_is_better(name) == less


def test_what_describes_a_measurement_has_no_better_way():
    assert not any(map(less_is_better, DESCRIPTIVE))
    assert MEASURED.keys() >= DESCRIPTIVE


def test_energy_is_called_that():
    assert shown_name("energy_per_step_j") == "energy"
    assert shown_name("accuracy") == "accuracy"


class TestGates:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("throughput", {}),
            ("throughput,energy", {"energy_per_step_j": None}),
            (" energy = 8% , latency=0.1,", {"energy_per_step_j": 0.08, "latency_p99_s": 0.1}),
            ("energy_per_step_j", {"energy_per_step_j": None}),
            ("accuracy=2%", {"accuracy": 0.02}),
        ],
    )
    def test_are_metrics_with_what_is_tolerated(self, text, found):
        assert parse_gates(text) == found

    @pytest.mark.parametrize("text", ["", " , ", "enrgy", "throughput,temperature_c", "throughput energy"])
    def test_an_unknown_one_is_an_error_with_all_that_are_known(self, text):
        with pytest.raises(
            ValueError, match="Valid, separated by commas: throughput, energy, latency, "
        ) as caught:
            parse_gates(text)
        assert "gates={...}" in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("energy=much", "has 'much' for energy, which is not a fraction or a percentage"),
            ("energy=0", "has '0' for energy, which leaves no room for noise"),
            ("energy=", "has '' for energy"),
            ("energy=120%", "is not between 0 and 100 %"),
            ("throughput=3%", "accel_tolerance"),
        ],
    )
    def test_a_bad_tolerance_is_named(self, text, said):
        with pytest.raises(ValueError, match=said):
            parse_gates(text)

    def test_every_name_that_errors_list_is_taken(self):
        assert len(parse_gates(",".join(NAMES))) == len(NAMES) - 1  # less throughput


def test_figures_carry_units_of_our_names_and_of_no_others():
    metrics = {"power_mean_w": 650.0, "sm_clock_mhz": 1515.0, "temperature_c": 61.0, "tdp_share": 0.93}
    run = Run(
        session="s",
        rounds_s=(0.1,) * 6,
        steps_per_round=1,
        metrics={**metrics, "vitamin_c": 1.0, "gb_per_s": 3.0},
    )
    found = figures([run], 1.0, "images")
    units = {name: found[name].unit for name in run.metrics}
    assert units == {
        "power_mean_w": "W",
        "sm_clock_mhz": "MHz",
        "temperature_c": "°C",
        "tdp_share": "%",
        "vitamin_c": "",
        "gb_per_s": "",
    }
    assert found["tdp_share"].value == pytest.approx(93.0)
