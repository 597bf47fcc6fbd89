"""The model's work in a step, on this thread or by local workers: same calls, same results.

With workers, rows are divided so that each has about as much to do, and sums over workers are
always made in the same order.
"""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from grpo_engine.config.recipes import Recipe
from grpo_engine.config.settings import RolloutConfig
from grpo_engine.distributed.messages import Arrays
from grpo_engine.distributed.shares import owners_of, parts_of_prompts, parts_of_rows
from grpo_engine.distributed.workers import TICK, Workers
from grpo_engine.events import (
    Event,
    NoteWritten,
    Phase,
    PhaseAdvanced,
    RolloutsAdvanced,
    RowDelta,
    RunPaused,
    RunResumed,
)
from grpo_engine.maths.advantage import Advantages
from grpo_engine.maths.target import Targets
from grpo_engine.maths.weight import Totals
from grpo_engine.policy.batch import TokenBatch, micro_batches
from grpo_engine.policy.forward import TokenScores, token_scores
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.trees import flatten, nest
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.dialogue import Dialogues
from grpo_engine.rollouts.types import PromptRows, Rollout, Sampling
from grpo_engine.run.requests import answer_requests
from grpo_engine.run.session import Run
from grpo_engine.training.gather import rollout_of
from grpo_engine.training.loss import LossInputs, MicroBatchResult, gradient, loss
from grpo_engine.training.remote import Served
from grpo_engine.training.samples import Samples

Weights = Mapping[str, mx.array]
LOOK = 0.005  # seconds between two looks for replies that a worker waits for
Placed = Sequence[tuple[int, TokenBatch]]  # micro-batches with their places among those of a step


def sample(
    run: Run, prompts: Sequence[PromptRows], sampling: Sampling, *, step: int,
    weights: Weights | None = None, dialogues: Dialogues | None = None,
) -> Generator[Event, None, list[Rollout]]:  # fmt: skip
    """Sample all rows, yield progress, return the rollouts in the order of `prompts`.

    `weights` are the sampler's if it lags behind the policy.
    """
    if run.workers is None or not prompts:
        return (yield from sample_groups(
            run.policy, prompts, sampling, seed=run.config.seed, step=step, control=run.control,
            weights=weights, dialogues=dialogues,
        ))  # fmt: skip
    workers = run.workers
    used = workers.used_to_sample(sum(prompt.rows for prompt in prompts))
    parts = [part for part in parts_of_prompts(prompts, used) if part]
    slot = _put_weights(run, workers, weights)
    sizes = [sum(prompt.rows for prompt in part) for part in parts]
    served = Served(dialogues, sizes) if dialogues is not None else None
    for worker, part in enumerate(parts):
        workers.ask(worker, {
            "do": "sample", "prompts": [asdict(prompt) for prompt in part], "slot": slot,
            "sampling": asdict(sampling), "seed": run.config.seed, "step": step,
            "dialogues": served.settings(worker) if served is not None else None,
        }, sharing=len(parts))  # fmt: skip
    found = yield from _sampled(run, workers, len(parts), step, served)
    return [rollout for worker in range(len(parts)) for rollout in found[worker]]


def _sampled(
    run: Run, workers: Workers, used: int, step: int, served: Served | None
) -> Generator[Event, None, dict[int, list[Rollout]]]:
    """Forward the progress of workers that sample, until each has sent its rollouts.

    Meanwhile answer what they ask of their rows' environments.
    """
    busy, found = set(range(used)), dict[int, list[Rollout]]()
    progress: dict[int, dict[str, Any]] = {}
    begun, noted = time.monotonic(), False
    while busy:
        if run.control.paused:
            for worker in busy:
                workers.tell(worker, {"do": "pause"})
            paused = time.monotonic()
            yield RunPaused(step=step)
            while run.control.wait_while_paused(0.5):
                pass
            yield RunResumed(step=step)
            begun += time.monotonic() - paused
            for worker in busy:
                workers.tell(worker, {"do": "continue"})
        if served is not None:
            for worker, answer in served.replies():
                workers.tell(worker, answer)
        awaited = served is not None and served.is_awaited
        for worker in workers.ready(busy, LOOK if awaited else TICK):
            value, _ = workers.take(worker)
            if "rollouts" in value:
                if served is not None:
                    served.waited(value["waited"])
                found[worker] = [rollout_of(data) for data in value["rollouts"]]
                busy.discard(worker)
            elif "episode" in value and served is not None:
                if (known := served.answer(worker, value)) is not None:
                    workers.tell(worker, known)
            elif "note" in value and not noted:
                noted = True
                yield NoteWritten(step=step, text=value["note"], severity="warning")
            elif "rows" in value:
                progress[worker] = value
                yield _advanced(step, value["rows"], progress, time.monotonic() - begun)
    return found


