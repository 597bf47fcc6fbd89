"""The lab computes with a group's recorded numbers."""

import math
from dataclasses import replace

import pytest

from app.inspector.lab import KNOBS, changed, differences, turn, what_if
from experiments.values import GroupView, RolloutView, TokenRow, TokenView
from grpo_engine.config.recipes import RECIPES, Recipe, recipe
from grpo_engine.events import RewardValue, UpdateTotals

TOTALS = UpdateTotals(rows=2, tokens=4)


def rollout(index: int, value: float, advantage: float) -> RolloutView:
    reward = RewardValue(name="accuracy", value=value, weight=1.0, reason="")
    return RolloutView(
        key=index, group=1, index=index, text="ab", reward=value, advantage=advantage, tokens=2,
        finish="stop", clip_fraction=None, kl=None, rewards=(reward,),
    )  # fmt: skip


GROUP = GroupView(
    key=1, run=1, attempt=1, step=1, index=0, origin="train", example_key="", prompt_hash="",
    prompt_text="", target="", sampling={}, reward_mean=None, reward_std=None, no_signal="",
    has_tokens=True, rollouts=(rollout(0, 1.0, 0.7), rollout(1, 0.0, -0.7)),
)  # fmt: skip


def row(index: int, new: float) -> TokenRow:
    old = math.log(0.4)
    return TokenRow(
        index=index, ids=(5, 6), ends=(1, 2), sampler=(old, old), old=(old, old),
        reference=(old, old), passes=((old, old), (math.log(new), old)), after=(), entropy=(),
        advantages=(0.7,), updates=(TOTALS,) * 2,
    )  # fmt: skip


TOKENS = TokenView(group=1, prompt_ids=(1,), rows=(row(0, 0.54), row(1, 0.4)))


def test_a_wider_clip_range_lets_the_push_through() -> None:
    # ratio .54/.4 = 1.35: beyond 1.2, within 1.5; group_mean advantage 1 − .5 = .5
    base = recipe("grpo", signal="group_mean", beta=0.0, anchor="none")
    narrow = what_if(TOKENS, [GROUP], GROUP, base, was=base, max_length=8)
    changed = recipe(base, clip_high=0.5)
    wide = what_if(TOKENS, [GROUP], GROUP, changed, was=base, max_length=8)
    assert (narrow.clipped, wide.clipped) == (0.25, 0.0)
    # (1.2 x .5 + 1 x .5) / 2 tokens / 2 answers = .275; (1.35 x .5 + .5) / 4 = .29375
    assert narrow.answers[0].push == pytest.approx(0.275, rel=1e-5)
    assert wide.answers[0].push == pytest.approx(0.29375, rel=1e-5)


def test_another_recipe_gives_other_advantages() -> None:
    now, was = recipe("dr-grpo"), recipe("grpo")
    mean = what_if(TOKENS, [GROUP], GROUP, now, was=was, max_length=8)
    assert [answer.advantage for answer in mean.answers] == [0.5, -0.5]


@pytest.mark.parametrize("knob", list(KNOBS))
@pytest.mark.parametrize("name", list(RECIPES))
def test_every_knob_of_every_recipe_turns_both_ways_without_an_error(knob: str, name: str) -> None:
    for by in (1, -1):
        how = recipe(name)
        for _ in range(len(KNOBS[knob])):
            how = turn(how, knob, by)


def test_differences_name_what_was_turned() -> None:
    base = recipe("grpo")
    assert differences(base, turn(base, "clip_high", 1)) == ("clip_high",)


def test_the_settings_are_the_recipe_the_most_asked_for_and_then_the_rest() -> None:
    names = list(KNOBS)
    assert names[:5] == ["name", "beta", "clip_low", "clip_high", "delta"]
    assert KNOBS["name"] == tuple(RECIPES)
    assert {"signal", "weight", "importance_cap", "entropy_top_quantile"} <= set(names)


def test_an_effect_is_the_mean_over_an_answers_tokens_and_the_sum_of_its_terms() -> None:
    # answer a: ratios 1.35 and 1, advantages .5: .3 + .25 = .55 halved twice; k3 at 0 is 0
    # answer b: ratio 1 twice, -.5: -.5 x 2 / 4
    base = recipe("grpo", signal="group_mean", beta=0.0)
    found = what_if(TOKENS, [GROUP], GROUP, base, was=base, max_length=8)
    first, second = found.answers
    assert (first.advantage, second.advantage) == (0.5, -0.5)
    assert (first.clipped, second.clipped) == (0.5, 0.0)
    assert (first.push, second.push) == pytest.approx((0.275, -0.25), rel=1e-5)
    # new .54 against a reference of .4: x = log(.54/.4) = .3001, e^-x + x - 1 = .0408; mean .0204
    assert (first.kl, second.kl) == pytest.approx((0.02042, 0.0), rel=1e-3, abs=1e-7)
    bare = replace(TOKENS, rows=tuple(replace(one, reference=()) for one in TOKENS.rows))
    found = what_if(bare, [GROUP], GROUP, base, was=base, max_length=8)
    assert [answer.kl for answer in found.answers] == [None, None]


def test_an_answer_without_tokens_has_no_effect() -> None:
    empty = replace(
        TOKENS.rows[0], ids=(), ends=(), sampler=(), old=(), reference=(), passes=(), advantages=()
    )
    nothing = replace(TOKENS, rows=(empty,))
    base = recipe("grpo", beta=0.0)
    found = what_if(nothing, [GROUP], GROUP, base, was=base, max_length=8)
    only = found.answers[0]
    assert (only.advantage, only.clipped, only.kl, only.push) == (0.0, 0.0, None, 0)
    assert found.clipped == 0.0


