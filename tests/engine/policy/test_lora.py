"""LoRA added inside the product gives mlx-lm's numbers, and is switched off like theirs."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.tuner.lora import LoRALinear

from grpo_engine.policy.lora import AddedLoRA
from tests.engine.conftest import MakePolicy
from tests.engine.policy.helpers import move_weights


def an_adapted_layer(make_policy: MakePolicy, dtype: str = "float32") -> tuple[Any, Any]:
    policy = make_policy(dtype=dtype)
    move_weights(policy)
    return policy, next(m for m in policy.model.modules() if type(m) is AddedLoRA)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.03)])
def test_a_layer_has_the_values_and_gradients_of_mlx_lm(
    make_policy: MakePolicy, dtype: str, tolerance: float
) -> None:
    _, layer = an_adapted_layer(make_policy, dtype)
    shape = (2, 3, layer.lora_a.shape[0])
    x = mx.random.normal(shape, key=mx.random.key(3)).astype(getattr(mx, dtype))

    def both(kind: type) -> tuple[list[mx.array], list[mx.array]]:
        def call(a: mx.array, b: mx.array, inputs: mx.array) -> mx.array:
            layer.lora_a, layer.lora_b = a, b
            out: mx.array = kind.__call__(layer, inputs)
            return out

        primals = [layer.lora_a, layer.lora_b, x]
        out = mx.vjp(call, primals, [mx.ones((2, 3, layer.lora_b.shape[1]), dtype=x.dtype)])
        layer.lora_a, layer.lora_b = primals[:2]
        return out

    (value,), gradients = both(AddedLoRA)
    (expected,), expected_gradients = both(LoRALinear)
    assert value.dtype == x.dtype
    assert gradients[0].dtype == mx.float32  # of the masters
    for ours, theirs in zip([value, *gradients], [expected, *expected_gradients], strict=True):
        scale = mx.abs(theirs.astype(mx.float32)).max()
        assert mx.abs(ours.astype(mx.float32) - theirs).max() <= tolerance * scale


def test_a_layer_with_dropout_keeps_its_own_code(make_policy: MakePolicy) -> None:
    _, layer = an_adapted_layer(make_policy)
    layer.dropout._p_1 = 0.5
    layer.train()
    x = mx.ones((1, 200, layer.lora_a.shape[0]))
    out = layer(x)[0]
    assert not mx.allclose(out, mx.broadcast_to(out[:1], out.shape))  # dropout differs between rows
