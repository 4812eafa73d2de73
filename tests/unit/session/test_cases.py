"""What a case is judged by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_accel.session.scales import Scales
from pytest_accel.stats.learning import Learned
from pytest_accel.stats.verdict import Outcome, Policy
from tests.support.measured import make_case
from tests.support.stored import KEY, OTHER, baseline, runs

NIGHTS = Learned(noise=0.0005, degrees_of_freedom=6.0, nights=20, correlation=0.6)


@pytest.fixture
def scales():
    """Of quiet nights, whatever the benchmark."""
    found = Scales(None)
    found.of = lambda platform, key: NIGHTS
    return found


def with_energy(made):
    return [replace(run, metrics={"energy_j": 2.0 + 0.05 * number}) for number, run in enumerate(made)]


def test_nights_of_step_times_say_nothing_of_other_metrics(tmp_path, scales):
    baseline(tmp_path, stored=with_energy(runs()))
    plain, learned = (
        make_case(tmp_path, runs=with_energy(runs(2)), gates={"energy_j": 0.1}, scales=each)
        for each in (None, scales)
    )
    for case in (plain, learned):
        case.judge()
    assert learned.verdict.noise < plain.verdict.noise
    assert learned.facets == plain.facets
    assert learned.plain_policy == Policy()


@pytest.mark.parametrize(
    ("stored", "asked", "tolerated"),
    [
        (None, None, 0.05),
        (0.6, None, 0.6),
        (0.03, None, 0.05),  # of step times that are quiet
        (0.6, 0.03, 0.03),
    ],
)
def test_who_names_no_figure_of_a_metric_tolerates_as_much_as_of_noisy_throughput(
    tmp_path, stored, asked, tolerated
):
    baseline(tmp_path, stored=with_energy(runs()), tolerance=stored)
    settings = {} if asked is None else {"tolerance": asked}
    case = make_case(
        tmp_path, runs=with_energy(runs(2)), gates={"energy_j": None, "accuracy": 0.02}, **settings
    )
    assert case.gates == {"energy_j": tolerated, "accuracy": 0.02}
    case.judge()
    assert case.facets[0].verdict.tolerance == tolerated


def test_only_what_was_judged_counts_as_judged_by_its_nights(tmp_path, scales):
    baseline(tmp_path)
    known, new = (make_case(tmp_path, key, runs=runs(1), scales=scales) for key in (KEY, OTHER))
    for case in (known, new):
        case.judge()
        assert case.policy.prior_noise < Policy().prior_noise
    assert new.outcome is Outcome.NO_BASELINE
    assert list(scales.used) == [("h200", KEY)]
