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
from grpo_engine.policy.caches import Layout
from grpo_engine.policy.head import (
    HeadScores,
    Scoring,
    constant_scores,
    recomputed_scores,
    scores_of_logits,
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
    scoring, segments = Scoring(temperature, gradient, entropy, entropy_gradient), batch.segments
    if policy.parts is None:
        states = None
        scores = scores_of_logits(_outputs(policy, segments), batch.targets, scoring)
    else:
        states, scores = _scores_of_states(policy, segments, scoring)
    arrays = (*scores, policy.value(states) if values else None)
    is_live = (gradient, gradient and entropy_gradient, gradient)
    spread = (
        None if array is None else batch.spread(array if live else mx.stop_gradient(array))
        for array, live in zip(arrays, is_live, strict=True)
    )
    return TokenScores(*spread)  # type: ignore[arg-type]


def _scores_of_states(
    policy: Policy, batch: TokenBatch, scoring: Scoring
) -> tuple[mx.array, HeadScores]:
    """Hidden states at the sampled tokens, [N, D], and their scores."""
    kernels = policy.training_kernels
    if kernels is None:
        states = _outputs(policy, batch)
    else:
        states, constant = _kernel_states(kernels, batch, gradient=scoring.gradient)
        if not scoring.entropy_gradient:
            return states, _kernel_scores(kernels, states, constant, batch.targets, scoring)
    return states, _head_scores(policy, states, batch.targets, scoring)


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
    kernels: Kernels, states: mx.array, constant: np.ndarray, targets: mx.array, scoring: Scoring
) -> HeadScores:
    scores = kernels.score(
        constant, np.asarray(targets), scoring.temperature, gradient=scoring.gradient
    )
    logprobs = mx.array(scores.logprobs)
    if scores.gradients is not None:
        logprobs = with_slope(logprobs, states, mx.array(scores.gradients))
    return HeadScores(logprobs, mx.array(scores.entropies) if scoring.entropy else None)


def _outputs(policy: Policy, batch: TokenBatch) -> mx.array:
    """MLX's graph at the sampled tokens: hidden states, [N, D]; logits if there is no head."""
    if policy.parts is not None and policy.shares_prompts:
        outputs, positions = _shared(policy, batch), batch.flat
    else:
        ids, positions = batch.joined(policy.pad_id)
        outputs = policy.parts.hidden(ids) if policy.parts else policy.model(ids)
    return outputs.reshape(-1, outputs.shape[-1])[positions]


def _shared(policy: Policy, batch: TokenBatch) -> mx.array:
    """Run each prompt once, then the completions on its caches, [B, T, D]."""
    assert policy.parts is not None
    assert policy.prefix_caches is not None
    prefixes, last = batch.prefixes(policy.pad_id)
    inputs = mx.concatenate([last, batch.ids[:, :-1]], axis=1)
    if prefixes.shape[1] == 0:
        return policy.parts.hidden(inputs)
    before = [len(prompt) - 1 for prompt in batch.prompts]
    caches = [cache.new(before) for cache in policy.prefix_caches]
    policy.parts.hidden(prefixes, caches)
    lengths = tuple(before[p] for p in batch.prompt_of)
    layout = Layout(lengths, prefixes.shape[1], batch.prompt_of)
    return policy.parts.hidden(inputs, [cache.spread(layout) for cache in caches])


def _head_scores(
    policy: Policy, states: mx.array, tokens: mx.array, scoring: Scoring
) -> HeadScores:
    parts = policy.parts
    assert parts is not None
    starts = list(range(policy.head_chunk, states.shape[0], policy.head_chunk))
    chunks: list[HeadScores] = []
    # split: the gradient of a slice is as wide as all positions
    for hidden, targets in zip(mx.split(states, starts), mx.split(tokens, starts), strict=True):
        if chunks:  # sequentially, so that only one chunk's logits are in memory
            hidden = mx.depends(hidden, [array for array in chunks[-1] if array is not None])
        if not scoring.gradient:
            scores = constant_scores(parts.logits, hidden, targets, scoring)
        elif policy.head_is_trained:
            scores = recomputed_scores(parts, hidden, targets, scoring)
        else:
            scores = surrogate_scores(parts.logits, hidden, targets, scoring)
        chunks.append(scores)
    if len(chunks) == 1:
        return chunks[0]
    logprobs, entropies = zip(*chunks, strict=True)
    return HeadScores(
        mx.concatenate(list(logprobs)), mx.concatenate(list(entropies)) if scoring.entropy else None
    )
