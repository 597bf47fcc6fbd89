"""Checks before a run that a step fits in memory, and chooses the rows per backward pass."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx

from grpo_engine.config.settings import RunConfig
from grpo_engine.environments.dialogues import specs_of
from grpo_engine.errors import DataError, MemoryLimitError
from grpo_engine.platform.memory import memory, on_device
from grpo_engine.policy.memory import MemoryEstimate, choose_micro_rows, estimate_memory
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.prompts import RenderedPrompt
from grpo_engine.tasks.base import Example, Task, draw

GIGABYTE = 1e9
SHARE = 0.9  # of the available memory; the rest is for rewards, the screen and other programs
PROBES = 32
REPLY = 64  # tokens of an environment's reply with what the chat template adds
MOMENTS = {"adamw": 2, "adam": 2, "sgd": 1, "muon": 1, "lion": 1, "adafactor": 1}


def memory_limit() -> int:
    """Bytes that the run may use: what it holds, plus what is free."""
    usage = memory()
    held = mx.get_active_memory() + mx.get_cache_memory()
    machine = usage.available + usage.process
    return int(SHARE * on_device(mx.device_info(), machine, held))


class Lengths(NamedTuple):
    """Most tokens of a prompt, and of what follows it."""

    prompt: int
    answer: int


def longest(
    config: RunConfig, task: Task, context: int, render: Callable[[Example], RenderedPrompt]
) -> Lengths:
    """The longest of the first prompts, and the longest answer with its environment's replies.

    `rollout.max_context` is the only sure bound of a dialogue; without it replies are estimated.
    """

    def ids_of(example: Example) -> tuple[int, ...]:
        try:
            return render(example).ids
        except DataError:
            if config.task.bad_rows == "skip":
                return ()
            raise

    probes = draw(task, config.seed, 0, min(PROBES, len(task.train)))
    answer = config.rollout.max_new_tokens
    limit = min(filter(None, (config.task.max_prompt_tokens, max(1, context - answer))))
    prompt = max((len(ids) for ids in map(ids_of, probes) if ids), default=limit)
    if specs_of(config, task)[1]:
        total = config.rollout.max_context or prompt + answer + REPLY * (config.task.max_turns - 1)
        answer = max(1, min(context, total) - prompt)
    return Lengths(prompt, answer)


def longest_of(found: Sequence[Lengths]) -> Lengths:
    """The longest prompt and the longest answer of several tasks."""
    return Lengths(max(one.prompt for one in found), max(one.answer for one in found))


def micro_rows(config: RunConfig, policy: Policy, lengths: Lengths) -> int:
    """Rows per backward pass: from the settings, else as many as fit."""
    rows = config.rollout.prompts * config.rollout.group_size
    if config.optimizer.micro_rows:
        return min(rows, config.optimizer.micro_rows)
    return choose_micro_rows(
        policy,
        rows=rows,
        prompt_tokens=lengths.prompt,
        new_tokens=lengths.answer,
        prompts=config.rollout.prompts,
        budget=memory_limit(),
    )


def check_memory(
    config: RunConfig, policy: Policy, lengths: Lengths, rows_at_a_time: int
) -> MemoryEstimate:
    """Estimate a step's memory; raise an error with numbers and remedies if it cannot fit."""
    rollout, limit = config.rollout, memory_limit()
    rows = rollout.prompts * rollout.group_size
    estimate = estimate_memory(
        policy,
        rows=min(rows, rollout.max_rows or rows),
        micro_rows=rows_at_a_time,
        prompt_tokens=lengths.prompt,
        new_tokens=lengths.answer,
        moments=MOMENTS[config.optimizer.name],
        prompts=rollout.prompts,
    )
    if estimate.peak > limit:
        raise MemoryLimitError(
            f"a step needs about {estimate.peak / GIGABYTE:.1f} GB (weights "
            f"{estimate.weights / GIGABYTE:.1f}, optimiser {estimate.optimizer / GIGABYTE:.1f}, "
            f"sampling {estimate.sampling / GIGABYTE:.1f}, update "
            f"{estimate.update / GIGABYTE:.1f}) and {limit / GIGABYTE:.1f} GB may be used. "
            + remedy(config, estimate, rows_at_a_time, lengths)
        )
    return estimate


def remedy(
    config: RunConfig, estimate: MemoryEstimate, rows_at_a_time: int, lengths: Lengths
) -> str:
    """The three most effective settings to change, with values."""
    rollout = config.rollout
    rows = rollout.prompts * rollout.group_size
    shorter = f"rollout.max_new_tokens={max(1, rollout.max_new_tokens // 2)}"
    if lengths.answer > rollout.max_new_tokens:  # of a dialogue
        shorter = f"rollout.max_context={lengths.prompt + lengths.answer // 2}"
    if estimate.weights + estimate.optimizer > max(estimate.sampling, estimate.update):
        return "Try model.tuning=lora, model.quantized=keep, or a smaller model."
    if estimate.sampling > estimate.update:
        at_a_time = max(1, min(rows, rollout.max_rows or rows) // 2)
        size = rollout.group_size // 2 or 1
        return f"Try rollout.max_rows={at_a_time}, {shorter}, or rollout.group_size={size}."
    micro_rows = max(1, rows_at_a_time // 2)
    return f"Try optimizer.micro_rows={micro_rows}, model.grad_checkpoint=true, or {shorter}."
