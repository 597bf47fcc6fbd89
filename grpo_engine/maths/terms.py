"""The terms of the loss for each token, for metrics and display."""

from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The parts of the loss per token, all [B,T] and lazy; `contribution` sums to the loss.

    contribution = weight·(β·anchor - [updated]·importance·objective + c_V·value_loss) - bonus
    """

    mask: mx.array  # token is in the completion
    advantage: mx.array  # for trust=target the sign of the token
    log_ratio: mx.array  # log π/π_old of the token
    ratio: mx.array  # the recipe's ratio: of the token, or of its completion
    low: mx.array  # ratio at which a push down stops
    high: mx.array  # ratio at which a push up stops
    side: mx.array  # -1 stopped at low, 1 at high, 2 at the ceiling δ, 0 free
    clamped: mx.array  # the log-ratio was beyond ±60
    objective: mx.array  # J, before any weight
    gate: mx.array | None  # VESPO's φ; [B,1] where it is one number per completion
    importance: mx.array  # correction for the sampler; for trust=vespo part of J
    kept: mx.array  # 0 where the importance or off-policy mask drops the push
    updated: mx.array  # 1 where the token's push is in the loss
    weight: mx.array  # the token's weight in the average
    contribution: mx.array  # what the token adds to the loss
    anchor: mx.array  # the distance that β multiplies, 0 without an anchor in the loss
    kl: mx.array | None  # k3 of the token to the reference, re-weighted like the anchor
    kl_to_old: mx.array  # k3 to the policy that sampled: (r - 1) - log r
    entropy: mx.array | None
    value_loss: mx.array  # 0 without a critic
    target: mx.array | None  # target probability
    per_row: bool  # ratio and advantage have one value per completion


class Loss(NamedTuple):
    """The value to minimise and its terms, as `mx.value_and_grad` expects them."""

    value: mx.array
    terms: Terms
