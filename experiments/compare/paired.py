"""The paired test of two settings: p-value and interval from one permutation test."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

ALPHA = 0.05
SPLITS, AT_A_TIME = 10_000, 500  # random splits, and how many are in memory together
MOST_WAYS = 1_000_000

Numbers = npt.NDArray[np.float64]


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
    random = np.random.default_rng(0)
    drawn = [
        (taken.sum(axis=1), taken.astype(np.float64) @ values)
        for _ in range(SPLITS // AT_A_TIME)
        for taken in [random.integers(0, 2, (AT_A_TIME, values.size), dtype=np.uint8)]
    ]
    size, total = (np.concatenate(parts).astype(np.float64) for parts in zip(*drawn, strict=True))
    size[0], total[0] = values.size, values.sum()
    return size, total, np.ones(SPLITS), False
