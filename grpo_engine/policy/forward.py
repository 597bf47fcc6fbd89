"""Log-probabilities of given completions: log_softmax(logits / temperature)[token], float32.

The token at completion position t is predicted by the hidden state of the token before it, so rows
that follow a shared prompt are [last prompt token, completion without its last token].
Axes: P prompts, B rows, T completion tokens, N sampled tokens of the batch, D hidden width.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from grpo_engine.cpu.kernels import Kernels
from grpo_engine.cpu.passes import Sequences
from grpo_engine.policy.batch import TokenBatch
from grpo_engine.policy.caches import Layout, PrefixCache
from grpo_engine.policy.head import (
    HeadScores,
    constant_scores,
    recomputed_scores,
    surrogate_scores,
    with_slope,
)
from grpo_engine.policy.policy import Policy


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """Result of a forward per completion token; 0 on padding and forced tokens."""

    logprobs: mx.array  # [B, T] float32
    entropy: mx.array | None = None  # [B, T] nats
    values: mx.array | None = None  # [B, T] the critic's value before the token


def token_scores(
    policy: Policy,
    batch: TokenBatch,
    *,
    temperature: float,
    gradient: bool = True,
    entropy: bool = False,
    entropy_gradient: bool = False,
    values: bool = False,
) -> TokenScores:
    """Score the batch, lazily.

    Use `gradient` inside `nn.value_and_grad(policy.module, ...)`; without it the same values are
    cheaper and constant. `entropy` is a constant unless `entropy_gradient`.
    """
    policy.module.train(gradient)
    if policy.parts is None:
        states = None
        scores = _scores_of_logits(_full_logits(policy, batch), batch.targets, temperature, entropy)
    else:
        states, scores = _scores_of_states(
            policy, batch, temperature, gradient=gradient, entropy=entropy,
            entropy_gradient=entropy_gradient,
        )  # fmt: skip
    entropies = scores.entropy
    if entropies is not None and not entropy_gradient:
        entropies = mx.stop_gradient(entropies)
    result = TokenScores(
        logprobs=batch.spread(scores.logprobs),
        entropy=None if entropies is None else batch.spread(entropies),
        values=batch.spread(policy.value(states)) if values else None,
    )
    if gradient:
        return result
    return TokenScores(*(
        None if array is None else mx.stop_gradient(array)
        for array in (result.logprobs, result.entropy, result.values)
    ))  # type: ignore[arg-type]  # fmt: skip


def _scores_of_states(
    policy: Policy, batch: TokenBatch, temperature: float, *, gradient: bool, entropy: bool,
    entropy_gradient: bool,
) -> tuple[mx.array, HeadScores]:  # fmt: skip
    """Hidden states at the sampled tokens, [N, D], and their scores."""
    kernels = policy.training_kernels
    if kernels is not None:
        states, constant = _kernel_states(kernels, batch, gradient=gradient)
        if not entropy_gradient:
            return states, _kernel_scores(
                kernels, states, constant, batch.targets, temperature, gradient=gradient,
                entropy=entropy,
            )  # fmt: skip
    else:
        states = _hidden(policy, batch)
    return states, _head_scores(
        policy, states, batch.targets, temperature, gradient=gradient, entropy=entropy,
        entropy_gradient=entropy_gradient,
    )  # fmt: skip


def _kernel_states(
    kernels: Kernels, batch: TokenBatch, *, gradient: bool
) -> tuple[mx.array, np.ndarray]:
    """Hidden states at the sampled tokens, [N, D], and the same without a gradient."""
    sampled = np.divmod(np.asarray(batch.flat), batch.width)
    sequences = Sequences(batch.prompts, batch.completions, batch.prompt_of, sampled)
    constant, trunk_pass = kernels.forward(sequences, saves=gradient)
    states = mx.array(constant)
    if not gradient:
        return states, constant
    function: Any = mx.custom_function(lambda *_: states)
    function.vjp(lambda _, cotangent, __: tuple(trunk_pass.gradient(np.asarray(cotangent))))
    return function(*trunk_pass.adapters), constant


def _kernel_scores(
    kernels: Kernels, states: mx.array, constant: np.ndarray, targets: mx.array,
    temperature: float, *, gradient: bool, entropy: bool,
) -> HeadScores:  # fmt: skip
    scores = kernels.score(constant, np.asarray(targets), temperature, gradient=gradient)
    logprobs = mx.array(scores.logprobs)
    if scores.gradients is not None:
        logprobs = with_slope(logprobs, states, mx.array(scores.gradients))
    return HeadScores(logprobs, mx.array(scores.entropies) if entropy else None)


def _hidden(policy: Policy, batch: TokenBatch) -> mx.array:
    """Hidden states at the sampled tokens by MLX's graph, [N, D]."""
    assert policy.parts is not None
    if policy.shares_prompts:
        states = _shared(policy, batch)
        return states.reshape(-1, states.shape[-1])[batch.flat]
    ids, positions = batch.joined(policy.pad_id)
    states = policy.parts.hidden(ids)
    return states.reshape(-1, states.shape[-1])[positions]


