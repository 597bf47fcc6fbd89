"""Moments: every clipped token in reading order, and the extreme token of each answer by value."""

import math

from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.app.inspector.losses import Side, TokenLoss
from grpo_tui.app.inspector.measures import (
    MEASURES,
    Highlight,
    Measure,
    highlights_of,
    in_order,
    next_highlight,
)
from grpo_tui.experiments.values import TokenRow

TERM = TokenLoss(
    advantage=1.0, ratio=1.0, low=0.8, high=1.2, side="free",
    in_loss=True, updated=True, importance=1.0, on_policy=True, objective=0.0,
    anchor=0.0, kl=None, entropy=None, value_loss=0.0, bonus=0.0,
    contribution=0.0, push=0.0, pull=0.0,
)  # fmt: skip


def row(index: int, *probabilities: float) -> TokenRow:
    old = tuple(math.log(p) for p in probabilities)
    return TokenRow(
        index=index, ids=tuple(range(len(old))), ends=(), sampler=old, old=old, reference=(),
        passes=(), after=(), entropy=(), advantages=(),
    )  # fmt: skip


def term(ratio: float = 1.0, side: Side = "free", **more: float) -> TokenLoss:
    return TERM._replace(ratio=ratio, side=side, **more)  # type: ignore[arg-type]


ROWS = (row(0, 0.5, 0.1), row(1, 0.9, 0.7))
TERMS = (
    (term(1.3, "high", kl=0.02, contribution=-0.5), term(1.0, kl=0.01, contribution=0.1)),
    (term(1.1, kl=0.3), term(0.7, "low", kl=0.0, contribution=0.2)),
)


def places(measure: Measure) -> list[tuple[int, int, float]]:
    found = in_order(highlights_of(measure, 0, ROWS, TERMS), [0])
    return [(*one.cursor[1:], round(one.value, 6)) for one in found]


def test_clipped_tokens_come_in_reading_order() -> None:
    assert places("clipped") == [(0, 0, 1.3), (1, 1, 0.7)]


def test_others_are_the_extreme_of_each_answer_the_most_extreme_first() -> None:
    assert places("kl") == [(1, 0, 0.3), (0, 0, 0.02)]
    assert places("probability") == [(0, 1, 0.1), (1, 1, 0.7)]


def test_without_terms_only_probabilities_are_known() -> None:
    for measure in MEASURES:
        assert bool(highlights_of(measure, 0, ROWS, ())) == (measure == "probability")


@given(
    st.lists(st.tuples(*[st.integers(0, 3)] * 3), unique=True, max_size=12),
    st.permutations(range(4)),
    st.tuples(*[st.integers(0, 3)] * 3),
)
def test_clipped_tokens_are_all_visited_once_going_forward_or_back(
    keys: list[tuple[int, int, int]], groups: list[int], here: tuple[int, int, int]
) -> None:
    """An oracle: sort all tokens as they are listed and look for the neighbour of the cursor."""
    found = in_order([Highlight(key, 1.0, 0.0) for key in keys], groups)

    def listed(key: tuple[int, int, int]) -> tuple[int, int, int]:
        return groups.index(key[0]), key[1], key[2]

    later = sorted((key for key in keys if listed(key) > listed(here)), key=listed)
    place = next_highlight("clipped", found, groups, here, 1)
    one = found[place] if place is not None else None
    assert (one and one.cursor) == (later[0] if later else None)
    earlier = sorted((key for key in keys if listed(key) < listed(here)), key=listed)
    place = next_highlight("clipped", found, groups, here, -1)
    one = found[place] if place is not None else None
    assert (one and one.cursor) == (earlier[-1] if earlier else None)
