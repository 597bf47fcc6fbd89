"""Every sentence about a token and every way to write out its term, word by word."""

import pytest

from grpo_engine.config.recipes import Recipe, recipe
from grpo_engine.events import UpdateTotals
from grpo_tui.app.inspector.explain import ROUNDING, arithmetic, explanation, gradient_sum
from tests.app.inspector.kit import SIZES, TOTALS, term

GRPO = recipe("grpo", beta=0.0)


def test_a_ratio_of_1_is_by_construction_in_the_first_pass_alone() -> None:
    one = term(side="free", ratio=1.0)
    assert (
        explanation(one, GRPO, first_pass=False)
        == "better answer: pushed up until its ratio is 1.2"
    )
    # float32 rounds a log-probability of -16 to about 1e-6, so ratios 5e-6 apart are the same
    for ratio in (1 - 5e-6, 1 + 5e-6):
        near = term(side="free", ratio=ratio)
        assert explanation(near, GRPO, first_pass=True).endswith("ratio is 1 by construction")
        assert (
            explanation(near, GRPO, first_pass=False)
            == "better answer: pushed up until its ratio is 1.2"
        )
    at_edge = term(side="free", ratio=1 - ROUNDING)
    assert (
        explanation(at_edge, GRPO, first_pass=False)
        == "better answer: pushed up until its ratio is 1.2"
    )
    at_edge = term(side="free", ratio=1 + ROUNDING, advantage=-1.0)
    assert (
        explanation(at_edge, GRPO, first_pass=False)
        == "worse answer: pushed down until its ratio is .8"
    )


# 1.2 x 1.21 = 1.452
@pytest.mark.parametrize(
    ("changes", "how", "text"),
    [
        ({"in_loss": False}, GRPO, "0: not in the loss"),
        # 1.452 / 192 = .0075625
        ({}, GRPO, "1.2 × +1.21 ÷ 24 tokens ÷ 8 answers = +.00756"),
        # 1.452 / 50 / 4 = .00726
        (
            {"contribution": 0.00726},
            recipe("bnpo"),
            "1.2 × +1.21 ÷ 50 tokens of its micro-batch ÷ 4 micro-batches = +.00726",
        ),
        (
            {"advantage": -1.0, "objective": -0.7, "contribution": -0.7},
            recipe("how-much"),
            ".7 × −1 = −.7000",
        ),
        # left out by the sampler's weight
        (
            {"importance": 0.0, "on_policy": False, "updated": False, "contribution": 0.0},
            GRPO,
            "0 ÷ 24 tokens ÷ 8 answers = 0",
        ),
        # (1.452 - .3 x .25) / 192 = .0071719
        (
            {"anchor": 0.25, "contribution": 0.0071719},
            recipe("grpo", beta=0.3),
            "(1.2 × +1.21 − .3 × .2500) ÷ 24 tokens ÷ 8 answers = +.00717",
        ),
        # (1.452 - .1 x .5) / 200 = .00701
        (
            {"value_loss": 0.5, "contribution": 0.00701},
            recipe("ppo"),
            "(1.2 × +1.21 − .1 × .5000 critic) ÷ 200 tokens of the step = +.00701",
        ),
        (
            {"importance": 0.9, "contribution": 0.0068063},
            recipe("grpo", importance_cap=2.0),
            "1.2 × +1.21 × .9 for the sampler ÷ 24 tokens ÷ 8 answers = +.00681",
        ),
        # .0075625 + .01 x 2.25 / 200 = .007675
        (
            {"entropy": 2.25, "bonus": 0.0001125, "contribution": 0.007675},
            GRPO,
            "1.2 × +1.21 ÷ 24 tokens ÷ 8 answers + .01 × 2.25 entropy ÷ 200 tokens = +.00768",
        ),
    ],
)
def test_each_part_of_a_term_is_written_out(
    changes: dict[str, object], how: Recipe, text: str
) -> None:
    bonus = UpdateTotals(rows=8, tokens=200, batch_tokens=50, micro_batches=4, entropy_bonus=0.01)
    assert arithmetic(term(**changes), how, bonus, **SIZES) == text


def test_the_weight_for_the_sampler_is_not_written_beside_a_push_that_contains_it() -> None:
    one, vespo = term(importance=0.9), recipe("vespo", importance_cap=2.0)
    assert "sampler" in arithmetic(one, recipe("grpo", importance_cap=2.0), TOTALS, **SIZES)
    assert "sampler" not in arithmetic(one, vespo, TOTALS, **SIZES)


def test_the_bonus_is_divided_by_the_tokens_that_are_pushed() -> None:
    top = UpdateTotals(rows=8, tokens=200, updated_tokens=40, entropy_bonus=1.5)
    one = term(entropy=1.0, bonus=0.0375, contribution=0.0075625 + 0.0375)
    text = arithmetic(one, GRPO, top, **SIZES)
    assert text.endswith(" ÷ 8 answers + 1.5 × 1 entropy ÷ 40 tokens = +.0451")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "+1"),
        (0.99996, "+1"),
        (12.34, "+12.3"),
        (0.9, "+.9000"),
        (0.00005, "+5.00e−5"),
        (0.001234, "+.00123"),
        (-0.0000664, "−6.64e−5"),
        (0.00004, "+4.00e−5"),
        (-0.00004, "−4.00e−5"),
        (float("nan"), "NaN"),
    ],
)
def test_a_term_has_three_digits_or_more(value: float, text: str) -> None:
    told = arithmetic(term(contribution=value), GRPO, TOTALS, **SIZES)
    assert told == f"1.2 × +1.21 ÷ 24 tokens ÷ 8 answers = {text}"


def test_the_slope_is_written_as_a_sum_where_kl_pulls() -> None:
    assert gradient_sum(term(push=0.0076)) == "+.00760 by the advantage"
    assert gradient_sum(term(push=0.0076, pull=-0.0091)) == (
        "+.00760 by the advantage − .00910 by KL = −.00150"
    )
    assert gradient_sum(term(push=0.0, pull=0.0091)) == (
        "0 by the advantage + .00910 by KL = +.00910"
    )
