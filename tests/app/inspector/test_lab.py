"""The lab computes with a group's recorded numbers."""

import math

import pytest

from app.inspector.lab import KNOBS, differences, turn, what_if
from experiments.values import GroupView, RolloutView, TokenRow, TokenView
from grpo_engine.config.recipes import RECIPES, recipe
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
