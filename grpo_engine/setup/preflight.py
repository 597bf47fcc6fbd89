"""Checks before a run that a step fits in memory, and chooses the rows per backward pass."""

import sys
from collections.abc import Sequence

import mlx.core as mx

from grpo_engine.config.settings import RunConfig
from grpo_engine.distributed.ranks import Ranks
from grpo_engine.distributed.workers import LEAST_SAMPLED, Workers
from grpo_engine.errors import MemoryLimitError
from grpo_engine.platform.memory import memory, on_device
from grpo_engine.policy.memory import MemoryEstimate, choose_micro_rows, estimate_memory
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.source import find_folder, on_cpu, stored_parameters
from grpo_engine.rollouts.prompts import PromptRenderer
from grpo_engine.tasks.base import draw

GIGABYTE = 1e9
SHARE = 0.9  # of the available memory; the rest is for rewards, the screen and other programs
PROBES = 32
STARTUP_S = 10.0  # seconds of work that repay the start of workers
TOKEN_S, PARAMETER_S = 1e-4, 1.8e-10  # of work: per token, and per token and parameter
WORKERS_SHARE = 0.5  # of the memory that may be used, for the weights of all workers
WORKER_COPIES = 2  # of the weights in a worker: as loaded, and with the adapter folded in
MOMENTS = {"adamw": 2, "adam": 2, "sgd": 1, "muon": 1, "lion": 1, "adafactor": 1}


def memory_limit(by_workers: int = 0) -> int:
    """Bytes that the run may use: what it and its workers hold, plus what is free."""
    usage = memory()
    held = mx.get_active_memory() + mx.get_cache_memory()
    machine = usage.available + usage.process + by_workers
    return int(SHARE * on_device(mx.device_info(), machine, held))


def worker_count(
    config: RunConfig, cores: int, ranks: Ranks, before: int | None, *, dialogues: bool = False
) -> tuple[int, list[str]]:
    """How many processes compute, and what there is to say about it.

    A resumed run keeps the number that it had, unless the settings name another one.
    """
    wanted = config.run.workers
    why_not = ""
    if sys.platform != "linux" or not on_cpu():
        why_not = "MLX computes on the GPU"
    elif ranks.size > 1:
        why_not = "each rank computes in one process"
    elif dialogues:
        why_not = "answers that wait for environments are sampled in one process"
    if why_not:
        return 1, [f"run.workers {wanted} has no effect: {why_not}"] if wanted > 1 else []
    count = wanted or before or _worth(config, cores)
    if count == 1:
        return 1, []
    each = max(1, cores // count)
    return count, [f"{count} worker processes compute, each with {each} thread{'s' * (each > 1)}"]


def _worth(config: RunConfig, cores: int) -> int:
    """The number of workers that repay their start, have enough to do, and fit in memory."""
    parameters = stored_parameters(find_folder(config.model.path))
    rows = config.rollout.prompts * config.rollout.group_size
    tokens = config.steps * rows * config.rollout.max_new_tokens
    seconds = tokens * (TOKEN_S + PARAMETER_S * parameters)
    fitting = int(memory_limit() * WORKERS_SHARE / max(1, WORKER_COPIES * 4 * parameters))
    count = max(1, min(cores, fitting, rows // LEAST_SAMPLED))
    return count if seconds * (1 - 1 / count) > STARTUP_S else 1


def longest_prompt(config: RunConfig, render: PromptRenderer) -> int:
    """Tokens in the longest of the first prompts."""
    probes = draw(render.task, config.seed, 0, min(PROBES, len(render.task.train)))
    return max(len(render(example).ids) for example in probes)


def micro_rows(
    config: RunConfig, policy: Policy, prompt_tokens: int, workers: Workers | None = None
) -> int:
    """Rows per backward pass: from the settings, else as many as fit in every worker."""
    rows = config.rollout.prompts * config.rollout.group_size
    count, limit = _processes(workers)
    if config.optimizer.micro_rows:
        return min(rows, config.optimizer.micro_rows)
    return choose_micro_rows(
        policy,
        rows=rows,
        prompt_tokens=prompt_tokens,
        new_tokens=config.rollout.max_new_tokens,
        prompts=config.rollout.prompts,
        budget=limit // count,
    )


def _processes(workers: Workers | None) -> tuple[int, int]:
    """How many processes compute, and the bytes that they may use together."""
    if workers is None:
        return 1, memory_limit()
    return workers.count, memory_limit(workers.held_memory())


def check_memory(
    config: RunConfig, policy: Policy, prompt_tokens: int, rows_at_a_time: int,
    workers: Workers | None = None,
) -> MemoryEstimate:  # fmt: skip
    """Estimate a step's memory; raise an error with numbers and remedies if it cannot fit."""
    rollout = config.rollout
    count, limit = _processes(workers)
    rows = -(-rollout.prompts * rollout.group_size // count)
    estimate = estimate_memory(
        policy,
        rows=min(rows, rollout.max_rows or rows),
        micro_rows=rows_at_a_time,
        prompt_tokens=prompt_tokens,
        new_tokens=rollout.max_new_tokens,
        moments=MOMENTS[config.optimizer.name],
        prompts=-(-rollout.prompts // count),
    )
    if workers is not None:
        estimate = estimate.in_workers(count, share_weights=workers.share_weights)
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
