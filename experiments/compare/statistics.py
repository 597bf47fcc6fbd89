"""Statistics of a comparison: Student's t, intervals of a mean over seeds, the paired test."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

ALPHA = 0.05
SPLITS = 10_000
MOST_WAYS = 1_000_000

Numbers = npt.NDArray[np.float64]


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean, and with two or more values the sample standard deviation (n - 1)."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))


def mean_interval(
    values: Sequence[float], level: float = 0.95
) -> tuple[float | None, float | None]:
    """Confidence interval of the mean: ``mean -+ t(level, n - 1) * std / sqrt(n)``."""
    mean, std = mean_and_std(values)
    if std is None:
        return None, None
    half = t_quantile(level, len(values) - 1) * std / math.sqrt(len(values))
    return mean - half, mean + half


def t_quantile(level: float, freedom: int) -> float:
    """Return the t with ``P(|T| <= t) = level``, by bisection."""
    low, high = 0.0, 1.0
    while t_two_sided(high, freedom) > 1 - level:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if t_two_sided(middle, freedom) > 1 - level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_two_sided(t: float, freedom: int) -> float:
    """``P(|T| > t)`` for Student's t: the incomplete beta function I_x(n/2, 1/2), x = n/(n+t^2)."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, 1 - x) / b


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """A mean difference with its 95 % interval and p-value; `exact` if every split was counted."""

    mean: float
    low: float
    high: float
    p_value: float
    exact: bool


@lru_cache(maxsize=512)
def paired(differences: tuple[float, ...]) -> Paired:
    """Test whether the mean difference of two shares over problems is 0, by permutation.

    Under the null hypothesis each difference may change its sign. That mean `x` fits is as likely
    as a random split of the problems has `x` between the means of its two halves; the interval is
    every `x` with at least 5 %. So 0 is outside of it exactly when p < .05.
    """
    values: Numbers = np.asarray(differences, dtype=np.float64).round(12)
    if not values.any():
        return Paired(mean=0.0, low=0.0, high=0.0, p_value=1.0, exact=True)
    size, total, weight, exact = _splits(values)
    rest, others = values.size - size, values.sum() - total
    # a half without a problem has no mean: it bounds nothing
    empty = (size == 0) | (rest == 0)
    one = np.round(total, 9) / np.where(empty, 1, size)
    two = np.round(others, 9) / np.where(empty, 1, rest)
    low = np.where(empty, -1.0, np.minimum(one, two))
    high = np.where(empty, 1.0, np.maximum(one, two))
    whole = float(weight.sum())
    fits = float(weight[(low <= 0) & (high >= 0)].sum())
    return Paired(
        mean=math.fsum(differences) / len(differences), low=_edge(low, weight, whole),
        high=0.0 - _edge(-high, weight, whole), p_value=fits / whole, exact=exact,
    )  # fmt: skip


def _edge(ends: Numbers, weight: Numbers, whole: float) -> float:
    """Return the least end up to which at least 5 % of the splits reach."""
    order = np.argsort(ends)
    reached = np.cumsum(weight[order]) / whole >= ALPHA
    return float(ends[order][int(np.argmax(reached))]) + 0.0  # no -0.0


def _splits(values: Numbers) -> tuple[Numbers, Numbers, Numbers, bool]:
    """Return size and sum of one half of each split of the values, and the split's weight.

    Equal values are exchangeable, so few distinct ones are counted exactly; otherwise `SPLITS`
    random splits are taken, always the same ones, and the one that leaves all values together.
    """
    distinct, counts = np.unique(values, return_counts=True)
    if math.prod(int(count) + 1 for count in counts) <= MOST_WAYS:
        size, total, weight = np.zeros(1), np.zeros(1), np.ones(1)
        for value, count in zip(distinct, counts.tolist(), strict=True):
            taken = np.arange(count + 1)
            chance = np.array([math.comb(count, k) / 2**count for k in range(count + 1)])
            size = np.add.outer(size, taken).ravel()
            total = np.add.outer(total, taken * value).ravel()
            weight = np.outer(weight, chance).ravel()
        return size, total, weight, True
    taken = np.random.default_rng(0).integers(0, 2, (SPLITS, values.size)).astype(np.float64)
    taken[0] = 1.0
    return taken.sum(axis=1), taken @ values, np.ones(SPLITS), False
