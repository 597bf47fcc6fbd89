"""How tests wait: for a condition, never for a time, and far longer than an idle machine needs."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 120.0  # seconds after which what is awaited will not come, on the busiest machine


def until(holds: Callable[[], T], told: Callable[[], object] = str) -> T:
    """Give what `holds` gives once that is true; where it stays false, fail with what is told."""
    end = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < end, f"waited in vain: {told()}"
        time.sleep(0.01)
    return found