def _shared(policy: Policy, batch: TokenBatch) -> mx.array:
    """Run each prompt once, then the completions on its keys and values, [B, T, D]."""
    assert policy.parts is not None
    assert policy.windows is not None
    prefixes, last = batch.prefixes(policy.pad_id)
    inputs = mx.concatenate([last, batch.ids[:, :-1]], axis=1)
    if prefixes.shape[1] == 0:
        return policy.parts.hidden(inputs)
    caches = [PrefixCache(window) for window in policy.windows]
    policy.parts.hidden(prefixes, caches)
    lengths = tuple(len(batch.prompts[p]) - 1 for p in batch.prompt_of)
    layout = Layout(lengths, prefixes.shape[1], batch.prompt_of)
    return policy.parts.hidden(inputs, [cache.spread(layout) for cache in caches])


def _full_logits(policy: Policy, batch: TokenBatch) -> mx.array:
    """Compute logits at every position, return those of the sampled tokens, [N, V]."""
    ids, positions = batch.joined(policy.pad_id)
    logits = policy.model(ids)
    sampled: mx.array = logits.reshape(-1, logits.shape[-1])[positions]
    return sampled


def _scores_of_logits(
    logits: mx.array, tokens: mx.array, temperature: float, entropy: bool
) -> HeadScores:
    logits = logits.astype(mx.float32) / temperature
    logs = logits - mx.logsumexp(logits, axis=1, keepdims=True)
    level = -(mx.exp(logs) * mx.maximum(logs, -1e4)).sum(axis=1) if entropy else None
    return HeadScores(mx.take_along_axis(logs, tokens[:, None], axis=1)[:, 0], level)


def _head_scores(
    policy: Policy, states: mx.array, tokens: mx.array, temperature: float, *, gradient: bool,
    entropy: bool, entropy_gradient: bool,
) -> HeadScores:  # fmt: skip
    parts = policy.parts
    assert parts is not None
    starts = list(range(policy.head_chunk, states.shape[0], policy.head_chunk))
    chunks: list[HeadScores] = []
    # split: the gradient of a slice is as wide as all positions
    for hidden, targets in zip(mx.split(states, starts), mx.split(tokens, starts), strict=True):
        if chunks:  # sequentially, so that only one chunk's logits are in memory
            hidden = mx.depends(hidden, chunks[-1].logprobs)
        if not gradient:
            scores = constant_scores(parts.logits, hidden, targets, temperature, entropy=entropy)
        elif policy.head_is_trained:
            scores = recomputed_scores(parts, hidden, targets, temperature, entropy=entropy)
        else:
            scores = surrogate_scores(
                parts.logits, hidden, targets, temperature,
                entropy=entropy, entropy_gradient=entropy_gradient,
            )  # fmt: skip
        chunks.append(scores)
    if len(chunks) == 1:
        return chunks[0]
    entropies = [scores.entropy for scores in chunks if scores.entropy is not None]
    return HeadScores(
        mx.concatenate([scores.logprobs for scores in chunks]),
        mx.concatenate(entropies) if entropies else None,
    )
