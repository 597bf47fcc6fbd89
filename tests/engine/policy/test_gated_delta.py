"""The gated delta rule in chunks gives the numbers of mlx-lm's loop, in linear memory."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models import gated_delta as mlx_lm_gated_delta
from mlx_lm.models.bailing_moe_linear import recurrent_gla

from grpo_engine.config.settings import ModelConfig
from grpo_engine.policy import gated_delta
from grpo_engine.policy.gated_delta import gated_delta_chunks, loop
from grpo_engine.policy.load import load_policy
from tests.engine.policy.helpers import (
    largest_difference,
    made_up_rows,
    move_weights,
    peak_memory,
    weighted_loss,
)
from tests.engine.policy.oracle import oracle_loss
from tests.engine.tiny import KIMI_LINEAR, QWEN3_5, write_model

Rule = Callable[..., tuple[mx.array, mx.array]]
NAMES = ("q", "k", "v", "g", "beta", "state")

KEYS: dict[str, Callable[[mx.array], mx.array]] = {
    "random": lambda keys: keys,
    "equal": lambda keys: mx.broadcast_to(keys[:, :1], keys.shape),
    "nearly equal": lambda keys: keys[:, :1] + 0.01 * keys,
    "repeated": lambda keys: keys[:, mx.arange(keys.shape[1]) % 3],
}
GATES: dict[str, Callable[[mx.array], mx.array]] = {
    "random": lambda uniform: uniform,
    "near 1": lambda uniform: 1 - 1e-4 * uniform,
    "1": mx.ones_like,
    "often 0": lambda uniform: mx.where(uniform < 0.3, 0, uniform),
    "strong": lambda uniform: mx.exp(-40 * uniform),
}


def unit(array: mx.array) -> mx.array:
    return array / mx.linalg.norm(array, axis=-1, keepdims=True)


def made_up_inputs(
    rows: int,
    tokens: int,
    key_heads: int,
    heads: int,
    width: int,
    value_width: int,
    *,
    keys: str = "random",
    gates: str = "random",
    per_channel: bool = False,
    beta: float = 1.0,
    seed: int = 0,
) -> list[mx.array]:
    """q, k, v, g, beta and an initial state."""
    draws = iter(mx.random.split(mx.random.key(seed), 6))

    def normal(*shape: int) -> mx.array:
        return mx.random.normal(shape, key=next(draws))

    gate_shape = (rows, tokens, heads, *([width] if per_channel else []))
    return [
        unit(normal(rows, tokens, key_heads, width)) * width**-0.5,
        unit(KEYS[keys](normal(rows, tokens, key_heads, width))),
        normal(rows, tokens, heads, value_width),
        GATES[gates](mx.random.uniform(shape=gate_shape, key=next(draws))),
        beta * mx.random.uniform(0.9, 1, (rows, tokens, heads), key=next(draws)),
        normal(rows, heads, value_width, width),
    ]


def differentiate(
    rule: Rule, inputs: list[mx.array], mask: mx.array | None = None
) -> tuple[mx.array, mx.array, list[mx.array]]:
    """Outputs of unmasked tokens, last state, and the gradients of a weighted sum of both."""

    def loss(*arrays: mx.array) -> tuple[mx.array, list[mx.array]]:
        outputs, state = rule(*arrays, mask)
        if mask is not None:
            outputs = mx.where(mask[..., None, None], outputs, 0)
        weights = [
            mx.random.normal(array.shape, key=mx.random.key(8)) for array in (outputs, state)
        ]
        return (outputs * weights[0]).sum() + (state * weights[1]).sum(), [outputs, state]

    differentiated: Any = mx.value_and_grad(loss, argnums=list(range(6)))(*inputs)
    (_, (outputs, state)), gradients = differentiated
    return outputs, state, gradients


def assert_equal(rule: Rule, inputs: list[mx.array], mask: mx.array | None = None) -> None:
    outputs, state, gradients = differentiate(rule, inputs, mask)
    expected_outputs, expected_state, expected = differentiate(loop, inputs, mask)
    actual = dict(zip(("outputs", "last state", *NAMES), (outputs, state, *gradients), strict=True))
    wanted = (expected_outputs, expected_state, *expected)
    for (name, array), reference in zip(actual.items(), wanted, strict=True):
        if name == "g":  # a gate of 0 comes from a function whose slope there is 0
            array, reference = (mx.where(inputs[3] < 1e-25, 0, x) for x in (array, reference))
        difference = float(mx.linalg.norm(array - reference))
        assert difference < 1e-4 * max(float(mx.linalg.norm(reference)), 0.03), name


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 2),
    tokens=st.integers(1, 200),
    key_heads=st.integers(1, 2),
    repeats=st.integers(1, 2),
    width=st.sampled_from([2, 4, 16]),
    value_width=st.integers(1, 9),
    keys=st.sampled_from(list(KEYS)),
    gates=st.sampled_from(list(GATES)),
    per_channel=st.booleans(),
    beta=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    masked=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_chunks_have_the_outputs_and_gradients_of_the_loop(
    rows: int,
    tokens: int,
    key_heads: int,
    repeats: int,
    width: int,
    value_width: int,
    masked: bool,
    **options: Any,
) -> None:
    heads = key_heads * repeats
    inputs = made_up_inputs(rows, tokens, key_heads, heads, width, value_width, **options)
    mask = mx.random.uniform(shape=(rows, tokens), key=mx.random.key(5)) < 0.7 if masked else None
    assert_equal(gated_delta_chunks, inputs, mask)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_a_gate_of_0_has_the_gradient_of_its_source(
    monkeypatch: pytest.MonkeyPatch, lower_bound: float | None
) -> None:
    q, k, v, _, b, state = made_up_inputs(1, 100, 2, 2, 8, 8)
    a = mx.random.normal(b.shape, key=mx.random.key(1)) * 300
    a_log, bias = mx.zeros(2), mx.ones(2)

    def gradients(rule: Rule) -> Any:
        monkeypatch.setattr(mlx_lm_gated_delta, "gated_delta_ops", rule)

        def loss(*arrays: mx.array) -> Any:
            update: Any = mlx_lm_gated_delta.gated_delta_update
            outputs, last = update(
                q, k, v, *arrays, state, use_kernel=False, lower_bound=lower_bound
            )
            return (outputs * v).sum() + (last * state).sum()

        return mx.grad(loss, argnums=[0, 1, 2, 3])(a, b, a_log, bias)

    for actual, expected in zip(gradients(gated_delta_chunks), gradients(loop), strict=True):
        assert mx.allclose(actual, expected, rtol=1e-3, atol=1e-5 * float(mx.abs(expected).max()))


def test_bfloat16_gives_what_the_loop_gives() -> None:
    inputs = made_up_inputs(2, 70, 1, 2, 16, 8)
    narrow = [array.astype(mx.bfloat16) for array in inputs[:3]] + inputs[3:]
    outputs, state = gated_delta_chunks(*narrow)
    expected, expected_state = loop(*narrow)
    assert (outputs.dtype, state.dtype) == (expected.dtype, expected_state.dtype)
    assert mx.allclose(outputs, expected, rtol=2e-2, atol=1e-3)
    assert mx.allclose(state, expected_state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 30, 200])
@pytest.mark.parametrize("begins", [True, False])
def test_decayed_attention_has_the_outputs_and_gradients_of_bailing_s_loop(
    tokens: int, begins: bool
) -> None:
    q, k, v, _, _, state = made_up_inputs(2, tokens, 2, 2, 8, 4)
    heads_first = [array.swapaxes(1, 2) for array in (q, k, v)]
    g = mx.array([-0.5, -1e-3])
    first = [] if begins else [state.swapaxes(2, 3)]

    def gradients(rule: Any) -> Any:
        def loss(*arrays: mx.array) -> mx.array:
            outputs, last = rule(*arrays[:3], g, 0.3, *arrays[3:])
            return mx.square(outputs).sum() + mx.sin(last).sum()

        inputs = [*heads_first, *first]
        return mx.value_and_grad(loss, argnums=list(range(len(inputs))))(*inputs)

    (value, actual), (expected_value, expected) = (
        gradients(rule) for rule in (gated_delta.decayed_attention, recurrent_gla)
    )
    assert mx.allclose(value, expected_value, rtol=1e-4)
    for array, reference in zip(actual, expected, strict=True):
        assert mx.allclose(array, reference, rtol=1e-3, atol=1e-5)


def operations(rule: Rule, per_channel: bool) -> int:
    """Nodes of the graph of outputs and gradients of 1,024 tokens."""
    inputs = made_up_inputs(1, 1024, 1, 2, 8, 8, per_channel=per_channel)
    loss = mx.value_and_grad(lambda *arrays: rule(*arrays)[0].sum(), argnums=list(range(6)))
    graph = io.StringIO()
    mx.export_to_dot(graph, loss(*inputs))
    return graph.getvalue().count("label")


@pytest.mark.parametrize("per_channel", [False, True])
def test_chunks_have_a_sixteenth_of_the_operations_of_the_loop(per_channel: bool) -> None:
    assert 16 * operations(gated_delta_chunks, per_channel) <= operations(loop, per_channel)


def peak(tokens: int, key_heads: int, heads: int) -> int:
    """The peak bytes of inputs, outputs and gradients of a layer with heads of 128 channels."""
    gated_delta.fused_is_smaller(128, 128)  # a probe, once
    return peak_memory(
        lambda: differentiate(
            gated_delta_chunks, made_up_inputs(1, tokens, key_heads, heads, 128, 128)
        )
    )


def test_the_memory_of_a_layer_grows_linearly() -> None:
    # Twice the tokens add twice the bytes: 2.0 measured, and 4 if it grew with their square. What
    # another thread has not freed yet moves a peak by up to a megabyte of eleven.
    short, middle, long = (peak(tokens, 1, 2) for tokens in (1024, 2048, 4096))
    assert long - middle < 2.6 * (middle - short)
    assert long < 64 * 4096 * 2 * 128 * 4  # a 1,500th of what the loop keeps


@pytest.mark.parametrize("has_gradient", [True, False])
def test_mlx_s_fused_rule_is_used_where_its_gradient_is_no_loop(
    monkeypatch: pytest.MonkeyPatch, has_gradient: bool
) -> None:
    inputs = made_up_inputs(1, 80, 1, 2, 64, 64)
    calls = []

    def fused(*arrays: mx.array) -> tuple[mx.array, mx.array]:
        calls.append(arrays)
        return (gated_delta._in_chunks if has_gradient else loop)(*arrays)

    monkeypatch.setattr(mx.fast, "gated_delta_update", fused)
    gated_delta.fused_is_smaller.cache_clear()
    assert_equal(gated_delta_chunks, inputs)
    assert len(calls) == (2 if has_gradient else 1)  # with the probe's
    gated_delta.fused_is_smaller.cache_clear()


@pytest.mark.parametrize("changes", [QWEN3_5, KIMI_LINEAR], ids=["qwen3_5", "kimi_linear"])
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"grad_checkpoint": "on"}, marks=pytest.mark.slow)]
)
def test_a_model_trains_with_shared_prompts_as_by_plain_autodiff(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    options: dict[str, Any],
) -> None:
    folder = write_model(tmp_path / "model", scale=1.0, **changes)
    policy = load_policy(ModelConfig(path=str(folder), **options), seed=0)
    assert policy.notes == ()
    move_weights(policy, 0.05)
    rows = made_up_rows([(70, (30, 1)), (1, (3,))])
    monkeypatch.setattr(mlx_lm_gated_delta, "gated_delta_ops", loop)
    expected, expected_gradient = oracle_loss(policy, rows)
    gated_delta.install()
    for max_rows in (1, 99):
        value, gradient = weighted_loss(policy, rows, max_rows=max_rows)
        assert value == pytest.approx(expected, rel=1e-4, abs=1e-3)
        assert largest_difference(gradient, expected_gradient) < 2e-4
