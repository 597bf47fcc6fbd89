"""Compare the rollouts of a group: order, verdicts, and word differences."""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from grpo_engine.events import CUT, Group, RewardValue
from grpo_engine.rewards.right import Right
from grpo_tui.app.text.numbers import short
from grpo_tui.experiments.values import GroupView, RolloutView

Order = Literal["prompt", "surprise", "reward", "worst", "failing", "length", "kl", "clip"]
BY_ONE_ROLLOUT = ("surprise", "reward")  # ordered by the furthest rollout of a group
LOWEST_FIRST = ("worst", "failing")

WORDS = re.compile(r"\s+|\w+|[^\w\s]")
LINES = re.compile(r".*\n|.+")
DIFF_LIMIT = 8_000  # characters; a longer text is compared line by line
DIFF_LENGTH = 40_000  # characters; what follows is not compared
ENDINGS = {
    "": "· how it ended was not recorded",
    "environment_error": "✗ environment failed",
    "turns": "· no turn left",
    **dict.fromkeys(CUT, "✗ cut at the limit"),
}


def ordered(groups: Sequence[GroupView], by: Order, rule: str = "") -> tuple[GroupView, ...]:
    """The groups of a step by their measure; those without one come last.

    Of equally bad ones those with more wrong answers come first, by the rule for right answers, of
    those that fail as often the lowest rewards. Of equal ones those come first whose rewards
    differ: the others teach nothing.
    """

    def position(group: GroupView) -> tuple[float, float, bool]:
        measure, second = measure_of(group, by, rule), 0.0
        if by == "worst" and group.rollouts:
            second = fmean(_rightness(item, rule) for item in group.rollouts)
        elif by == "failing" and group.reward_mean is not None:
            second = group.reward_mean
        if measure is None:
            return math.inf, second, False
        return measure if by in LOWEST_FIRST else -measure, second, not group.reward_std

    return tuple(sorted(groups, key=position))


def measure_of(group: GroupView, by: Order, rule: str = "") -> float | None:
    """What groups are ordered by; None if it is not known."""
    if by == "failing":
        right, judged = right_count(group, rule)
        return right / judged if judged else None
    values = _measures(group, by).values()
    if not values:
        return None
    if by == "worst":
        return min(values)
    return max(values) if by in BY_ONE_ROLLOUT else fmean(values)


def furthest(group: GroupView, by: Order, rule: str = "") -> int:
    """The position of the rollout with the largest measure, or of the worst one.

    Of equally bad ones it is a wrong one.
    """
    values = _measures(group, by)

    def position(index: int) -> tuple[float, float]:
        if by in LOWEST_FIRST:
            return -values[index], -_rightness(group.rollouts[index], rule)
        return values[index], 0.0

    return max(values, key=position, default=0)


def right_count(group: GroupView, rule: str) -> tuple[int, int]:
    """How many answers of a group are right, of how many that a score judges."""
    judged = [right for item in group.rollouts if (right := is_right(item, rule)) is not None]
    return sum(judged), len(judged)


def is_right(rollout: RolloutView, rule: str) -> bool | None:
    """Whether a recorded score says that an answer is right; None if none says so.

    `rule` is the setting `evaluation.accuracy`.
    """
    scores = {item.name: None if item.failed else item.value for item in rollout.rewards}
    return Right.of_scores(rule, scores)


def _rightness(rollout: RolloutView, rule: str) -> float:
    """1 for a right answer, 0 for a wrong one, between them if it is not known."""
    right = is_right(rollout, rule)
    return 0.5 if right is None else float(right)


def _measures(group: GroupView, by: Order) -> dict[int, float]:
    """The measure of each rollout that has one, by position; none in the order of the prompts."""
    names = {
        "surprise": "advantage",
        **dict.fromkeys(LOWEST_FIRST, "reward"),
        "length": "tokens",
        "clip": "clip_fraction",
    }
    values = [getattr(rollout, names.get(by, by), None) for rollout in group.rollouts]
    return {
        index: abs(value) if by == "surprise" else value
        for index, value in enumerate(values)
        if value is not None
    }


