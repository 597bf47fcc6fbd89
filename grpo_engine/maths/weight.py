"""Choice 5, weight: how tokens are averaged. A weight per token, so that the loss is Σ w·term."""

import mlx.core as mx

from grpo_engine.config import recipes
from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.frozen import frozen
from grpo_engine.maths.arrays import lengths


@frozen
class Totals:
    """The denominators of a whole optimiser update, independent of its micro-batches."""

    rows: float | mx.array  # completions, empty and masked ones included
    tokens: float | mx.array  # completion tokens in the loss
    micro_batches: float | mx.array = 1  # read by `per_batch_token` alone
    batch_tokens: float | mx.array | None = None  # read by `per_batch_token`; None: the mask's
    entropy_floor: float | mx.array | None = None  # lowest entropy of an updated token
    updated_tokens: float | mx.array | None = None  # tokens at or above that entropy


def totals_of(
    mask_BT: mx.array,
    *,
    micro_batches: int = 1,
    recipe: str | Recipe = "grpo",
    entropy: mx.array | None = None,
) -> Totals:
    """The denominators of an update from the mask [B,T] of all its completions.

    If the recipe updates only the most uncertain tokens, `entropy` [B,T] gives one threshold for
    the whole update; without it each micro-batch computes its own, as in TRL.
    """
    share = recipes.recipe(recipe).entropy_top_quantile
    floor = updated = None
    if entropy is not None and share < 1:
        floor = entropy_floor(entropy, mask_BT > 0, share)
        updated = ((entropy >= floor) & (mask_BT > 0)).astype(mx.float32).sum()
    return Totals(
        rows=float(mask_BT.shape[0]),
        tokens=mask_BT.astype(mx.float32).sum(),
        micro_batches=micro_batches,
        entropy_floor=floor,
        updated_tokens=updated,
    )


def entropy_floor(entropy_BT: mx.array, mask_BT: mx.array, share: float) -> mx.array:
    """The (1 - share)-quantile of the entropies on the mask, linearly interpolated. []

    Tokens at or above it are the top `share` (80/20 rule, arXiv:2506.01939).
    """
    sorted_N = mx.sort(mx.where(mask_BT, entropy_BT.astype(mx.float32), 3e38).flatten())
    last = mx.maximum(mask_BT.astype(mx.float32).sum() - 1, 0.0)
    rank = mx.array(1 - share) * last
    below = mx.floor(rank)
    above = mx.minimum(below + 1, last)
    left, right = sorted_N[below.astype(mx.int32)], sorted_N[above.astype(mx.int32)]
    return left + (rank - below) * (right - left)


def weights(mask_BT: mx.array, rule: str, totals: Totals, max_length: int | None) -> mx.array:
    """w_it, zero off the mask; B and tokens count the whole update. [B,T]

    per_sequence     1 / (B·|o_i|)               GRPO (arXiv:2402.03300), GSPO
    per_completion   1 / B                       REINFORCE
    per_token        1 / tokens                  DAPO (arXiv:2503.14476), CISPO
    per_batch_token  1 / (its tokens·batches)    TRL's BNPO: mean of micro-batch means
    constant         1 / (B·max_length)          Dr. GRPO (arXiv:2503.20783), as in TRL
    sum              1
    """
    ones_BT, rows = mask_BT.astype(mx.float32), mx.maximum(totals.rows, 1.0)
    if rule == "per_sequence":
        return ones_BT / (lengths(mask_BT) * rows)
    if rule == "per_completion":
        return ones_BT / rows
    if rule == "per_token":
        return ones_BT / mx.maximum(totals.tokens, 1.0)
    if rule == "per_batch_token":
        tokens = ones_BT.sum() if totals.batch_tokens is None else totals.batch_tokens
        return ones_BT / (mx.maximum(tokens, 1.0) * totals.micro_batches)
    if rule == "constant":
        if max_length is None:
            raise MathsError("weight=constant divides by the maximum length: give max_length")
        return ones_BT / (rows * max_length)
    return ones_BT