def _advanced(
    step: int, rows: Sequence[Mapping[str, Any]], progress: Mapping[int, Mapping[str, Any]],
    seconds: float,
) -> RolloutsAdvanced:  # fmt: skip
    """The progress of one worker's rows, with the totals of all."""
    sums = {
        name: sum(each[name] for each in progress.values())
        for name in ("tokens", "finished", "total")
    }
    return RolloutsAdvanced(
        step=step, rows=tuple(RowDelta(**row) for row in rows),
        tokens_per_second=sums["tokens"] / max(seconds, 1e-9), **sums,
    )  # fmt: skip


def batches_of(run: Run, rollouts: Sequence[Rollout], rows: Sequence[int]) -> list[TokenBatch]:
    """The micro-batches of some rows; with workers, at least one for each.

    Rows without a token are left out: MLX ends the process on some products of empty arrays.
    """
    rows = [row for row in rows if rollouts[row].length]

    def batches(rows: Sequence[int]) -> list[TokenBatch]:
        return micro_batches(
            rollouts, rows_at_most=run.micro_rows, pad_id=run.policy.pad_id,
            bucket=run.policy.fast.bucket, only=list(rows),
        )  # fmt: skip

    # a mean of micro-batch means depends on the micro-batches
    if run.workers is None or run.recipe.weight == "per_batch_token":
        return batches(rows)
    parts = parts_of_rows(rollouts, rows, run.workers.used_to_score(len(rows)))
    return [batch for part in parts for batch in batches(part)]


def score(
    run: Run, step: int, rollouts: Sequence[Rollout], assigned: Placed,
    *, weights: Weights | None, reference: bool, folded: bool, entropy: bool, values: bool,
) -> Generator[Event, None, list[tuple[TokenBatch, TokenScores]]]:  # fmt: skip
    """Log-probabilities of micro-batches, with the weights of the sampler or of the reference."""
    found: list[tuple[TokenBatch, TokenScores]] = []
    temperature = run.config.rollout.temperature
    if run.workers is None:
        for done, (_, batch) in enumerate(assigned, 1):
            with scoring(run.policy, weights, reference=reference, folded=folded):
                scores = token_scores(
                    run.policy, batch, temperature=temperature, gradient=False, entropy=entropy,
                    values=values,
                )  # fmt: skip
                mx.eval(scores.logprobs, scores.entropy, scores.values)
            found.append((batch, scores))
            yield PhaseAdvanced(step=step, phase="logprobs", done=done, total=len(assigned))
            yield from answer_requests(run, step)
        return found
    slot = "policy" if reference else _put_weights(run, run.workers, weights)
    if reference and run.policy.reference is not None:
        run.workers.put("reference", _named(run.policy.reference))
    if reference:
        _put_weights(run, run.workers, None)
    request = {
        "do": "score", "slot": slot, "reference": reference, "folded": folded,
        "temperature": temperature, "entropy": entropy, "values": values,
    }  # fmt: skip
    answers = yield from _each(run, step, "logprobs", rollouts, assigned, request)
    for place, batch in assigned:
        _, arrays = answers[place]
        found.append((batch, TokenScores(**{n: mx.array(a) for n, a in arrays.items()})))
    return found


def scoring(
    policy: Policy, weights: Weights | None, *, reference: bool, folded: bool
) -> AbstractContextManager[None]:
    """Run the policy as its reference, as the sampler, or with other weights."""
    if reference:
        return policy.as_reference()
    return policy.for_sampling(weights) if folded else policy.using(weights)


def gradients(
    run: Run, step: int, inputs: LossInputs, assigned: Placed
) -> Generator[Event, None, tuple[Any, dict[int, MicroBatchResult]]]:
    """Sum of the gradients of micro-batches, and each one's results by place."""
    total: Any = None
    local: dict[int, MicroBatchResult] = {}
    if run.workers is None:
        for done, (place, batch) in enumerate(assigned, 1):
            outputs, own = gradient(run.policy, inputs, batch)
            total = own if total is None else tree_map(mx.add, total, own)
            mx.eval(total, outputs)
            local[place] = MicroBatchResult.of(batch, outputs)
            yield PhaseAdvanced(step=step, phase="update", done=done, total=len(assigned))
            if done < len(assigned):
                yield from answer_requests(run, step)
        return total, local
    local = yield from _results(run, step, "gradient", inputs, assigned)
    owners = set(owners_of([batch for _, batch in assigned], run.workers.count))
    trained = flatten(run.policy.module.trainable_parameters())
    return nest(run.workers.gradients(owners, trained)), local


def losses(
    run: Run, step: int, inputs: LossInputs, assigned: Placed
) -> Generator[Event, None, dict[int, MicroBatchResult]]:
    """The results of micro-batches without a gradient, by place."""
    if run.workers is not None:
        return (yield from _results(run, step, "loss", inputs, assigned))
    local: dict[int, MicroBatchResult] = {}
    for done, (place, batch) in enumerate(assigned, 1):
        outputs = loss(run.policy, inputs, batch)
        mx.eval(outputs)
        local[place] = MicroBatchResult.of(batch, outputs)
        yield PhaseAdvanced(step=step, phase="logprobs", done=done, total=len(assigned))
        yield from answer_requests(run, step)
    return local


