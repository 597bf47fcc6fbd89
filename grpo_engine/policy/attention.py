"""Attention in chunks of queries, with a gradient that keeps no array of queries x keys.

Where MLX has no fused gradient, it keeps the scores of all queries and keys of a layer for the
backward pass. Here the forward pass computes one chunk of queries after another, with no keys that
a causal mask hides from all of them, and the backward pass computes each chunk again.

Axes: B rows, H heads, K heads of keys and values, L queries, S keys, D channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx

from grpo_engine.policy.source import on_cpu

CPU_SCORES, GPU_SCORES = 2**22, 2**24  # numbers in the scores of a chunk
MIN_QUERIES, MAX_QUERIES = 128, 512  # of a chunk
PROBE = 1024  # tokens

plain = mx.fast.scaled_dot_product_attention


def install(dtype: mx.Dtype) -> None:
    """Let models of this number format attend in chunks where MLX's gradient would keep scores."""
    chunked = on_cpu() or keeps_scores(dtype)
    mx.fast.scaled_dot_product_attention = attention_in_chunks if chunked else plain


@cache
def keeps_scores(dtype: mx.Dtype) -> bool:
    """Whether the gradient of MLX's attention takes as much memory as the scores."""
    inputs = list(mx.random.normal((3, 1, 1, PROBE, 64), dtype, key=mx.random.key(0)))
    mx.eval(inputs)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(mx.grad(lambda *qkv: plain(*qkv, scale=0.125, mask="causal").sum(), [0, 1, 2])(*inputs))
    return mx.get_peak_memory() - before >= PROBE**2 * dtype.size


def chunk_length(rows: int, heads: int, keys: int) -> int:
    """The queries of a chunk, a power of 2."""
    fitting = (CPU_SCORES if on_cpu() else GPU_SCORES) // max(1, rows * heads * keys)
    return max(MIN_QUERIES, min(MAX_QUERIES, 1 << max(1, fitting).bit_length() - 1))


def attention_in_chunks(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: mx.array | str | None = None,
    sinks: mx.array | None = None,
    **options: Any,
) -> mx.array:
    """`mx.fast.scaled_dot_product_attention`: q [B, H, L, D], k and v [B, K, S, D]."""
    queries, keys = q.shape[2], k.shape[2]
    size = chunk_length(q.shape[0], q.shape[1], keys)
    if queries <= size:
        return plain(q, k, v, scale=scale, mask=mask, sinks=sinks, **options)
    arrays = {"q": q, "k": k, "v": v, "mask": mask, "sinks": sinks}
    # A mask that is added to the scores may have a gradient, one of booleans has none.
    fixed = {} if _is_added(mask) else {"mask": arrays.pop("mask")}
    inputs = {name: array for name, array in arrays.items() if isinstance(array, mx.array)}
    chunks = Chunks(tuple(inputs), queries, keys, size, fixed, {"scale": scale, **options})
    attention = mx.custom_function(chunks.attend_all)
    attention.vjp(chunks.gradients)
    result: Any = attention(*inputs.values())
    return result  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Chunks:
    """Attention and its gradient, one chunk of queries after another."""

    names: tuple[str, ...]  # arrays that may have a gradient
    queries: int
    keys: int
    size: int  # queries of a chunk
    fixed: Mapping[str, Any]  # a mask without a gradient
    options: Mapping[str, Any]

    @property
    def starts(self) -> range:
        """The first query of each chunk."""
        return range(0, self.queries, self.size)

    def slices(self, values: Mapping[str, Any], start: int) -> dict[str, Any]:
        """The parts of these arrays that the queries of a chunk read."""
        is_causal = isinstance(self.fixed.get("mask"), str)
        visible = self.keys - self.queries + start + self.size if is_causal else None

        def part(name: str, value: Any) -> Any:
            if _is_of_queries(name, value):
                return value[..., start : start + self.size, :]
            return value[..., :visible, :] if name in ("k", "v") else value

        return {name: part(name, value) for name, value in values.items()}

    def attend(self, values: Mapping[str, Any], start: int) -> mx.array:
        """The attention of a chunk."""
        values = {**values, **self.slices(self.fixed, start), **self.options}
        return plain(values.pop("q"), values.pop("k"), values.pop("v"), **values)

    def attend_all(self, *arrays: mx.array) -> mx.array:
        """The attention of all queries."""
        outputs: list[mx.array] = []
        for start in self.starts:
            values = self.slices(dict(zip(self.names, arrays, strict=True)), start)
            if outputs:  # One chunk's scores at a time are in memory.
                values["q"] = mx.depends(values["q"], outputs[-1])
            outputs.append(self.attend(values, start))
        return mx.concatenate(outputs, axis=2)

    def gradients(self, arrays: Any, cotangent: mx.array, _: Any) -> tuple[mx.array, ...]:
        """The gradients in all arrays, from each chunk computed again."""
        inputs: dict[str, mx.array] = dict(zip(self.names, arrays, strict=True))
        query_gradients: dict[str, list[mx.array]] = {}
        totals: dict[str, mx.array] = {}
        for start in self.starts:
            values = self.slices(inputs, start)
            if totals:
                values["q"] = mx.depends(values["q"], [query_gradients["q"][-1], *totals.values()])

            def attend(*arrays: mx.array, start: int = start) -> mx.array:
                return self.attend(dict(zip(self.names, arrays, strict=True)), start)

            outer = cotangent[:, :, start : start + self.size]
            _, gradients = mx.vjp(attend, list(values.values()), [outer])
            for name, gradient in zip(self.names, gradients, strict=True):
                if _is_of_queries(name, inputs[name]):
                    query_gradients.setdefault(name, []).append(gradient)
                else:
                    padded = _padded(gradient.astype(mx.float32), inputs[name].shape)
                    totals[name] = totals[name] + padded if name in totals else padded
        joined = {name: mx.concatenate(parts, axis=-2) for name, parts in query_gradients.items()}
        return tuple((totals | joined)[name].astype(inputs[name].dtype) for name in self.names)


def _padded(array: mx.array, shape: tuple[int, ...]) -> mx.array:
    """The array with zeros after it along each axis."""
    lengths = zip(array.shape, shape, strict=True)
    return mx.pad(array, [(0, target - length) for length, target in lengths])


def _is_added(mask: mx.array | str | None) -> bool:
    return isinstance(mask, mx.array) and mask.dtype != mx.bool_


def _is_of_queries(name: str, value: Any) -> bool:
    """Whether the last axis but one is that of the queries."""
    return name == "q" or (name == "mask" and isinstance(value, mx.array) and value.shape[-2] > 1)
