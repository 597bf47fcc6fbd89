"""A step's rollouts as arrays: tokens, rewards, log-probabilities and advantages.

Axes: `P` prompts, `B` all rollouts in the order of sampling, `T` tokens of the longest completion,
`F` reward functions, `N` what was selected or flattened; `_Bt` is [B] or [B,T].
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
from grpo_engine.frozen import frozen
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
    right: Right  # decides which completions are right
    format: str  # the function that scores the format
    prefill: str = ""
    alike_in: str = ""  # the reward that did not differ, if a refill replaced the group

    @property
    def totals(self) -> list[float | None]:
        """The total reward of each rollout; None where no function applies, or one failed."""
        return self.scores.totals()


@frozen
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
        rewards = (reward for group in self.groups for reward in group.scores.rewards[0])
        return list(dict.fromkeys((reward.name, reward.weight) for reward in rewards))

    def rows_of(self, group: int) -> list[int]:
        """The rows of a group, by its index in `groups`."""
        start = sum(len(before.rollouts) for before in self.groups[:group])
        return list(range(start, start + len(self.groups[group].rollouts)))

    def rewards(self) -> list[list[float | None]]:
        """Rewards [B,F]; None where a function does not apply, or is another task's."""
        columns = self.columns
        rows = (row for group in self.groups for row in group.scores.rewards)
        named = ({(score.name, score.weight): score.value for score in row} for row in rows)
        return [[row.get(column) for column in columns] for row in named]

    def counted_rewards(self) -> list[list[float | None]]:
        """Rewards [B,F], without those of rollouts that have no total."""
        totals = (total for group in self.groups for total in group.totals)
        return [
            row if total is not None else [None] * len(row)
            for row, total in zip(self.rewards(), totals, strict=True)
        ]

    def step_scores(self) -> list[list[tuple[int, float | None]]]:
        """(last token, score) of every step of every rollout, for process rewards."""
        return [list(row) for group in self.groups for row in group.scores.steps or ()]


@frozen
class OldScores:
    """Scores of each token before the update, by policy, critic, reference and teacher.

    None if the recipe does not read it, or the first pass computes it.
    """

    logprobs_BT: mx.array | None = None
    values_BT: mx.array | None = None
    entropy_BT: mx.array | None = None
    reference_logprobs_BT: mx.array | None = None
    teacher_logprobs_BT: mx.array | None = None


@frozen
class Experience:
    """The data of a step's passes."""

    samples: Samples
    old: OldScores
    advantages: Advantages
    trained_rows: list[int]  # rows that can have a gradient

    @property
    def first_trained_group(self) -> list[int]:
        """The index of the first group with trained rows, in a list; empty without any."""
        return [int(self.samples.group_ids_B[row]) for row in self.trained_rows[:1]]


def known_scores(groups: Iterable[SampledGroup]) -> dict[str, list[float]]:
    """The scores of each reward function that applies to any rollout of the groups."""
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
    """The number of rollouts on which each reward function failed."""
    rows = (row for group in groups for row in group.scores.rewards)
    return Counter(reward.name for row in rows for reward in row if reward.failed)


def gather(groups: Sequence[SampledGroup], recipe: Recipe) -> Samples:
    """Convert the groups' rollouts to arrays."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    width = max(1, *(len(rollout.ids) for rollout in rollouts))
    return Samples(
        groups=list(groups),
        rollouts=rollouts,
        group_ids_B=mx.array([index for index, group in enumerate(groups) for _ in group.rollouts]),
        mask_BT=padded([in_loss(rollout, recipe) for rollout in rollouts], width),
        token_ids_BT=padded([r.ids for r in rollouts], width, np.int32),
        sampler_logprobs_BT=padded([r.logprobs for r in rollouts], width),
        raw_sampler_logprobs_BT=padded([r.raw_logprobs for r in rollouts], width),
        data=columns_of([group.example for group in groups for _ in group.rollouts]),
    )


def in_loss(rollout: Trajectory, recipe: Recipe) -> list[int]:
    """1 for each sampled token; none of a completion that was cut, if the recipe masks these."""
    if recipe.mask_truncated and rollout.finish in CUT:
        return []
    forced = set(rollout.forced)
    return [int(index not in forced) for index in range(len(rollout.ids))]


def gather_rollouts(rollouts: Sequence[Trajectory]) -> tuple[mx.array, mx.array]:
    """Mask and sampler log-probabilities of rollouts outside a training step. [B,T]"""
    width = max(1, *(len(rollout.ids) for rollout in rollouts))
    mask_BT = padded([(1,) * len(rollout.ids) for rollout in rollouts], width)
    return mask_BT, padded([rollout.raw_logprobs for rollout in rollouts], width)


def padded(rows: Sequence[Sequence[float]], width: int, dtype: type = np.float32) -> mx.array:
    """Rows of different lengths as one array [B,T], padded with zeros."""
    padded_BT: np.ndarray[tuple[int, int], Any] = np.zeros((len(rows), width), dtype=dtype)
    for padded_T, row in zip(padded_BT, rows, strict=True):
        padded_T[: len(row)] = row
    return mx.array(padded_BT)


def rows_of_batch(values_Bt: mx.array, batch: TokenBatch) -> mx.array:
    """The rows of a micro-batch from a [B] or [B,T] array, truncated or padded to its width."""
    rows_Bt = values_Bt[mx.array(batch.rows)]
    return rows_Bt if values_Bt.ndim == 1 else fitted(rows_Bt, batch.width)


def fitted(values_BT: mx.array, width: int) -> mx.array:
    """[B,T] truncated, or padded with zeros, to `width` columns."""
    missing = width - int(values_BT.shape[1])
    return mx.pad(values_BT, [(0, 0), (0, missing)]) if missing > 0 else values_BT[:, :width]


def assembled(parts: Iterable[tuple[TokenBatch, mx.array]], row_count: int, width: int) -> mx.array:
    """Combine the arrays of micro-batches into [B,T]; missing rows are 0."""
    assembled_BT = np.zeros((row_count, width), dtype=np.float32)
    for batch, part_BT in parts:
        assembled_BT[list(batch.rows)] = np.array(fitted(part_BT.astype(mx.float32), width))
    return mx.array(assembled_BT)


def row_values(values_BT: mx.array | None, row: int, length: int) -> tuple[float, ...]:
    """A row of a token array as numbers, cut to the completion's length; empty for None."""
    if values_BT is None:
        return ()
    return tuple(values_BT[row, :length].tolist())  # type: ignore[arg-type]
