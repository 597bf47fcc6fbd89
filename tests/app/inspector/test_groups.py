"""Groups sorted, answers judged, texts compared."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.events import RewardValue
from grpo_tui.app.inspector.groups import (
    Order,
    TextChange,
    balance,
    furthest,
    is_greedy,
    largest_by_reward,
    measure_of,
    ordered,
    right_count,
    right_verdict,
    verdicts,
    visits,
    word_diff,
)
from grpo_tui.experiments.values import GroupView, RolloutView
from tests.app.inspector.kit import group, rollout


def test_verdicts_name_twins_cuts_and_rewards_that_do_not_apply() -> None:
    none = RewardValue(name="math", value=None, weight=1.0, reason="")
    twin = rollout(2, text="x")
    one = rollout(0, text="x", finish="length", rewards=(none,))
    assert verdicts(one, group(0, one, rollout(1), twin)) == [
        "✗ cut at the limit",
        "· math does not apply",
        "· same as c",
    ]


def test_balance_counts_pushes() -> None:
    pushed = group(0, rollout(0), rollout(1, advantage=-1.0), rollout(2, advantage=0.0))
    assert balance(pushed) == "1 pushed up, 1 pushed down"
    assert "no push" in balance(group(0, rollout(0, advantage=0.0)))


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_diff_spells_both_texts(older: str, newer: str) -> None:
    changes = word_diff(older, newer)
    assert "".join(c.text for c in changes if c.tag != "removed") == newer
    assert "".join(c.text for c in changes if c.tag != "added") == older


def test_each_measure_sorts_by_its_mean_and_ties_by_place() -> None:
    one = group(
        0,
        rollout(0, tokens=2, kl=0.1, clip_fraction=0.5, reward=None),
        rollout(1, tokens=4, kl=0.3, clip_fraction=None, reward=None),
    )
    two = group(1, rollout(0, tokens=9, kl=0.15, clip_fraction=0.4, advantage=0.1, reward=-5.0))
    three = group(2, rollout(0, tokens=3, kl=None, clip_fraction=None, advantage=0.0, reward=0.5))
    every = [one, two, three]

    def order(key: Order) -> list[int]:
        return [g.index for g in ordered(every, key)]

    # means of tokens 3, 9, 3; of kl .2, .15, 0; of clip .5, .4, 0; rewards none, -5, .5
    assert order("length") == [1, 0, 2]
    assert order("kl") == [0, 1, 2]
    assert order("clip") == [0, 1, 2]
    assert order("reward") == [2, 1, 0]
    assert order("worst") == [1, 2, 0]
    assert order("surprise") == [0, 1, 2]
    assert order("prompt") == [0, 1, 2]
    low = group(3, rollout(0, kl=-1.0, clip_fraction=-1.0, tokens=-1, advantage=0.0))
    assert [g.index for g in ordered([three, low], "kl")] == [3, 2]  # what is not known is last


def test_of_groups_with_the_same_measure_one_with_differing_rewards_comes_first() -> None:
    alike = replace(group(0, rollout(0, reward=1.0), rollout(1, reward=1.0)), reward_std=0.0)
    differ = replace(group(1, rollout(0, reward=0.0), rollout(1, reward=1.0)), reward_std=0.5)
    assert [one.index for one in ordered([alike, differ], "reward")] == [1, 0]
    assert [one.index for one in ordered([alike, differ], "prompt")] == [0, 1]


def test_the_worst_answer_is_the_one_of_the_lowest_reward_whatever_its_group_got() -> None:
    all_half = group(0, *(rollout(i, reward=0.5) for i in range(4)))
    unlucky = group(1, *(rollout(i, reward=float(i != 2)) for i in range(4)))  # 1, 1, 0, 1
    assert [one.index for one in ordered([all_half, unlucky], "worst")] == [1, 0]
    assert [measure_of(one, "worst") for one in (all_half, unlucky)] == [0.5, 0.0]
    assert furthest(unlucky, "worst") == 2


def test_the_prompt_that_fails_most_has_the_fewest_right_answers_then_the_lowest_reward() -> None:
    half = replace(group(0, judged(0, 1.0), judged(1, 0.0)), reward_mean=0.1)
    wrong = replace(group(1, judged(0, 0.0), judged(1, 0.0)), reward_mean=1.0)
    lower = replace(group(2, judged(0, 0.0), judged(1, None)), reward_mean=0.5)
    unknown = replace(group(3, judged(0, 0.0, "mine")), reward_mean=0.0)
    every = [half, wrong, lower, unknown]
    assert [one.index for one in ordered(every, "failing")] == [2, 1, 0, 3]
    assert [right_count(one, "") for one in every] == [(1, 2), (0, 2), (0, 1), (0, 0)]
    assert furthest(half, "failing") == 1


def judged(index: int, score: float | None, name: str = "numeric_answer") -> RolloutView:
    """An answer of reward 1 with a score that says whether it is right."""
    form = RewardValue(name="format", value=1.0, weight=1.0)
    score_of = RewardValue(name=name, value=score, weight=0.0)
    return rollout(index, reward=1.0, rewards=(form, score_of))


def test_of_equally_bad_answers_a_wrong_one_comes_before_a_right_one() -> None:
    right = group(0, judged(0, 1.0), judged(1, 1.0))
    mixed = group(1, judged(0, 1.0), judged(1, 0.0))
    unknown = group(2, judged(0, 1.0, "mine"), judged(1, 0.0, "mine"))
    wrong = group(3, judged(0, 0.0), judged(1, 0.0))
    order = [one.index for one in ordered([right, mixed, unknown, wrong], "worst")]
    assert order == [3, 1, 2, 0]
    assert furthest(mixed, "worst") == 1
    # a rule of the settings, by which 0 is wrong and 1 is right
    by_rule = group(2, judged(0, 1.0, "mine"), judged(1, 0.0, "mine"))
    assert furthest(by_rule, "worst", "mine.py:mine > .5") == 1
    assert furthest(by_rule, "worst") == 0
    # a lower reward is worse whatever is right
    lower = replace(group(4, replace(judged(0, 1.0), reward=0.5)))
    assert [one.index for one in ordered([wrong, lower], "worst")] == [4, 3]


def test_an_answer_is_right_or_wrong_only_where_a_score_says_so() -> None:
    asked = replace(group(0, judged(0, 1.0)), target="42")
    unmeasured = ["· right or wrong was not measured"]
    assert right_verdict(judged(0, 1.0), asked, "") == ["✓ right"]
    assert right_verdict(judged(0, 0.0), asked, "") == ["✗ wrong"]
    assert right_verdict(judged(0, None), asked, "") == unmeasured
    assert right_verdict(judged(0, 1.0, "mine"), asked, "") == unmeasured
    assert right_verdict(judged(0, 1.0, "mine"), asked, "mine >= 1") == ["✓ right"]
    assert right_verdict(judged(0, 1.0), asked, "other") == unmeasured  # it scored nothing here
    assert right_verdict(judged(0, 1.0, "mine"), replace(asked, target=""), "") == []


def test_the_furthest_answer_is_the_one_that_is_most_of_what_groups_are_sorted_by() -> None:
    three = group(
        0,
        rollout(0, advantage=-2.0, reward=0.0, tokens=4, kl=None, clip_fraction=0.5),
        rollout(1, advantage=1.0, reward=1.0, tokens=9, kl=0.1, clip_fraction=0.5),
        rollout(2, advantage=None, reward=None, tokens=9, kl=0.3, clip_fraction=0.0),
    )
    sorts: tuple[Order, ...] = ("prompt", "surprise", "reward", "worst", "length", "kl", "clip")
    assert [furthest(three, key) for key in sorts] == [0, 0, 1, 0, 1, 2, 0]


def test_a_prompts_visits_are_those_that_were_sampled_alike() -> None:
    def visit(index: int, origin: str, temperature: float | None) -> GroupView:
        sampling = {} if temperature is None else {"temperature": temperature}
        return replace(group(index), origin=origin, sampling=sampling)  # type: ignore[arg-type]

    history = [
        visit(0, "eval", 0.0),
        visit(1, "eval", 0.6),
        visit(2, "train", 1.0),
        visit(3, "eval", 0.0),
        visit(4, "eval", None),
    ]
    assert [one.index for one in visits(history, history[0])] == [0, 3]
    assert [one.index for one in visits(history, history[1])] == [1, 4]
    assert [one.index for one in visits(history, history[2])] == [2]
    assert (is_greedy(history[0]), is_greedy(history[1]), is_greedy(history[4])) == (
        True,
        False,
        False,
    )


def test_the_largest_score_of_a_function_ignores_sign_and_what_is_no_number() -> None:
    def by(*values: float | None) -> RolloutView:
        return rollout(
            0,
            rewards=tuple(
                RewardValue(name=f"f{n}", value=value, weight=1.0) for n, value in enumerate(values)
            ),
        )

    step = [group(0, by(0.5, None), by(-2.0, None)), group(1, by(1.0, None), by(math.inf, 0.0))]
    assert largest_by_reward(step) == {"f0": 2.0, "f1": 0.0}
    assert largest_by_reward([]) == {}


def test_a_diff_keeps_words_whole_and_says_what_came_first() -> None:
    changes = [(c.tag, c.text) for c in word_diff("a cat sat", "a dog sat down")]
    assert changes == [
        ("same", "a "),
        ("removed", "cat"),
        ("added", "dog"),
        ("same", " sat"),
        ("added", " down"),
    ]
    assert [(c.tag, c.text) for c in word_diff("a cat", "a ")] == [
        ("same", "a "),
        ("removed", "cat"),
    ]
    assert [(c.tag, c.text) for c in word_diff("x-1", "x+1")] == [
        ("same", "x"),
        ("removed", "-"),
        ("added", "+"),
        ("same", "1"),
    ]


def test_words_that_are_often_repeated_still_match() -> None:
    older, newer = "a " * 150 + "b", "a " * 150 + "c"
    assert [c.tag for c in word_diff(older, newer)] == ["same", "removed", "added"]
    alike = "a " * 150
    assert [c.tag for c in word_diff(f"x {alike}", alike)] == ["removed", "same"]


def test_a_long_text_is_compared_by_lines_and_a_very_long_one_in_part() -> None:
    # a line of 4,000 characters, twice, and the ends: above 8,000 characters in both together
    long = "w " * 2000
    changes = word_diff(f"{long}\nend a", f"{long}\nend b")
    assert [(c.tag, c.text) for c in changes] == [
        ("same", f"{long}\n"),
        ("removed", "end a"),
        ("added", "end b"),
    ]
    short = "w " * 1999 + "w"
    assert word_diff(f"{short}!", f"{short}?")[0].text == short
    tail = "x" * 40_000
    assert word_diff(tail + "a", tail + "b") == (TextChange("same", tail),)
    assert [c.tag for c in word_diff(tail[1:] + "a", tail[1:] + "b")] == ["removed", "added"]
