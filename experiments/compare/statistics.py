"""Statistics over seeds: mean, spread, Student's t, the confidence interval of a mean."""

import math
from collections.abc import Sequence
from functools import lru_cache


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean, and with two or more values the sample standard deviation (n - 1)."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))


def mean_interval(
    values: Sequence[float], level: float = 0.95,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[float | None, float | None]:  # fmt: skip
    """Confidence interval of the mean: ``mean -+ t(level, n - 1) * std / sqrt(n)``.

    It is cut at the `limits` of the values. The true mean lies within them as well, so the cut
    interval holds exactly as often.
    """
    mean, std = mean_and_std(values)
    if std is None:
        return None, None
    half = t_quantile(level, len(values) - 1) * std / math.sqrt(len(values))
    return max(limits[0], mean - half), min(limits[1], mean + half)


@lru_cache(maxsize=4096)
def t_quantile(level: float, freedom: float) -> float:
    """Return the t with ``P(|T| <= t) = level``, by bisection."""
    low, high = 0.0, 1.0
    while t_two_sided(high, freedom) > 1 - level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if t_two_sided(middle, freedom) > 1 - level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_two_sided(t: float, freedom: float) -> float:
    """``P(|T| > t)`` for Student's t: the incomplete beta function I_x(n/2, 1/2), x = n/(n+t^2)."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    factor = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    if x < (a + 1) / (a + b + 2):
        return factor * _beta_fraction(a, b, x) / a
    return 1 - factor * _beta_fraction(b, a, 1 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    total = d
    for m in range(1, 500):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + step * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + step / c
            c = c if abs(c) > tiny else tiny
            total *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return total
