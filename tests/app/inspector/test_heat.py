"""Shades and layout of tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.inspector.heat import heat
from app.inspector.layout import lay_out, token_texts
from app.text.safe_text import cell_len
from experiments.values import TokenRow

ROW = TokenRow(
    index=0, ids=(1, 2, 3), ends=(1, 2, 3), sampler=(-1.0,) * 3, old=(-1.0, -1.0, -1.0),
    reference=(), passes=((-1.0, -0.5, -2.0),), after=(), entropy=(0.0, 0.5, 1.0),
    advantages=(1.0,),
)  # fmt: skip


def test_change_is_shaded_by_the_largest_and_keeps_its_sign() -> None:
    # new − old: 0, +.5, −1, so shades 0, .5, −1
    assert heat("change", ROW, ()).shades == (0.0, 0.5, -1.0)


def test_entropy_is_unsigned_and_missing_numbers_have_no_shade() -> None:
    got = heat("entropy", ROW, ())
    assert (got.signed, got.shades) == (False, (0.0, 0.5, 1.0))
    assert heat("kl", ROW, ()).shades == (None, None, None)


@pytest.mark.parametrize("ends", [(1, 3, 3, 5)])
def test_tokens_are_cut_at_their_ends_even_empty_ones(ends: tuple[int, ...]) -> None:
    assert token_texts("abcde", ends) == ("a", "bc", "", "de")


@given(st.lists(st.text(max_size=12), max_size=20), st.integers(min_value=2, max_value=30))
def test_no_line_is_wider_than_its_room_and_every_token_has_a_place(
    tokens: list[str], width: int
) -> None:
    lines = lay_out(tokens, width)
    for line in lines:
        assert sum(cell_len(piece.text) for piece in line) <= width
    assert {piece.token for line in lines for piece in line} == set(range(len(tokens)))


def test_a_line_end_is_shown_and_breaks_the_line() -> None:
    lines = lay_out(["a\n", "b"], 10)
    assert ["".join(piece.text for piece in line) for line in lines] == ["a⏎", "b"]
