"""The inspector's words and numbers, redone by hand."""

import math

import pytest

from app.inspector.values import TokenTerm, UpdateTotals
from app.inspector.words import number, signed, why, written_out
from grpo_engine.recipes import recipe

TOTALS = UpdateTotals(rows=8, tokens=200, max_length=64)


def term(**changes: object) -> TokenTerm:
    base: dict[str, object] = {
        "advantage": 1.21, "new": math.log(0.046), "old": math.log(0.034),
        "reference": math.log(0.021), "ratio": 1.35, "low": 0.8, "high": 1.2, "side": "high",
        "clamped": False, "updated": True, "objective": 1.2 * 1.21, "weight": 1 / 24 / 8,
        "anchor": 0.0, "kl": 0.1, "target": None, "contribution": 1.2 * 1.21 / 24 / 8,
    }  # fmt: skip
    return TokenTerm(**(base | changes))  # type: ignore[arg-type]  # fields are checked by use


def test_a_clipped_token_is_written_out_as_arithmetic() -> None:
    # 1.2 x 1.21 / 24 / 8 = 1.452 / 192 = .00756
    text = written_out(term(), recipe("grpo", anchor="none", beta=0.0), TOTALS, length=24)
    assert text == "1.20 × +1.21 ÷ 24 tokens ÷ 8 answers = +.0076"


def test_the_anchor_is_in_the_arithmetic_where_it_is_in_the_loss() -> None:
    # (1.452 - .04 x .5) / 192 = .00746
    one = term(anchor=0.5, contribution=(1.452 - 0.02) / 192)
    text = written_out(one, recipe("grpo"), TOTALS, length=24)
    assert text == "(1.20 × +1.21 − .04 × .5000) ÷ 24 tokens ÷ 8 answers = +.0075"


@pytest.mark.parametrize(
    ("name", "divisors"),
    [
        ("dapo", "÷ 200 tokens of the step"),
        ("dr-grpo", "÷ 64 tokens at most ÷ 8 answers"),
        ("off-policy", "÷ 8 answers"),
    ],
)
def test_each_weight_has_its_own_divisors(name: str, divisors: str) -> None:
    assert f" {divisors} = " in written_out(term(), recipe(name), TOTALS, length=24)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "better answer, already beyond 1.20: the push stops here"),
        ({"side": "low", "advantage": -0.7, "ratio": 0.5}, "worse answer, already below .80"),
        ({"side": "free", "ratio": 1.0}, "pushed up; ratio is 1 by construction"),
        ({"side": "free", "ratio": 0.9}, "became less likely: pushed up in full"),
        ({"side": "free", "ratio": 1.4, "advantage": -1.0}, "pushed down in full, no bound"),
        ({"side": "free", "ratio": 1.1}, "better answer: pushed up, may go to 1.20"),
        ({"advantage": 0.0, "side": "free"}, "no push"),
        ({"updated": False}, "left out of the loss"),
    ],
)
def test_why_says_side_and_bound(changes: dict[str, object], words: str) -> None:
    assert words in why(term(**changes), recipe("grpo"), first_pass=True)


def test_numbers_are_short() -> None:
    assert [number(x) for x in (0.034, 1.35, -0.5, 3e-5, 0.0, math.nan)] == [
        ".03", "1.35", "-.50", "3.0e-5", ".00", "NaN",
    ]  # fmt: skip
    assert [signed(x) for x in (1.2, -0.69, 0.0)] == ["+1.20", "−.69", ".00"]
