"""How tests wait: for a condition, not for a time, and far longer than an idle machine needs."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 120.0  # seconds; longer than any wait on the busiest machine


def until(holds: Callable[[], T], told: Callable[[], object] = str) -> T:
    """Return what `holds` returns once it is true; on timeout, fail with the text of `told`."""
    end = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < end, f"waited in vain: {told()}"
        time.sleep(0.01)
    return found
