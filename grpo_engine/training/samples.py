"""A step's rollouts as arrays: tokens, rewards, log-probabilities and advantages.

Axes: P prompts, B all rollouts in the order they were sampled, T tokens of the longest completion,
F reward functions.
"""

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from grpo_engine.config.recipes import Recipe
from grpo_engine.events import CUT
from grpo_engine.maths.advantage import Advantages
from grpo_engine.policy.batch import TokenBatch
from grpo_engine.rewards.right import Right
from grpo_engine.rewards.scorer import columns_of
from grpo_engine.rewards.scoring import Scores
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.tasks.base import Example


@dataclass(slots=True, kw_only=True)
class SampledGroup:
    """One prompt with its rollouts and their scores."""

    index: int
    example: Example
    prompt_ids: tuple[int, ...]
    prompt_text: str
    attempt: int
    rollouts: list[Trajectory]
    scores: Scores
    right: Right  # which of its answers are right
    format: str  # the function that scores their format
    prefill: str = ""
    alike_in: str = ""  # the reward that did not differ, if a refill replaced the group

    @property
    def totals(self) -> list[float | None]:
        """The total reward of each answer; None where no function applies, or one failed."""
        return self.scores.totals()


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The rollouts of a training step as arrays; those of tokens are 0 off the mask."""

    groups: list[SampledGroup]
    rollouts: list[Trajectory]
    group_ids_B: mx.array
    token_ids_BT: mx.array
    mask_BT: mx.array  # 1 on sampled tokens in the loss
    sampler_logprobs_BT: mx.array  # under the distribution sampled from
    raw_sampler_logprobs_BT: mx.array  # before top_p, top_k, min_p and the repetition penalty
    data: Mapping[str, Sequence[Any]]  # the data set's columns by name, a value per rollout

    @property
    def width(self) -> int:
        """T, the length of the longest completion."""
        return int(self.mask_BT.shape[1])

    @property
    def columns(self) -> list[tuple[str, float]]:
        """The reward functions of all groups, with their weights: F."""
        every = (reward for group in self.groups for reward in group.scores.rewards[0])
        return list(dict.fromkeys((reward.name, reward.weight) for reward in every))

    def rows_of(self, group: int) -> list[int]:
        """The rows of a group, by its index in `groups`."""
        start = sum(len(before.rollouts) for before in self.groups[:group])
        return list(range(start, start + len(self.groups[group].rollouts)))

    def rewards(self) -> list[list[float | None]]:
        """Rewards [B, F]; None where a function does not apply, or is another task's."""
        columns = self.columns
        rows = (row for group in self.groups for row in group.scores.rewards)
        named = ({(score.name, score.weight): score.value for score in row} for row in rows)
        return [[row.get(column) for column in columns] for row in named]

    def counted_rewards(self) -> list[list[float | None]]:
        """Rewards [B, F], without those of answers that have no total."""
        totals = (total for group in self.groups for total in group.totals)
        return [
            row if total is not None else [None] * len(row)
            for row, total in zip(self.rewards(), totals, strict=True)
        ]

    def step_scores(self) -> list[list[tuple[int, float | None]]]:
        """(last token, score) of every step of every rollout, for process rewards."""
        return [list(row) for group in self.groups for row in group.scores.steps or ()]


