"""Signal `process`: rewards at the ends of steps, credited to all tokens before them."""

import math
from collections.abc import Sequence

import mlx.core as mx

from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.maths.groups import of_group
from grpo_engine.maths.signal import group_standard

Steps = Sequence[Sequence[tuple[int, float | None]]]


def scored(steps: Steps, mask: mx.array) -> list[tuple[int, int, float]]:
    """(completion, last token, score) of every scored step; refuse a token outside the array."""
    if len(steps) != mask.shape[0]:
        raise MathsError(f"steps must list {mask.shape[0]} completions, got {len(steps)}")
    flat = []
    for row, ends in enumerate(steps):
        for end, score in ends:
            if not 0 <= end < mask.shape[1]:
                last = mask.shape[1] - 1
                raise MathsError(f"step of completion {row} ends at token {end}, not in 0..{last}")
            if score is not None and not math.isnan(score):
                flat.append((row, end, score))
    return flat


def process(steps: Steps, group_ids: mx.array, mask: mx.array, recipe: Recipe) -> mx.array:
    """A_it = Σ of the normalised rewards of i's steps that end at or after token t. [B,T]

    `steps[i]` lists (index of the step's last token, score). r̃ = (r - mean)/(std + ε) over all
    step rewards of the group; tokens after the last step get 0. GRPO (arXiv:2402.03300, §4.1.3).
    """
    flat = scored(steps, mask)
    if not flat:
        return mx.zeros(mask.shape)
    rows = mx.array([row for row, _, _ in flat])
    ends = mx.array([end for _, end, _ in flat])
    scores = mx.array([score for _, _, score in flat], dtype=mx.float32)
    normal = group_standard(of_group(scores, group_ids[rows]), recipe)  # [S]
    own = mx.arange(mask.shape[0])[:, None] == rows[None, :]  # [B,S]
    ahead = ends[:, None] >= mx.arange(mask.shape[1])[None, :]  # [S,T]
    spread = mx.where(own, normal[None, :], 0.0) @ ahead.astype(mx.float32)
    return mx.where(mask, spread, 0.0)
