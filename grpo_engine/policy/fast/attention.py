"""Fast attention on the CPU: powers of two instead of e^x, a shared prompt's keys read once.

MLX's CPU softmax computes e^x at a third of the speed of 2^x, and its masks are as slow. Rows that
share a prompt read its keys in one product; one softmax covers these and their own keys.
Axes: B = P * G rows of P prompts, K key heads with R query heads each, L new tokens, D width.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from grpo_engine.policy.fast.caches import BiasedCache, Layout, PackedCache, PrefixCache
from grpo_engine.policy.head import LOG2_E
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.structure import agrees

PROBE_TOLERANCE = 1e-4
LEAST = -60.0
"""2^-60 vanishes in a float32 sum of at least 1. Its products with gradients are normal numbers;
subnormal ones slow a processor down a hundred times."""
NEEDED = ("q_proj", "k_proj", "v_proj", "o_proj")


class Seen(NamedTuple):
    """Keys and values that queries attend to, and the bias added to their scores."""

    keys: mx.array  # [B or P, K, S, D]
    values: mx.array
    bias: mx.array | None  # 0 or -inf, broadcast to [B, K, R, L, S]; [P, 1, 1, S] for a prompt


def powers(x: mx.array) -> mx.array:
    """2^x for x <= 0."""
    found: Any = _powers(x)
    value: mx.array = found
    return value


@mx.custom_function
def _powers(x: mx.array) -> mx.array:
    return mx.power(2.0, mx.maximum(x, LEAST))


@_powers.vjp
def _powers_vjp(primal: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:  # noqa: ARG001 - MLX hands it over
    """d 2^x / d x = 2^x ln 2."""
    return cotangent * output * math.log(2)


def attend(queries: mx.array, own: Seen, prompt: Seen | None = None) -> mx.array:
    """softmax_2(queries keys^T + bias) values over own and prompt keys, [B, H, L, D] -> [B, L, HD].

    Queries are scaled by log2 e, so that softmax_2 equals the usual softmax.
    """
    rows, heads, new, width = queries.shape
    kinds = own.keys.shape[1]
    groups = rows if prompt is None else prompt.keys.shape[0]
    each, repeats = rows // groups, heads // kinds

    def stacked(array: mx.array) -> mx.array:  # [B, H, N, D] -> [P, K, G, RN, D]
        return array.reshape(groups, each, kinds, -1, width).swapaxes(1, 2)

    flat = (groups, kinds, each * repeats * new, -1)
    q = mx.contiguous(stacked(queries))
    scores = q @ stacked(own.keys).swapaxes(3, 4)
    deep = scores.shape
    if own.bias is not None:
        split = (groups, kinds, each, repeats, new, -1)
        scores = scores.reshape(split) + own.bias
    parts = [scores.reshape(flat)]
    if prompt is not None:
        ahead = q.reshape(flat) @ prompt.keys.swapaxes(2, 3)
        parts.append(ahead if prompt.bias is None else ahead + prompt.bias)
    weights, total = _softmax(parts)
    out = (weights[0].reshape(deep) @ stacked(own.values)).reshape(flat)
    if prompt is not None:
        out = out + weights[1] @ prompt.values
    out = (out / total).reshape(groups, kinds, each, repeats, new, width)
    return out.transpose(0, 2, 4, 1, 3, 5).reshape(rows, new, heads * width)


def attend_one(queries: mx.array, own: Seen) -> mx.array:
    """`attend` for one new token per row in half the operations, [B, H, 1, D] -> [B, 1, HD]."""
    rows, kinds = own.keys.shape[:2]
    scores = queries.reshape(rows, kinds, -1, queries.shape[3]) @ own.keys.swapaxes(2, 3)
    if own.bias is not None:
        scores = scores + own.bias
    weights = powers(scores - scores.max(axis=-1, keepdims=True))
    out = (weights @ own.values) / weights.sum(axis=-1, keepdims=True)
    return out.reshape(rows, 1, -1)


def _softmax(parts: Sequence[mx.array]) -> tuple[list[mx.array], mx.array]:
    """Numerators of one softmax over the last axes of all parts, and their sum."""
    top = parts[0].max(axis=-1, keepdims=True)
    for part in parts[1:]:
        top = mx.maximum(top, part.max(axis=-1, keepdims=True))
    top = mx.stop_gradient(top)
    weights = [powers(part - top) for part in parts]
    total = weights[0].sum(axis=-1, keepdims=True)
    for weight in weights[1:]:
        total = total + weight.sum(axis=-1, keepdims=True)
    return weights, total


def causal(new: int, keys: int) -> mx.array | None:
    """-inf where a key comes after the query's token, [new, keys]."""
    if new == 1:
        return None
    ahead = mx.arange(keys)[None] > mx.arange(keys - new, keys)[:, None]
    return mx.where(ahead, -mx.inf, 0.0)