@dataclass(frozen=True, slots=True, kw_only=True)
class OldScores:
    """What policy, critic, reference and teacher gave each token before the update, [B, T].

    None if the recipe does not read it, or reads what the first pass gives.
    """

    logprobs_BT: mx.array | None = None
    values_BT: mx.array | None = None
    entropy_BT: mx.array | None = None
    reference_logprobs_BT: mx.array | None = None
    teacher_logprobs_BT: mx.array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What the passes of a step read."""

    samples: Samples
    old: OldScores
    advantages: Advantages  # its values are [B] or [B, T]
    trained_rows: list[int]  # rows that can have a gradient

    @property
    def first_trained_group(self) -> list[int]:
        """The index of the first group with trained rows."""
        trained, samples = set(self.trained_rows), self.samples
        groups = [n for n in range(len(samples.groups)) if trained & set(samples.rows_of(n))]
        return groups[:1]


def known_scores(groups: Iterable[SampledGroup]) -> dict[str, list[float]]:
    """The scores of each reward function that applies to any answer of the groups."""
    columns: dict[str, list[float]] = {}
    for group in groups:
        for reward in itertools.chain.from_iterable(group.scores.rewards):
            known = columns.setdefault(reward.name, [])
            if reward.value is not None:
                known.append(reward.value)
    return {name: known for name, known in columns.items() if known}


def mean_scores(groups: Iterable[SampledGroup]) -> dict[str, float]:
    return {name: statistics.fmean(scores) for name, scores in known_scores(groups).items()}


def failures(groups: Iterable[SampledGroup]) -> Counter[str]:
    """On how many answers each reward function failed, if on any."""
    rows = (row for group in groups for row in group.scores.rewards)
    return Counter(reward.name for row in rows for reward in row if reward.failed)


def gather(groups: Sequence[SampledGroup], recipe: Recipe) -> Samples:
    """Convert the groups' rollouts to arrays."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    width = max(1, *(len(rollout.ids) for rollout in rollouts))
    return Samples(
        groups=list(groups),
        rollouts=rollouts,
        group_ids_B=mx.array([n for n, group in enumerate(groups) for _ in group.rollouts]),
        mask_BT=padded([in_loss(rollout, recipe) for rollout in rollouts], width),
        token_ids_BT=padded([r.ids for r in rollouts], width, np.int32),
        sampler_logprobs_BT=padded([r.logprobs for r in rollouts], width),
        raw_sampler_logprobs_BT=padded([r.raw_logprobs for r in rollouts], width),
        data=columns_of([group.example for group in groups for _ in group.rollouts]),
    )


def in_loss(rollout: Trajectory, recipe: Recipe) -> list[int]:
    """1 for each token that was sampled, unless the recipe leaves out answers that were cut."""
    if recipe.mask_truncated and rollout.finish in CUT:
        return []
    forced = set(rollout.forced)
    return [int(index not in forced) for index in range(len(rollout.ids))]


def gather_rollouts(rollouts: Sequence[Trajectory]) -> tuple[mx.array, mx.array]:
    """Mask and sampler log-probabilities of rollouts outside a training step, [B, T]."""
    width = max(1, *(len(rollout.ids) for rollout in rollouts))
    mask = padded([(1,) * len(rollout.ids) for rollout in rollouts], width)
    return mask, padded([rollout.raw_logprobs for rollout in rollouts], width)


def padded(rows: Sequence[Sequence[float]], width: int, dtype: type = np.float32) -> mx.array:
    """Rows of different lengths as one array, padded with zeros."""
    out: np.ndarray[tuple[int, int], Any] = np.zeros((len(rows), width), dtype=dtype)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return mx.array(out)


def rows_of_batch(values: mx.array, batch: TokenBatch) -> mx.array:
    """The rows of a micro-batch from a [B] or [B, T] array, truncated or padded to its width."""
    rows = values[mx.array(batch.rows)]
    return rows if values.ndim == 1 else fitted(rows, batch.width)


def fitted(values: mx.array, width: int) -> mx.array:
    """[B, T] truncated, or padded with zeros, to `width` columns."""
    missing = width - int(values.shape[1])
    return mx.pad(values, [(0, 0), (0, missing)]) if missing > 0 else values[:, :width]


def assembled(parts: Sequence[tuple[TokenBatch, mx.array]], rows: int, width: int) -> mx.array:
    """Combine the [b, t] results of micro-batches into [B, T]; missing rows are 0."""
    out = np.zeros((rows, width), dtype=np.float32)
    for batch, values in parts:
        out[list(batch.rows)] = np.array(fitted(values.astype(mx.float32), width))
    return mx.array(out)


def row_values(values: mx.array | None, row: int, length: int) -> tuple[float, ...]:
    """A row of a token array as numbers, cut to the completion's length; empty for None."""
    return () if values is None else tuple(values[row, :length].tolist())  # type: ignore[arg-type]
