"""The inspector's words and numbers, checked by hand calculation."""

import math
from dataclasses import replace

import pytest

from grpo_engine.config.recipes import recipe
from grpo_engine.events import UpdateTotals
from grpo_tui.app.inspector.explain import arithmetic, explanation
from grpo_tui.app.inspector.losses import TokenLoss, token_losses
from grpo_tui.experiments.values import TokenRow, TokenView

TOTALS = UpdateTotals(rows=8, tokens=200, batch_tokens=50, micro_batches=4)
SIZES = {"length": 24, "max_length": 64}


def term(**changes: object) -> TokenLoss:
    base: dict[str, object] = {
        "advantage": 1.21, "ratio": 1.35, "low": 0.8, "high": 1.2, "side": "high",
        "in_loss": True, "updated": True, "importance": 1.0, "on_policy": True,
        "objective": 1.2 * 1.21,
        "anchor": 0.0, "kl": 0.1, "entropy": None, "value_loss": 0.0,
        "bonus": 0.0, "contribution": 1.2 * 1.21 / 24 / 8,
    }  # fmt: skip
    all_of = base | changes
    free = (
        all_of["side"] == "free" and all_of["in_loss"] and all_of["updated"] and all_of["on_policy"]
    )
    gradients = {"push": float(str(all_of["advantage"])) if free else 0.0, "pull": 0.0}
    return TokenLoss(**(gradients | all_of))  # type: ignore[arg-type]  # fields are checked by use


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "better answer, already beyond 1.2: clipped, no push"),
        ({"side": "low", "advantage": -0.7, "ratio": 0.5}, "worse answer, already below .8"),
        ({"side": "free", "ratio": 1.0}, "pushed up; ratio is 1 by construction"),
        ({"side": "free", "ratio": 0.9}, "became less likely: pushed up at full strength"),
        (
            {"side": "free", "ratio": 1.4, "advantage": -1.0},
            "pushed down at full strength, no bound",
        ),
        ({"side": "free", "ratio": 1.1}, "better answer: pushed up, up to ratio 1.2"),
        ({"advantage": 0.0, "side": "free"}, "no push"),
        (
            {"updated": False, "on_policy": False, "importance": 0.0},
            "left out: trainer and sampler differ about its answer by a ratio outside 0 to 3",
        ),
        (
            {"updated": False, "on_policy": False, "importance": 0.9},
            "left out: a worse answer, more than 0.1 nats per token away from the sampler",
        ),
    ],
)
def test_why_says_side_and_bound(changes: dict[str, object], words: str) -> None:
    corrected = recipe(
        "grpo", importance_cap=3.0, importance_mode="sequence_mask", off_policy_mask=0.1
    )
    assert words in explanation(term(**changes), corrected, first_pass=True)


@pytest.mark.parametrize(
    ("name", "of"), [("sapo", "its ratio"), ("vespo", "the ratio of its answer")]
)
def test_a_smooth_gate_is_neither_a_bound_nor_full_strength(name: str, of: str) -> None:
    said = explanation(term(ratio=0.7, side="free"), recipe(name), first_pass=False)
    assert said == f"better answer: pushed up by a smooth function of {of}"


def row(index: int, old: float, new: float, advantage: float) -> TokenRow:
    return TokenRow(
        index=index, ids=(5, 6), ends=(1, 2), sampler=(old, old), old=(old, old),
        reference=(old, old), passes=((old, old), (new, old)), after=(), entropy=(),
        advantages=(advantage,), updates=(UpdateTotals(rows=2, tokens=4),) * 2,
    )  # fmt: skip


TOKENS = TokenView(
    group=1,
    prompt_ids=(1,),
    rows=(
        row(0, math.log(0.4), math.log(0.54), 1.0),
        row(1, math.log(0.4), math.log(0.2), -1.0),
    ),
)


