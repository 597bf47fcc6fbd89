"""Measures the speed of matrix products in this process."""

from dataclasses import dataclass
from statistics import fmean
from time import perf_counter
from typing import Final

SQUARE: Final = (1024, 1024, 1024)
SKINNY: Final = (8, 576, 1536)
"""One decode step of eight rows through a projection of a 135 M model."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Mean time and throughput of a float32 product (m, k) x (k, n)."""

    shape: tuple[int, int, int]
    milliseconds: float
    gflops: float
    """2 m k n / time."""


def measure(shape: tuple[int, int, int], seconds: float = 0.4) -> Speed:
    """Time float32 `mx.matmul` on the default device for about `seconds`."""
    import mlx.core as mx

    m, k, n = shape
    left, right = mx.random.normal((m, k)), mx.random.normal((k, n))
    mx.eval(left, right, left @ right)
    times: list[float] = []
    end = perf_counter() + seconds
    while len(times) < 3 or perf_counter() < end:
        start = perf_counter()
        mx.eval(left @ right)
        times.append(perf_counter() - start)
    typical = fmean(times)  # not the median: occasional stalls are what slows a run
    return Speed(shape, typical * 1e3, 2 * m * k * n / typical / 1e9)
