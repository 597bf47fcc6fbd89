"""What a screen shows where there is little space, and what it does with much of it."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.app.tui.screens.priorities import Part, shared_lines
from grpo_tui.app.tui.screens.watch.state import fair_limit, layout_of, parts_of

PARTS = (
    Part("first", 2, 4, title=0),
    Part("second", 5),
    Part("third", 3, 8),
    Part("last", 4, 6),
)


@pytest.mark.parametrize(
    ("space", "focused", "lines"),
    [
        (30, "", (4, 12, 8, 6)),  # the second can use any number
        (14, "", (2, 5, 3, 4)),  # each has just what it needs
        (13, "", (4, 5, 3, 1)),  # the last keeps its title
        (13, "last", (2, 5, 1, 5)),  # and opens where the focus is, in place of the third
        (8, "", (5, 1, 1, 1)),
        (2, "", (0, 1, 1, 0)),
    ],
)
def test_what_is_cut_first_is_last_in_the_list(
    space: int, focused: str, lines: tuple[int, ...]
) -> None:
    shared = shared_lines(PARTS, space, focused)
    assert tuple(shared[part.name] for part in PARTS) == lines


@given(space=st.integers(0, 80), focused=st.sampled_from(["", *(part.name for part in PARTS)]))
def test_no_line_is_lost_or_given_twice(space: int, focused: str) -> None:
    assert sum(shared_lines(PARTS, space, focused).values()) == space


@given(width=st.integers(60, 220), height=st.integers(13, 70), answers=st.integers(1, 16))
def test_watch_cuts_nothing_that_answers_a_question_before_what_answers_a_lesser_one(
    width: int, height: int, answers: int
) -> None:
    layout = layout_of(width, height, answers=answers, groups=8, cells=26)
    assert sum(layout.rows) + layout.sentences == height
    assert layout.sentences >= 2
    parts = parts_of(width, height, answers, 8)
    tops = [0, *accumulate(layout.rows)]
    names, column = {}, 0
    grid = {}
    for name in ("curves", "answers", "groups", "alerts"):
        columns, rows = layout.spans.get(name, (1, 1))
        at = next(i for i in range(12) if i not in grid)
        row, column = divmod(at, len(layout.columns))
        for y in range(row, row + rows):
            for x in range(column, column + columns):
                grid[y * len(layout.columns) + x] = name
        names[name] = tops[row + rows] - tops[row]
    opened = [names[part.name] >= part.minimum for part in parts[1:]]
    assert all(more or not less for more, less in pairwise(opened)), names


@pytest.mark.parametrize(
    ("needed", "space", "limit"),
    [([1, 1, 9], 20, 20), ([1, 6, 9], 11, 5), ([3, 3], 1, 1), ([], 4, 4)],
)
def test_long_answers_are_cut_to_the_same_lines(needed: list[int], space: int, limit: int) -> None:
    assert fair_limit(needed, space) == limit