def test_terms_come_from_the_engines_loss() -> None:
    # ratio .54/.4 = 1.35 > 1.2 with A = 1: clipped high; 1.2 x 1 / 2 tokens / 2 answers = .3
    # ratio .2/.4 = .5 < .8 with A = -1: clipped low; -.8 / 4 = -.2; k3 at ratio 1 is 0
    how = recipe("grpo", beta=0.0, anchor="none")
    up, down = token_losses(TOKENS, how, at=1, max_length=8)
    assert (up[0].side, down[0].side) == ("high", "low")
    assert up[0].ratio == pytest.approx(1.35, rel=1e-5)
    assert up[0].contribution == pytest.approx(0.3, rel=1e-5)
    assert down[0].contribution == pytest.approx(-0.2, rel=1e-5)
    assert [one.ratio for one in token_losses(TOKENS, how, at=0, max_length=8)[0]] == [1.0, 1.0]


def sampled_at(logprob: float, *, cut: bool = False) -> TokenView:
    """Those tokens, from a sampler with the same log-probability for each."""
    both = (logprob, logprob)
    rows = (
        replace(one, sampled=both) if cut else replace(one, sampler=both) for one in TOKENS.rows
    )
    return replace(TOKENS, rows=tuple(rows))


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    ("mode", "weight"),
    [("token_truncate", 1.25), ("sequence_truncate", 1.5), ("sequence_mask", 0.0)],
)
def test_the_weight_for_the_sampler_comes_from_what_was_drawn_from(
    mode: str, weight: float, cut: bool
) -> None:
    # old .4, sampler .32: 1.25 per token, 1.25² = 1.5625 per completion, above the cap of 1.5
    how = recipe("grpo", beta=0.0, anchor="none", importance_cap=1.5, importance_mode=mode)
    up, down = token_losses(sampled_at(math.log(0.32), cut=cut), how, at=1, max_length=8)
    assert [one.importance for one in (*up, *down)] == pytest.approx([weight] * 4, rel=1e-5)
    assert {one.on_policy for one in (*up, *down)} == {weight > 0}
    assert up[0].contribution == pytest.approx(0.3 * weight, rel=1e-5)
    assert down[0].contribution == pytest.approx(-0.2 * weight, rel=1e-5)


def test_a_worse_answer_that_a_pass_took_far_from_its_sampler_has_no_push() -> None:
    # answer b: .4 -> .2 at its first token, so log(.4/.2)/2 = .347 nats per token; a is better
    how = recipe("grpo", beta=0.0, anchor="none", off_policy_mask=0.3)
    for at, kept in ((0, True), (1, False)):
        up, down = token_losses(TOKENS, how, at=at, max_length=8)
        assert [one.on_policy for one in (*up, *down)] == [True, True, kept, kept]
        assert (down[1].contribution == 0) == (not kept)


def test_rewards_and_a_teacher_are_written_out_side_by_side() -> None:
    # A = +1.21 = 1.50 by rewards - .29 by the teacher; 1.2 x 1.21 / 192 = .00756
    both, plain = term(teacher_part=-0.29, high=1.5), recipe("grpo", beta=0.0, teacher_weight=0.1)
    assert both.reward_part == pytest.approx(1.5)
    text = arithmetic(both, plain, TOTALS, **SIZES)
    assert text == ("1.2 × (+1.5 by rewards − .29 by the teacher) ÷ 24 tokens ÷ 8 answers = +.0076")
    # of the objective of a smooth rule: 1.452 x 1.5/1.21 = 1.8, 1.452 x .29/1.21 = .348
    smooth = recipe("sapo", teacher_weight=0.1)
    assert arithmetic(both, smooth, TOTALS, **SIZES).startswith(
        "(+1.8 by rewards − .348 by the teacher) ÷"
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
    row = TokenRow(
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
    view = TokenView(group=0, prompt_ids=(), rows=(row,))
    ((first, second),) = token_losses(view, how, at=0, max_length=8)
    assert [first.teacher_part, second.teacher_part] == pytest.approx([0.5, -1.0])
    assert [first.reward_part, second.reward_part] == pytest.approx([0.75, 0.75])
    parts = sum((token.reward_part + token.teacher_part) / 2 for token in (first, second))
    assert parts == pytest.approx(first.contribution + second.contribution)
