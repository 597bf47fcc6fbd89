"""Counts and lists in sentences."""

from collections.abc import Sequence


def count_of(count: int, noun: str) -> str:
    """Count things: `1 run`, `2 runs`, `1,200 steps`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def first_of(names: Sequence[str], limit: int) -> str:
    """List the first names, and how many others there are: `a, b and 3 more`."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def step_of(step: int, total: int | None) -> str:
    """How far a run is; the steps of another trainer's run may not be known."""
    return f"step {step} of {total}" if total else f"step {step}"
