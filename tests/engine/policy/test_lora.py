"""LoRA added inside the product gives mlx-lm's numbers, and is switched off like theirs."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.tuner.lora import LoRALinear

from grpo_engine.policy.lora import AddedLoRA, applied_together
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


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.02)])
def test_layers_that_sample_together_have_the_values_of_each(
    make_policy: MakePolicy, dtype: str, tolerance: float
) -> None:
    policy, _ = an_adapted_layer(make_policy, dtype)
    block = policy.model.layers[0].self_attn
    shape = (1, 5, block.q_proj.lora_a.shape[0])
    x = mx.random.normal(shape, key=mx.random.key(3)).astype(getattr(mx, dtype))
    layers = [block.q_proj, block.k_proj, block.v_proj]
    expected = [layer(x) for layer in layers]
    with applied_together(policy.model):
        assert block.q_proj._narrow is block.k_proj._narrow
        together = [layer(x) for layer in layers]
        other = block.q_proj(x + 1)
    assert all(
        mx.allclose(a, b, rtol=tolerance, atol=tolerance)
        for a, b in zip(together, expected, strict=True)
    )
    assert mx.allclose(other, block.q_proj(x + 1), rtol=tolerance, atol=tolerance)
    assert type(block.q_proj) is AddedLoRA
    assert "_b" not in block.q_proj


def test_a_layer_with_dropout_keeps_its_own_code(make_policy: MakePolicy) -> None:
    _, layer = an_adapted_layer(make_policy)
    layer.dropout._p_1 = 0.5
    layer.train()
    x = mx.ones((1, 200, layer.lora_a.shape[0]))
    out = layer(x)[0]
    assert not mx.allclose(out, mx.broadcast_to(out[:1], out.shape))  # dropout differs between rows


def test_the_reference_leaves_the_adapter_out(make_policy: MakePolicy) -> None:
    policy, _ = an_adapted_layer(make_policy)
    ids, before = mx.array([[1, 2, 3]]), policy.snapshot()
    zero = {name: mx.zeros_like(a) if name.endswith("_b") else a for name, a in before.items()}
    with policy.using(zero):
        expected = policy.model(ids)
    with policy.as_reference():
        assert mx.array_equal(policy.model(ids), expected)
    assert not mx.allclose(policy.model(ids), expected)
    assert policy.snapshot().keys() == before.keys()
