"""The lab computes with a group's recorded numbers."""

import math
from dataclasses import replace

import pytest

from grpo_engine.config.recipes import RECIPES, SETTINGS, Recipe, recipe
from grpo_engine.events import RewardValue, UpdateTotals
from grpo_tui.app.inspector.lab import (
    OF_UPDATES,
    VARIED,
    LossEffect,
    RecipeOutcome,
    StepNumbers,
    outcome_of,
    step_numbers,
    together,
    undetermined,
    with_next,
    with_setting,
    with_typed,
)
from grpo_tui.experiments.values import GroupView, RecordedTokens, RolloutView, TokenView
from tests.app.inspector.kit import group, rollout

TOTALS = UpdateTotals(rows=2, tokens=4)


def scored(
    index: int, value: float | None, advantage: float, form: float | None = None
) -> RolloutView:
    rewards = [RewardValue(name="accuracy", value=value, weight=1.0)]
    rewards += [] if form is None else [RewardValue(name="form", value=form, weight=0.5)]
    return rollout(index, text="ab", tokens=2, advantage=advantage, rewards=tuple(rewards))


GROUP = group(0, scored(0, 1.0, 0.7), scored(1, 0.0, -0.7))


def row(index: int, new: float) -> RecordedTokens:
    old = math.log(0.4)
    return RecordedTokens(
        index=index,
        ids=(5, 6),
        sampler=(old, old),
        old=(old, old),
        reference=(old, old),
        passes=((old, old), (math.log(new), old)),
        advantages=(0.7,),
        updates=(TOTALS,) * 2,
    )


TOKENS = TokenView(prompt_ids=(1,), rows=(row(0, 0.54), row(1, 0.4)))


WAS = recipe("grpo", beta=0.0)  # under whose signal, group_standard, nothing below is computed
MEAN = recipe("grpo", signal="group_mean", beta=0.0)


def packed(tokens: TokenView = TOKENS, *groups: GroupView) -> StepNumbers:
    rows = {(GROUP.index, one.index): one for one in tokens.rows}
    return step_numbers(1, groups or [GROUP], rows, 8)


def asked(how: Recipe, tokens: TokenView = TOKENS, *groups: GroupView) -> RecipeOutcome:
    return outcome_of(packed(tokens, *groups), how, WAS)


def answers(how: Recipe, tokens: TokenView = TOKENS, *groups: GroupView) -> list[LossEffect]:
    outcome = asked(how, tokens, *groups)
    return [outcome.effect(row) for row in range(len(outcome.numbers.recorded))]


def test_the_measures_of_a_step_are_means_over_tokens_groups_and_updates() -> None:
    # pushes r·A/4: 0 as a bound stops the first token, .5/4, -.5/4 and -.5/4; the penalty with
    # beta .2 and k3 = .0408 is .2 x .0408 / 4 = .00204, and no part of a push
    effect = asked(recipe(MEAN, beta=0.2)).effect()
    assert effect.measures == pytest.approx(
        (1 / 4, 1.0, (0 + 0.125 + 0.125 + 0.125) / 4, 0.00204), rel=2e-3
    )
    assert effect.push == pytest.approx(0 + 0.125 - 0.125 - 0.125, rel=2e-3)
    # a higher bound frees the first token: it has the push 1.35 x .5/4
    free = asked(recipe(MEAN, clip_high=0.5)).effect()
    assert free.clipped == 0
    assert free.pushed == pytest.approx((1.35 + 3) * 0.125, rel=1e-5)
    assert together([effect]) == effect
    assert together([effect, effect._replace(missing=frozenset({"ref"}))]).missing == {"ref"}
    twice = together([effect, effect._replace(tokens=12, clipped=0, kl=0.1, with_signal=0)])
    # 1 of 16 tokens, 1 of 2 groups, means over steps
    assert twice.measures[:2] == (1 / 16, 1 / 2)
    assert twice.measures[3] == pytest.approx((0.00204 + 0.1) / 2, rel=2e-3)
    assert together([effect, effect._replace(kl=math.nan)]).measures[3] is None
    assert LossEffect().measures == (None, None, None, None)


def test_settings_that_make_no_advantages_leave_those_recorded() -> None:
    assert [one.advantage for one in answers(recipe(WAS, clip_high=0.5))] == pytest.approx(
        [0.7] * 2
    )
    assert [one.advantage for one in answers(recipe("dr-grpo"))] == [0.5, -0.5]


def test_advantages_weigh_the_rewards_that_apply_group_by_group() -> None:
    # totals 1 + .5 x 2 = 2 and 0 + 0 = 0: mean 1; 0 + .5 x 4 = 2 and (none) + 0 = 0: mean 1
    first = replace(GROUP, rollouts=(scored(0, 1.0, 9.0, 2.0), scored(1, 0.0, 9.0, 0.0)))
    other = replace(
        GROUP, index=1, key=2, rollouts=(scored(0, 0.0, 9.0, 4.0), scored(1, None, 9.0, 0.0))
    )
    for groups in ([first, other], [other, first]):
        assert [one.advantage for one in answers(MEAN, TOKENS, *groups)] == [1.0, -1.0]


def test_a_group_whose_answers_score_alike_has_no_signal() -> None:
    alike = replace(GROUP, index=1, rollouts=(scored(0, 1.0, 0.0), scored(1, 1.0, 0.0)))
    found = asked(MEAN, TOKENS, GROUP, alike)
    assert found.effect().measures[1] == 0.5
    assert found.signal == {0}
    # it was left out of the update: nothing is missing until a signal pushes it, or an anchor
    assert found.missing == frozenset()
    assert asked(recipe(MEAN, signal="return"), TOKENS, GROUP, alike).missing == {"tokens"}
    assert asked(recipe(MEAN, beta=0.1), TOKENS, GROUP, alike).missing == {"tokens"}


