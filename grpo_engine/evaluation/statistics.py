"""Statistics of held-out samples: accuracy with its interval, unbiased pass@k, mean rewards."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import comb, nan, sqrt
from statistics import mean

import numpy as np

from grpo_engine.events import rewards_differ

Interval = tuple[float, float]
Count = tuple[int, int]  # right, and judged, samples of a problem
Z = 1.959964  # two-sided 95 %
DRAWS = 2000


def wilson(successes: int, trials: int) -> Interval:
    """Wilson's 95 % interval of a share; unlike p ± 1.96 s it stays within 0 and 1.

    ``(p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)``
    """
    share, z2n = successes / trials, Z * Z / trials
    middle = share + z2n / 2
    half = Z * sqrt(share * (1 - share) / trials + z2n / (4 * trials))
    # rounding must not push an end outside
    return max(0.0, (middle - half) / (1 + z2n)), min(1.0, (middle + half) / (1 + z2n))


def bootstrap(values: Sequence[float]) -> Interval:
    """95 % percentile interval of the mean of `values`, one value per problem.

    Resamples problems, not samples, because samples of one problem are not independent.
    """
    return bootstrap_ratio(values, [1] * len(values))


def bootstrap_ratio(counts: Sequence[float], totals: Sequence[float]) -> Interval:
    """95 % percentile interval of Σ counts / Σ totals, resampling problems; NaN for none."""
    size = len(counts)
    if size == 0:
        return nan, nan
    chosen = np.random.default_rng(0).integers(0, size, size=(DRAWS, size))
    sums, divisors = (
        np.asarray(row, dtype=np.float64)[chosen].sum(axis=1) for row in (counts, totals)
    )
    ratios = sums / np.maximum(divisors, 1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(high)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased probability that one of k samples is right: ``1 - C(n-c, k) / C(n, k)``."""
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def signal_at_k(rewards: Sequence[float], k: int) -> float:
    """Unbiased probability that k answers to a prompt do not all score the same, from n of them.

    ``1 - Σ_v C(n_v, k) / C(n, k)`` over the distinct scores v.
    """
    same: list[list[float]] = []
    for reward in sorted(rewards):
        if same and not rewards_differ((same[-1][0], reward)):
            same[-1].append(reward)
        else:
            same.append([reward])
    return 1.0 - sum(comb(len(equal), k) for equal in same) / comb(len(rewards), k)


def share_with_interval(counts: Sequence[Count]) -> tuple[float, Interval]:
    """Mean share of right samples over problems; Wilson interval for one each, else bootstrap."""
    share = float(mean(Fraction(right, samples) for right, samples in counts))  # rounded once
    if all(samples == 1 for _, samples in counts):
        return share, wilson(sum(right for right, _ in counts), len(counts))
    return share, bootstrap([right / samples for right, samples in counts])


def pass_at_ks(counts: Sequence[Count], largest: int) -> Mapping[str, float]:
    """pass@k for k = 2, 4, 8, ... and the `largest`, over the problems with as many samples."""
    ks = {largest, *(2**power for power in range(1, 11))}
    passed = {k: [pass_at_k(n, right, k) for right, n in counts if n >= k] for k in sorted(ks)}
    return {f"eval/pass@{k}": float(np.mean(row)) for k, row in passed.items() if k > 1 and row}
