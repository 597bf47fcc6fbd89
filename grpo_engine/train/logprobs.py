"""Log-probabilities of sampled completions without a gradient, micro-batch by micro-batch."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import mlx.core as mx

from grpo_engine.events import Event, PhaseAdvanced
from grpo_engine.policy.batch import TokenBatch, micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.rollouts.types import Rollout
from grpo_engine.run.requests import answer_requests
from grpo_engine.run.session import Run
from grpo_engine.train.samples import assembled


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTokens:
    """[B, T] each; rows that were not scored are 0."""

    logprobs: mx.array
    entropy: mx.array | None = None
    values: mx.array | None = None


def score_tokens(
    run: Run,
    step: int,
    rollouts: Sequence[Rollout],
    *,
    rows: Sequence[int] | None = None,
    weights: Mapping[str, mx.array] | None = None,
    reference: bool = False,
    entropy: bool = False,
    values: bool = False,
) -> Generator[Event, None, ScoredTokens]:
    """Score completions with the policy, with other weights, or with its reference."""
    batches = run.ranks.assigned(micro_batches(
        rollouts, rows_at_most=run.micro_rows, pad_id=run.policy.pad_id,
        bucket=run.policy.fast.bucket, only=list(range(len(rollouts)) if rows is None else rows),
    ))  # fmt: skip
    names = ["logprobs", *(["entropy"] if entropy else []), *(["values"] if values else [])]
    parts: dict[str, list[tuple[TokenBatch, mx.array]]] = {name: [] for name in names}
    for done, (_, batch) in enumerate(batches, 1):
        scored_by: AbstractContextManager[None] = (
            run.policy.as_reference() if reference else run.policy.using(weights)
        )
        with scored_by:
            scores = token_scores(
                run.policy, batch, temperature=run.config.rollout.temperature,
                gradient=False, entropy=entropy, values=values,
            )  # fmt: skip
            mx.eval(scores.logprobs, scores.entropy, scores.values)
        for name in names:
            parts[name].append((batch, getattr(scores, name)))
        yield PhaseAdvanced(step=step, phase="logprobs", done=done, total=len(batches))
        yield from answer_requests(run, step)
    width = max(1, *(len(rollout.ids) for rollout in rollouts))
    arrays = {name: assembled(parts[name], len(rollouts), width) for name in names}
    return ScoredTokens(**run.ranks.sum(arrays))
