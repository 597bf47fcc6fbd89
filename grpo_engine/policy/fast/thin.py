"""LoRA layers that add the adapter's product to the base's in one addmm.

mlx-lm's layer computes base(x) + scale * ((x A) B): two more passes over arrays as wide as the
output, forward and backward. Here the narrow x A is scaled, and the product accumulates.
"""

import mlx.core as mx
from mlx_lm.tuner.lora import LoRALinear

from grpo_engine.policy.policy import Policy


class ThinLoRA(LoRALinear):
    """base(x) + (scale * x A) B while `policy.fast.fast_adapter` is on."""

    policy: Policy

    def __call__(self, x: mx.array) -> mx.array:
        if not self.policy.fast.fast_adapter or self.dropout._p_1 < 1:
            plain: mx.array = super().__call__(x)  # type: ignore[no-untyped-call]  # mlx-lm has no types
            return plain
        return mx.addmm(self.linear(x), self.scale * (x @ self.lora_a), self.lora_b)


def install(policy: Policy) -> None:
    """Replace this model's LoRA layers by `ThinLoRA`."""
    for layer in policy.model.modules():
        if type(layer) is LoRALinear:
            layer.__class__ = ThinLoRA
            layer.policy = policy
