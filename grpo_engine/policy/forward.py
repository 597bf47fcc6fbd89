"""Log-probabilities of given completions: log_softmax(logits / temperature)[token], float32.

The token at completion position t is predicted by the hidden state of the token before it, so rows
that follow a shared prompt are [last prompt token, completion without its last token].
Axes: P prompts, B rows, T completion tokens, N sampled tokens of the batch, D hidden width.
"""

from dataclasses import dataclass

import mlx.core as mx

from grpo_engine.policy.batch import TokenBatch
from grpo_engine.policy.fast import passes
from grpo_engine.policy.fast.attention import reads_prompts_once
from grpo_engine.policy.fast.caches import Layout, PackedCache, PrefixCache
from grpo_engine.policy.head import (
    HeadScores,
    constant_scores,
    recomputed_scores,
    surrogate_scores,
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
    if policy.parts is None or not policy.fast.selective_head:
        logits = _full_logits(policy, batch)
        scores = _scores_of_logits(logits, batch.targets, temperature, entropy=entropy)
        states = None
    else:
        states, constant = _hidden(policy, batch, gradient=gradient)
        if constant is not None and not entropy_gradient and policy.fast.fused_head:
            scores = passes.ScoringHead(policy).scores(
                states, constant, batch.targets, temperature, entropy=entropy, gradient=gradient
            )
        else:
            scores = _head_scores(
                policy, states, batch.targets, temperature, gradient=gradient, entropy=entropy,
                entropy_gradient=entropy_gradient,
            )  # fmt: skip
    entropies = scores.entropy
    if entropies is not None and not entropy_gradient:
        entropies = mx.stop_gradient(entropies)
    found = TokenScores(
        logprobs=batch.spread(scores.logprobs),
        entropy=None if entropies is None else batch.spread(entropies),
        values=batch.spread(policy.value(states)) if values else None,
    )
    if gradient:
        return found
    return TokenScores(*(
        None if a is None else mx.stop_gradient(a)
        for a in (found.logprobs, found.entropy, found.values)
    ))  # type: ignore[arg-type]  # fmt: skip


def _hidden(
    policy: Policy, batch: TokenBatch, *, gradient: bool
) -> tuple[mx.array, mx.array | None]:
    """Hidden states at the sampled tokens, [N, D], and without a gradient if they are known."""
    assert policy.parts is not None
    if policy.trains_compiled:
        return passes.hidden(policy, batch, gradient=gradient)
    if policy.fast.shared_prefix and policy.windows is not None:
        if policy.fast.packed and reads_prompts_once(policy) and max(map(len, batch.prompts)) > 1:
            return _packed(policy, batch), None
        states = _shared(policy, batch)
        return states.reshape(-1, states.shape[-1])[batch.flat], None
    ids, places = batch.joined(policy.pad_id)
    states = policy.parts.hidden(ids)
    return states.reshape(-1, states.shape[-1])[places], None


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


def _packed(policy: Policy, batch: TokenBatch) -> mx.array:
    """Run prompts and completions as one sequence without padding, [N, D]."""
    assert policy.parts is not None
    prompts = [len(prompt) - 1 for prompt in batch.prompts]
    layout = Layout(tuple(prompts[p] for p in batch.prompt_of), max(prompts), batch.prompt_of)
    rows = [len(ids) for ids in batch.completions]
    packed = PackedCache(prompts, rows, batch.width, layout)
    states = policy.parts.hidden(batch.packed(), [packed] * len(policy.model.layers))
    states = states.squeeze(0)
    if batch.flat.size == sum(rows):  # no forced tokens between the sampled ones
        return mx.split(states, [packed.start])[1]
    return states[packed.rows.reshape(-1)[batch.flat]]


def _full_logits(policy: Policy, batch: TokenBatch) -> mx.array:
    """Compute logits at every position, return those of the sampled tokens, [N, V]."""
    ids, places = batch.joined(policy.pad_id)
    logits = policy.model(ids)
    chosen: mx.array = logits.reshape(-1, logits.shape[-1])[places]
    return chosen


def _scores_of_logits(
    logits: mx.array, tokens: mx.array, temperature: float, *, entropy: bool
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
    size = policy.head_chunk or states.shape[0]
    starts = list(range(size, states.shape[0], size))
    found: list[HeadScores] = []
    # split: the gradient of a slice is as wide as all positions
    for hidden, wanted in zip(mx.split(states, starts), mx.split(tokens, starts), strict=True):
        if found:  # sequentially, so that only one chunk's logits are in memory
            hidden = mx.depends(hidden, found[-1].logprobs)
        if not gradient:
            score = constant_scores(
                parts.logits, hidden, wanted, temperature,
                entropy=entropy, fast=policy.fast.fast_scores,
            )  # fmt: skip
        elif policy.head_is_trained or not policy.fast.fused_head:
            score = recomputed_scores(parts, hidden, wanted, temperature, entropy=entropy)
        else:
            score = surrogate_scores(
                parts.logits, hidden, wanted, temperature,
                entropy=entropy, entropy_gradient=entropy_gradient,
            )  # fmt: skip
        found.append(score)
    if len(found) == 1:
        return found[0]
    levels = [score.entropy for score in found if score.entropy is not None]
    return HeadScores(
        mx.concatenate([score.logprobs for score in found]),
        mx.concatenate(levels) if levels else None,
    )
