"""Checks before a run that a step fits in memory, and chooses the rows per backward pass."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from grpo_engine.config.settings import RunConfig
from grpo_engine.distributed.ranks import Ranks
from grpo_engine.distributed.workers import LEAST_ROWS, LEAST_SHARED, Workers
from grpo_engine.environments.dialogues import specs_of
from grpo_engine.errors import DataError, MemoryLimitError
from grpo_engine.platform.memory import memory, on_device
from grpo_engine.policy.memory import MemoryEstimate, choose_micro_rows, estimate_memory
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.source import find_folder, on_cpu, stored_parameters
from grpo_engine.rollouts.prompts import RenderedPrompt
from grpo_engine.tasks.base import Example, Task, draw

GIGABYTE = 1e9
SHARE = 0.9  # of the available memory; the rest is for rewards, the screen and other programs
PROBES = 32
REPLY = 64  # tokens of an environment's reply with what the chat template adds
STARTUP_S = 10.0  # seconds of work that repay the start of workers
TOKEN_S, PARAMETER_S = 1e-4, 1.8e-10  # of work: per token, and per token and parameter
WORKERS_SHARE = 0.5  # of the memory that may be used, for the weights of all workers
WORKER_COPIES = 2  # of the weights in a worker: as loaded, and with the adapter folded in
SAMPLED = 0.33  # of the work of a step is sampling
MOMENTS = {"adamw": 2, "adam": 2, "sgd": 1, "muon": 1, "lion": 1, "adafactor": 1}


def memory_limit(by_workers: int = 0) -> int:
    """Bytes that the run may use: what it and its workers hold, plus what is free."""
    usage = memory()
    held = mx.get_active_memory() + mx.get_cache_memory()
    machine = usage.available + usage.process + by_workers
    return int(SHARE * on_device(mx.device_info(), machine, held))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What will be computed, by answers."""

    together: int  # answers that are sampled together
    answers: int  # in all
    trained: bool = True  # or only sampled

    @classmethod
    def of(cls, config: RunConfig) -> "Work":
        """The work of a run."""
        rows = config.rollout.prompts * config.rollout.group_size
        return cls(together=rows, answers=config.steps * rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    count: int = 1
    shares_weights: bool = False
    held: int = 0  # bytes that they have already

    @classmethod
    def of(cls, workers: Workers | None) -> "Processes":
        """Those that have been started."""
        if workers is None:
            return cls()
        return cls(
            count=workers.count, shares_weights=workers.shared > 0, held=workers.held_memory()
        )

    @classmethod
    def planned(cls, config: RunConfig, cores: int) -> "Processes":
        """Those that a new run would start."""
        count, _ = worker_count(config, cores, Ranks(), None)
        return cls(count=count, shares_weights=count > 1 and _parameters(config) >= LEAST_SHARED)


ALONE = Processes()


def worker_count(
    config: RunConfig, cores: int, ranks: Ranks, before: int | None,
    *, work: Work | None = None,
) -> tuple[int, list[str]]:  # fmt: skip
    """How many processes compute, and what there is to say about it.

    A resumed run keeps the number that it had, unless the settings name another one.
    """
    wanted = config.run.workers
    why_not = ""
    if sys.platform != "linux" or not on_cpu():
        why_not = "MLX computes on the GPU"
    elif ranks.size > 1:
        why_not = "each rank computes in one process"
    if why_not:
        return 1, [f"run.workers {wanted} has no effect: {why_not}"] if wanted > 1 else []
    count = wanted or before or _worth(config, cores, work or Work.of(config))
    if count == 1:
        return 1, []
    each = max(1, cores // count)
    return count, [f"{count} worker processes compute, each with {each} thread{'s' * (each > 1)}"]


def _parameters(config: RunConfig) -> int:
    return stored_parameters(find_folder(config.model.path))


def _worth(config: RunConfig, cores: int, work: Work) -> int:
    """The number of workers that repay their start, have enough to do, and fit in memory."""
    parameters = _parameters(config)
    tokens = work.answers * config.rollout.max_new_tokens * (1 if work.trained else SAMPLED)
    seconds = tokens * (TOKEN_S + PARAMETER_S * parameters)
    fitting = int(memory_limit() * WORKERS_SHARE / max(1, WORKER_COPIES * 4 * parameters))
    count = max(1, min(cores, fitting, work.together // LEAST_ROWS))
    return count if seconds * (1 - 1 / count) > STARTUP_S else 1


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
    room = min(filter(None, (config.task.max_prompt_tokens, max(1, context - answer))))
    prompt = max((len(ids) for ids in map(ids_of, probes) if ids), default=room)
    if specs_of(config, task)[1]:
        most = config.rollout.max_context or prompt + answer + REPLY * (config.task.max_turns - 1)
        answer = max(1, min(context, most) - prompt)
    return Lengths(prompt, answer)


def longest_of(found: Sequence[Lengths]) -> Lengths:
    """The longest prompt and the longest answer of several tasks."""
    return Lengths(max(one.prompt for one in found), max(one.answer for one in found))


def micro_rows(
    config: RunConfig, policy: Policy, lengths: Lengths, processes: Processes = ALONE
) -> int:
    """Rows per backward pass: from the settings, else as many as fit in every worker."""
    rows = config.rollout.prompts * config.rollout.group_size
    if config.optimizer.micro_rows:
        return min(rows, config.optimizer.micro_rows)
    return choose_micro_rows(
        policy,
        rows=rows,
        prompt_tokens=lengths.prompt,
        new_tokens=lengths.answer,
        prompts=config.rollout.prompts,
        budget=memory_limit(processes.held) // processes.count,
    )


def check_memory(
    config: RunConfig, policy: Policy, lengths: Lengths, rows_at_a_time: int,
    processes: Processes = ALONE,
) -> MemoryEstimate:  # fmt: skip
    """Estimate a step's memory; raise an error with numbers and remedies if it cannot fit."""
    rollout = config.rollout
    count, limit = processes.count, memory_limit(processes.held)
    rows = -(-rollout.prompts * rollout.group_size // count)
    estimate = estimate_memory(
        policy,
        rows=min(rows, rollout.max_rows or rows),
        micro_rows=rows_at_a_time,
        prompt_tokens=lengths.prompt,
        new_tokens=lengths.answer,
        moments=MOMENTS[config.optimizer.name],
        prompts=-(-rollout.prompts // count),
    )
    if count > 1:
        estimate = estimate.in_workers(count, share_weights=processes.shares_weights)
    if estimate.peak > limit:
        raise MemoryLimitError(
            f"a step needs about {estimate.peak / GIGABYTE:.1f} GB (weights "
            f"{estimate.weights / GIGABYTE:.1f}, optimiser {estimate.optimizer / GIGABYTE:.1f}, "
            f"sampling {estimate.sampling / GIGABYTE:.1f}, update "
            f"{estimate.update / GIGABYTE:.1f}) and {limit / GIGABYTE:.1f} GB may be used. "
            + ("Try run.workers=1. " if count > 1 else "")
            + " ".join(remedies(config, estimate, rows_at_a_time, lengths))
        )
    return estimate


def remedies(
    config: RunConfig, estimate: MemoryEstimate, rows_at_a_time: int, lengths: Lengths
) -> Sequence[str]:
    """The three most effective settings to change, with values."""
    rollout = config.rollout
    rows = rollout.prompts * rollout.group_size
    sampling = f"rollout.max_rows={max(1, min(rows, rollout.max_rows or rows) // 2)}"
    update = f"optimizer.micro_rows={max(1, rows_at_a_time // 2)}"
    shorter = f"rollout.max_new_tokens={max(1, rollout.max_new_tokens // 2)}"
    if lengths.answer > rollout.max_new_tokens:  # of a dialogue
        shorter = f"rollout.max_context={lengths.prompt + lengths.answer // 2}"
    if estimate.weights + estimate.optimizer > max(estimate.sampling, estimate.update):
        return ["Try model.tuning=lora,", "model.quantized=keep,", "or a smaller model."]
    if estimate.sampling > estimate.update:
        return [
            f"Try {sampling},",
            f"{shorter},",
            f"or rollout.group_size={rollout.group_size // 2 or 1}.",
        ]
    return [f"Try {update},", "model.grad_checkpoint=true,", f"or {shorter}."]
