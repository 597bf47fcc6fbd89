"""Moments: every clipped token in reading order, and the extreme token of each answer by value."""

import math

from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.app.inspector.measures import (
    Highlight,
    Measure,
    highlights_of,
    next_highlight,
)
from grpo_tui.experiments.values import RecordedTokens
from tests.app.inspector.kit import term


def row(index: int, *probabilities: float) -> RecordedTokens:
    old = tuple(math.log(p) for p in probabilities)
    return RecordedTokens(
        index=index,
        ids=tuple(range(len(old))),
        sampler=old,
        old=old,
    )


ROWS = (row(0, 0.5, 0.1), row(1, 0.9, 0.7))
TERMS = (
    (term(ratio=1.3, kl=0.02), term(side="free", kl=0.01)),
    (term(side="free", kl=0.3), term(ratio=0.7, side="low", kl=0.0)),
)


def places(measure: Measure) -> list[tuple[float, ...]]:
    return [
        (*one.cursor[2:], round(one.value, 6))
        for row, terms in zip(ROWS, TERMS, strict=True)
        for one in highlights_of(measure, (1, 0, row.index), row, terms)
    ]


def test_clipped_tokens_come_in_reading_order() -> None:
    assert places("clipped") == [(0, 0, 1.3), (1, 1, 0.7)]


def test_every_token_that_is_not_a_reply_has_a_kl() -> None:
    assert places("kl") == [(0, 0, 0.02), (0, 1, 0.01), (1, 0, 0.3), (1, 1, 0.0)]


@given(st.sets(st.tuples(*[st.integers(0, 3)] * 4)), st.tuples(*[st.integers(0, 3)] * 4))
def test_clipped_tokens_are_all_visited_once_going_forward_or_back(
    keys: set[tuple[int, ...]], here: tuple[int, ...]
) -> None:
    highlights = [Highlight(key, 1.0) for key in sorted(keys)]
    later = next_highlight(highlights, here, 1)
    assert (later and later.cursor) == min((key for key in keys if key > here), default=None)
    earlier = next_highlight(highlights, here, -1)
    assert (earlier and earlier.cursor) == max((key for key in keys if key < here), default=None)
