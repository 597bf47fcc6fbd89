"""Checks before a run that a step fits in memory, and plans its passes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import mlx.core as mx

from grpo_engine.config.settings import RunConfig
from grpo_engine.environments.client import specs_of
from grpo_engine.errors import DataError, MemoryLimitError
from grpo_engine.platform.memory import memory, on_device
from grpo_engine.platform.threads import local_engines
from grpo_engine.policy.memory import (
    Lengths,
    MemoryEstimate,
    MemoryPlan,
    choose_plan,
    estimate_memory,
)
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.source import on_cpu
from grpo_engine.rollouts.prompts import RenderedPrompt
from grpo_engine.tasks.base import Example, Task, draw

GIGABYTE = 1e9
SHARE = 0.9  # the rest of the available memory is for rewards, the screen and other programs
CACHE_SHARE = 0.25  # memory of a GPU that MLX may keep after it was freed
WIRED_MORE, NEVER_WIRED = 1 << 30, 2 << 30  # bytes above the estimate, and below what Metal may use
PROBES = 32
REPLY = 64  # tokens of an environment's reply with what the chat template adds
MOMENTS = {"adamw": 2, "adam": 2, "sgd": 1, "muon": 1, "lion": 1, "adafactor": 1}


def memory_limit() -> int:
    """Bytes that the run may use: what it holds, plus what is free."""
    usage = memory()
    allocated = mx.get_active_memory() + mx.get_cache_memory()
    machine = usage.available + usage.process
    return int(SHARE * on_device(mx.device_info(), machine, allocated))


def set_limits() -> None:
    """Let MLX on a GPU take no more than a run may use before it gives back what was freed."""
    if not on_cpu():
        limit = memory_limit()
        mx.set_memory_limit(limit)
        mx.set_cache_limit(int(CACHE_SHARE * limit))


@contextmanager
def wired(estimate: MemoryEstimate) -> Iterator[None]:
    """Keep what a step needs in memory on Metal; elsewhere nothing is done.

    Never all that may be used: that has frozen machines of 16 GB.
    """
    usable = int(mx.device_info().get("max_recommended_working_set_size", 0))
    limit = min(estimate.peak + WIRED_MORE, usable - NEVER_WIRED) // local_engines()
    if not mx.metal.is_available() or on_cpu() or limit <= 0:
        yield
        return
    before = mx.set_wired_limit(limit)
    try:
        yield
    finally:
        mx.set_wired_limit(before)


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
    completion = config.rollout.max_new_tokens
    limit = min(filter(None, (config.task.max_prompt_tokens, max(1, context - completion))))
    prompt = max((len(ids) for ids in map(ids_of, probes) if ids), default=limit)
    if specs_of(config, task)[1]:
        return with_replies(config, Lengths(prompt, completion), context)
    return Lengths(prompt, completion)


def with_replies(config: RunConfig, lengths: Lengths, context: int) -> Lengths:
    """The lengths with the replies of an environment after the completion."""
    total = config.rollout.max_context or sum(lengths) + REPLY * (config.task.max_turns - 1)
    return Lengths(lengths.prompt, max(1, min(context, total) - lengths.prompt))


def plan_memory(config: RunConfig, policy: Policy, lengths: Lengths, budget: int) -> MemoryPlan:
    """How a step uses memory: as set, else as fast as `budget` bytes allow."""
    return choose_plan(
        policy,
        rows=config.training.rows,
        prompt_tokens=lengths.prompt,
        new_tokens=lengths.completion,
        prompts=config.rollout.prompts,
        budget=budget,
        micro_rows=config.optimizer.micro_rows,
        max_rows=config.rollout.max_rows,
    )


def estimated(
    config: RunConfig, policy: Policy, lengths: Lengths, plan: MemoryPlan
) -> MemoryEstimate:
    """The memory of a step under a plan."""
    rollout = config.rollout
    return estimate_memory(
        plan.under(policy),
        rows=plan.max_rows,
        micro_rows=plan.micro_rows,
        prompt_tokens=lengths.prompt,
        new_tokens=lengths.completion,
        moments=MOMENTS[config.optimizer.name],
        prompts=rollout.prompts,
    )


def check_memory(
    config: RunConfig, policy: Policy, lengths: Lengths, plan: MemoryPlan
) -> MemoryEstimate:
    """Estimate a step's memory; raise an error with numbers and remedies if it does not fit."""
    limit, estimate = memory_limit(), estimated(config, policy, lengths, plan)
    teacher = f"teacher {estimate.teacher / GIGABYTE:.1f}, " * bool(estimate.teacher)
    if estimate.known and estimate.peak > limit:
        raise MemoryLimitError(
            f"a step needs about {estimate.peak / GIGABYTE:.1f} GB (weights "
            f"{estimate.weights / GIGABYTE:.1f}, {teacher}"
            f"optimiser {estimate.optimizer / GIGABYTE:.1f}, "
            f"sampling {estimate.sampling / GIGABYTE:.1f}, update "
            f"{estimate.update / GIGABYTE:.1f}) and {limit / GIGABYTE:.1f} GB may be used. "
            + remedy(config, estimate, plan, lengths)
        )
    return estimate


def remedy(config: RunConfig, estimate: MemoryEstimate, plan: MemoryPlan, lengths: Lengths) -> str:
    """The three most effective settings to change, with values."""
    rollout = config.rollout
    shorter = f"rollout.max_new_tokens={max(1, rollout.max_new_tokens // 2)}"
    if lengths.completion > rollout.max_new_tokens:  # of a dialogue
        shorter = f"rollout.max_context={lengths.prompt + lengths.completion // 2}"
    if estimate.teacher > max(estimate.weights, estimate.sampling, estimate.update):
        return "Try a smaller or quantised teacher.path, with model.quantized=keep."
    if estimate.weights + estimate.optimizer > max(estimate.sampling, estimate.update):
        return "Try model.tuning=lora, model.quantized=keep, or a smaller model."
    if estimate.sampling > estimate.update:
        at_a_time = max(1, plan.max_rows // 2)
        size = rollout.group_size // 2 or 1
        return f"Try rollout.max_rows={at_a_time}, {shorter}, or rollout.group_size={size}."
    micro_rows = max(1, plan.micro_rows // 2)
    layers = "fewer model.lora_layers" if plan.grad_checkpoint else "model.grad_checkpoint=on"
    return f"Try optimizer.micro_rows={micro_rows}, {layers}, or {shorter}."
