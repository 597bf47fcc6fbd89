"""The passes over a step's rollouts: gradients of micro-batches, one optimiser step per minibatch.

Every update divides by the tokens and groups of its whole minibatch, so its value does not depend
on micro-batches or on skipped groups without signal.
"""

import itertools
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from grpo_engine.config.recipes import Recipe
from grpo_engine.events import Event, PassFinished, PhaseAdvanced, PhaseStarted, UpdateTotals
from grpo_engine.maths.metrics import merged
from grpo_engine.maths.reuse import stop_reason
from grpo_engine.maths.target import Targets
from grpo_engine.maths.weight import Totals, totals_of
from grpo_engine.policy import optimizer as optim
from grpo_engine.policy.batch import TokenBatch, micro_batches
from grpo_engine.policy.trees import flatten
from grpo_engine.run.persist import drop_state
from grpo_engine.run.requests import answer_requests
from grpo_engine.run.session import Run
from grpo_engine.training.gather import all_gradients, all_results
from grpo_engine.training.logprobs import batches_of
from grpo_engine.training.loss import (
    LossInputs,
    MicroBatchResult,
    Sums,
    gradient,
    loss,
    step_targets,
)
from grpo_engine.training.samples import Pass, Samples, as_float, assembled

T = TypeVar("T")
Assigned = Sequence[tuple[int, TokenBatch]]  # this rank's micro-batches with their indices


@dataclass(slots=True, kw_only=True)
class UpdateResult:
    """Result of the passes of a step."""

    updates: int = 0
    passes: int = 0
    loss: float = 0.0
    grad_norm: float = 0.0
    learning_rate: float = 0.0
    sums: Sums = field(default_factory=dict)  # from the last pass
    entropy: tuple[float, float] = (0.0, 0.0)  # from the first pass
    not_finite: str = ""
    culprits: tuple[int, ...] = ()  # groups with the first non-finite gradient
    stopped: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether no further update may follow in this step."""
        return bool(self.stopped or self.not_finite)


@dataclass(slots=True, kw_only=True)
class Minibatch:
    """The micro-batches of one optimiser update, and its denominators."""

    totals: Totals
    batches: list[TokenBatch]


def update(run: Run, samples: Samples, step: int) -> Generator[Event, None, UpdateResult]:
    """Run the recipe's passes over `samples.trained_rows`."""
    recipe = replace(run.recipe, entropy_bonus=run.progress.entropy_bonus)
    result = UpdateResult(
        learning_rate=optim.learning_rate(run.config.optimizer, step, run.config.steps)
    )
    run.optimizer.rule.learning_rate = result.learning_rate
    targets = step_targets(samples, recipe)
    previous: float | None = None  # the previous pass's objective
    with run.clock.phase("update"):
        yield PhaseStarted(step=step, phase="update", total=recipe.passes)
        for index in range(1, recipe.passes + 1):
            objective = yield from _make_pass(
                run, samples, recipe, step, index, targets, result, previous
            )
            if result.has_ended:
                break
            result.passes, previous = index, objective
    return result


def _make_pass(
    run: Run, samples: Samples, recipe: Recipe, step: int, index: int,
    targets: Targets | None, result: UpdateResult, previous: float | None,
) -> Generator[Event, None, float]:  # fmt: skip
    """For each minibatch: gradient, stop rule, clip and optimiser step. Return the objective."""
    pass_results: list[MicroBatchResult] = []
    totals: dict[int, UpdateTotals] = {}
    losses: list[float] = []
    minibatches = _minibatches(run, samples, recipe, step, index)
    for number, minibatch in enumerate(minibatches):
        gradient = _gradient(run, samples, recipe, step, minibatch, targets)
        before = (index - 1) * len(minibatches) + number
        summed, results, norm, critic_norm = yield from _as_part(
            gradient, before, recipe.passes * len(minibatches)
        )
        pass_results += results
        totals |= _totals_by_row(samples, recipe, minibatch, number)
        losses.append(math.fsum(one.loss for one in results))
        objective = -math.fsum(losses) / len(losses)
        is_last = number == len(minibatches) - 1
        if result.updates and (is_last or recipe.stop == "kl"):
            measured = results if recipe.stop == "kl" else pass_results
            result.stopped = stop_reason(recipe, _sums(measured), objective, previous) or ""
        if not (math.isfinite(norm + critic_norm) and math.isfinite(losses[-1])):
            result.not_finite = (
                f"the loss is {losses[-1]:g} and the gradient norm {norm + critic_norm:g}"
            )
            result.culprits = yield from _culprits(run, step, samples, recipe, minibatch, targets)
            break
        if not result.stopped:
            _optimizer_step(run, summed, norm, critic_norm)
            result.updates += 1
        result.loss, result.grad_norm = -objective, norm
        yield _pass_finished(step, index, number, results, result)
        if result.stopped:
            break
        yield from answer_requests(run, step)
    _keep_token_numbers(samples, recipe, pass_results, totals, result, index)
    return objective