def _results(
    run: Run, step: int, what: str, inputs: LossInputs, assigned: Placed
) -> Generator[Event, None, dict[int, MicroBatchResult]]:
    assert run.workers is not None
    _put_weights(run, run.workers, None)
    value, arrays = packed(inputs)
    run.workers.everyone({"do": "begin", **value}, arrays)
    phase: Phase = "update" if what == "gradient" else "logprobs"
    answers = yield from _each(run, step, phase, inputs.samples.rollouts, assigned, {"do": what})
    found = {}
    for place, batch in assigned:
        value, arrays = answers[place]
        sums = {name: (total, count) for name, (total, count) in value["sums"].items()}
        named: dict[str, Any] = {
            name: mx.array(arrays[name]) if name in arrays else None
            for name in ("logprobs", "entropy", "clipped", "kl", "values")
        }
        found[place] = MicroBatchResult(batch=batch, loss=value["loss"], sums=sums, **named)
    return found


def _each(
    run: Run, step: int, phase: Phase, rollouts: Sequence[Rollout], assigned: Placed,
    request: Mapping[str, Any],
) -> Generator[Event, None, dict[int, tuple[dict[str, Any], Arrays]]]:  # fmt: skip
    """The workers' answers about micro-batches, by place."""
    workers = run.workers
    assert workers is not None
    workers.put_tokens(rollouts)
    queues: list[list[tuple[dict[str, Any], Arrays]]] = [[] for _ in range(workers.count)]
    owners = owners_of([batch for _, batch in assigned], workers.count)
    for owner, (place, batch) in zip(owners, assigned, strict=True):
        queues[owner].append(({**request, "place": place, "rows": batch.rows}, {}))
    answers: dict[int, tuple[dict[str, Any], Arrays]] = {}
    for _, value, arrays in workers.each(queues):
        answers[value["place"]] = (value, arrays)
        yield PhaseAdvanced(step=step, phase=phase, done=len(answers), total=len(assigned))
        if len(answers) < len(assigned) or phase != "update":
            yield from answer_requests(run, step)
    return answers


def _put_weights(run: Run, workers: Workers, weights: Weights | None) -> str:
    """Give the workers the policy's weights, and others if asked for; return what to use."""
    workers.put("policy", flatten(run.policy.module.trainable_parameters()))
    if weights is None:
        return "policy"
    workers.put("other", _named(weights))
    return "other"


def _named(weights: Weights) -> dict[str, mx.array]:
    return {f"model.{name}": array for name, array in weights.items()}


SAMPLED = ("group_ids_B", "mask_BT", "token_ids_BT", "sampler_logprobs_BT",
           "raw_sampler_logprobs_BT", "old_logprobs_BT", "old_values_BT",
           "reference_logprobs_BT")  # fmt: skip
COUNTED = tuple(field.name for field in fields(Totals))
AIMED = Targets._fields


def packed(inputs: LossInputs) -> tuple[dict[str, Any], Arrays]:
    """The inputs of a loss as JSON and arrays."""
    samples, targets = inputs.samples, inputs.targets
    advantages = samples.advantages
    assert advantages is not None
    named: dict[str, Any] = {
        **{name: getattr(samples, name) for name in SAMPLED},
        **{f"totals.{name}": getattr(inputs.totals, name) for name in COUNTED},
        **{f"targets.{name}": getattr(targets, name) for name in AIMED if targets is not None},
        "advantages": advantages.values, "returns": advantages.returns,
    }  # fmt: skip
    value = {
        "recipe": asdict(inputs.recipe), "rollout": inputs.rollout.model_dump(mode="json"),
        "scale": inputs.scale, "first": inputs.first,
        "numbers": {n: one for n, one in named.items() if isinstance(one, int | float)},
    }  # fmt: skip
    return value, {n: np.array(one) for n, one in named.items() if isinstance(one, mx.array)}


def unpacked(value: Mapping[str, Any], arrays: Arrays) -> LossInputs:
    """What `packed` made, without the groups and rollouts, which no loss reads."""
    named: dict[str, Any] = {name: mx.array(array) for name, array in arrays.items()}
    named |= value["numbers"]
    advantages = named["advantages"]
    none = mx.zeros(0)
    sampled: dict[str, Any] = {name: named.get(name) for name in SAMPLED}
    counted: dict[str, Any] = {name: named.get(f"totals.{name}") for name in COUNTED}
    samples = Samples(
        groups=[], rollouts=[], **sampled,
        advantages=Advantages(
            values=advantages, rewards=none, penalty=none, group_mean=none, group_std=none,
            differ=none, has_signal=none, returns=named.get("returns"),
        ),
    )  # fmt: skip
    aimed = [named[f"targets.{name}"] for name in AIMED if f"targets.{name}" in named]
    return LossInputs(
        samples=samples, recipe=Recipe(**value["recipe"]),
        totals=Totals(**counted),
        targets=Targets(*aimed) if aimed else None,
        rollout=RolloutConfig.model_validate(value["rollout"]), scale=value["scale"],
        first=value["first"],
    )  # fmt: skip
