"""What ranks tell each other in a step: the answers they sampled and what their batches gave."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from grpo_engine.distributed.ranks import Ranks
from grpo_engine.events import AlertRaised, RewardValue
from grpo_engine.policy.batch import TokenBatch
from grpo_engine.rewards.scoring import Scores
from grpo_engine.rollouts.types import Rollout
from grpo_engine.train.loss import Seen

ARRAYS = ("logprobs", "entropy", "clipped", "kl")

Answers = tuple[list[Rollout], Scores]


def all_answers(ranks: Ranks, mine: Sequence[tuple[int, Answers]], count: int) -> list[Answers]:
    """The answers to all prompts with their scores, of which this rank made those at `mine`."""
    if ranks.size == 1:
        return [answers for _, answers in mine]
    told = [(place, [_told(rollouts), asdict(scores)]) for place, (rollouts, scores) in mine]
    return [
        ([_rollout(data) for data in rollouts], _scores(scores))
        for rollouts, scores in ranks.spread(told, count)
    ]


def _told(rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    return [asdict(rollout) for rollout in rollouts]


def _rollout(data: Mapping[str, Any]) -> Rollout:
    lists = ("prompt_ids", "ids", "logprobs", "raw_logprobs", "forced")
    return Rollout(**{**data, **{name: tuple(data[name]) for name in lists}})


def _scores(data: Mapping[str, Any]) -> Scores:
    steps = data["steps"]
    return Scores(
        rewards=tuple(tuple(RewardValue(**reward) for reward in row) for row in data["rewards"]),
        steps=None if steps is None else tuple(
            tuple((end, score) for end, score in row) for row in steps
        ),
        logged=data["logged"],
        alerts=tuple(AlertRaised(**alert) for alert in data["alerts"]),
    )  # fmt: skip


def all_alerts(answers: Sequence[Answers]) -> list[AlertRaised]:
    """What scoring warned of, each warning once."""
    found: dict[tuple[str, str], AlertRaised] = {}
    for _, scores in answers:
        for alert in scores.alerts:
            found.setdefault((alert.rule, alert.explanation), alert)
    return list(found.values())


def all_gradients(ranks: Ranks, own: Any, weights: Any) -> Any:
    """The sum of all ranks' gradients; a rank without any batch joins with zeros."""
    if ranks.size == 1:
        return own
    return ranks.add(tree_map(mx.zeros_like, weights) if own is None else own)


def all_seen(ranks: Ranks, batches: Sequence[TokenBatch], mine: Mapping[int, Seen]) -> list[Seen]:
    """What every batch gave, of which this rank computed those in `mine`."""
    if ranks.size == 1:
        return [mine[place] for place in range(len(batches))]
    told = [
        (place, [seen.loss, seen.sums, [n for n in ARRAYS if getattr(seen, n) is not None]])
        for place, seen in mine.items()
    ]
    facts = ranks.spread(told, len(batches))
    values = ranks.add({
        name: {
            str(place): getattr(mine[place], name).astype(mx.float32)
            if place in mine else mx.zeros(batch.mask.shape)
            for place, batch in enumerate(batches)
        }
        for name in facts[0][2]
    })  # fmt: skip
    return [
        Seen(
            batch=batch,
            loss=loss,
            sums={name: (total, count) for name, (total, count) in sums.items()},
            **{n: values[n][place] if n in names else None for n in ARRAYS},  # type: ignore[arg-type]
        )
        for place, (batch, (loss, sums, names)) in enumerate(zip(batches, facts, strict=True))
    ]
