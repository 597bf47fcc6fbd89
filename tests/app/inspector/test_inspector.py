"""The inspector's words and numbers, checked by hand calculation."""

from dataclasses import replace

import pytest

from grpo_engine.config.custom import Custom
from grpo_engine.config.recipes import recipe
from grpo_engine.events import UpdateTotals
from grpo_tui.app.inspector.explain import arithmetic, explanation
from grpo_tui.app.inspector.losses import token_losses
from grpo_tui.experiments.values import RecordedTokens
from tests.app.inspector.kit import SIZES, TOTALS, term


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "better answer, already beyond 1.2: clipped, no push"),
        ({"side": "low", "advantage": -0.7, "ratio": 0.5}, "worse answer, already below .8"),
        ({"side": "free", "ratio": 1.0}, "pushed up; ratio is 1 by construction"),
        ({"side": "free", "ratio": 1.4, "advantage": -1.0}, "pushed down until its ratio is .8"),
        ({"side": "free", "ratio": 1.1}, "better answer: pushed up until its ratio is 1.2"),
        ({"advantage": 0.0, "side": "free"}, "no push"),
        ({"updated": False, "on_policy": False}, "left out: the trainer's probability is too far"),
    ],
)
def test_why_says_side_and_bound(changes: dict[str, object], words: str) -> None:
    assert words in explanation(term(**changes), recipe("grpo"), first_pass=True)


def test_an_answer_without_a_push_scored_the_mean_or_got_no_score() -> None:
    for scored, reason in ((True, "scored the mean of its group"), (False, "got no score")):
        token = term(advantage=0.0, side="free")
        text = explanation(token, recipe("grpo"), first_pass=True, scored=scored)
        assert text == f"no push: its answer {reason}"


def test_a_signal_of_the_users_own_is_not_said_to_subtract_the_mean() -> None:
    own = replace(recipe("grpo"), signal=Custom("signals.py:median"))
    words = explanation(term(advantage=0.0, side="free"), own, first_pass=True)
    assert words == "no push: signals.py:median gave it the advantage 0"


@pytest.mark.parametrize("name", ["sapo", "vespo"])
def test_a_smooth_gate_is_neither_a_bound_nor_full_strength(name: str) -> None:
    said = explanation(term(ratio=0.7, side="free"), recipe(name), first_pass=False)
    assert said == f"better answer: pushed up by {name}, gradient +1.21"


def test_rewards_and_a_teacher_are_written_out_side_by_side() -> None:
    # A = +1.21 = 1.50 by rewards - .29 by the teacher; 1.2 x 1.21 / 192 = .00756
    both, plain = term(teacher_part=-0.29, high=1.5), recipe("grpo", beta=0.0, teacher_weight=0.1)
    assert both.reward_part == pytest.approx(1.5)
    text = arithmetic(both, plain, TOTALS, **SIZES)
    assert text == (
        "1.2 × (+1.5 by rewards − .29 by the teacher) ÷ 24 tokens ÷ 8 answers = +.00756"
    )
    alone = term(teacher_part=1.21)
    assert alone.reward_part == 0
    text = arithmetic(alone, recipe("distill", minibatches=1), TOTALS, **SIZES)
    assert text.startswith("1.2 × +1.21 ÷ ")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"teacher_part": 1.21}, "a token likelier to the teacher: pushed up"),
        ({"teacher_part": -0.29}, "better answer, a token less likely to the teacher: pushed up"),
        (
            {"advantage": -1.0, "teacher_part": -2.0, "push": -1.0},
            "better answer, a token less likely to the teacher: pushed down",
        ),
        ({"advantage": 0.0}, "no push: the teacher finds it as likely"),
    ],
)
def test_a_teacher_is_in_the_reason(changes: dict[str, object], words: str) -> None:
    token = term(**({"side": "free", "ratio": 1.0} | changes))
    assert explanation(token, recipe("distill"), first_pass=False).startswith(words)


def test_the_teachers_part_of_an_advantage_is_weighted_and_both_parts_add_up() -> None:
    # .5 x (-1 + 2) = .5 and .5 x (-3 + 1) = -1; with +.75 by rewards 1.25 and -.25
    row = RecordedTokens(
        index=0,
        ids=(1, 2),
        sampler=(-2.0, -1.0),
        old=(-2.0, -1.0),
        teacher=(-1.0, -3.0),
        passes=((-2.0, -1.0),),
        advantages=(1.25, -0.25),
        updates=(UpdateTotals(rows=1, tokens=2),),
    )
    how = recipe("dr-grpo", teacher_weight=0.5, weight="per_token")
    ((first, second),) = token_losses([row], how, max_length=8, step=1)
    assert [first.teacher_part, second.teacher_part] == pytest.approx([0.5, -1.0])
    assert [first.reward_part, second.reward_part] == pytest.approx([0.75, 0.75])
    parts = sum((token.reward_part + token.teacher_part) / 2 for token in (first, second))
    assert parts == pytest.approx(first.contribution + second.contribution)
