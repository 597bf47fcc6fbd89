"""Sampling of answers: one prefill per prompt, all rows decoded as one batch."""

from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.types import PromptRows, Rollout, Sampling

__all__ = ["PromptRows", "Rollout", "Sampling", "sample_groups"]
