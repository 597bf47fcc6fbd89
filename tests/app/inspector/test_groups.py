"""Groups sorted, answers judged, texts compared."""

import math

from hypothesis import given
from hypothesis import strategies as st

from app.inspector.groups import (
    balance,
    letter,
    sorted_groups,
    surprisal,
    surprise,
    verdicts,
    word_diff,
)
from experiments.values import GroupView, RolloutView, TokenRow
from grpo_engine.events import RewardValue


def rollout(index: int, **changes: object) -> RolloutView:
    base: dict[str, object] = {
        "key": index, "group": 1, "index": index, "text": f"answer {index}", "reward": 1.0,
        "advantage": 0.5, "tokens": 4, "finish": "stop", "clip_fraction": 0.1, "kl": 0.2,
    }  # fmt: skip
    return RolloutView(**(base | changes))  # type: ignore[arg-type]  # fields are checked by use


def group(index: int, *rollouts: RolloutView, mean: float | None = 0.5) -> GroupView:
    return GroupView(
        key=index, run=1, attempt=1, step=1, index=index, origin="train", example_key="",
        prompt_hash="", prompt_text="", target="", sampling={}, reward_mean=mean, reward_std=0.1,
        no_signal="", has_tokens=True, rollouts=rollouts,
    )  # fmt: skip


def test_surprise_is_advantage_times_mean_surprisal() -> None:
    # −mean(log .5, log .25) = (.693 + 1.386) / 2 = 1.040; x |−2| = 2.079
    old = (math.log(0.5), math.log(0.25))
    row = TokenRow(
        index=0, ids=(1, 2), ends=(1, 2), sampler=old, old=old, reference=(), passes=(), after=(),
        entropy=(), advantages=(),
    )  # fmt: skip
    assert math.isclose(surprisal(row), 1.0397, rel_tol=1e-4)
    assert math.isclose(surprise(group(0, rollout(0, advantage=-2.0)), [row]), 2.0794, rel_tol=1e-4)


def test_groups_sort_by_what_is_most_worth_a_look() -> None:
    low = group(0, rollout(0, tokens=9, advantage=0.1), mean=0.1)
    high = group(1, rollout(0, tokens=2, advantage=-3.0), mean=0.9)
    assert [g.index for g in sorted_groups([low, high], "reward")] == [1, 0]
    assert [g.index for g in sorted_groups([low, high], "surprise")] == [1, 0]
    assert [g.index for g in sorted_groups([low, high], "length")] == [0, 1]
    assert [g.index for g in sorted_groups([high, low], "prompt")] == [0, 1]


def test_verdicts_name_twins_cuts_and_rewards_that_do_not_apply() -> None:
    none = RewardValue(name="math", value=None, weight=1.0, reason="")
    twin = rollout(2, text="x")
    one = rollout(0, text="x", finish="length", rewards=(none,))
    words = [chip.text for chip in verdicts(one, group(0, one, rollout(1), twin))]
    assert words == ["cut at the limit", "math does not apply", "same as c"]


def test_balance_counts_pushes() -> None:
    pushed = group(0, rollout(0), rollout(1, advantage=-1.0), rollout(2, advantage=0.0))
    assert balance(pushed) == "1 pushed up, 1 pushed down"
    assert "no push" in balance(group(0, rollout(0, advantage=0.0)))


def test_letters_go_on_after_z() -> None:
    assert [letter(i) for i in (0, 25, 26, 51)] == ["a", "z", "a1", "z1"]


def test_a_changed_word_is_gone_and_new() -> None:
    kinds = [(c.kind, c.text) for c in word_diff("7+5=1, so 31", "7+5=12, so 42")]
    assert ("gone", "31") in kinds
    assert ("new", "42") in kinds


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_diff_spells_both_texts(older: str, newer: str) -> None:
    changes = word_diff(older, newer)
    assert "".join(c.text for c in changes if c.kind != "gone") == newer
    assert "".join(c.text for c in changes if c.kind != "new") == older
