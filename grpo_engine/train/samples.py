"""The answers of one step as arrays: what was sampled, what it earned, and what the policy thinks.

Axes: P prompts, B = all answers in the order they were sampled, T the longest of them in tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from grpo_engine.config.recipes import Recipe
from grpo_engine.maths.advantage import Advantages
from grpo_engine.maths.around import without_truncated
from grpo_engine.policy.batch import TokenBatch
from grpo_engine.rewards.scoring import Scores
from grpo_engine.rollouts.types import Rollout
from grpo_engine.tasks.base import Example


@dataclass(slots=True, kw_only=True)
class SampledGroup:
    """One prompt with its answers and what each earned."""

    index: int
    example: Example
    prompt_ids: tuple[int, ...]
    prompt_text: str
    attempt: int
    rollouts: list[Rollout]
    scores: Scores
    prefill: str = ""
    replaced: bool = False

    @property
    def totals(self) -> list[float | None]:
        """The total reward of each answer; None where no function applies."""
        return self.scores.totals()


@dataclass(slots=True, kw_only=True)
class Samples:
    """The groups that a step trains on, row by row; token arrays are [B, T], 0 off the mask."""

    groups: list[SampledGroup]
    rollouts: list[Rollout]
    group_ids: mx.array
    mask: mx.array
    token_ids: mx.array
    sampler: mx.array
    raw_sampler: mx.array
    old: mx.array | None = None
    reference: mx.array | None = None
    values: mx.array | None = None
    entropy: mx.array | None = None
    worth: Advantages | None = None
    passes: list[mx.array] = field(default_factory=list)
    after: mx.array | None = None
    clipped: mx.array | None = None
    kl: mx.array | None = None
    trained: list[int] = field(default_factory=list)
    after_rows: set[int] = field(default_factory=set)

    @property
    def width(self) -> int:
        """T, the length of the longest answer."""
        return int(self.mask.shape[1])

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights of the reward functions."""
        return self.groups[0].scores.weights

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the reward functions."""
        return self.groups[0].scores.names

    def rows_of(self, place: int) -> list[int]:
        """Rows of the group at a place."""
        start = sum(len(group.rollouts) for group in self.groups[:place])
        return list(range(start, start + len(self.groups[place].rollouts)))

    def groups_to_follow(self, count: int) -> list[int]:
        """The first trained groups; those are scored again after the update."""
        trained = set(self.trained)
        places = [p for p in range(len(self.groups)) if trained & set(self.rows_of(p))]
        return places[:count]

    def rewards(self) -> list[list[float | None]]:
        """Rewards [B, F]."""
        return [row for group in self.groups for row in group.scores.values]

    def steps(self) -> list[list[tuple[int, float | None]]]:
        """(last token, score) of every step of every answer, for process supervision."""
        return [list(row) for group in self.groups for row in group.scores.steps or ()]


def gather(groups: Sequence[SampledGroup], recipe: Recipe) -> Samples:
    """Lay out the groups' answers as arrays."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    width = max(1, *(len(rollout.ids) for rollout in rollouts))
    mask = np.zeros((len(rollouts), width), dtype=np.float32)
    for row, rollout in enumerate(rollouts):
        mask[row, : len(rollout.ids)] = 1
        mask[row, list(rollout.forced)] = 0
    counted = mx.array(mask)
    if recipe.mask_truncated:
        cut = mx.array([float(rollout.finish == "length") for rollout in rollouts])
        counted = without_truncated(counted, cut).astype(mx.float32)
    owners = [place for place, group in enumerate(groups) for _ in group.rollouts]
    return Samples(
        groups=list(groups),
        rollouts=rollouts,
        group_ids=mx.array(owners),
        mask=counted,
        token_ids=mx.array(padded([r.ids for r in rollouts], width, np.int32)),
        sampler=mx.array(padded([r.logprobs for r in rollouts], width, np.float32)),
        raw_sampler=mx.array(padded([r.raw_logprobs for r in rollouts], width, np.float32)),
    )


def gather_rollouts(rollouts: Sequence[Rollout]) -> tuple[mx.array, mx.array]:
    """Mask and the sampler's log-probabilities of answers that belong to no step, [B, T]."""
    width = max(1, *(len(rollout.ids) for rollout in rollouts))
    mask = padded([(1,) * len(rollout.ids) for rollout in rollouts], width, np.float32)
    logprobs = padded([rollout.raw_logprobs for rollout in rollouts], width, np.float32)
    return mx.array(mask), mx.array(logprobs)


def as_float(value: mx.array) -> float:
    """A single number out of MLX."""
    return float(np.array(value))


def padded(
    rows: Sequence[Sequence[float]], width: int, kind: type[np.generic]
) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    """Rows of different lengths as one array, zeros at their ends."""
    out = np.zeros((len(rows), width), dtype=kind)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
    return out


def part(values: mx.array, batch: TokenBatch) -> mx.array:
    """The rows of a micro-batch from a [B] or [B, T] array, cut or padded to its width."""
    chosen = values[mx.array(batch.rows)]
    if values.ndim == 1:
        return chosen
    return fitted(chosen, batch.width)


def fitted(values: mx.array, width: int) -> mx.array:
    """[B, T] cut or padded with zeros to `width` columns."""
    have = int(values.shape[1])
    if have >= width:
        return values[:, :width]
    return mx.pad(values, [(0, 0), (0, width - have)])


def assembled(parts: Sequence[tuple[TokenBatch, mx.array]], rows: int, width: int) -> mx.array:
    """[B, T] from the [b, t] results of micro-batches; rows that were in none are 0."""
    out = np.zeros((rows, width), dtype=np.float32)
    for batch, values in parts:
        out[list(batch.rows)] = np.array(fitted(values.astype(mx.float32), width))
    return mx.array(out)


def by_row(values: mx.array | None, samples: Samples, row: int) -> tuple[float, ...]:
    """A row of a token array as plain numbers, as long as the answer; empty for None."""
    if values is None:
        return ()
    return tuple(values[row, : len(samples.rollouts[row].ids)].tolist())  # type: ignore[arg-type]
