"""Chooses how the rows of a policy are decoded."""

import mlx.core as mx

from grpo_engine.policy.policy import Policy
from grpo_engine.policy.structure import TOLERANCE, agrees
from grpo_engine.rollouts.graph import GraphBatch, SeparateBatch, UnpaddedBatch
from grpo_engine.rollouts.kernels import KernelBatch

BATCHES = {"graph": GraphBatch, "unpadded": UnpaddedBatch, "separate": SeparateBatch}


def batch_for(policy: Policy) -> GraphBatch:
    """The kernels' batch, or the graph's fastest one that reproduces this model's logits.

    It is chosen once per policy.
    """
    if policy.kernels is not None:
        return KernelBatch(policy)
    if policy.batching is None:
        names = ("graph", "unpadded")
        policy.batching = next((name for name in names if _works(name, policy)), "separate")
    return BATCHES[policy.batching](policy)


def _works(name: str, policy: Policy) -> bool:
    """Decode prompts of different length together and compare the logits with whole forwards."""
    prompts = [tuple(7 * i % policy.vocabulary for i in range(1, count)) for count in (6, 4, 6)]
    expected = [policy.model(mx.array([prompt]))[0, -1] for prompt in prompts]
    try:
        batch = BATCHES[name](policy)
        batch.add(batch.prefill([prompt[:-2] for prompt in prompts]))
        batch.step(mx.array([prompt[-2] for prompt in prompts]))
        batch.select([2, 1])
        logits = batch.step(mx.array([prompts[2][-1], prompts[1][-1]]))
        return agrees(logits, mx.stack([expected[2], expected[1]]), TOLERANCE[policy.dtype])
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError, AssertionError):
        return False  # an unknown kind of model: it takes a slower batch
