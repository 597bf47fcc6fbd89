"""The difference of two settings of a sweep, with intervals that hold for all settings at once.

A sweep is one array per setting: the share of right samples [R, P] of R seeds on the same P
problems. With one seed each, the paired permutation test of `paired` is used. With more, the mean
difference D has a t interval whose variance is V = b/R + b'/R' + i/P + e (1/R + 1/R')/P: seeds,
problems that suit one setting better, and single samples. Each interval has the level 1 - .05/m
for m comparisons (Bonferroni), so that all of them hold at once in 95 of 100 sweeps. The main
effect of a setting is the mean difference of the pairs that differ in it alone, with the same
variance for that mean.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from grpo_tui.experiments.compare.statistics import t_quantile, t_two_sided
from grpo_tui.experiments.compare.values import Effect

ALPHA = 0.05
PERMUTATION = "paired permutation test"
POWER = NormalDist().inv_cdf(0.8)
MORE = tuple(lead * 10**zeros for zeros in range(4) for lead in (1, 2, 3, 5, 7))
MORE_SEEDS, MORE_PROBLEMS = MORE[:11], MORE[5:]  # to 100, and from 10 to 7,000
SPLITS, BATCH = 10_000, 500  # random splits, and how many are in memory together
MAX_SPLITS = 1_000_000  # counted exactly

Numbers = npt.NDArray[np.float64]
Shares = Numbers  # [R, P]


@dataclass(frozen=True, slots=True)
class Spread:
    """Variances among runs that differ in the seed alone, pooled over the settings of a sweep.

    `runs` is the variance of a run's mean, `samples` that of one sample given its run and problem.
    """

    runs: float
    samples: float
    df: int  # degrees of freedom
    settings: int


def spread_of(sweep: Sequence[Shares]) -> Spread:
    """Pool the variances over the seeds of all settings; 0 if each has one seed."""
    df = sum(len(shares) - 1 for shares in sweep)
    pooled = max(1, df)
    runs = sum(float(((shares.mean(1) - shares.mean()) ** 2).sum()) for shares in sweep)
    residuals = [
        shares - shares.mean(1, keepdims=True) - shares.mean(0) + shares.mean() for shares in sweep
    ]
    samples = sum(float((part**2).sum()) for part in residuals) / max(1, sweep[0].shape[1] - 1)
    return Spread(runs / pooled, samples / pooled, df, len(sweep))


Pairs = Sequence[tuple[Shares, Shares]]


def _differences(pairs: Pairs) -> Numbers:
    """The difference at each problem, as the mean over the pairs."""
    mean: Numbers = np.array([left.mean(0) - right.mean(0) for left, right in pairs]).mean(0)
    return mean


def _variance(pairs: Pairs, spread: Spread) -> Callable[[int, int], tuple[float, float]]:
    """Return V and its degrees of freedom as a function of more seeds and more problems.

    With several pairs it is that of their mean: what seeds and samples add is divided by the pairs.
    A setting whose seeds differ more than the average of the sweep counts with its own variance.
    Two half problems, one won and one lost, keep the variance above 0 where no sample differs
    (Agresti and Min, 2005).
    """
    sides, count = [shares for pair in pairs for shares in pair], pairs[0][0].shape[1]
    weight, differences = 1 / len(pairs) ** 2, _differences(pairs)
    squares = float(((differences - differences.mean()) ** 2).sum()) + 1
    of_samples = weight * sum(spread.samples / len(shares) for shares in sides)
    of_problems = max(0.0, squares * count / ((count + 1) * (count + 2)) - of_samples)

    def of_seeds(shares: Shares) -> float:
        variance = float(shares.mean(1).var(ddof=1)) if len(shares) > 1 else 0.0
        return float(max(0.0, max(spread.runs, variance) - spread.samples / count))

    variances = [(of_seeds(shares), len(shares)) for shares in sides]

    def at(more_seeds: int, more_problems: int) -> tuple[float, float]:
        """The degrees of freedom are those of Satterthwaite's formula."""
        size = count + more_problems
        seeds = weight * sum(variance / (runs + more_seeds) for variance, runs in variances)
        samples = weight * sum(spread.samples / (runs + more_seeds) for _, runs in variances) / size
        problems = of_problems / size
        total = seeds + problems + samples
        loss = (problems + samples) ** 2 / (size - 1)
        if spread.df:
            df = spread.df + more_seeds * spread.settings
            loss += (seeds + samples) ** 2 / df
        free = max(1.0, total**2 / loss)
        # Rounded to few different values, since the quantile is cached.
        return total, math.floor(10 * free) / 10 if free < 20 else min(200, 10 * (free // 10))

    return at


def effect(left: Shares, right: Shares, spread: Spread, comparisons: int) -> Effect:
    """Return the difference of two settings, with p and interval corrected for the comparisons."""
    return mean_effect([(left, right)], spread, comparisons)


def mean_effect(pairs: Pairs, spread: Spread, comparisons: int) -> Effect:
    """Return the mean difference of pairs of settings, such as those that differ in one alone."""
    alpha = ALPHA / comparisons
    variance, differences = _variance(pairs, spread), _differences(pairs)
    if spread.df or not differences.any():
        # What rounding leaves of equal shares is no difference.
        difference = round(float(differences.mean()), 12) + 0.0
        total, df = variance(0, 0)
        half = t_quantile(1 - alpha, df) * math.sqrt(total)
        result = Effect(
            difference,
            max(-1.0, difference - half),
            min(1.0, difference + half),
            p_value=t_two_sided(abs(difference) / math.sqrt(total), df),
            method="t test over seeds and problems" if spread.df else PERMUTATION,
        )
    else:
        result = paired(tuple(differences.tolist()), alpha)
    corrected = replace(result, p_value=min(1.0, result.p_value * comparisons))
    if result.p_value < alpha:
        return corrected

    def is_significant(more_seeds: int, more_problems: int) -> bool:
        total, df = variance(more_seeds, more_problems)
        return abs(result.difference) >= (t_quantile(1 - alpha, df) + POWER) * math.sqrt(total)

    more = MORE_SEEDS if spread.df else ()
    return replace(
        corrected,
        more_seeds=next((n for n in more if is_significant(n, 0)), None),
        more_problems=next((n for n in MORE_PROBLEMS if is_significant(0, n)), None),
    )


# -- one seed each -----------------------------------------------------------------------------


@lru_cache(maxsize=512)
def paired(differences: tuple[float, ...], alpha: float = ALPHA) -> Effect:
    """Test whether the mean difference of two shares over problems is 0, by permutation.

    Under the null hypothesis each difference may change its sign. That mean `x` fits is as likely
    as a random split of the problems has `x` between the means of its two halves; the interval is
    every `x` with at least `alpha`. So 0 is outside of it exactly when p < alpha. With one answer
    to each problem this is McNemar's exact test.
    """
    values: Numbers = np.asarray(differences, dtype=np.float64).round(12)
    if not values.any():
        return Effect(0.0, 0.0, 0.0, 1.0, PERMUTATION)
    size, total, weight = _splits(values)
    second_size, second_total = values.size - size, values.sum() - total
    # An empty half has no mean and bounds nothing.
    empty = (size == 0) | (second_size == 0)
    first_mean = np.round(total, 9) / np.where(empty, 1, size)
    second_mean = np.round(second_total, 9) / np.where(empty, 1, second_size)
    low = np.where(empty, -1.0, np.minimum(first_mean, second_mean))
    high = np.where(empty, 1.0, np.maximum(first_mean, second_mean))
    total_weight = float(weight.sum())
    consistent = float(weight[(low <= 0) & (high >= 0)].sum())
    return Effect(
        difference=math.fsum(differences) / len(differences),
        low=_edge(low, weight, total_weight, alpha),
        high=0.0 - _edge(-high, weight, total_weight, alpha),
        p_value=consistent / total_weight,
        method=PERMUTATION,
    )


def _edge(ends: Numbers, weight: Numbers, total_weight: float, alpha: float) -> float:
    """Return the least end up to which at least `alpha` of the splits reach."""
    order = np.argsort(ends)
    reached = np.cumsum(weight[order]) / total_weight >= alpha
    return float(ends[order][np.argmax(reached)]) + 0.0  # no -0.0


def _splits(values: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return size and sum of one half of each split of the values, and the split's weight.

    Equal values are exchangeable, so few distinct ones are counted exactly; otherwise `SPLITS`
    random splits are taken, always the same ones, and the one that leaves all values together.
    """
    distinct, counts = np.unique(values, return_counts=True)
    if math.prod(int(count) + 1 for count in counts) <= MAX_SPLITS:
        size, total, weight = np.zeros(1), np.zeros(1), np.ones(1)
        for value, count in zip(distinct, counts.tolist(), strict=True):
            half = np.arange(count + 1)
            chance = np.array([math.comb(count, k) / 2**count for k in range(count + 1)])
            size = np.add.outer(size, half).ravel()
            total = np.add.outer(total, half * value).ravel()
            weight = np.outer(weight, chance).ravel()
        return size, total, weight
    random = np.random.default_rng(0)
    halves = [
        (half.sum(axis=1), half.astype(np.float64) @ values)
        for _ in range(SPLITS // BATCH)
        for half in [random.integers(0, 2, (BATCH, values.size), dtype=np.uint8)]
    ]
    size, total = (np.concatenate(parts).astype(np.float64) for parts in zip(*halves, strict=True))
    size[0], total[0] = values.size, values.sum()
    return size, total, np.ones(SPLITS)
