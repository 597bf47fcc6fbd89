"""The lab's numbers over a range of steps equal a recomputation with the engine's loss."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_engine.config.recipes import RECIPES, Recipe, recipe
from grpo_engine.events import RewardValue, UpdateTotals
from grpo_engine.maths.advantage import advantages
from grpo_engine.maths.loss import Loss, policy_loss
from grpo_engine.maths.weight import Totals, totals_of
from grpo_tui.app.inspector.lab import outcome_of, step_numbers, together
from grpo_tui.experiments.values import GroupView, RecordedTokens, RolloutView
from tests.app.inspector import kit
from tests.app.inspector.test_recorded_terms import SWITCHES, legal

LONGEST = 5
REWARDS = ("accuracy", "form")
Answer = tuple[int, RolloutView, RecordedTokens]


def made_step(rng: np.random.Generator, minibatches: int) -> list[list[Answer]]:
    """The answers of a step by minibatch, of whole groups, with made-up numbers."""
    parts: list[list[Answer]] = [[] for _ in range(minibatches)]
    for group in range(int(rng.integers(minibatches, 4))):
        for index in range(int(rng.integers(2, 4))):
            count = int(rng.integers(1, LONGEST + 1))
            old = np.log(rng.uniform(0.05, 0.99, count))

            def near(spread: float, old: Any = old) -> tuple[float, ...]:
                return tuple(np.minimum(old + rng.normal(0, spread, len(old)), -1e-4).tolist())

            def some(count: int = count) -> tuple[float, ...]:
                return tuple(rng.normal(0, 1, count).tolist())

            numbers: dict[str, Any] = {
                "old": tuple(old.tolist()),
                "sampler": near(0.05),
                "reference": near(0.3),
                "teacher": near(0.5),
                "passes": (tuple(old.tolist()), near(0.3)),
                "values": (some(), some()),
                "entropy": tuple(rng.uniform(0, 2, count).tolist()),
                "old_values": some(),
                "returns": some(),
                "advantages": some() if rng.random() < 0.5 else some(1) * count,
                "mask": tuple(int(one) for one in rng.random(count) < 0.9),
            }
            row = RecordedTokens(
                index=index, ids=tuple(rng.integers(0, 3, count).tolist()), **numbers
            )
            rewards = tuple(
                RewardValue(name=name, value=float(rng.integers(0, 3)) / 2, weight=weight)
                for name, weight in zip(REWARDS, (1.0, 0.5), strict=True)
            )
            view = kit.rollout(
                index, group=group, tokens=count, advantage=row.advantages[0], rewards=rewards
            )
            parts[group % minibatches].append((group, view, row))
    return [part for part in parts if part]


def column(rows: Sequence[Sequence[float]]) -> mx.array:
    """Padded to the longest row."""
    width = max(map(len, rows))
    return mx.array([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=mx.float32)


def denominators(part: Sequence[Answer], how: Recipe) -> Totals:
    entropy = column([row.entropy for *_, row in part])
    return totals_of(column([row.mask for *_, row in part]), recipe=how, entropy=entropy)


def recorded(
    parts: Sequence[Sequence[Answer]], was: Recipe
) -> tuple[list[GroupView], dict[Any, RecordedTokens]]:
    """The step as the store has it, with the denominators of each update."""
    rollouts: dict[int, list[RolloutView]] = {}
    rows = {}
    for minibatch, part in enumerate(parts):
        found = denominators(part, was)
        tokens, floor, updated = int(found.tokens), found.entropy_floor, found.updated_tokens
        totals = UpdateTotals(
            rows=len(part),
            tokens=tokens,
            minibatch=minibatch,
            batch_tokens=tokens,
            entropy_floor=None if floor is None else float(floor),
            updated_tokens=None if updated is None else int(updated),
        )
        for group, rollout, row in part:
            rollouts.setdefault(group, []).append(rollout)
            rows[group, rollout.index] = replace(row, updates=(totals,) * 2)
    groups = [kit.group(index, *answers) for index, answers in sorted(rollouts.items())]
    return groups, rows


def recomputed(parts: Sequence[Sequence[Answer]], how: Recipe, was: Recipe) -> dict[str, float]:
    """Sums over a step, one update at a time."""
    answers = sorted((answer for part in parts for answer in part), key=lambda a: a[0])
    given: dict[int, Any] = {id(answer): answer[2].advantages for answer in answers}
    other = how.signal != was.signal or how.anchor_in_reward != was.anchor_in_reward
    other = other or how.teacher_weight != was.teacher_weight
    if other and how.signal != "process":
        fresh: Any = advantages(
            [[one.value for one in rollout.rewards] for _, rollout, _ in answers],
            [group for group, *_ in answers],
            how,
            (1.0, 0.5),
            mask=column([row.mask for *_, row in answers]),
            old=column([row.old for *_, row in answers]),
            ref=column([row.reference for *_, row in answers]),
            values=column([row.old_values for *_, row in answers]),
            teacher=column([row.teacher for *_, row in answers]),
        ).values.tolist()
        for answer, value in zip(answers, fresh, strict=True):
            count = len(answer[2].ids)
            given[id(answer)] = value[:count] if isinstance(value, list) else [value] * count
    signal: dict[int, bool] = {}
    for answer in answers:
        signal[answer[0]] = signal.get(answer[0], False) or any(given[id(answer)])
    sums = {
        "tokens": 0.0,
        "clipped": 0.0,
        "pushed": 0.0,
        "kl": 0.0,
        "push": 0.0,
        "groups": len(signal),
        "with_signal": sum(signal.values()),
    }
    for part in parts:
        loss, push = loss_and_push(part, given, how)
        terms = loss.terms
        free = loss.terms.side == 0
        sums["tokens"] += float(terms.mask.astype(mx.float32).sum())
        sums["clipped"] += float((terms.mask & ~free).astype(mx.float32).sum())
        sums["push"] += float(push.sum())
        sums["pushed"] += float(mx.abs(push).sum())
        sums["kl"] += float((terms.mask * terms.weight * how.beta * terms.anchor).sum()) / len(
            parts
        )
    return sums


def loss_and_push(
    part: Sequence[Answer], given: dict[int, Any], how: Recipe
) -> tuple[Loss, mx.array]:
    """An update's loss, and the gradient of its objective without the KL penalty in each token."""
    rows = [row for *_, row in part]

    def loss_at(new: mx.array) -> Loss:
        return policy_loss(
            new,
            column([row.old for row in rows]),
            column([row.reference for row in rows]),
            column([given[id(one)] for one in part]),
            column([row.mask for row in rows]),
            how,
            group_ids=mx.array([group for group, *_ in part]),
            token_ids=column([row.ids for row in rows]),
            max_length=LONGEST,
            sampler=column([row.sampler for row in rows]),
            entropy=column([row.entropy for row in rows]),
            values=column([row.values[-1] for row in rows]),
            old_values=column([row.old_values for row in rows]),
            returns=column([row.returns for row in rows]),
            totals=denominators(part, how),
        )

    def objective(new: mx.array) -> mx.array:
        loss = loss_at(new)
        penalty = loss.terms.mask * loss.terms.weight * how.beta * loss.terms.anchor
        return how.anchor_in_loss * penalty.sum() - loss.value

    new = column([row.passes[-1] for row in rows])
    return loss_at(new), mx.grad(objective)(new)


