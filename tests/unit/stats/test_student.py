import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from pytest_accel.stats.gate import t_quantile

PROBABILITIES = st.floats(1e-4, 0.5)
DEGREES = st.floats(1, 200)


@given(PROBABILITIES, DEGREES)
def test_quantile_agrees_with_scipy(tail_probability, degrees_of_freedom):
    expected = -stdtrit(degrees_of_freedom, tail_probability)
    assert t_quantile(tail_probability, degrees_of_freedom) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("degrees_of_freedom", [1, 1.5, 2, 3, 4.67, 7, 12, 17, 50, 199.5, 200])
@pytest.mark.parametrize("tail_probability", [1e-4, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.499, 0.5])
def test_quantile_agrees_with_scipy_where_the_gate_uses_it(tail_probability, degrees_of_freedom):
    expected = -stdtrit(degrees_of_freedom, tail_probability)
    assert t_quantile(tail_probability, degrees_of_freedom) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@given(PROBABILITIES, DEGREES)
def test_quantile_is_symmetric_about_the_median(tail_probability, degrees_of_freedom):
    mirrored = t_quantile(1 - tail_probability, degrees_of_freedom)
    assert mirrored == pytest.approx(-t_quantile(tail_probability, degrees_of_freedom), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("tail_probability", [0, 1, -0.1, 2, math.nan])
def test_impossible_probability_is_refused(tail_probability):
    with pytest.raises(ValueError, match="tail_probability"):
        t_quantile(tail_probability, 5)


@pytest.mark.parametrize("degrees_of_freedom", [0, -1, math.inf, math.nan])
def test_impossible_degrees_of_freedom_are_refused(degrees_of_freedom):
    with pytest.raises(ValueError, match="degrees_of_freedom"):
        t_quantile(0.05, degrees_of_freedom)
