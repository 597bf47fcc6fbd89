"""Log-probabilities of given completions: log_softmax(logits / temperature)[token], float32.

The token at completion position t is predicted by the hidden state of the token before it, so rows
that follow a shared prompt are [last prompt token, completion without its last token].
Axes: P prompts, B rows, T completion tokens, L tokens, N sampled tokens, D hidden width.
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
        states_ND = None
        scores = scores_of_logits(_outputs(policy, segments), batch.targets, scoring)
    else:
        states_ND, scores = _scores_of_states(policy, segments, scoring)
    arrays = (*scores, policy.value(states_ND) if values else None)
    is_live = (gradient, gradient and entropy_gradient, gradient)
    spread = (
        None if array is None else batch.spread(array if live else mx.stop_gradient(array))
        for array, live in zip(arrays, is_live, strict=True)
    )
    return TokenScores(*spread)  # type: ignore[arg-type]


def _scores_of_states(
    policy: Policy, batch: TokenBatch, scoring: Scoring
) -> tuple[mx.array, HeadScores]:
    """Hidden states at the sampled tokens, and their scores."""
    kernels = policy.training_kernels
    if kernels is None:
        states_ND = _outputs(policy, batch)
    else:
        states_ND, constant_ND = _kernel_states(kernels, batch, gradient=scoring.gradient)
        if not scoring.entropy_gradient:
            return states_ND, _kernel_scores(
                kernels, states_ND, constant_ND, batch.targets, scoring
            )
    return states_ND, _head_scores(policy, states_ND, batch.targets, scoring)


def _kernel_states(
    kernels: Kernels, batch: TokenBatch, *, gradient: bool
) -> tuple[mx.array, np.ndarray]:
    """Hidden states at the sampled tokens, and the same without a gradient."""
    sampled = np.divmod(np.asarray(batch.flat_N), batch.width)
    sequences = Sequences(batch.prompts, batch.completions, batch.prompt_of, sampled)
    constant_ND, trunk_pass = kernels.forward(sequences, saves=gradient)
    states_ND = mx.array(constant_ND)
    if not gradient:
        return states_ND, constant_ND
    function: Any = mx.custom_function(lambda *_: states_ND)
    function.vjp(lambda _, cotangent_ND, __: tuple(trunk_pass.gradient(np.asarray(cotangent_ND))))
    return function(*trunk_pass.adapters), constant_ND


def _kernel_scores(
    kernels: Kernels,
    states_ND: mx.array,
    constant_ND: np.ndarray,
    targets_N: mx.array,
    scoring: Scoring,
) -> HeadScores:
    scores = kernels.score(
        constant_ND, np.asarray(targets_N), scoring.temperature, gradient=scoring.gradient
    )
    logprobs_N = mx.array(scores.logprobs)
    if scores.gradients is not None:
        logprobs_N = with_slope(logprobs_N, states_ND, mx.array(scores.gradients))
    return HeadScores(logprobs_N, mx.array(scores.entropies) if scoring.entropy else None)


def _outputs(policy: Policy, batch: TokenBatch) -> mx.array:
    """MLX's graph at the sampled tokens: hidden states, [N, D]; logits if there is no head."""
    if policy.parts is not None and policy.shares_prompts:
        outputs, positions_N = _shared(policy, batch), batch.flat_N
    else:
        ids_BL, positions_N = batch.joined(policy.pad_id)
        outputs = policy.parts.hidden(ids_BL) if policy.parts else policy.model(ids_BL)
    return outputs.reshape(-1, outputs.shape[-1])[positions_N]


def _shared(policy: Policy, batch: TokenBatch) -> mx.array:
    """Run each prompt once, then the completions on its caches, [B, T, D]."""
    assert policy.parts is not None
    assert policy.prefix_caches is not None
    prefixes_PL, last_B1 = batch.prefixes(policy.pad_id)
    inputs_BT = mx.concatenate([last_B1, batch.ids_BT[:, :-1]], axis=1)
    if prefixes_PL.shape[1] == 0:
        return policy.parts.hidden(inputs_BT)
    before = [len(prompt) - 1 for prompt in batch.prompts]
    caches = [cache.new(before) for cache in policy.prefix_caches]
    policy.parts.hidden(prefixes_PL, caches)
    lengths = tuple(before[p] for p in batch.prompt_of)
    layout = Layout(lengths, prefixes_PL.shape[1], batch.prompt_of)
    return policy.parts.hidden(inputs_BT, [cache.spread(layout) for cache in caches])


def _head_scores(
    policy: Policy, states_ND: mx.array, tokens_N: mx.array, scoring: Scoring
) -> HeadScores:
    parts = policy.parts
    assert parts is not None
    starts = list(range(policy.head_chunk, states_ND.shape[0], policy.head_chunk))
    chunks: list[HeadScores] = []
    # Split, for the gradient of a slice is as wide as all positions.
    for hidden_ND, targets_N in zip(
        mx.split(states_ND, starts), mx.split(tokens_N, starts), strict=True
    ):
        if chunks:  # One chunk's logits at a time are in memory.
            hidden_ND = mx.depends(hidden_ND, [array for array in chunks[-1] if array is not None])
        if not scoring.gradient:
            scores = constant_scores(parts.logits, hidden_ND, targets_N, scoring)
        elif policy.head_is_trained:
            scores = recomputed_scores(parts, hidden_ND, targets_N, scoring)
        else:
            scores = surrogate_scores(parts.logits, hidden_ND, targets_N, scoring)
        chunks.append(scores)
    if len(chunks) == 1:
        return chunks[0]
    logprobs, entropies = zip(*chunks, strict=True)
    return HeadScores(
        mx.concatenate(list(logprobs)), mx.concatenate(list(entropies)) if scoring.entropy else None
    )