CASES = {
    "wanted": st.lists(st.sampled_from(sorted(SWITCHES)), unique=True, max_size=5).flatmap(
        lambda names: st.fixed_dictionaries({n: st.sampled_from(SWITCHES[n]) for n in names})
    ),
    "was": st.sampled_from(sorted(RECIPES)),
    "seed": st.integers(0, 2**32 - 1),
    "minibatches": st.lists(st.sampled_from([1, 2]), min_size=1, max_size=2),
}


@pytest.mark.parametrize("name", RECIPES)
@settings(max_examples=12, deadline=None)
@given(**CASES)
def test_a_range_under_any_recipe_and_switch_equals_a_recomputation(
    name: str, wanted: dict[str, Any], was: str, seed: int, minibatches: list[int]
) -> None:
    # the weight of an entropy bonus and the share of tokens are what the run had, here none and all
    as_recorded = {"entropy_bonus": 0.0, "entropy_top_quantile": 1.0}
    how = recipe(name, **{**legal(name, wanted), **as_recorded})
    # a run's signal with its own settings, so that equal names mean equal advantages
    before = how if RECIPES[was].signal == how.signal else RECIPES[was]
    rng = np.random.default_rng(seed)
    effects, expected = [], []
    for step, count in enumerate(minibatches, 1):
        parts = made_step(rng, count)
        groups, rows = recorded(parts, before)
        effects.append(outcome_of(step_numbers(step, groups, rows, LONGEST), how, before).effect())
        expected.append(recomputed(parts, how, before))
    found = together(effects)
    for measure in expected[0]:
        total = sum(one[measure] for one in expected)
        assert getattr(found, measure) == pytest.approx(total, rel=2e-5, abs=1e-5), measure
    assert found.steps == len(minibatches)
