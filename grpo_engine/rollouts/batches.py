"""Chooses how the rows of a policy are decoded."""

import mlx.core as mx

from grpo_engine.errors import ModelError
from grpo_engine.platform.faults import raise_fault
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.quantized import QuantizedCache
from grpo_engine.policy.source import first_line
from grpo_engine.policy.structure import TOLERANCE, UNKNOWN, agrees
from grpo_engine.rollouts.graph import GraphBatch, SeparateBatch, UnpaddedBatch
from grpo_engine.rollouts.kernels import KernelBatch

BATCHES = {"graph": GraphBatch, "unpadded": UnpaddedBatch, "separate": SeparateBatch}


def batch_for(policy: Policy) -> GraphBatch:
    """The kernels' batch, or the graph's fastest one that reproduces this model's logits.

    It is chosen once per policy.
    """
    bits = policy.config.cache_bits
    if policy.kernels is not None and not bits:
        return KernelBatch(policy)
    if policy.batching is None:
        # minimax_m3_vl cuts its blocks of keys from the first place on, which padding would shift
        blocks = (getattr(module, "is_sparse_attn", False) for module in policy.model.modules())
        names = () if any(blocks) else ("graph", "unpadded")
        policy.batching = next((name for name in names if _works(name, policy)), "separate")
    return BATCHES[policy.batching](policy, bits)


def check_cache_bits(policy: Policy) -> None:
    """Refuse a quantised cache for a model that cannot decode from one."""
    if not policy.config.cache_bits:
        return
    reason, batch = "its layers keep no keys and values of all tokens", batch_for(policy)
    if any(isinstance(cache, QuantizedCache) for cache in batch.empty()):
        try:
            mx.eval(_decoded(batch))
        except UNKNOWN as error:
            raise_fault(error)
            reason = first_line(error)
        else:
            return
    raise ModelError(
        f"{policy.config.path} cannot be sampled from with model.kv_bits {policy.config.kv_bits} "
        f"({reason}); set it to off, and if memory is short lower rollout.max_rows",
        "model.kv_bits",
    )


def _works(name: str, policy: Policy) -> bool:
    """Decode prompts of different length together and compare the logits with whole forwards."""
    expected = [policy.model(mx.array([prompt]))[0, -1] for prompt in _prompts(policy)]
    try:
        logits = _decoded(BATCHES[name](policy))
        return agrees(logits, mx.stack([expected[2], expected[1]]), TOLERANCE[policy.dtype])
    except UNKNOWN as error:
        raise_fault(error)
        return False  # it takes a slower batch


def _prompts(policy: Policy) -> list[tuple[int, ...]]:
    return [tuple(7 * i % policy.vocabulary for i in range(1, count)) for count in (6, 4, 6)]


def _decoded(batch: GraphBatch) -> mx.array:
    """The logits after the last two prompts, whose last tokens are decoded one by one."""
    prompts = _prompts(batch.policy)
    batch.add(batch.prefill([prompt[:-2] for prompt in prompts]))
    batch.step(mx.array([prompt[-2] for prompt in prompts]))
    batch.select([2, 1])
    return batch.step(mx.array([prompts[2][-1], prompts[1][-1]]))
