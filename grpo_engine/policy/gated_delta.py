"""The gated delta rule in chunks of tokens, with a gradient in memory linear in their number.

For each head with gates g_t in [0, 1] (a number, or one for each channel of a key), beta_t, queries
q_t, keys k_t and values v_t (rows), a layer computes from a state S_0

    d_t = beta_t (v_t - k_t diag(g_t) S_t-1)
    S_t = diag(g_t) S_t-1 + k_t^T d_t
    o_t = q_t S_t

mlx-lm's loop keeps every S_t for the backward pass. A chunk of n tokens needs only the state S at
its start (arXiv 2406.06484, 2412.06464): with the decay G_ij = diag(g_j+1 ... g_i),

    A_ij = beta_i k_i G_ij k_j^T, j < i        d = (I + A)^-1 beta (v - k G_i0 S)
    W_ij = q_i G_ij k_j^T, j <= i              o = q G_i0 S + W d
                                               S <- G_n0 S + (k G_ni)^T d

Decays are products of gates, never quotients, so none overflows. The forward pass keeps the states
between sections of a few chunks, and the backward pass recomputes one section at a time.

Axes: B rows, T tokens, H heads, N chunks of C tokens, D channels of a key, V channels of a value.
"""

import sys
from functools import cache
from typing import Any

import mlx.core as mx
from mlx_lm.models import gated_delta

from grpo_engine.platform.faults import raise_fault
from grpo_engine.policy.structure import TOLERANCE, UNKNOWN, agrees

CHUNK = 64
SECTION = 4  # chunks whose products are computed together, and of which one state is kept
SMALLEST_GATE = 1e-30

loop = gated_delta.gated_delta_ops


def install() -> None:
    """Let mlx-lm's models run chunks where they would loop over tokens."""
    gated_delta.gated_delta_ops = gated_delta_chunks
    if module := sys.modules.get("mlx_lm.models.bailing_moe_linear"):
        module.recurrent_gla = decayed_attention  # type: ignore[attr-defined]


