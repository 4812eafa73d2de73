"""Quantiles of Student's t for the gate, without scipy: the plugin must not pull it into every project."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300  # keeps Lentz's recurrence from dividing by zero
_PRECISION = 1e-15
_MAX_TERMS = 10_000  # the fraction needs about sqrt(nu) terms: nu up to some 1e7


@lru_cache(maxsize=4096)
def t_quantile(tail_probability: float, degrees_of_freedom: float) -> float:
    """t with P(T > t) = tail_probability: Newton on the incomplete beta (DLMF 8.17.22), from 0 upwards.

    The upper tail is convex and falling for t > 0, so Newton from the left climbs to the root and
    never jumps over it: no bracket is needed.
    """
    if not 0 < tail_probability < 1:
        raise ValueError(f"tail_probability: {tail_probability!r} is not between 0 and 1 (both excluded).")
    if not (degrees_of_freedom > 0 and math.isfinite(degrees_of_freedom)):
        raise ValueError(f"degrees_of_freedom: {degrees_of_freedom!r} is not a positive, finite number.")
    if tail_probability > 0.5:
        return -t_quantile(1 - tail_probability, degrees_of_freedom)
    t = 0.0
    while True:
        step = (_upper_tail(t, degrees_of_freedom) - tail_probability) / _density(t, degrees_of_freedom)
        if step <= 10 * _PRECISION * t:  # what is left is rounding
            return t
        t += step


def _density(t: float, nu: float) -> float:
    log_beta = _log_beta(nu / 2, 0.5)
    return math.exp(-log_beta - 0.5 * math.log(nu) - (nu + 1) / 2 * math.log1p(t * t / nu))


def _upper_tail(t: float, nu: float) -> float:
    return 0.5 * _incomplete_beta(nu / (nu + t * t), t * t / (nu + t * t), nu / 2, 0.5)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _incomplete_beta(x: float, complement: float, a: float, b: float) -> float:
    """I_x(a, b); `complement` is 1 - x, given apart because the subtraction would lose its digits."""
    if complement == 0:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only below this point
        return 1 - _incomplete_beta(complement, x, b, a)
    front = math.exp(a * math.log(x) + b * math.log(complement) - _log_beta(a, b))
    return front / (a * _continued_fraction(x, a, b))


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Evaluate DLMF 8.17.22 by Lentz's method: 1 + d1/(1 + d2/(1 + ...))."""
    value, c, d = 1.0, 1.0, 0.0
    for n in range(1, _MAX_TERMS):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + term * d) or _TINY)
        c = (1 + term / c) or _TINY
        value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value
