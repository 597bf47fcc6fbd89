"""Checks before a run that a step fits in memory, and chooses the rows per backward pass."""

from collections.abc import Sequence

import mlx.core as mx

from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import MemoryLimitError
from grpo_engine.platform.memory import memory, on_device
from grpo_engine.policy.memory import MemoryEstimate, choose_micro_rows, estimate_memory
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.prompts import PromptRenderer
from grpo_engine.tasks.base import draw

GIGABYTE = 1e9
SHARE = 0.9  # of the available memory; the rest is for rewards, the screen and other programs
PROBES = 32
MOMENTS = {"adamw": 2, "adam": 2, "sgd": 1, "muon": 1, "lion": 1, "adafactor": 1}


def memory_limit() -> int:
    """Bytes that this process may use: what it holds, plus what is free on MLX's device."""
    usage = memory()
    held = mx.get_active_memory() + mx.get_cache_memory()
    return int(SHARE * on_device(mx.device_info(), usage.available + usage.process, held))


def longest_prompt(config: RunConfig, render: PromptRenderer) -> int:
    """Tokens in the longest of the first prompts."""
    probes = draw(render.task, config.seed, 0, min(PROBES, len(render.task.train)))
    return max(len(render(example).ids) for example in probes)


def micro_rows(config: RunConfig, policy: Policy, prompt_tokens: int) -> int:
    """Rows per backward pass: from the settings, else as many as fit."""
    rows = config.rollout.prompts * config.rollout.group_size
    if config.optimizer.micro_rows:
        return min(rows, config.optimizer.micro_rows)
    return choose_micro_rows(
        policy,
        rows=rows,
        prompt_tokens=prompt_tokens,
        new_tokens=config.rollout.max_new_tokens,
        prompts=config.rollout.prompts,
        budget=memory_limit(),
    )


def check_memory(
    config: RunConfig, policy: Policy, prompt_tokens: int, rows_at_a_time: int
) -> MemoryEstimate:
    """Estimate a step's memory; raise an error with numbers and remedies if it cannot fit."""
    rollout = config.rollout
    rows = rollout.prompts * rollout.group_size
    estimate = estimate_memory(
        policy,
        rows=min(rows, rollout.max_rows or rows),
        micro_rows=rows_at_a_time,
        prompt_tokens=prompt_tokens,
        new_tokens=rollout.max_new_tokens,
        moments=MOMENTS[config.optimizer.name],
        prompts=rollout.prompts,
    )
    limit = memory_limit()
    if estimate.peak > limit:
        raise MemoryLimitError(
            f"a step needs about {estimate.peak / GIGABYTE:.1f} GB (weights "
            f"{estimate.weights / GIGABYTE:.1f}, optimiser {estimate.optimizer / GIGABYTE:.1f}, "
            f"sampling {estimate.sampling / GIGABYTE:.1f}, update "
            f"{estimate.update / GIGABYTE:.1f}) and {limit / GIGABYTE:.1f} GB may be used. "
            + " ".join(remedies(config, estimate, rows_at_a_time))
        )
    return estimate


def remedies(config: RunConfig, estimate: MemoryEstimate, rows_at_a_time: int) -> Sequence[str]:
    """The three most effective settings to change, with values."""
    rollout = config.rollout
    rows = rollout.prompts * rollout.group_size
    sampling = f"rollout.max_rows={max(1, min(rows, rollout.max_rows or rows) // 2)}"
    update = f"optimizer.micro_rows={max(1, rows_at_a_time // 2)}"
    shorter = f"rollout.max_new_tokens={max(1, rollout.max_new_tokens // 2)}"
    if estimate.weights + estimate.optimizer > max(estimate.sampling, estimate.update):
        return ["Try model.tuning=lora,", "model.quantized=keep,", "or a smaller model."]
    if estimate.sampling > estimate.update:
        return [
            f"Try {sampling},",
            f"{shorter},",
            f"or rollout.group_size={rollout.group_size // 2 or 1}.",
        ]
    return [f"Try {update},", "model.grad_checkpoint=true,", f"or {shorter}."]
