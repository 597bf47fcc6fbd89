"""Shades and layout of tokens."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.events import Span
from grpo_tui.app.inspector.layout import lay_out
from grpo_tui.app.inspector.losses import TokenLoss
from grpo_tui.app.inspector.measures import (
    MIN_SHADE,
    HeatMode,
    Values,
    shades,
    values_of,
)
from grpo_tui.app.text.safe_text import cell_len, safe, wrap
from grpo_tui.experiments.values import RecordedTokens
from tests.app.inspector.kit import term

ROW = RecordedTokens(
    index=0,
    ids=(1, 2, 3),
    ends=(1, 2, 3),
    sampler=(-1.0,) * 3,
    old=(-1.0, -1.0, -1.0),
    reference=(),
    passes=((-1.0, -0.5, -2.0),),
    after=(),
    entropy=(0.0, 0.5, 1.0),
    advantages=(1.0,),
)


def alone(mode: HeatMode, row: RecordedTokens, terms: tuple[TokenLoss, ...]) -> Values:
    """The shades of a group's only answer."""
    return shades(mode, [values_of(mode, row, terms)])[0]


def test_change_is_shaded_by_the_largest_and_keeps_its_sign() -> None:
    # new − old: 0, +.5, −1, so shades 0, .5, −1
    assert alone("change", ROW, ()) == (0.0, 0.5, -1.0)


def test_entropy_is_unsigned_and_missing_numbers_have_no_shade() -> None:
    assert alone("entropy", ROW, ()) == (0.0, 0.5, 1.0)
    assert alone("kl", ROW, ()) == (None, None, None)


@given(st.lists(st.text(max_size=12), max_size=20), st.integers(min_value=2, max_value=30))
def test_no_line_is_wider_than_its_room_and_every_token_has_a_place(
    tokens: list[str], width: int
) -> None:
    lines = lay_out(tokens, width)
    for line in lines:
        assert sum(cell_len(piece.text) for piece in line) <= width
    assert {piece.token for line in lines for piece in line} == set(range(len(tokens)))


@pytest.mark.parametrize("width", range(10, 40))
def test_no_line_ends_inside_a_tag(width: int) -> None:
    tokens = [
        "so",
        " it",
        " is",
        " 4",
        "2</",
        "think",
        ">",
        "<",
        "answer",
        ">",
        "42",
        "</",
        "answer",
        ">",
    ]
    lines = ["".join(piece.text for piece in line) for line in lay_out(tokens, width)]
    assert "".join(lines) == "".join(tokens)
    text = wrap("so it is</think><answer>17+25=42</answer>", width, 9)
    assert "".join(text).replace(" ", "") == "soitis</think><answer>17+25=42</answer>"
    for line in (*lines, *text):
        assert line.count("<") == line.count(">")


def test_a_push_is_the_slope_with_the_kl_terms_share() -> None:
    # 2 - .5 = 1.5, -1 - .25 = -1.25, and 0 for a token that is left out; .15 is the least shade
    terms = (term(push=2.0, pull=-0.5), term(push=-1.0, pull=-0.25), term(push=0.0))
    assert values_of("push", ROW, terms) == (1.5, -1.25, 0.0)
    pushes, other = shades("push", [(1.5, -1.25, 0.0), (3.0, None)])
    assert pushes == pytest.approx((0.15 + 0.85 / 2, -0.15 - 0.85 * 1.25 / 3, 0.0))
    assert other == (1.0, None)
    assert alone("push", ROW, terms[:1]) == (1.0, None, None)
    assert alone("push", ROW, ()) == (None,) * 3
    assert MIN_SHADE == 0.15


def test_a_group_without_push_or_change_has_no_shades() -> None:
    # With a weight of 1/500 an advantage of 1 pushes by .002, and one of .0001 by 2e-7: that is
    # nothing beside it. A push by the KL penalty of 4e-7 is one of .0002, and is shown.
    rounding = tuple(term(push=0.0, pull=1e-8, weight=0.002) for _ in range(3))
    assert alone("push", ROW, rounding) == (0.0,) * 3
    kl = term(push=0.0, pull=4e-7, weight=0.002)
    assert alone("push", ROW, (kl, *rounding[1:])) == (1.0, 0.0, 0.0)
    assert shades("change", [(2e-7, -4e-7), (None, 0.0)]) == ((0.0, 0.0), (None, 0.0))
    assert shades("kl", [(2e-6, 1e-6)]) == ((1.0, 0.0),)