def test_what_was_not_recorded_is_named() -> None:
    bare = replace(
        TOKENS, rows=tuple(replace(one, reference=(), sampler=()) for one in TOKENS.rows)
    )
    assert asked(recipe(MEAN, beta=0.1), bare).missing == {"ref"}
    assert asked(recipe(MEAN, beta=0.1), bare).effect().measures[3] is None
    assert asked(recipe(MEAN, importance_cap=2.0), bare).missing == {"sampler"}
    assert asked(recipe("ppo")).missing == {"advantages"}
    assert asked(recipe("grpo-process", beta=0.0)).missing == {"advantages"}
    assert asked(recipe("rloo"), bare).missing == {"advantages"}
    assert asked(recipe("rloo")).missing == frozenset()


def test_a_penalty_in_the_reward_is_taken_from_the_answers_totals() -> None:
    # k1 of old .4 to a reference of .2: log 2 a token, twice; rloo with beta .05: totals
    # 1 - .05 x 2 x .6931 = .9307 and 0; each less the other: .9307 and -.9307
    far = replace(TOKENS.rows[0], reference=(math.log(0.2),) * 2)
    tokens = replace(TOKENS, rows=(far, TOKENS.rows[1]))
    found = answers(recipe("rloo"), tokens)
    assert [one.advantage for one in found] == pytest.approx([0.93069, -0.93069], rel=1e-4)
    # another beta of the same signal is another penalty: 1 - .1 x 2 x .6931 = .8614
    outcome = outcome_of(packed(tokens), recipe("rloo", beta=0.1), recipe("rloo"))
    again = [outcome.effect(row) for row in range(2)]
    assert again[0].advantage == pytest.approx(0.86137, rel=1e-4)


def test_a_step_without_token_numbers_still_has_its_signal() -> None:
    found = asked(MEAN, replace(TOKENS, rows=()))
    assert found.effect().measures == (None, 1.0, None, None)
    assert found.missing == {"tokens"}


def test_the_lab_varies_every_choice_of_the_loss_through_legal_values() -> None:
    rows = {name: SETTINGS[name] for name in VARIED if name != "name"}
    assert {"signal", "ratio", "trust", "anchor", "weight"} <= rows.keys()
    assert not rows.keys() & {*OF_UPDATES}
    for name, item in rows.items():
        assert tuple(map(item.checked, VARIED[name])) == VARIED[name]


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_knob_of_every_recipe_turns_both_ways_without_an_error(name: str) -> None:
    for by in (1, -1):
        for knob, values in VARIED.items():
            how = recipe(name)
            for _ in values:
                how = with_next(how, knob, by)


def test_an_effect_is_the_mean_over_an_answers_tokens_and_the_sum_of_its_terms() -> None:
    # answer a: ratios 1.35, which a bound stops, and 1, advantages .5: 0 + .5 / 4
    # answer b: ratio 1 twice, -.5: -.5 x 2 / 4
    first, second = answers(MEAN)
    assert (first.advantage, second.advantage) == (0.5, -0.5)
    assert (first.measures[0], second.measures[0]) == (0.5, 0.0)
    assert (first.push, second.push) == pytest.approx((0.125, -0.25), rel=1e-5)
    arrays = asked(MEAN).arrays
    assert arrays["gradient"][0] == pytest.approx([0.0, 0.125], rel=1e-5)  # a bound stops the first
    assert (arrays["side"] != 0).tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("beta", ".1", 0.1),
        ("delta", "off", None),
        ("anchor_reweighted", "true", True),
        ("weight", "per_token", "per_token"),
    ],
)
def test_a_typed_value_is_parsed_as_that_of_its_setting(
    name: str, text: str, value: object
) -> None:
    assert with_typed(recipe("grpo"), name, text) == recipe("grpo", **{name: value})


def test_settings_that_change_which_updates_there_are_are_named() -> None:
    assert undetermined(recipe("dapo"), recipe("grpo")) == (
        "minibatches",
        "refill_rounds",
        "overlong_buffer",
    )
    assert undetermined(recipe("grpo", clip_low=0.1), recipe("grpo")) == ()
    # stop_kl is read by neither
    assert undetermined(replace(recipe("grpo"), stop_kl=0.1), recipe("grpo")) == ()


@pytest.mark.parametrize(
    ("start", "setting", "value", "anchor", "beta"),
    [
        (recipe("dapo"), "beta", 0.1, "k3", 0.1),
        (recipe("dapo"), "beta", 0.0, "none", 0.0),
        (recipe("dapo"), "anchor", "k2", "k2", 0.04),
        (recipe("grpo"), "beta", 0.0, "none", 0.0),
        (recipe("grpo"), "anchor", "none", "none", 0.0),
        (recipe("grpo", beta=0.3, anchor="k1"), "anchor", "k2", "k2", 0.3),
        (recipe("grpo", beta=0.3, anchor="k1"), "beta", 0.1, "k1", 0.1),
        (recipe("grpo"), "name", "dapo", "none", 0.0),
    ],
)
def test_beta_and_anchor_are_changed_together(
    start: Recipe, setting: str, value: object, anchor: str, beta: float
) -> None:
    changed = with_setting(start, setting, value)
    assert (changed.anchor, changed.beta) == (anchor, beta)
