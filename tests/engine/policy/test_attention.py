"""Attention in chunks of queries gives the numbers of MLX's own, and keeps no scores."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.models import tiny_config
from grpo_engine.config.settings import ModelConfig
from grpo_engine.policy import attention
from grpo_engine.policy.attention import attention_in_chunks, keeps_scores, plain
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.structure import agrees
from tests.engine.policy.helpers import (
    largest_difference,
    made_up_rows,
    move_weights,
    peak_memory,
    weighted_loss,
)
from tests.engine.policy.oracle import oracle_loss
from tests.engine.tiny import write_config

TOLERANCE = {mx.float32: 1e-4, mx.bfloat16: 4e-2}
MASKS: dict[str, Callable[[int, int, int, int], Any]] = {
    "none": lambda *_: None,
    "causal": lambda *_: "causal",
    "window": lambda _, __, queries, keys: visible(queries, keys, 5),
    "rows": lambda rows, _, queries, keys: mx.stack(
        [visible(queries, keys, 3 + row) for row in range(rows)]
    )[:, None],
    "same for all queries": lambda rows, _, __, keys: mx.broadcast_to(
        mx.arange(keys) % 3 != 1, (rows, 1, 1, keys)
    ),
    "added": lambda rows, heads, queries, keys: (
        mx.random.normal((rows, heads, queries, keys), key=mx.random.key(4))
        + mx.where(visible(queries, keys, keys), 0, -1e9)
    ),
    "added to all queries": lambda rows, heads, _, keys: mx.random.normal(
        (rows, heads, 1, keys), key=mx.random.key(5)
    ),
}


def visible(queries: int, keys: int, window: int) -> mx.array:
    distance = mx.arange(keys - queries, keys)[:, None] - mx.arange(keys)
    return (distance >= 0) & (distance < window)


def differentiate(
    attend: Callable[..., mx.array],
    q: mx.array,
    k: mx.array,
    v: mx.array,
    mask: Any,
    sinks: mx.array | None,
) -> list[mx.array]:
    """Outputs, and the gradients of a weighted sum of them with respect to all floats."""
    extra = {"mask": mask, "sinks": sinks}
    fixed = {name: x for name, x in extra.items() if attention._is_added(x) is False}
    trained = {name: x for name, x in extra.items() if name not in fixed}

    def loss(*arrays: mx.array) -> tuple[mx.array, mx.array]:
        outputs = attend(
            *arrays[:3], scale=0.3, **dict(zip(trained, arrays[3:], strict=True)), **fixed
        )
        weights = mx.cos(mx.arange(outputs.size)).reshape(outputs.shape)
        return (outputs * weights).sum(), outputs

    inputs = [q, k, v, *trained.values()]
    (_, outputs), gradients = mx.value_and_grad(loss, list(range(len(inputs))))(*inputs)
    return [outputs, *gradients]


@settings(deadline=None, max_examples=25)
@given(
    rows=st.integers(1, 3),
    kv_heads=st.integers(1, 2),
    repeats=st.integers(1, 3),
    queries=st.integers(1, 40),
    before=st.integers(0, 9),
    size=st.sampled_from([1, 4, 7, 16]),
    mask=st.sampled_from(list(MASKS)),
    sinks=st.booleans(),
    dtype=st.sampled_from([mx.float32, mx.bfloat16]),
)
def test_outputs_and_gradients_are_those_of_plain_autodiff(
    rows: int,
    kv_heads: int,
    repeats: int,
    queries: int,
    before: int,
    size: int,
    mask: str,
    sinks: bool,
    dtype: mx.Dtype,
) -> None:
    heads, keys = kv_heads * repeats, queries + before
    keys_of_noise = mx.random.split(mx.random.key(queries), 4)
    q, k, v = (
        mx.random.normal((rows, count, length, width), key=key).astype(dtype)
        for count, length, width, key in zip(
            (heads, kv_heads, kv_heads),
            (queries, keys, keys),
            (8, 8, 6),
            keys_of_noise[:3],
            strict=True,
        )
    )
    made = MASKS[mask](rows, heads, queries, keys)
    made = made.astype(dtype) if attention._is_added(made) else made
    inputs = (
        q,
        k,
        v,
        made,
        mx.random.normal((heads,), dtype, key=keys_of_noise[3]) * sinks if sinks else None,
    )
    expected = differentiate(plain, *inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "chunk_length", lambda *_: size)
        values = differentiate(attention_in_chunks, *inputs)
    for value, other in zip(values, expected, strict=True):
        assert value.dtype == other.dtype
        assert agrees(value, other, TOLERANCE[dtype])


def peak(attend: Callable[..., mx.array], tokens: int, *, gradient: bool = True) -> int:
    """Peak of causal attention or its gradient, beyond the inputs, in bytes."""
    q, k, v = mx.random.normal((3, 1, 2, tokens, 16), key=mx.random.key(0))
    mx.eval(q, k, v)

    def loss(*qkv: mx.array) -> mx.array:
        return attend(*qkv, scale=0.25, mask="causal").sum()

    return peak_memory(lambda: (mx.grad(loss, [0, 1, 2]) if gradient else loss)(q, k, v))


def test_memory_grows_with_the_tokens_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scores of 2 heads, 2,048 queries and keys are 34 MB; chunks of 128 queries have 2 MB."""
    monkeypatch.setattr(attention, "chunk_length", lambda *_: 128)
    assert peak(plain, 2048) > 2 * 34e6
    assert peak(attention_in_chunks, 2048) < 34e6
    assert peak(attention_in_chunks, 4096) < 2.5 * peak(attention_in_chunks, 2048)
    assert peak(attention_in_chunks, 4096, gradient=False) < 8 * 4.2e6  # those of one chunk


