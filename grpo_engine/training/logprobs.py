"""Log-probabilities of sampled completions without a gradient, micro-batch by micro-batch."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

from grpo_engine.events import Event
from grpo_engine.rollouts.types import Rollout
from grpo_engine.run.session import Run
from grpo_engine.training.compute import batches_of, score
from grpo_engine.training.samples import assembled


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
    folded: bool = False,
    entropy: bool = False,
    values: bool = False,
) -> Generator[Event, None, ScoredTokens]:
    """Score completions with the policy, with other weights, or with its reference.

    `folded` uses the weights as the sampler does, with the adapter folded in.
    """
    chosen = list(range(len(rollouts)) if rows is None else rows)
    batches = run.ranks.assigned(batches_of(run, rollouts, chosen))
    scored = yield from score(
        run, step, rollouts, batches, weights=weights, reference=reference, folded=folded,
        entropy=entropy, values=values,
    )  # fmt: skip
    names = ["logprobs", *(["entropy"] if entropy else []), *(["values"] if values else [])]
    parts = {name: [(batch, getattr(scores, name)) for batch, scores in scored] for name in names}
    width = max(1, *(len(rollout.ids) for rollout in rollouts))
    arrays = {name: assembled(parts[name], len(rollouts), width) for name in names}
    return ScoredTokens(**run.ranks.sum(arrays))