def test_the_lab_takes_the_groups_own_advantages_of_a_step_and_the_last_pass() -> None:
    # the other group's scores are the other way round; answer b has one pass fewer than a
    other = replace(GROUP, key=2, rollouts=(rollout(0, 0.0, 0.7), rollout(1, 1.0, -0.7)))
    once = replace(TOKENS.rows[1], passes=TOKENS.rows[1].passes[:1])
    tokens = replace(TOKENS, rows=(TOKENS.rows[0], once))
    base = recipe("grpo", signal="group_mean", beta=0.0)
    for groups in ([GROUP, other], [other, GROUP]):
        found = what_if(tokens, groups, GROUP, base, was=base, max_length=8)
        assert [answer.advantage for answer in found.answers] == [0.5, -0.5]
        assert found.terms[0][0].ratio == pytest.approx(1.35, rel=1e-5)


def test_rows_and_rollouts_that_differ_are_an_error_and_unknown_rows_keep_their_advantage() -> None:
    strange = replace(TOKENS, rows=(replace(TOKENS.rows[0], index=7),))
    base = recipe("grpo", signal="group_mean", beta=0.0)
    found = what_if(strange, [GROUP], GROUP, base, was=base, max_length=8)
    assert found.answers[0].advantage == pytest.approx(0.7)


def test_recipes_with_advantages_by_token_keep_the_recorded_ones() -> None:
    tokens = replace(
        TOKENS, rows=tuple(replace(one, advantages=(0.3, 0.1)) for one in TOKENS.rows)
    )  # fmt: skip
    was = recipe("grpo", beta=0.0)
    found = what_if(tokens, [GROUP], GROUP, recipe("ppo"), was=was, max_length=8)
    assert found.answers[0].advantage == pytest.approx(0.2)


def test_another_share_by_entropy_takes_its_floor_from_the_group() -> None:
    # entropies .1 .4 and .3 .2: the top half of the group is above .25, two of four tokens
    top = replace(TOTALS, entropy_floor=0.4, updated_tokens=1)
    entropies = (((0.1, 0.4),) * 2, ((0.3, 0.2),) * 2)
    rows = tuple(
        replace(one, entropies=found, updates=(top,) * 2)
        for one, found in zip(TOKENS.rows, entropies, strict=True)
    )
    tokens = replace(TOKENS, rows=rows)
    was = recipe("grpo", beta=0.0, entropy_top_quantile=0.3)
    asked = recipe("grpo", beta=0.0, entropy_top_quantile=0.5)

    def pushed(how: Recipe) -> list[list[bool]]:
        found = what_if(tokens, [GROUP], GROUP, how, was=was, max_length=8)
        return [[term.updated for term in answer] for answer in found.terms]

    assert pushed(was) == [[False, True], [False, False]]
    assert pushed(asked) == [[False, True], [True, False]]


@pytest.mark.parametrize(
    ("knob", "start", "by", "end"),
    [
        ("clip_high", 0.2, 1, 0.28),
        ("clip_high", 0.2, -1, 0.1),
        ("clip_high", 0.2, 2, 0.3),
        ("clip_high", 0.0004, -1, 0.0004),
        ("clip_high", 1.0, 1, 1.0),
        ("clip_high", 0.21, 1, 0.28),
        ("clip_high", 0.27, -1, 0.2),
        ("delta", None, 1, 1.5),
        ("delta", None, -1, None),
        ("delta", 1.9, 1, 4.0),
        ("delta", 1.5, -1, None),
    ],
)
def test_a_turn_goes_to_the_next_value_from_the_nearest_one(
    knob: str, start: float | None, by: int, end: float | None
) -> None:
    assert getattr(turn(recipe("grpo", **{knob: start}), knob, by), knob) == end


def test_a_turn_skips_values_that_the_recipe_refuses() -> None:
    # with a floor of .9 and token ratios, a cap below it is refused
    how = recipe("grpo", importance_cap=1.2, importance_floor=0.9)
    assert turn(how, "importance_cap", -1).importance_cap == 0.0
    assert turn(recipe("reinforce"), "trust", 1) == recipe("reinforce")


def test_a_value_of_another_kind_counts_as_the_first() -> None:
    assert turn(recipe("ppo"), "signal", 1).signal == "group_mean"
    assert turn(recipe("grpo-process"), "signal", 1).signal == "group_mean"


def test_beta_and_anchor_are_changed_together() -> None:
    free, held = recipe("dapo"), recipe("grpo")
    assert (changed(free, "beta", 0.1).anchor, changed(free, "beta", 0.1).beta) == ("k3", 0.1)
    assert (changed(held, "beta", 0.0).anchor, changed(held, "beta", 0.0).beta) == ("none", 0.0)
    assert changed(free, "beta", 0.0) == free
    assert (changed(held, "anchor", "none").beta, changed(held, "anchor", "k1").beta) == (0.0, 0.04)
    assert (changed(free, "anchor", "k2").anchor, changed(free, "anchor", "k2").beta) == (
        "k2",
        0.04,
    )
    other = recipe("grpo", beta=0.3, anchor="k1")
    assert (changed(other, "anchor", "k2").beta, changed(other, "beta", 0.1).anchor) == (0.3, "k1")
    assert changed(held, "name", "dapo") == recipe("dapo")
    assert changed(held, "clip_low", 0.1) == recipe("grpo", clip_low=0.1)
    assert changed(free, "clip_low", 0.1) == recipe("dapo", clip_low=0.1)


def test_recipes_differ_in_their_settings_and_not_in_their_names() -> None:
    assert differences(recipe("dr-grpo"), recipe("grpo")) == ("signal", "anchor", "beta", "weight")
    assert differences(recipe("grpo"), replace(recipe("grpo"), name="mine")) == ()
