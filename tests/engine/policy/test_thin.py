"""LoRA added inside the product gives mlx-lm's numbers, and is switched off like theirs."""

from typing import Any

import mlx.core as mx
import pytest

from grpo_engine.policy.fast.thin import ThinLoRA
from grpo_engine.policy.switches import FastPaths
from tests.engine.conftest import MakePolicy
from tests.engine.policy.helpers import move_weights

pytestmark = pytest.mark.skipif(mx.default_device() != mx.cpu, reason="thin layers are for the CPU")


def thin_layer(make_policy: MakePolicy) -> tuple[Any, Any]:
    policy = make_policy()
    move_weights(policy)
    return policy, next(m for m in policy.model.modules() if type(m) is ThinLoRA)


def test_a_thin_layer_has_the_plain_values_and_gradients(make_policy: MakePolicy) -> None:
    policy, layer = thin_layer(make_policy)
    x = mx.random.normal((2, 3, layer.lora_a.shape[0]), key=mx.random.key(3))

    def both() -> tuple[list[mx.array], list[mx.array]]:
        def call(a: mx.array, b: mx.array, inputs: mx.array) -> mx.array:
            layer.lora_a, layer.lora_b = a, b
            out: mx.array = layer(inputs)
            return out

        primals = [layer.lora_a, layer.lora_b, x]
        out = mx.vjp(call, primals, [mx.ones((2, 3, layer.lora_b.shape[1]))])
        layer.lora_a, layer.lora_b = primals[:2]
        return out

    (value,), slopes = both()
    policy.fast = FastPaths.plain()
    (expected,), expected_slopes = both()
    assert mx.allclose(value, expected, atol=1e-5)
    for own, other in zip(slopes, expected_slopes, strict=True):
        assert mx.allclose(own, other, rtol=1e-4, atol=1e-5)


def test_a_layer_with_dropout_keeps_its_own_code(make_policy: MakePolicy) -> None:
    _, layer = thin_layer(make_policy)
    layer.dropout._p_1 = 0.5
    layer.train()
    x = mx.ones((1, 200, layer.lora_a.shape[0]))
    out = layer(x)[0]
    assert not mx.allclose(out, mx.broadcast_to(out[:1], out.shape))  # dropout differs between rows


def test_the_reference_leaves_a_thin_layer_out(make_policy: MakePolicy) -> None:
    policy, layer = thin_layer(make_policy)
    x = mx.ones((1, 2, layer.lora_a.shape[0]))
    with policy.as_reference():
        assert mx.array_equal(layer(x), layer.linear(x))
    assert not mx.allclose(layer(x), layer.linear(x))
