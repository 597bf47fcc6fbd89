"""Statistics over seeds: mean, spread, Student's t, the confidence interval of a mean."""

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from statistics import fmean, stdev
from typing import Any


def mean_interval(
    values: Sequence[float], limits: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float | None, float | None]:
    """95 % confidence interval of the mean: ``mean -+ t(.95, n - 1) * std / sqrt(n)``.

    One value has none. The interval is cut at the `limits` of the values, between which the true
    mean lies, too: the cut interval holds exactly as often.
    """
    if len(values) < 2:
        return None, None
    if not all(map(math.isfinite, values)):  # possible in an edited store
        return math.nan, math.nan
    mean = fmean(values)
    half = t_quantile(0.95, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return max(limits[0], mean - half), min(limits[1], mean + half)


@lru_cache(maxsize=4096)
def t_quantile(level: float, df: float) -> float:
    """Return the t with ``P(|T| <= t) = level``, by bisection."""
    low, high = 0.0, 1.0
    while t_two_sided(high, df) > 1 - level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if t_two_sided(middle, df) > 1 - level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_two_sided(t: float, df: float) -> float:
    """``P(|T| > t)`` for Student's t with n degrees of freedom: I(atan(sqrt(n) / t)) / I(pi / 2).

    ``I(a)`` is the integral of ``sin(x)^(n - 1)`` from 0 to a, by Gauss's rule over the cube root
    of ``x / a``, in which the integrand is smooth at 0.
    """
    import numpy as np  # takes .1 s to load

    roots, weights = _gauss()

    def integral(end: float) -> float:
        return float(end * weights @ (roots**2 * np.sin(end * roots**3) ** (df - 1)))

    return integral(math.atan2(math.sqrt(df), t)) / integral(math.pi / 2)


@cache
def _gauss() -> tuple[Any, Any]:
    """The points of Gauss's rule, on 0 to 1, and their weights."""
    from numpy.polynomial.legendre import leggauss

    points, weights = leggauss(64)
    return (points + 1) / 2, weights
