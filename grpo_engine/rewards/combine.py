"""Combines the scores of several functions into one list of steps per completion."""

from collections.abc import Sequence

Column = Sequence[float | None]
StepColumn = Sequence[Sequence[tuple[int, float]] | None]


def process_steps(
    values: Sequence[Column],
    steps: Sequence[StepColumn],
    weights: Sequence[float],
    lengths: Sequence[int],
) -> list[list[tuple[int, float]]]:
    """All weighted steps of each completion, sorted by their end.

    A score of the whole completion is one step that ends on its last character.
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
