"""The policy: model, adapters, reference, critic and log-probabilities."""

from grpo_engine.policy.batch import TokenBatch, TokenRow, make_batch, micro_batches
from grpo_engine.policy.fast_paths import FastPaths
from grpo_engine.policy.forward import TokenScores, token_scores
from grpo_engine.policy.load import Policy, load_policy
from grpo_engine.policy.memory import MemoryEstimate, choose_micro_rows, estimate_memory

__all__ = [
    "FastPaths",
    "MemoryEstimate",
    "Policy",
    "TokenBatch",
    "TokenRow",
    "TokenScores",
    "choose_micro_rows",
    "estimate_memory",
    "load_policy",
    "make_batch",
    "micro_batches",
    "token_scores",
]
