"""Policy and tolerances that a case is judged by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_accel.stats.baseline_quality import DEFAULT_PRIOR, NoisePrior
from pytest_accel.stats.gate import Policy
from tests.support.measured import make_case
from tests.support.stored import baseline, runs

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