def right_verdict(rollout: RolloutView, group: GroupView, rule: str) -> list[str]:
    """Whether an answer is right, or that this was not measured where a target is known."""
    right = is_right(rollout, rule)
    if right is not None:
        return ["✓ right" if right else "✗ wrong"]
    return ["· right or wrong was not measured"] * bool(group.target and rollout.rewards)


def verdicts(rollout: RolloutView, group: GroupView) -> list[str]:
    """How a rollout ended, rewards that do not apply, and duplicates: ✓ good, ✗ bad, · neither."""
    twins = [
        letter(twin.index)
        for twin in group.rollouts
        if twin.index != rollout.index and twin.text == rollout.text
    ]
    return [
        ENDINGS.get(rollout.finish, "✓ finished"),
        *(
            f"· {reward.name} does not apply"
            for reward in rollout.rewards
            if reward.value is None and not reward.reason
        ),
        f"· same as {', '.join(twins)}" if twins else "✓ no duplicate",
    ]


def visits(history: Sequence[GroupView], group: GroupView) -> tuple[GroupView, ...]:
    """The groups of a prompt's history that were sampled as this one: greedy or at random."""
    return tuple(
        visit
        for visit in history
        if visit.origin == group.origin and is_greedy(visit) == is_greedy(group)
    )


def is_greedy(group: Group) -> bool:
    """Whether a group was sampled at temperature 0."""
    return group.sampling.get("temperature") == 0


def largest_by_reward(groups: Sequence[GroupView]) -> dict[str, float]:
    """The largest size of each reward function's scores among the groups."""
    rewards = [r for group in groups for rollout in group.rollouts for r in rollout.rewards]
    sizes = [(abs(r.value), r.name) for r in rewards if r.value is not None]
    return {name: size for size, name in sorted(sizes) if math.isfinite(size)}  # the last is kept


def letter(index: int) -> str:
    """A rollout's label in its group: a to z, then a1, b1 …"""
    round_, position = divmod(index, 26)
    return chr(ord("a") + position) + (str(round_) if round_ else "")


def score(reward: RewardValue) -> str:
    """What a reward function gave an answer."""
    return "failed" if reward.failed else "n/a" if reward.value is None else short(reward.value)


def balance(group: GroupView) -> str:
    """Say how many rollouts are pushed up and down, or why none is."""
    if group.origin != "train":
        return "not trained on"
    if group.demonstrated:
        return "the data's own answer; no reward scores it"
    if not group.no_signal and all(rollout.advantage is None for rollout in group.rollouts):
        return "advantages were not recorded"
    advantages = [rollout.advantage or 0.0 for rollout in group.rollouts]
    if any(advantages):
        ups, downs = sum(a > 0 for a in advantages), sum(a < 0 for a in advantages)
        return f"{ups} pushed up, {downs} pushed down"
    return group.no_signal or "no push: all answers scored the same"


@dataclass(frozen=True, slots=True)
class TextChange:
    """A stretch of text that is in both texts, or only in the older or the newer one."""

    tag: Literal["same", "removed", "added"]
    text: str


def word_diff(older: str, newer: str) -> tuple[TextChange, ...]:
    """Diff two texts by words; the added and the common parts form the newer one."""
    older, newer = older[:DIFF_LENGTH], newer[:DIFF_LENGTH]
    parts = WORDS if len(older) + len(newer) <= DIFF_LIMIT else LINES
    a, b = parts.findall(older), parts.findall(newer)
    changes: list[TextChange] = []
    for tag, a1, a2, b1, b2 in difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes():
        added = TextChange("same" if tag == "equal" else "added", "".join(b[b1:b2]))
        removed = TextChange("removed", "" if tag == "equal" else "".join(a[a1:a2]))
        changes += [change for change in (removed, added) if change.text]
    return tuple(changes)
