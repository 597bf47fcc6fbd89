"""Trust `target`: pushes each token towards a target probability.

Completions of a group form a prefix tree. Each distinct token after a shared prefix gets one
target, so that siblings with the same prefix are never pushed against each other.
"""

from typing import NamedTuple

import mlx.core as mx

from grpo_engine.maths.arrays import LIMIT
from grpo_engine.maths.trust import Push, clip


class Targets(NamedTuple):
    """The target of each token [B,T]; computed once per update from whole groups."""

    sign: mx.array  # +1 pushed up, -1 pushed down, 0 left alone
    probability: mx.array  # the target t
    low: mx.array  # ratio at which a push down stops: p_old
    high: mx.array  # ratio at which a push up stops: t/p_old

    def rows(self, chosen: mx.array | slice) -> "Targets":
        """The targets of some completions, for a micro-batch."""
        return Targets(*(values[chosen] for values in self))


def targets_of(
    old: mx.array, signs: mx.array, mask: mx.array, token_ids: mx.array, group_ids: mx.array
) -> Targets:
    """Targets of all completions of whole groups. signs [B] or [B,T], the rest [B,T].

    Bad tokens: t = p_old². Good tokens: t = p + s·(√p - p), s from `share_of_room`. A token's sign
    is the sign of the sum of signs over the completions that share it and its prefix. Tokens off
    the mask, such as forced ones, are not pushed, but the prefix of later tokens contains them.
    """
    rows, columns = mask.shape
    signs = mx.broadcast_to(signs.reshape(rows, -1), (rows, columns))
    logp = mx.clip(mx.stop_gradient(old).astype(mx.float32), -LIMIT, 0.0)
    shared = group_ids[:, None] == group_ids[None, :]  # [B,B]: the same prefix so far
    pushed, shares = [], []
    for t in range(columns):
        here = mask[:, t]
        together = shared & here[:, None] & here[None, :]
        alike = token_ids[:, t][:, None] == token_ids[:, t][None, :]
        same, shared = together & alike, shared & alike
        sign = mx.sign(mx.where(same, signs[:, t][None, :], 0.0).sum(axis=1))
        pushed.append(sign)
        shares.append(share_of_room(mx.exp(logp[:, t]), sign, together, same))
    sign, share = mx.stack(pushed, axis=1), mx.stack(shares, axis=1)
    low = mx.exp(logp)
    high = mx.where(sign > 0, 1 + share * (mx.exp(-logp / 2) - 1), low)
    return Targets(sign, mx.where(sign == 0, low, low * high), low, high)


def share_of_room(p: mx.array, sign: mx.array, together: mx.array, same: mx.array) -> mx.array:
    """s = min(1, (1 - Σ bad p² - Σ good p)/Σ good (√p - p)) over the distinct tokens. [B]

    together[i,j]: i and j have the same prefix; same[i,j]: the same token after it. Three good and
    one bad token at 1/4 each: s = (1 - 1/16 - 3/4)/(3/4) = .25, and t = .3125 for a good one.
    """
    first = mx.argmax(same, axis=1) == mx.arange(p.shape[0])  # one completion per distinct token
    good, bad = first & (sign > 0), first & (sign < 0)

    def over(chosen: mx.array, values: mx.array) -> mx.array:
        return mx.where(together & chosen[None, :], values[None, :], 0.0).sum(axis=1)

    room = mx.maximum(1 - over(bad, p * p) - over(good, p), 0.0)
    reach = over(good, mx.sqrt(p) - p)
    return mx.where(reach > room, room / mx.where(reach > 0, reach, 1.0), 1.0)


def push_to_target(ratio: mx.array, targets: Targets) -> Push:
    """J = min(r·s, clip(r, p_old, t/p_old)·s) with the token's sign s as its advantage."""
    return clip(ratio, targets.sign, targets.low, targets.high)
