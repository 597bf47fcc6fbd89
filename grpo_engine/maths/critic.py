"""Signal `gae`: advantages from a critic, and the critic's targets."""

import mlx.core as mx


def token_rewards(rewards_B: mx.array, penalty_BT: mx.array, mask_BT: mx.array) -> mx.array:
    """r_t = -penalty_t, plus the completion's reward on its last token. [B,T]"""
    count_BT = mask_BT.astype(mx.int32)
    remaining_BT = count_BT.sum(axis=1, keepdims=True) - mx.cumsum(count_BT, axis=1)
    last_BT = mask_BT & (remaining_BT == 0)
    return mx.where(mask_BT, mx.where(last_BT, rewards_B[:, None], 0.0) - penalty_BT, 0.0)


def gae(
    rewards_BT: mx.array, values_BT: mx.array, mask_BT: mx.array, gamma: float, lam: float
) -> tuple[mx.array, mx.array]:
    """A_t = δ_t + γλ·A_{t+1} with δ_t = r_t + γ·V_{t+1} - V_t, and returns A + V. [B,T]

    Computed backwards, with V = 0 after the last token; positions off the mask are skipped, get 0.
    λ = 0 is one-step TD, λ = γ = 1 with V = 0 the return. (arXiv:1506.02438, eq. 16)
    """
    advantage_B = next_value_B = mx.zeros(rewards_BT.shape[0])
    columns = []
    for t in reversed(range(rewards_BT.shape[1])):
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        mask_B = mask_BT[:, t]
        advantage_B = mx.where(mask_B, delta_B + gamma * lam * advantage_B, advantage_B)
        next_value_B = mx.where(mask_B, values_BT[:, t], next_value_B)
        columns.append(mx.where(mask_B, advantage_B, 0.0))
    advantages_BT = mx.stack(columns[::-1], axis=1) if columns else mx.zeros_like(rewards_BT)
    return advantages_BT, mx.where(mask_BT, advantages_BT + values_BT, 0.0)


def whiten(values_BT: mx.array, mask_BT: mx.array) -> mx.array:
    """(x - mean)/(std + 1e-8) over the mask, population std; 0 if all values are equal. [B,T]

    Deviations are scaled by the largest, so that their squares neither overflow nor underflow.
    """
    highest = mx.where(mask_BT, values_BT, -mx.inf).max()
    differ = highest > mx.where(mask_BT, values_BT, mx.inf).min()
    count = mx.maximum(mask_BT.astype(mx.float32).sum(), 1.0)
    mean = mx.where(mask_BT, values_BT, 0.0).sum() / count
    deviation_BT = mx.where(mask_BT & differ, values_BT - mean, 0.0)
    scale = mx.where(differ, mx.abs(deviation_BT).max(), 1.0)
    std = scale * mx.sqrt(((deviation_BT / scale) ** 2).sum() / count)
    return deviation_BT / (std + 1e-8)


def value_loss(
    values_BT: mx.array, old_values_BT: mx.array, returns_BT: mx.array, value_clip: float
) -> mx.array:
    """½·max((V - R)², (clip(V, V_old - c, V_old + c) - R)²); c = 0 is the plain square. [B,T]"""
    square_BT = (values_BT - returns_BT) ** 2
    if value_clip == 0:
        return square_BT / 2
    change_BT = mx.clip(values_BT - old_values_BT, -value_clip, value_clip)
    return mx.maximum(square_BT, (old_values_BT + change_BT - returns_BT) ** 2) / 2