def install(policy: Policy) -> None:
    """Make this model's attention blocks obey `policy.fast.fast_attention`.

    A block whose results would differ is left alone.
    """
    kinds: dict[type, type] = {}
    for layer in policy.model.layers:
        block = layer.get("self_attn")
        if not isinstance(block, nn.Module) or not _fits(block):
            continue
        kind = type(block)
        if kind not in kinds:
            kinds[kind] = _quick(kind, policy)
        block.__class__ = kinds[kind]


def _fits(block: Any) -> bool:
    """Whether our code matches this block: without a cache, with cached keys, and for two rows."""
    try:
        if not all(isinstance(block[name], nn.Module) for name in NEEDED):
            return False
        inner = block.q_proj.get("linear", block.q_proj)
        width = int(inner.weight.shape[-1]) if type(inner) is nn.Linear else 0
        probe = mx.random.normal((2, 5, width), key=mx.random.key(1)) if width else None
        return probe is not None and all(
            agrees(given, expected, PROBE_TOLERANCE)
            for given, expected in zip(_probed(block, probe, quick=True),
                                       _probed(block, probe, quick=False), strict=True)
        )  # fmt: skip
    except (TypeError, ValueError, AttributeError, RuntimeError, KeyError, IndexError):
        return False  # an unknown kind of block: it runs its own code


def _probed(block: Any, probe: mx.array, *, quick: bool) -> list[mx.array]:
    cache = PrefixCache()
    found = []
    for x in (probe[:1, :3], probe[:1, 3:4], probe[:1, 4:]):
        mask = cache.make_mask(x.shape[1])
        found.append(_call(block, x, cache) if quick else block(x, mask, cache=cache))
    layout = Layout((5, 5), 5, (0, 0))
    shared = cache.spread(layout)
    mask = shared.make_mask(5)
    if not quick:
        found.append(block(probe, mask, cache=shared))
        return [*found, found[-1]]
    found.append(_call(block, probe, shared))
    packed = PackedCache((5,), (5, 5), 5, layout)
    whole = mx.concatenate([probe[0], probe[0], probe[1]])
    return [*found, _call(block, whole[None], packed)[0, 5:].reshape(probe.shape)]


def _serves(cache: Any, mask: Any, new: int) -> bool:
    """Whether the mask is one that our code applies itself.

    A mask that the cache did not make, such as a window's, is left to the block.
    """
    if isinstance(cache, PrefixCache):
        if cache.window is not None or (cache.layout is not None and not cache.shared):
            return False
        if cache.layout is None or cache.layout.even:
            return mask is None if new == 1 else isinstance(mask, str) and mask == "causal"
        return mask is cache.layout.mask(new, None)
    if isinstance(cache, BiasedCache):
        return cache.window is None and mask is cache.make_mask(new)
    return isinstance(cache, PackedCache)


