"""Compare the answers of a group: surprise, verdicts, and word differences."""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_engine.events import CUT
from grpo_tui.app.text.numbers import short
from grpo_tui.experiments.values import GroupView, RolloutView, TokenRow

SortKey = Literal["prompt", "surprise", "reward", "length", "kl", "clip"]

WORDS = re.compile(r"\s+|\w+|[^\w\s]")
DIFF_LIMIT = 4000  # words; a longer text is compared line by line
DIFF_LENGTH = 40_000  # characters; the rest is not compared


def surprisal(row: TokenRow) -> float:
    """Return an answer's mean surprisal under the sampling policy: −mean(log p), nats."""
    return -sum(row.old) / len(row.old) if row.old else 0.0


def surprise(group: GroupView, rows: Sequence[TokenRow] = ()) -> float:
    """Return the group's largest |advantage| × surprise over its answers.

    Without token numbers all answers count as equally likely.
    """
    by_index = {row.index: surprisal(row) for row in rows}
    return max(
        (abs(r.advantage or 0.0) * by_index.get(r.index, 1.0) for r in group.rollouts), default=0.0
    )


def sorted_groups(groups: Sequence[GroupView], key: SortKey) -> tuple[GroupView, ...]:
    """Sort the groups of a step by descending measure; `prompt` keeps their order."""
    if key == "prompt":
        return tuple(sorted(groups, key=lambda g: g.index))
    return tuple(sorted(groups, key=lambda g: (-(measure_of(g, key) or 0.0), g.index)))


def measure_of(group: GroupView, key: SortKey) -> float | None:
    """What a group is sorted by; None if it is not known, as outside the gradient."""
    match key:
        case "prompt":
            return float(group.index)
        case "surprise":
            pushed = any(rollout.advantage is not None for rollout in group.rollouts)
            return surprise(group) if pushed else None
        case "reward":
            return group.reward_mean if group.reward_mean is not None else -math.inf
    values = [_measured(rollout, key) for rollout in group.rollouts]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def furthest(group: GroupView, key: SortKey) -> int:
    """The place of the answer with the largest measure in its group."""
    values = [_measured(rollout, key) for rollout in group.rollouts]
    known = [(-value, place) for place, value in enumerate(values) if value is not None]
    return min(known, default=(0.0, 0))[1]


def _measured(rollout: RolloutView, key: SortKey) -> float | None:
    """An answer's part in the measure of its group."""
    match key:
        case "surprise":
            return abs(rollout.advantage or 0.0)
        case "reward":
            return rollout.reward
        case "length":
            return float(rollout.tokens)
        case "kl":
            return rollout.kl
        case "clip":
            return rollout.clip_fraction
    return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A short label for an answer: favourable, not, or neither (None)."""

    text: str
    good: bool | None


def verdicts(rollout: RolloutView, group: GroupView) -> tuple[Verdict, ...]:
    """Return the labels of an answer."""
    ends = {
        "environment_error": Verdict("environment failed", False),
        "turns": Verdict("no turn left", None),
        **dict.fromkeys(CUT, Verdict("cut at the limit", False)),
    }
    chips = [ends.get(rollout.finish, Verdict("finished", True))]
    for reward in rollout.rewards:
        if reward.value is None:
            chips.append(Verdict(f"{reward.name} does not apply", None))
    twins = [r for r in group.rollouts if r.index != rollout.index and r.text == rollout.text]
    if twins:
        chips.append(Verdict(f"same as {', '.join(letter(r.index) for r in twins)}", None))
    else:
        chips.append(Verdict("no duplicate", True))
    return tuple(chips)


def visits(history: Sequence[GroupView], group: GroupView) -> tuple[GroupView, ...]:
    """The groups of a prompt's history that were sampled as this one: greedy or at random."""
    return tuple(
        one for one in history if one.origin == group.origin and is_greedy(one) == is_greedy(group)
    )


def is_greedy(group: GroupView) -> bool:
    """Whether a group was sampled at temperature 0."""
    return group.sampling.get("temperature") == 0


def largest_by_reward(groups: Sequence[GroupView]) -> dict[str, float]:
    """The largest size of each reward function's scores among the groups."""
    largest: dict[str, float] = {}
    for reward in (r for group in groups for one in group.rollouts for r in one.rewards):
        if reward.value is not None and math.isfinite(reward.value):
            largest[reward.name] = max(largest.get(reward.name, 0.0), abs(reward.value))
    return largest


def letter(index: int) -> str:
    """Return an answer's label in its group: a to z, then a1, b1 …"""
    turn, place = divmod(index, 26)
    return chr(ord("a") + place) + (str(turn) if turn else "")


def balance(group: GroupView) -> str:
    """Say how many answers are pushed up and down; those of an evaluation never are."""
    ups = sum((r.advantage or 0.0) > 0 for r in group.rollouts)
    downs = sum((r.advantage or 0.0) < 0 for r in group.rollouts)
    if group.origin != "train":
        return "not trained on"
    if not ups and not downs:
        return _why_no_push(group)
    return f"{ups} pushed up, {downs} pushed down"


def _why_no_push(group: GroupView) -> str:
    """Why a group has no signal, with what all scored where another reward paid too."""
    why = group.no_signal or "no push: all answers scored the same"
    plain = {"all right": 1.0, "all wrong": 0.0}.get(why, group.reward_mean)
    if group.reward_std == 0 and group.reward_mean != plain:
        why += f", and each scored {short(group.reward_mean)}"
    return why


@dataclass(frozen=True, slots=True)
class Change:
    """A stretch of text that is in both answers, or only in the older or the newer one."""

    kind: Literal["same", "gone", "new"]
    text: str


def word_diff(older: str, newer: str) -> tuple[Change, ...]:
    """Diff two answers by words; the new and the common parts form the newer one."""
    a, b = WORDS.findall(older[:DIFF_LENGTH]), WORDS.findall(newer[:DIFF_LENGTH])
    if len(a) + len(b) > DIFF_LIMIT:
        a = older[:DIFF_LENGTH].splitlines(keepends=True)
        b = newer[:DIFF_LENGTH].splitlines(keepends=True)
    changes: list[Change] = []
    for tag, a1, a2, b1, b2 in difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes():
        if tag == "equal":
            changes.append(Change("same", "".join(b[b1:b2])))
            continue
        if a1 < a2:
            changes.append(Change("gone", "".join(a[a1:a2])))
        if b1 < b2:
            changes.append(Change("new", "".join(b[b1:b2])))
    return tuple(changes)
