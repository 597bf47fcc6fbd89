"""PPO's critic: one value per token from the policy's hidden states."""

import mlx.core as mx
import mlx.nn as nn


class Critic(nn.Module):
    """V = w·h + b, initially 0."""

    def __init__(self, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weight = mx.zeros(width)
        self.bias = mx.zeros(1)

    def __call__(self, hidden: mx.array) -> mx.array:
        """Values of hidden states, [N, D] -> [N]."""
        value: mx.array = hidden.astype(mx.float32) @ self.weight + self.bias
        return value