def test_one_scale_is_for_all_answers_of_a_group() -> None:
    other = replace(ROW, entropy=(0.25, 4.0, math.nan), passes=((-1.0, -1.0, -1.0),))
    terms = ((term(push=-1.0),) * 3, (term(push=0.5, pull=-4.0, kl=math.inf),) * 3)

    def largest(mode: HeatMode, *answers: Values) -> float:
        """What the full shade stands for: a value over its shade."""
        pairs = zip(answers, shades(mode, answers), strict=True)
        return next(
            abs(value)
            for values, scaled in pairs
            for value, shade in zip(values, scaled, strict=True)
            if value and abs(shade or 0) == 1
        )

    expected: dict[HeatMode, float] = {
        "push": 3.5,
        "change": 1.0,
        "kl": 0.1,
        "entropy": 4.0,
        "clip": 1.0,
    }
    for mode, full in expected.items():
        answers = [
            values_of(mode, row, found) for row, found in zip((ROW, other), terms, strict=True)
        ]
        assert largest(mode, *answers) == full
    assert shades("push", [(None,), (0.0,)]) == ((None,), (0.0,))
    # the replies of an environment do not count
    reply = (
        Span(start=0, length=1, kind="model", turn=0),
        Span(start=1, length=2, kind="environment", turn=0),
    )
    assert values_of("entropy", replace(other, spans=reply), ()) == (0.25, None, None)


def test_clip_has_a_side_and_kl_a_size() -> None:
    terms = tuple(
        term(side=side, kl=kl)
        for side, kl in (("high", 0.2), ("low", 0.4), ("ceiling", None), ("free", math.inf))
    )
    four = replace(ROW, ids=(1, 2, 3, 4), old=(-1.0,) * 4, passes=())
    assert alone("clip", four, terms) == (1.0, -1.0, -1.0, 0.0)
    assert alone("kl", four, terms) == (0.5, 1.0, None, None)
    assert alone("clip", ROW, (terms[3],) * 3) == (0.0,) * 3


def test_a_change_is_to_the_newest_numbers() -> None:
    after = replace(ROW, after=(-1.0, -1.0, 0.0))
    assert values_of("change", after, ()) == (0.0, 0.0, 1.0)
    twice = replace(ROW, passes=((-9.0,) * 3, (-3.0, -1.0, -1.0)))
    assert values_of("change", twice, ()) == (-2.0, 0.0, 0.0)
    assert alone("change", replace(ROW, passes=()), ()) == (0.0,) * 3


def pieces(tokens: list[str], width: int) -> list[list[tuple[int, str, int]]]:
    return [[(p.token, p.text, p.cells) for p in line] for line in lay_out(tokens, width)]


def test_tokens_fill_lines_to_the_last_cell() -> None:
    assert pieces(["ab", "cd", "e"], 4) == [[(0, "ab", 2), (1, "cd", 2)], [(2, "e", 1)]]
    assert pieces(["abcdef"], 4) == [[(0, "abcd", 4)], [(0, "ef", 2)]]
    assert pieces(["漢字漢"], 4) == [[(0, "漢字", 4)], [(0, "漢", 2)]]
    assert pieces(["abcd", ""], 4) == [[(0, "abcd", 4)], [(1, "▪", 1)]]
    assert pieces(["漢"], 1) == [[], [(0, "漢", 2)]]


def test_the_sign_of_the_end_is_behind_a_word_if_both_fit() -> None:
    assert pieces(["ab", "cd", ""], 4) == [[(0, "ab", 2)], [(1, "cd", 2), (2, "▪", 1)]]
    lines = ["".join(p.text for p in line) for line in lay_out(["42", "</", "s", ">", ""], 6)]
    assert lines == ["42", "</s>▪"]
    lines = ["".join(p.text for p in line) for line in lay_out(["42", "</", "s", ">", ""], 7)]
    assert lines == ["42</s>▪"]


def test_line_ends_empty_tokens_and_control_characters_are_visible() -> None:
    assert pieces(["a\nb", ""], 9) == [[(0, "a⏎", 2)], [(0, "b", 1), (1, "▪", 1)]]
    assert pieces(["a\r\nb\n", "c"], 9) == [[(0, "a⏎", 2)], [(0, "b⏎", 2)], [(1, "c", 1)]]
    assert pieces(["", "x"], 9) == [[(0, "▪", 1), (1, "x", 1)]]
    assert pieces(["\x1b"], 9) == [[(0, safe("\x1b"), cell_len(safe("\x1b")))]]


def test_a_number_of_several_tokens_is_not_divided_if_it_fits() -> None:
    tokens = ("ab", "cd", "5", "8", "7", "</s>")
    lines = ["".join(piece.text for piece in line) for line in lay_out(tokens, 6)]
    assert lines == ["abcd", "587", "</s>"]
    lines = ["".join(piece.text for piece in line) for line in lay_out(tuple("abc1234567"), 6)]
    assert lines == ["abc123", "4567"]