def _call(block: Any, x: mx.array, cache: Any) -> mx.array:
    rows, new, _ = x.shape

    def heads(array: mx.array, count: int) -> mx.array:
        return array.reshape(rows, new, count, -1)

    queries = heads(block.q_proj(x), block.n_heads)
    keys = heads(block.k_proj(x), block.n_kv_heads)
    values = heads(block.v_proj(x), block.n_kv_heads)
    if "q_norm" in block:
        queries, keys = block.q_norm(queries), block.k_norm(keys)
    if isinstance(cache, PackedCache):
        out = _packed(block, queries, keys, values, cache)
    else:
        out = _rotated(block, queries, keys, values, cache)
    projected: mx.array = block.o_proj(out)
    return projected


def _packed(
    block: Any, queries: mx.array, keys: mx.array, values: mx.array, cache: PackedCache
) -> mx.array:
    """Attention of prompts and rows in one sequence, [1, N, H, D] -> [1, N, HD]."""
    heads = (array.squeeze(0) for array in (queries, keys, values))  # [0] has a slow gradient
    (q, own_q), (k, own_k), (v, own_v) = map(cache.apart, heads)
    prompt = PrefixCache()
    ahead = _rotated(block, q, k, v, prompt)
    after = _rotated(block, own_q, own_k, own_v, prompt.spread(cache.layout))
    out: mx.array = cache.together(ahead, after)
    return out[None]


def _rotated(
    block: Any, queries: mx.array, keys: mx.array, values: mx.array, cache: Any
) -> mx.array:
    """Attention after the rotation of queries and keys, [B, L, H, D] -> [B, L, HD]."""
    if queries.shape[1] == 1:  # a decode step is dominated by small operations: rotate both at once
        both = mx.concatenate([queries, keys], axis=2).swapaxes(1, 2)
        both = block.rope(both, offset=cache.offset)
        queries, keys = both[:, : block.n_heads], both[:, block.n_heads :]
    else:
        queries = block.rope(queries.swapaxes(1, 2), offset=cache.offset)
        keys = block.rope(keys.swapaxes(1, 2), offset=cache.offset)
    return _attended(queries * (block.scale * LOG2_E), keys, values.swapaxes(1, 2), cache)


def _attended(queries: mx.array, keys: mx.array, values: mx.array, cache: Any) -> mx.array:
    new = queries.shape[2]
    if isinstance(cache, BiasedCache):
        keys, values = cache.append(keys, values)
        if cache.prompt is not None:
            return attend(queries, Seen(keys, values, None), Seen(*cache.prompt, None))
        bias = cache.bias()
        return attend_one(queries, Seen(keys, values, bias))
    if not cache.shared:
        keys, values = cache.update_and_fetch(keys, values)
        return attend(queries, Seen(keys, values, causal(new, keys.shape[2])))
    layout = cache.layout
    before, after = (cache.keys, cache.values) if layout.group > 1 else cache.for_rows()
    prompt = Seen(before, after, layout.bias(layout.group))
    return attend(queries, Seen(keys, values, causal(new, new)), prompt)


def _quick(kind: type, policy: Policy) -> type:
    """Subclass of an attention block with the fast path."""

    def call(self: Any, x: mx.array, mask: Any = None, cache: Any = None, **rest: Any) -> Any:
        if policy.fast.fast_attention and not rest and _serves(cache, mask, x.shape[1]):
            return _call(self, x, cache)
        return kind.__call__(self, x, mask, cache, **rest)

    return type(f"{kind.__name__}Quick", (kind,), {"__call__": call, "is_quick": True})


def reads_prompts_once(policy: Policy) -> bool:
    """Whether all layers would read the keys of a prompt once for rows that share it."""
    blocks = [layer.get("self_attn") for layer in policy.model.layers]
    plain = policy.windows is not None and not any(policy.windows)
    return policy.fast.fast_attention and plain and all(
        getattr(block, "is_quick", False) for block in blocks
    )  # fmt: skip
