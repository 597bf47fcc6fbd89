"""From the scores of several functions to one reward, or one list of steps, per completion."""

from collections.abc import Sequence

Column = Sequence[float | None]
StepColumn = Sequence[Sequence[tuple[int, float]] | None]


def total(values: Sequence[Column], weights: Sequence[float]) -> list[float | None]:
    """r_i = Σ_f w_f r_fi over the functions that apply; None where none does."""
    rewards: list[float | None] = []
    for row in zip(*values, strict=True):
        parts = [w * value for w, value in zip(weights, row, strict=True) if value is not None]
        rewards.append(sum(parts) if parts else None)
    return rewards


def process_steps(
    values: Sequence[Column],
    steps: Sequence[StepColumn],
    weights: Sequence[float],
    lengths: Sequence[int],
) -> list[list[tuple[int, float]]]:
    """All weighted steps of each completion, by their end.

    A function that scores the whole completion is one step that ends on its last character.
    """
    rows: list[list[tuple[int, float]]] = []
    for row, length in enumerate(lengths):
        found: list[tuple[int, float]] = []
        for column, step_column, weight in zip(values, steps, weights, strict=True):
            own = step_column[row]
            value = column[row]
            if own is not None:
                found += [(min(end, length), weight * score) for end, score in own]
            elif value is not None:
                found.append((length, weight * value))
        rows.append(sorted(found))
    return rows
