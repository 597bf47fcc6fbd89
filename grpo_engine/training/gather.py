"""Data that ranks exchange in a step: rollouts with scores, gradients, micro-batch results."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from grpo_engine.distributed.ranks import Ranks
from grpo_engine.events import AlertRaised, decode, encode
from grpo_engine.policy.batch import TokenBatch
from grpo_engine.rewards.scoring import Scores
from grpo_engine.rollouts.types import Rollout
from grpo_engine.training.loss import MicroBatchResult

ARRAYS = ("logprobs", "entropy", "clipped", "kl", "values")

ScoredRollouts = tuple[list[Rollout], Scores]  # for one prompt


def all_rollouts(ranks: Ranks, local: Sequence[tuple[int, ScoredRollouts]]) -> list[ScoredRollouts]:
    """The scored rollouts of all prompts; `local` has this rank's, by index."""
    if ranks.size == 1:
        return [scored for _, scored in local]
    items = [(index, encode(scored)) for index, scored in local]
    kind = tuple[list[Rollout], Scores]
    return [decode(kind, scored) for scored in ranks.gather_indexed(items)]


def distinct_alerts(scored: Sequence[ScoredRollouts]) -> list[AlertRaised]:
    alerts: dict[tuple[str, str], AlertRaised] = {}
    for _, scores in scored:
        for alert in scores.alerts:
            alerts.setdefault((alert.rule, alert.explanation), alert)
    return list(alerts.values())


def all_gradients(ranks: Ranks, local: Any, weights: Any) -> Any:
    """The sum of all ranks' gradients; a rank without a batch contributes zeros."""
    if ranks.size == 1:
        return local
    return ranks.sum(tree_map(mx.zeros_like, weights) if local is None else local)


def all_results(
    ranks: Ranks, batches: Sequence[TokenBatch], local: Mapping[int, MicroBatchResult]
) -> list[MicroBatchResult]:
    """The results of every micro-batch; `local` has this rank's, by place."""
    if ranks.size == 1:
        return [local[place] for place in range(len(batches))]
    plain = ranks.gather_indexed(
        (place, [one.loss, one.sums, [n for n in ARRAYS if getattr(one, n) is not None]])
        for place, one in local.items()
    )
    arrays = ranks.sum({
        name: {
            str(place): getattr(local[place], name).astype(mx.float32)
            if place in local else mx.zeros(batch.mask.shape)
            for place, batch in enumerate(batches)
        }
        for name in plain[0][2]
    })  # fmt: skip
    return [
        MicroBatchResult(
            batch=batch,
            loss=loss,
            sums={name: (total, count) for name, (total, count) in sums.items()},
            **{n: arrays[n][place] if n in names else None for n in ARRAYS},  # type: ignore[arg-type]
        )
        for place, (batch, (loss, sums, names)) in enumerate(zip(batches, plain, strict=True))
    ]