def _as_part(work: Generator[Event, None, T], before: int, parts: int) -> Generator[Event, None, T]:
    """Do one of the update's equal parts; its progress counts in all of them."""
    with closing(work):
        while True:
            try:
                event = next(work)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(event, PhaseAdvanced):
                done, total = before * event.total + event.done, parts * event.total
                event = replace(event, done=done, total=total)
            yield event


def measure_targets(
    run: Run, samples: Samples, step: int, result: UpdateResult
) -> Generator[Event, None, None]:
    """Run one more forward after the last pass to measure how close tokens are to their targets."""
    targets = step_targets(samples, run.recipe)
    totals = totals_of(samples.mask_BT)
    batches = batches_of(run, samples.rollouts, samples.trained_rows)
    inputs = _inputs(run, samples, run.recipe, totals, targets)
    local = yield from losses(run, step, inputs, run.ranks.assigned(batches))
    results = all_results(run.ranks, batches, local)
    sums = _sums(results)
    result.sums |= {name: sums[name] for name in sums if name.startswith("target/")}
    result.sums["kl_to_old"] = sums["kl_to_old"]
    samples.updated_logprobs_BT = assembled(
        [(one.batch, one.logprobs) for one in results], len(samples.rollouts), samples.width
    )
    samples.updated_rows = set(samples.trained_rows)


def _inputs(
    run: Run, samples: Samples, recipe: Recipe, totals: Totals, targets: Targets | None
) -> LossInputs:
    return LossInputs(
        samples=samples, recipe=recipe, totals=totals, targets=targets,
        rollout=run.config.rollout, first=not samples.passes, scale=run.optimizer.loss_scale,
    )  # fmt: skip


