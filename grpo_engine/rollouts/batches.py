"""Chooses how the rows of a policy are decoded."""

from collections.abc import Callable
from typing import Final

import mlx.core as mx

from grpo_engine.policy.policy import Policy
from grpo_engine.policy.structure import TOLERANCE, agrees
from grpo_engine.rollouts.batch import Batch
from grpo_engine.rollouts.graph import GraphBatch, SeparateBatch, UnpaddedBatch
from grpo_engine.rollouts.kernels import KernelBatch

BUILDS: Final[dict[str, Callable[[Policy], Batch]]] = {
    "graph": GraphBatch,
    "unpadded": UnpaddedBatch,
    "separate": SeparateBatch,
}


def batch_for(policy: Policy) -> Batch:
    """The kernels' batch, or the graph's fastest one that reproduces this model's logits.

    It is chosen once per policy.
    """
    if policy.kernels is not None:
        return KernelBatch(policy)
    if policy.batching is None:
        kinds = ("graph", "unpadded")
        policy.batching = next((kind for kind in kinds if _serves(kind, policy)), "separate")
    return BUILDS[policy.batching](policy)


def _serves(kind: str, policy: Policy) -> bool:
    """Decode prompts of different length together and compare the logits with whole forwards."""
    prompts = [tuple(7 * i % policy.vocabulary for i in range(1, count)) for count in (6, 4, 6)]
    whole = mx.concatenate([policy.model(mx.array([prompt]))[:, -1] for prompt in prompts])
    try:
        batch = BUILDS[kind](policy)
        batch.add(batch.prefill([prompt[:-2] for prompt in prompts]))
        batch.step(mx.array([prompt[-2] for prompt in prompts]))
        batch.keep([2, 1])
        logits = batch.step(mx.array([prompts[2][-1], prompts[1][-1]]))
        return agrees(logits, mx.stack([whole[2], whole[1]]), TOLERANCE[policy.dtype])
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError, AssertionError):
        return False  # an unknown kind of model: it takes a slower batch
