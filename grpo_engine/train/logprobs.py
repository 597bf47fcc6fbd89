"""Log-probabilities of sampled answers without a gradient, micro-batch by micro-batch."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import mlx.core as mx

from grpo_engine.events import Event, PhaseAdvanced
from grpo_engine.policy.batch import TokenBatch, micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.rollouts.types import Rollout
from grpo_engine.run.requests import listen
from grpo_engine.run.session import Run
from grpo_engine.train.samples import assembled


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """[B, T] each; rows that were not asked for are 0."""

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
) -> Generator[Event, None, Numbers]:
    """Score answers with the policy, with other weights of it, or with its reference."""
    only = range(len(rollouts)) if rows is None else rows
    batches = micro_batches(
        rollouts, rows_at_most=run.micro_rows, pad_id=run.policy.pad_id,
        bucket=run.policy.fast.bucket, only=list(only),
    )  # fmt: skip
    names = ["logprobs", *(["entropy"] if entropy else []), *(["values"] if values else [])]
    found: dict[str, list[tuple[TokenBatch, mx.array]]] = {name: [] for name in names}
    mine = [batch for _, batch in run.ranks.mine(batches)]
    for done, batch in enumerate(mine, 1):
        who: AbstractContextManager[None] = (
            run.policy.as_reference() if reference else run.policy.using(weights)
        )
        with who:
            scores = token_scores(
                run.policy, batch, temperature=run.config.rollout.temperature,
                gradient=False, entropy=entropy, values=values,
            )  # fmt: skip
            mx.eval(scores.logprobs, scores.entropy, scores.values)
        for name in names:
            found[name].append((batch, getattr(scores, name)))
        yield PhaseAdvanced(step=step, phase="logprobs", done=done, total=len(mine))
        yield from listen(run, step)
    width = max(1, *(len(rollout.ids) for rollout in rollouts))
    own = {name: assembled(parts, len(rollouts), width) for name, parts in found.items()}
    return Numbers(**run.ranks.add(own))