def decayed_attention(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, scale: float, h: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """bailing_moe_linear's `recurrent_gla`: S_t = exp(g) S_t-1 + k_t^T v_t, o_t = scale q_t S_t.

    q, k [B, H, T, D]; v [B, H, T, V]; g [H]; h [B, H, D, V].
    """
    q, k, v = (array.swapaxes(1, 2) for array in (q * scale, k, v))
    gates = mx.broadcast_to(mx.exp(g), k.shape[:3])
    state = None if h is None else h.swapaxes(2, 3)
    outputs, last = _in_chunks(q, k, v, gates, mx.ones(gates.shape), state, erases=False)
    return outputs.swapaxes(1, 2), last.swapaxes(2, 3).astype(q.dtype)


def gated_delta_chunks(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    mask: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """mlx-lm's `gated_delta_ops`; its outputs at masked tokens are other numbers.

    q, k [B, T, K, D] with H a multiple of K; v [B, T, H, V]; g [B, T, H] or [B, T, H, D];
    beta [B, T, H]; state [B, H, V, D]; mask [B, T] -> outputs [B, T, H, V], state [B, H, V, D].
    """
    if q.shape[1] == 1:
        return loop(q, k, v, g, beta, state, mask)
    if g.ndim == 3 and mask is None and fused_is_smaller(k.shape[-1], v.shape[-1]):
        outputs, last = mx.fast.gated_delta_update(q, k, v, g, beta, state)
        return outputs, last
    return _in_chunks(q, k, v, g, beta, state, mask)


def _in_chunks(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None,
    mask: mx.array | None = None,
    *,
    erases: bool = True,
) -> tuple[mx.array, mx.array]:
    """The rule; with `erases` off d_t is beta_t v_t, and nothing is taken out of the state."""
    rows, tokens, heads, _ = v.shape
    log_g = mx.log(mx.maximum(g, SMALLEST_GATE))
    if mask is not None:  # a token that leaves the state as it is
        beta = mx.where(mask[..., None], beta, 0)
        log_g = mx.where(mx.expand_dims(mask, tuple(range(2, g.ndim))), log_g, 0)
    if state is None:
        state = mx.zeros((rows, heads, v.shape[-1], k.shape[-1]))
    q, k = (mx.repeat(array, heads // k.shape[2], axis=2) for array in (q, k))
    size = min(CHUNK, 1 << (tokens - 1).bit_length())

    def chunks(array: mx.array) -> mx.array:
        """[B, T, H, ...] -> [B, H, N, C, ...]; padding leaves the state as it is."""
        padded = mx.pad(array, [(0, 0), (0, -tokens % size), (0, 0), (0, 0)])
        return mx.unflatten(padded.swapaxes(1, 2), 2, (-1, size))

    gates = log_g if log_g.ndim == 4 else log_g[..., None]
    beta = beta[..., None]
    inputs = map(chunks, (q, k, v, gates, beta, beta if erases else mx.zeros_like(beta)))
    state = state.astype(mx.float32).swapaxes(2, 3)[:, :, None]
    results: Any = _recurrence(state, *inputs)
    last, outputs, _ = results
    outputs = outputs.flatten(2, 3)[:, :, :tokens].swapaxes(1, 2).astype(q.dtype)
    return outputs, last[:, :, 0].swapaxes(2, 3)


@cache
def fused_is_smaller(width: int, value_width: int) -> bool:
    """Whether the gradient of MLX's fused rule takes no more memory than ours; a loop's takes more.

    The states of narrow heads are small even in a loop.
    """
    if width * value_width < CHUNK**2:
        return False
    keys = mx.random.split(mx.random.key(0), 3)
    q, k = mx.random.normal((2, 1, 4 * CHUNK, 1, width), key=keys[0]) * width**-0.5
    v = mx.random.normal((1, 4 * CHUNK, 1, value_width), key=keys[1])
    g, beta = mx.random.uniform(shape=(2, 1, 4 * CHUNK, 1), key=keys[2])
    inputs = [q, k, v, g, beta, mx.zeros((1, 1, value_width, width))]
    mx.eval(inputs)

    def measure(rule: Any) -> tuple[int, mx.array]:
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        gradients = mx.grad(lambda *arrays: rule(*arrays)[0].sum(), list(range(6)))(*inputs)
        gradient = mx.concatenate([array.flatten() for array in gradients])
        mx.eval(gradient)
        return mx.get_peak_memory() - before, gradient

    try:
        fused_peak, fused = measure(mx.fast.gated_delta_update)
    except UNKNOWN as error:
        raise_fault(error)
        return False
    peak, expected = measure(_in_chunks)
    return fused_peak < 2 * peak and agrees(fused, expected, TOLERANCE["float32"])


@mx.custom_function
def _recurrence(state: mx.array, *arrays: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """State [B, H, 1, D, V], arrays of all chunks -> last state, outputs, states of sections."""
    states, outputs = [], []
    for section in _sections(arrays):
        states.append(state)
        state, output = _section(state, *section)
        outputs.append(output)
    return state, mx.concatenate(outputs, axis=2), mx.stack(states)


@_recurrence.vjp
def _recurrence_gradient(primals: Any, cotangents: Any, outputs: Any) -> tuple[mx.array, ...]:
    arrays, states = primals[1:], outputs[2]
    cotangent, output_cotangents, _ = cotangents
    gradients: list[list[mx.array]] = []
    sections = list(_sections((*arrays, output_cotangents)))
    for state, (*section, outer) in zip(states[::-1], sections[::-1], strict=True):
        _, (cotangent, *gradient) = mx.vjp(_section, [state, *section], [cotangent, outer])
        cotangent = mx.depends(cotangent, gradient)
        gradients.append(gradient)
    joined = [mx.concatenate(list(parts), axis=2) for parts in zip(*gradients[::-1], strict=True)]
    return cotangent, *joined


def _sections(arrays: Any) -> Any:
    """The chunks of each section, of all arrays."""
    for start in range(0, arrays[0].shape[2], SECTION):
        yield [array[:, :, start : start + SECTION] for array in arrays]


def _section(
    state: mx.array,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_g: mx.array,
    beta: mx.array,
    erased: mx.array,
) -> tuple[mx.array, mx.array]:
    """State [B, H, 1, D, V], chunks [B, H, N, C, ...] -> state, outputs [B, H, N, C, V]."""
    q, k, v, beta, erased = (array.astype(mx.float32) for array in (q, k, v, beta, erased))
    from_start = mx.exp(mx.cumsum(log_g, axis=3))
    to_end = mx.exp(mx.cumsum(log_g, axis=3, reverse=True, inclusive=False))
    products, weights = _decayed_products(mx.stack([k, q]), k, log_g)
    a = erased * mx.tril(products, -1)
    inverse = mx.stop_gradient(_inverse(a))
    # (I + A)^-1 again, by a step of Newton's method, whose gradient is that of the inverse
    inverse = inverse - inverse @ (inverse + a @ inverse) + inverse
    of_chunks = (
        inverse @ (beta * v),
        inverse @ (erased * k * from_start),
        q * from_start,
        weights,
        (k * to_end).swapaxes(3, 4),
        from_start[:, :, :, -1:].swapaxes(3, 4),
    )
    outputs = []
    for values, reads, queries, within, writes, decay in zip(
        *(mx.split(array, array.shape[2], axis=2) for array in of_chunks), strict=True
    ):
        delta = values - reads @ state
        outputs.append(queries @ state + within @ delta)
        state = decay * state + writes @ delta
    return state, mx.concatenate(outputs, axis=2)


def _decayed_products(x: mx.array, y: mx.array, log_g: mx.array) -> mx.array:
    """x_i diag(g_j+1 ... g_i) y_j^T of j <= i, else 0: [..., C, D] -> [..., C, C].

    Gates per channel are multiplied into x and y, in halves: those after the middle of the tokens
    into x of the second half, those before it into y of the first.
    """
    size = x.shape[-2]
    if log_g.shape[-1] == 1:
        decay = mx.exp(mx.cumsum(log_g * mx.tril(mx.ones((size, size)), -1), axis=-2))
        return mx.tril(x @ y.swapaxes(-1, -2) * decay)
    if size == 1:
        return (x * y).sum(axis=-1, keepdims=True)
    x, y, log_g = (mx.unflatten(array, -2, (2, -1)) for array in (x, y, log_g))
    before = mx.cumsum(log_g[..., 0, :, :], axis=-2, reverse=True, inclusive=False)
    after = mx.cumsum(log_g[..., 1, :, :], axis=-2)
    left, right = y[..., 0, :, :] * mx.exp(before), x[..., 1, :, :] * mx.exp(after)
    return _lower(_decayed_products(x, y, log_g), right @ left.swapaxes(-1, -2))


def _inverse(a: mx.array) -> mx.array:
    """(I + A)^-1 of strictly lower triangular A, by substitution in blocks.

    The inverse of [[P, 0], [Q, R]] is [[P^-1, 0], [-R^-1 Q P^-1, R^-1]].
    """
    half = a.shape[-1] // 2
    if not half:
        return mx.ones_like(a)
    blocks = _inverse(mx.stack([a[..., :half, :half], a[..., half:, half:]], axis=-3))
    first, second = blocks[..., 0, :, :], blocks[..., 1, :, :]
    return _lower(blocks, -(second @ a[..., half:, :half] @ first))


def _lower(blocks: mx.array, corner: mx.array) -> mx.array:
    """[[first, 0], [corner, second]] of blocks [..., 2, C, C]."""
    first, second = blocks[..., 0, :, :], blocks[..., 1, :, :]
    top = mx.concatenate([first, mx.zeros_like(first)], axis=-1)
    return mx.concatenate([top, mx.concatenate([corner, second], axis=-1)], axis=-2)
