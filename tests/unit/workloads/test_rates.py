"""A loader and its step apart: what each does alone, and when too little of the device's rate is left."""

from __future__ import annotations

import pytest

from pytest_accel.measure.ranks import Alone
from pytest_accel.workloads import InferStep, StepError, TrainStep
from pytest_accel.workloads.rates import check_loader_efficiency, latency, rates_apart

TINY = {"data": "digits", "batch_size": 8}


class Waiting:
    """A CPU: nothing runs behind the caller."""

    def synchronize(self) -> None:
        """Nothing is queued."""


def test_a_step_that_loads_is_timed_in_its_parts_and_goes_on_as_before():
    with TrainStep.build("zoo/wide_resnet-tiny", **TINY) as step:
        step()
        source = step._source
        rates = rates_apart(step, Waiting(), Alone(), step_s=0.5, budget_s=0.01)
        assert set(rates) == {"loader_step_s", "compute_step_s", "loader_efficiency"}
        assert all(value > 0 for value in rates.values())
        assert rates["loader_efficiency"] == rates["compute_step_s"] / 0.5
        assert step._source is source
        step()
        step.check()


def test_a_step_that_loads_nothing_has_no_such_rates():
    with InferStep.build("zoo/wide_resnet-tiny", data="cifar100", batch_size=2) as step:
        assert rates_apart(step, Waiting(), Alone(), step_s=0.5, budget_s=0.01) == {}


def test_the_loader_is_timed_after_what_lay_ready():
    taken = []
    with InferStep.build(
        "zoo/wide_resnet-tiny", data="cifar100", batch_size=2, workers=1, prefetch=5
    ) as step:
        source = step._source
        real = type(source).__next__

        class Counting(type(source)):
            def __next__(self):
                taken.append(1)
                return real(self)

        source.__class__ = Counting
        rates_apart(step, Waiting(), Alone(), step_s=0.5, budget_s=1.0)
        # Two to compute on; what lay ready; three to see how long one takes, and three or more to time.
        assert len(taken) >= 2 + step.buffered + 3 + 3


def test_a_computing_step_puts_its_source_back_also_when_it_fails():
    with TrainStep.build("zoo/wide_resnet-tiny", **TINY) as step:
        source = step._source
        with pytest.raises(ZeroDivisionError), step.computing_only():
            1 / (step._source is source)
        assert step._source is source


RATES = {"loader_step_s": 0.02, "compute_step_s": 0.008, "loader_efficiency": 0.8}


@pytest.mark.parametrize(("rates", "least"), [(RATES, None), (RATES, 0.8), (RATES, 0.5), ({}, 0.9)])
def test_a_step_that_is_fed_well_enough_passes(rates, least):
    check_loader_efficiency(rates, least, work=100, unit="images", resident=False)


def test_a_step_that_starves_says_both_rates_and_the_remedy():
    with pytest.raises(StepError) as caught:
        check_loader_efficiency(RATES, 0.9, work=100, unit="images", resident=False)
    text = str(caught.value)
    assert text.startswith("min_loader_efficiency: 80.0% of what the device computes alone")
    assert "90% were asked for" in text
    assert "the loader alone gives 5,000 images/s, the device alone takes 12,500" in text
    assert "More workers=" in text


def test_latency_is_told_in_percentiles_that_grow():
    with InferStep.build("zoo/wide_resnet-tiny", **TINY) as step:
        found = latency(step, Waiting(), Alone(), budget_s=0.01)
        assert list(found) == ["latency_p50_s", "latency_p90_s", "latency_p99_s"]
        assert 0 < found["latency_p50_s"] <= found["latency_p90_s"] <= found["latency_p99_s"]
        assert step.steps >= 100
