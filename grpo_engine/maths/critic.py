"""Signal `gae`: advantages from a critic, and the critic's targets. Shapes [B,T]."""

import mlx.core as mx


def token_rewards(score: mx.array, penalty: mx.array, mask: mx.array) -> mx.array:
    """r_t = -penalty_t, plus the score [B] on the last token of the completion."""
    inside = mask.astype(mx.int32)
    after = inside.sum(axis=1, keepdims=True) - mx.cumsum(inside, axis=1)
    last = mask & (after == 0)
    return mx.where(mask, mx.where(last, score[:, None], 0.0) - penalty, 0.0)


def gae(
    rewards: mx.array, values: mx.array, mask: mx.array, gamma: float, lam: float
) -> tuple[mx.array, mx.array]:
    """A_t = δ_t + γλ·A_{t+1} with δ_t = r_t + γ·V_{t+1} - V_t, and returns A + V.

    Computed backwards, with V = 0 after the last token; positions off the mask are skipped, get 0.
    λ = 0 is one-step TD, λ = γ = 1 with V = 0 the return. (arXiv:1506.02438, eq. 16)
    """
    advantage = next_value = mx.zeros(rewards.shape[0])
    columns = []
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        inside = mask[:, t]
        advantage = mx.where(inside, delta + gamma * lam * advantage, advantage)
        next_value = mx.where(inside, values[:, t], next_value)
        columns.append(mx.where(inside, advantage, 0.0))
    advantages = mx.stack(columns[::-1], axis=1) if columns else mx.zeros_like(rewards)
    return advantages, mx.where(mask, advantages + values, 0.0)


def whiten(values: mx.array, mask: mx.array) -> mx.array:
    """(x - mean)/(std + 1e-8) over the mask, population std; 0 if all values are equal.

    Deviations are scaled by the largest, so that their squares neither overflow nor underflow.
    """
    differ = mx.where(mask, values, -mx.inf).max() > mx.where(mask, values, mx.inf).min()
    count = mx.maximum(mask.astype(mx.float32).sum(), 1.0)
    mean = mx.where(mask, values, 0.0).sum() / count
    deviation = mx.where(mask & differ, values - mean, 0.0)
    scale = mx.where(differ, mx.abs(deviation).max(), 1.0)
    std = scale * mx.sqrt(((deviation / scale) ** 2).sum() / count)
    return deviation / (std + 1e-8)


def value_loss(
    values: mx.array, old_values: mx.array, returns: mx.array, value_clip: float
) -> mx.array:
    """½·max((V - R)², (clip(V, V_old - c, V_old + c) - R)²); c = 0 is the plain square."""
    plain = (values - returns) ** 2
    if value_clip == 0:
        return plain / 2
    clipped = old_values + mx.clip(values - old_values, -value_clip, value_clip)
    return mx.maximum(plain, (clipped - returns) ** 2) / 2
