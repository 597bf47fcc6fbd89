"""The fast gated layer matches the plain layer, and applies only to layers that it supports."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.activations import swiglu

from grpo_engine.policy.fast import gates
from grpo_engine.policy.switches import FastPaths
from tests.engine.conftest import MakePolicy

EDGES = [-1000.0, -100.0, -88.0, -1.0, 0.0, 1e-8, 1.0, 88.0, 1000.0]


def test_the_quick_gate_has_the_plain_values_and_gradients_at_every_size() -> None:
    gate = mx.array([EDGES] * 3)
    up = mx.array([[-2.0] * 9, [0.0] * 9, [3.0] * 9])
    weight = mx.arange(27).reshape(3, 9) / 10
    expected, expected_slopes = mx.vjp(swiglu, [gate, up], [weight])
    given, slopes = mx.vjp(gates.swiglu, [gate, up], [weight])
    assert mx.allclose(given[0], expected[0], rtol=2e-6, atol=1e-6)
    for own, other in zip(slopes, expected_slopes, strict=True):
        assert mx.allclose(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="the quick gate is for the CPU")
def test_gated_layers_of_a_model_are_quick_only_while_the_switch_is_on(
    make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy()
    seen: list[int] = []

    def counted(gate: mx.array, up: mx.array) -> mx.array:
        seen.append(1)
        found: mx.array = swiglu(gate, up)
        return found

    monkeypatch.setattr(gates, "swiglu", counted)
    mx.eval(policy.model(mx.array([[1, 2, 3]])))
    assert len(seen) == len(policy.model.layers)
    policy.fast = FastPaths.plain()
    mx.eval(policy.model(mx.array([[1, 2, 3]])))
    assert len(seen) == len(policy.model.layers)


def test_a_layer_with_another_activation_stays_as_it_is(make_policy: MakePolicy) -> None:
    class Gelu(nn.Module):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.gate_proj, self.up_proj = nn.Linear(4, 6), nn.Linear(4, 6)
            self.down_proj = nn.Linear(6, 4)

        def __call__(self, x: mx.array) -> mx.array:
            out: mx.array = self.down_proj(nn.gelu(self.gate_proj(x)) * self.up_proj(x))
            return out

    policy = make_policy()
    layer = policy.model.layers[0]
    layer.mlp = Gelu()
    gates.install(policy)
    assert type(layer.mlp) is Gelu