def _minibatches(
    run: Run, samples: Samples, recipe: Recipe, step: int, index: int
) -> list[Minibatch]:
    """Split the rows into minibatches of whole groups, in a seeded order, as evenly as possible.

    Rows that skip the forward still count in the denominators of their minibatch.
    """
    rows = list(range(len(samples.rollouts)))
    if recipe.minibatches > 1:
        group_ids_B = np.array(samples.group_ids_B)
        order = np.random.default_rng([run.config.seed, step, index]).permutation(
            len(samples.groups)
        )
        rows = [row for group in order for row in np.flatnonzero(group_ids_B == group).tolist()]
    ends = [len(rows) * n // recipe.minibatches for n in range(recipe.minibatches + 1)]
    trained = set(samples.trained_rows)
    minibatches = []
    for start, end in itertools.pairwise(ends):
        batches = batches_of(
            run, samples.rollouts, [row for row in rows[start:end] if row in trained]
        )
        if not batches:
            continue
        places = mx.array(rows[start:end])
        totals = totals_of(
            samples.mask_BT[places],
            micro_batches=len(batches),
            entropy=None if samples.entropy_BT is None else samples.entropy_BT[places],
            recipe=recipe,
        )
        minibatches.append(Minibatch(totals=totals, batches=batches))
    return minibatches


def _gradient(
    run: Run, samples: Samples, recipe: Recipe, step: int, minibatch: Minibatch,
    targets: Targets | None,
) -> Generator[Event, None, tuple[Any, list[MicroBatchResult], float, float]]:  # fmt: skip
    """The gradient of a minibatch, its results, and the gradient norms of policy and critic.

    If only the scaled gradient overflows, the minibatch is retried with a lower scale.
    """
    while True:
        summed, results = yield from _accumulate(run, samples, recipe, step, minibatch, targets)
        norm, critic_norm = _norms(summed)
        is_finite = math.isfinite(norm + critic_norm)
        has_bad_loss = not all(math.isfinite(one.loss) for one in results)
        if is_finite or has_bad_loss or not run.optimizer.lower_scale():
            return summed, results, norm, critic_norm


def _accumulate(
    run: Run, samples: Samples, recipe: Recipe, step: int, minibatch: Minibatch,
    targets: Targets | None,
) -> Generator[Event, None, tuple[Any, list[MicroBatchResult]]]:  # fmt: skip
    """Sum a minibatch's gradients over micro-batches and ranks."""
    inputs = _inputs(run, samples, recipe, minibatch.totals, targets)
    assigned = run.ranks.assigned(minibatch.batches)
    total, local = yield from gradients(run, step, inputs, assigned)
    total = all_gradients(run.ranks, total, run.policy.module.trainable_parameters())
    return total, all_results(run.ranks, minibatch.batches, local)


def gradients(
    run: Run, step: int, inputs: LossInputs, assigned: Assigned
) -> Generator[Event, None, tuple[Any, dict[int, MicroBatchResult]]]:
    """Sum of the gradients of micro-batches, and each one's results by index."""
    total: Any = None
    local: dict[int, MicroBatchResult] = {}
    for done, (index, batch) in enumerate(assigned, 1):
        outputs, gradients_of_batch = gradient(run.policy, inputs, batch)
        total = gradients_of_batch if total is None else tree_map(mx.add, total, gradients_of_batch)
        mx.eval(total, outputs)
        local[index] = MicroBatchResult.of(batch, outputs)
        yield PhaseAdvanced(step=step, phase="update", done=done, total=len(assigned))
        if done < len(assigned):
            yield from answer_requests(run, step)
    return total, local


def losses(
    run: Run, step: int, inputs: LossInputs, assigned: Assigned
) -> Generator[Event, None, dict[int, MicroBatchResult]]:
    """The results of micro-batches without a gradient, by index."""
    local: dict[int, MicroBatchResult] = {}
    for done, (index, batch) in enumerate(assigned, 1):
        outputs = loss(run.policy, inputs, batch)
        mx.eval(outputs)
        local[index] = MicroBatchResult.of(batch, outputs)
        yield PhaseAdvanced(step=step, phase="logprobs", done=done, total=len(assigned))
        yield from answer_requests(run, step)
    return local


def _sums(results: Sequence[MicroBatchResult]) -> Sums:
    return merged([one.sums for one in results])


def _norms(gradients: Any) -> tuple[float, float]:
    """Gradient norms of the policy and of the critic."""
    norm = optim.global_norm(gradients["model"])
    critic = optim.global_norm(gradients.get("critic", {}))
    mx.eval(norm, critic)
    return as_float(norm), as_float(critic)


def _optimizer_step(run: Run, gradients: Any, norm: float, critic_norm: float) -> None:
    """One optimiser step for policy and critic, each clipped by its own norm."""
    drop_state(run, changing=True)
    limit = run.config.optimizer.max_grad_norm
    policy = run.policy
    clipped = optim.clip(flatten(gradients["model"]), mx.array(norm), limit)
    policy.load_trainable(run.optimizer.step(clipped, policy.snapshot()))
    changed = [policy.snapshot(), run.optimizer.arrays()]
    if run.critic_optimizer is not None:
        clipped = optim.clip(flatten(gradients["critic"]), mx.array(critic_norm), limit)
        policy.load_critic(run.critic_optimizer.step(clipped, policy.critic_weights()))
        changed += [policy.critic_weights(), run.critic_optimizer.arrays()]
    mx.eval(changed)


def _culprits(
    run: Run, step: int, samples: Samples, recipe: Recipe, minibatch: Minibatch,
    targets: Targets | None,
) -> Generator[Event, None, tuple[int, ...]]:  # fmt: skip
    """The first group whose gradient alone is not finite; empty if there is none."""
    inputs = _inputs(run, samples, recipe, minibatch.totals, targets)
    group_ids_B = np.array(samples.group_ids_B)
    for batch in minibatch.batches:
        for group in sorted({int(group_ids_B[row]) for row in batch.rows}):
            rows = [row for row in batch.rows if group_ids_B[row] == group]
            alone = micro_batches(
                samples.rollouts, rows_at_most=len(rows), pad_id=run.policy.pad_id, only=rows
            )[0]
            total, found = yield from gradients(run, step, inputs, [(0, alone)])
            size = as_float(optim.global_norm(total)) + abs(found[0].loss)
            if not math.isfinite(size):
                return (group,)
    return ()


def _pass_finished(
    step: int, index: int, number: int, results: Sequence[MicroBatchResult], result: UpdateResult
) -> PassFinished:
    """The event of one update; learning rate 0 marks a forward that ended the passes."""
    sums = _sums(results)
    return PassFinished(
        step=step,
        index=index,
        minibatch=number,
        loss=math.fsum(one.loss for one in results),
        clip_low=mean(sums, "clip_ratio/low_mean"),
        clip_high=mean(sums, "clip_ratio/high_mean"),
        kl_to_old=mean(sums, "kl_to_old"),
        grad_norm=result.grad_norm,
        learning_rate=0.0 if result.stopped else result.learning_rate,
        stop_reason=result.stopped,
    )


def mean(sums: Mapping[str, tuple[float, float]], name: str) -> float:
    """Sum / count of a metric; 0 if it is missing or its count is 0."""
    total, count = sums.get(name, (0.0, 0.0))
    return total / count if count else 0.0


def _totals_by_row(
    samples: Samples, recipe: Recipe, minibatch: Minibatch, number: int
) -> dict[int, UpdateTotals]:
    """What the terms of each row of a minibatch were divided by and compared with."""
    totals, mask_BT = minibatch.totals, np.array(samples.mask_BT)
    floor, updated = totals.entropy_floor, totals.updated_tokens
    return {
        row: UpdateTotals(
            rows=int(totals.rows),
            tokens=int(totals.tokens),
            minibatch=number,
            micro_batches=len(minibatch.batches),
            batch_tokens=int(mask_BT[list(batch.rows)].sum()),
            entropy_bonus=recipe.entropy_bonus,
            entropy_floor=None if floor is None else float(floor),
            updated_tokens=None if updated is None else int(updated),
        )
        for batch in minibatch.batches
        for row in batch.rows
    }


def _keep_token_numbers(
    samples: Samples, recipe: Recipe, results: Sequence[MicroBatchResult],
    totals: dict[int, UpdateTotals], result: UpdateResult, index: int,
) -> None:  # fmt: skip
    """Store a pass's token arrays; a first pass over fresh completions sets the old ones."""

    def whole(values: Sequence[mx.array | None]) -> mx.array:
        parts = [(one.batch, v) for one, v in zip(results, values, strict=True) if v is not None]
        return assembled(parts, len(samples.rollouts), samples.width)

    logprobs_BT = whole([one.logprobs for one in results])
    reads_entropy = recipe.entropy_bonus > 0 or recipe.entropy_top_quantile < 1
    has_values = bool(results) and results[0].values is not None
    samples.passes.append(
        Pass(
            logprobs_BT=logprobs_BT,
            entropy_BT=whole([one.entropy for one in results]) if reads_entropy else None,
            values_BT=whole([one.values for one in results]) if has_values else None,
            totals=totals,
        )
    )
    result.sums = _sums(results)
    if index == 1:
        result.entropy = result.sums.get("entropy", (0.0, 0.0))
        if samples.entropy_BT is None:
            samples.entropy_BT = whole([one.entropy for one in results])
        if samples.old_logprobs_BT is None:
            samples.old_logprobs_BT = logprobs_BT
    samples.clipped_BT = whole([one.clipped for one in results])
    if results and results[0].kl is not None:
        samples.kl_BT = whole([one.kl for one in results])