@pytest.mark.parametrize("is_fused", [False, True])
def test_mlx_s_attention_is_used_where_its_gradient_keeps_no_scores(
    monkeypatch: pytest.MonkeyPatch, is_fused: bool
) -> None:
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", plain)
    monkeypatch.setattr(attention, "on_cpu", lambda: False)
    if is_fused:
        monkeypatch.setattr(attention, "plain", lambda q, k, v, **_: q + k + v)
    keeps_scores.cache_clear()
    attention.install(mx.float32)
    keeps_scores.cache_clear()
    expected = attention.plain if is_fused else attention_in_chunks
    assert mx.fast.scaled_dot_product_attention is expected


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("llama", {}, [(12, (500,))]),  # grouped queries
        ("llama", {"grad_checkpoint": "on"}, [(12, (500,))]),
        ("llama", {"compute": "rows", "tuning": "full"}, [(70, (30, 90))]),
        ("llama", {"grad_checkpoint": "on"}, [(50, (20, 70)), (90, (70, 3))]),  # masks of rows
        ("gemma3_text", {"grad_checkpoint": "on"}, [(50, (20, 70)), (90, (70, 3))]),  # windows
        ("gpt_oss", {}, [(70, (30, 90))]),  # windows and sinks
        pytest.param(  # a mask that is added
            *("deepseek_v3", {"grad_checkpoint": "on"}, [(70, (30, 90))]), marks=pytest.mark.slow
        ),
    ],
)
def test_a_model_trains_in_chunks_as_by_plain_autodiff(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: dict[str, Any],
    shape: Any,
) -> None:
    folder = write_config(tmp_path / "model", tiny_config(name), scale=1.0)
    config = ModelConfig(path=str(folder), **{"compute": "graph", **options})
    policy = load_policy(config, seed=0)
    move_weights(policy, 0.05)
    rows = made_up_rows(shape)
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", plain)
    expected, expected_gradient = oracle_loss(policy, rows)
    calls: list[int] = []

    def in_chunks(*arrays: mx.array, **options: Any) -> mx.array:
        calls.append(arrays[0].shape[2])
        return attention_in_chunks(*arrays, **options)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", in_chunks)
    monkeypatch.setattr(attention, "chunk_length", lambda *_: 32)
    value, gradient = weighted_loss(policy, rows)
    assert max(calls) > 32
    assert value == pytest.approx(expected, rel=1e-4, abs=1e-3)
    assert largest_difference(gradient, expected_gradient) < 1e-4
