"""The passes over a step's rollouts; each minibatch is measured, then its update is applied.

To measure changes nothing: the loss, its gradient, metrics, stop rules, whether all is finite. A
server cannot take back a gradient that was sent, so only `apply` sends one.
Every update divides by the tokens and groups of its whole minibatch, so its value does not depend
on micro-batches or on skipped groups without signal.
"""

import itertools
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from grpo_engine.events import Event, PassFinished, PhaseAdvanced, PhaseStarted, UpdateTotals
from grpo_engine.frozen import frozen
from grpo_engine.maths.metrics import merged
from grpo_engine.maths.reuse import stop_reason
from grpo_engine.maths.weight import Totals, totals_of
from grpo_engine.policy import optimizer as optim
from grpo_engine.policy.batch import TokenBatch, make_batch
from grpo_engine.policy.memory import free_cache
from grpo_engine.run.backend import Norms
from grpo_engine.run.persist import drop_state
from grpo_engine.run.recovery import fewer_scored, repeated
from grpo_engine.run.requests import handle_requests, step_context
from grpo_engine.run.session import EngineRun
from grpo_engine.training.logprobs import batches_of
from grpo_engine.training.loss import (
    LossInputs,
    MicroBatchResult,
    Sums,
    loss,
    reads_entropy,
    reads_of,
    step_targets,
)
from grpo_engine.training.samples import Experience, Samples, assembled


@frozen
class Pass:
    """One pass over the rollouts, before its updates."""

    arrays_BT: Mapping[str, mx.array]  # by the names of `MicroBatchResult.arrays_BT`
    totals: Mapping[int, UpdateTotals]  # by row, for those that were updated


@frozen
class UpdateResult:
    """Result of the passes of a step so far."""

    experience: Experience  # with the first pass's scores as old ones, if these were missing
    learning_rate: float = 0.0  # the last update's
    updates: int = 0
    complete_passes: int = 0
    passes: tuple[Pass, ...] = ()
    objective: float | None = None  # minus the loss of the last pass
    grad_norm: float | None = 0.0  # None where a server does not give it
    sums: Sums = field(default_factory=dict)  # the last pass's metrics
    entropy: tuple[float, float] = (0.0, 0.0)  # the first pass's (sum, count)
    not_finite: str = ""
    culprit: int | None = None  # the first group whose gradient alone is not finite
    stopped: str = ""
    updated_logprobs_BT: mx.array | None = None  # the trained rows', if targets are measured

    @property
    def has_ended(self) -> bool:
        """Whether no further update may follow in this step."""
        return bool(self.stopped or self.not_finite)


@frozen
class Minibatch:
    """The micro-batches of one optimiser update, and its denominators."""

    index: int  # position in its pass
    before: int  # earlier updates of the step
    updates: int  # the step's updates, if no rule stops it
    totals: Totals
    batches: list[TokenBatch]


@frozen
class Measured:
    """The gradients of a minibatch in the back end's form, their norms, and its results."""

    gradients: Any
    norms: Norms
    results: list[MicroBatchResult]

    @property
    def loss(self) -> float:
        return math.fsum(result.loss for result in self.results)

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.norms.policy + self.norms.critic + self.loss)


def update(
    run: EngineRun, step: int, experience: Experience
) -> Generator[Event, None, UpdateResult]:
    """Run the recipe's passes over `experience.trained_rows`."""
    recipe = replace(run.recipe, entropy_bonus=run.progress.entropy_bonus)
    inputs = LossInputs(
        experience=experience,
        recipe=recipe,
        rollout=run.config.training,
        is_first=True,
        targets=step_targets(experience, recipe),
        step=step,
    )
    result = UpdateResult(experience=experience)
    run.earlier_peak = run.policy.peak_memory
    run.policy.forget_peak_memory()
    with run.clock.phase("update"):
        yield PhaseStarted(step=step, phase="update", total=recipe.passes)
        while result.complete_passes < recipe.passes and not result.has_ended:
            result = yield from _make_pass(run, step, inputs, result)
            inputs = replace(inputs, experience=result.experience, is_first=False)
    run.update_peak = run.policy.peak_memory
    free_cache()
    if result.updates and recipe.has_targets:
        with run.clock.phase("logprobs"):
            result = yield from _measure_targets(run, step, inputs, result)
    return result


def _make_pass(
    run: EngineRun, step: int, inputs: LossInputs, before: UpdateResult
) -> Generator[Event, None, UpdateResult]:
    """For each minibatch: gradient, stop rule, and unless one holds, the update."""
    recipe, done = inputs.recipe, before
    results: list[MicroBatchResult] = []
    totals: dict[int, UpdateTotals] = {}
    losses: list[float] = []
    count = len(minibatches := _minibatches(run, step, inputs, before))
    fewer = partial(fewer_scored, run, gradient=True)

    def measure_next(index: int) -> Generator[Event, None, Measured]:
        if run.plan != plan:  # micro-batches have fewer rows now
            minibatches[:] = _minibatches(run, step, inputs, before)
        return (yield from measure(run, step, inputs, minibatches[index]))

    for index in range(count):
        plan = run.plan
        measured = yield from repeated(run, step, partial(measure_next, index), fewer)
        minibatch = minibatches[index]
        results += measured.results
        totals |= _totals_by_row(inputs, minibatch)
        losses.append(measured.loss)
        objective = -math.fsum(losses) / len(losses)
        if done.updates and (index == count - 1 or recipe.stop == "kl"):
            compared = measured.results if recipe.stop == "kl" else results
            reason = stop_reason(recipe, _sums(compared), objective, before.objective)
            done = replace(done, stopped=reason or "")
        if not measured.is_finite:
            norm = measured.norms.policy + measured.norms.critic
            reason = f"the loss is {measured.loss:g} and the gradient norm {norm:g}"
            culprit = yield from _culprit(run, step, inputs, minibatch)
            done = replace(done, not_finite=reason, culprit=culprit)
            break
        done = replace(done, objective=objective)
        if measured.norms.is_of_weights:
            done = replace(done, grad_norm=measured.norms.policy)
        if not done.stopped:
            done = yield from apply(run, step, minibatch, measured, done)
        yield _pass_finished(step, minibatch, measured, done)
        if done.stopped:
            break
        yield from handle_requests(run)
    return _with_pass(done, inputs, results, totals)


def row_order(run: EngineRun, samples: Samples, step: int, index: int) -> list[int]:
    """The order of a pass's rows: of whole groups, at random if there are several minibatches."""
    if run.recipe.minibatches == 1:
        return list(range(len(samples.rollouts)))
    group_ids_B = np.array(samples.group_ids_B)
    order_P = np.random.default_rng([run.config.seed, step, index]).permutation(len(samples.groups))
    return [row for group in order_P for row in np.flatnonzero(group_ids_B == group).tolist()]


def _minibatches(
    run: EngineRun, step: int, inputs: LossInputs, before: UpdateResult
) -> list[Minibatch]:
    """Split the rows into minibatches, as evenly as possible.

    Rows that skip the forward still count in the denominators of their minibatch.
    """
    recipe, samples = inputs.recipe, inputs.experience.samples
    rows = row_order(run, samples, step, before.complete_passes + 1)
    ends = [len(rows) * n // recipe.minibatches for n in range(recipe.minibatches + 1)]
    trained, entropy_BT = set(inputs.experience.trained_rows), inputs.experience.old.entropy_BT
    parts = []
    for start, end in itertools.pairwise(ends):
        batches = batches_of(
            run, samples.rollouts, [row for row in rows[start:end] if row in trained]
        )
        if not batches:
            continue
        rows_N = mx.array(rows[start:end])
        totals = totals_of(
            samples.mask_BT[rows_N],
            micro_batches=len(batches),
            entropy=None if entropy_BT is None else entropy_BT[rows_N],
            recipe=recipe,
        )
        parts.append((totals, batches))
    return [
        Minibatch(
            index=index,
            before=before.complete_passes * len(parts) + index,
            updates=recipe.passes * len(parts),
            totals=totals,
            batches=batches,
        )
        for index, (totals, batches) in enumerate(parts)
    ]


def measure(
    run: EngineRun, step: int, inputs: LossInputs, minibatch: Minibatch
) -> Generator[Event, None, Measured]:
    """The loss and the gradients of a minibatch, over micro-batches and ranks.

    If only the scaled gradient overflows, the minibatch is retried with a lower scale.
    """
    assigned = run.ranks.assigned(minibatch.batches)
    done, total = minibatch.before * len(assigned), minibatch.updates * len(assigned)
    backend, reads, context = run.backend, reads_of(inputs), step_context(run, step)
    while True:
        scaled = replace(inputs, scale=backend.loss_scale)
        gradients_sum: Any = None
        local: dict[int, MicroBatchResult] = {}
        for index, batch in assigned:
            batch_loss = partial(loss, inputs=scaled, totals=minibatch.totals, batch=batch)
            outputs, gradients = yield from backend.gradient(batch, batch_loss, reads, context)
            gradients_sum = backend.add(gradients_sum, gradients)
            mx.eval(gradients_sum, outputs)
            local[index] = MicroBatchResult.of(batch, outputs)
            yield PhaseAdvanced(step=step, phase="update", done=done + len(local), total=total)
            if len(local) < len(assigned):
                yield from handle_requests(run)
        if gradients_sum is None:  # more ranks than micro-batches
            gradients_sum = backend.zeros()
        gradients_sum = run.ranks.sum(gradients_sum)
        result = Measured(
            gradients=gradients_sum,
            results=_of_all_ranks(run, minibatch.batches, local),
            norms=backend.norms(gradients_sum),
        )
        overflows = math.isfinite(result.loss) and not result.is_finite
        if not overflows or not backend.lower_scale():
            return result


def apply(
    run: EngineRun, step: int, minibatch: Minibatch, measured: Measured, done: UpdateResult
) -> Generator[Event, None, UpdateResult]:
    """One optimiser step with a measured gradient, at the schedule's rate."""
    rate = optim.learning_rate(
        run.config.optimizer, step, run.config.steps, minibatch.before / minibatch.updates
    )
    drop_state(run, changing=True)
    norm = yield from run.backend.apply(
        measured.gradients, measured.norms, rate, step_context(run, step)
    )
    return replace(done, updates=done.updates + 1, learning_rate=rate, grad_norm=norm)


def _culprit(
    run: EngineRun, step: int, inputs: LossInputs, minibatch: Minibatch
) -> Generator[Event, None, int | None]:
    """The first group whose gradient alone is not finite; None if there is none."""
    samples = inputs.experience.samples
    backend, reads, context = run.backend, reads_of(inputs), step_context(run, step)
    scaled = replace(inputs, scale=backend.loss_scale)
    group_ids_B = np.array(samples.group_ids_B)
    for batch in minibatch.batches:
        for group in sorted({int(group_ids_B[row]) for row in batch.rows}):
            rows = [row for row in batch.rows if group_ids_B[row] == group]
            alone = make_batch(samples.rollouts, rows, pad_id=run.policy.pad_id)
            group_loss = partial(loss, inputs=scaled, totals=minibatch.totals, batch=alone)
            outputs, gradients = yield from backend.gradient(alone, group_loss, reads, context)
            norms = backend.norms(gradients)
            size = norms.policy + norms.critic + abs(float(outputs["loss"]))
            yield PhaseAdvanced(step=step, phase="update", done=1, total=1)
            if not math.isfinite(size):
                return group
    return None


def _measure_targets(
    run: EngineRun, step: int, inputs: LossInputs, result: UpdateResult
) -> Generator[Event, None, UpdateResult]:
    """Run one more forward after the last pass to measure how close tokens are to their targets."""
    samples, rows = inputs.experience.samples, inputs.experience.trained_rows
    totals, reads = totals_of(samples.mask_BT), reads_of(inputs)

    def measure_batches() -> Generator[Event, None, list[MicroBatchResult]]:
        batches = batches_of(run, samples.rollouts, rows)
        assigned = run.ranks.assigned(batches)
        local: dict[int, MicroBatchResult] = {}
        for index, batch in assigned:
            scores = yield from run.backend.scores(batch, reads, step_context(run, step))
            _, outputs = loss(scores, inputs, totals, batch)
            mx.eval(outputs)
            local[index] = MicroBatchResult.of(batch, outputs)
            yield PhaseAdvanced(step=step, phase="logprobs", done=len(local), total=len(assigned))
            yield from handle_requests(run)
        return _of_all_ranks(run, batches, local)

    results = yield from repeated(run, step, measure_batches, partial(fewer_scored, run))
    measured = {
        name: value
        for name, value in _sums(results).items()
        if name.startswith("target/") or name == "kl_to_old"
    }
    return replace(
        result,
        sums=result.sums | measured,
        updated_logprobs_BT=_assembled(results, samples)["logprobs"],
    )


def _of_all_ranks(
    run: EngineRun, batches: Sequence[TokenBatch], local: Mapping[int, MicroBatchResult]
) -> list[MicroBatchResult]:
    """The results of every micro-batch; `local` has this rank's, by index."""
    if run.ranks.size == 1:
        return list(local.values())
    plain = run.ranks.gather_indexed(
        (index, [result.loss, result.sums, *result.arrays_BT]) for index, result in local.items()
    )
    names = plain[0][2:]

    def array_of(index: int, name: str) -> mx.array:
        if index not in local:
            return mx.zeros(batches[index].mask_BT.shape)
        return local[index].arrays_BT[name].astype(mx.float32)

    arrays = run.ranks.sum(
        [{name: array_of(index, name) for name in names} for index in range(len(batches))]
    )
    return [
        MicroBatchResult.of(batch, {"loss": loss, "sums": sums, "arrays_BT": arrays_BT})
        for batch, (loss, sums, *_), arrays_BT in zip(batches, plain, arrays, strict=True)
    ]


def _sums(results: Sequence[MicroBatchResult]) -> Sums:
    return merged([result.sums for result in results])


def _pass_finished(
    step: int, minibatch: Minibatch, measured: Measured, result: UpdateResult
) -> PassFinished:
    """The event of one update; learning rate 0 marks a forward that ended the passes."""
    sums = _sums(measured.results)
    return PassFinished(
        step=step,
        index=result.complete_passes + 1,
        minibatch=minibatch.index,
        loss=measured.loss,
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


def _totals_by_row(inputs: LossInputs, minibatch: Minibatch) -> dict[int, UpdateTotals]:
    """The denominators and the entropy threshold of each row of a minibatch."""
    totals, mask_BT = minibatch.totals, np.array(inputs.experience.samples.mask_BT)
    floor, updated = totals.entropy_floor, totals.updated_tokens
    return {
        row: UpdateTotals(
            rows=int(totals.rows),
            tokens=int(totals.tokens),
            minibatch=minibatch.index,
            micro_batches=len(minibatch.batches),
            batch_tokens=int(mask_BT[list(batch.rows)].sum()),
            entropy_bonus=inputs.recipe.entropy_bonus,
            entropy_floor=None if floor is None else float(floor),
            updated_tokens=None if updated is None else int(updated),
        )
        for batch in minibatch.batches
        for row in batch.rows
    }


def _with_pass(
    done: UpdateResult,
    inputs: LossInputs,
    results: Sequence[MicroBatchResult],
    totals: Mapping[int, UpdateTotals],
) -> UpdateResult:
    """The result with a pass's token arrays; the first pass's are the old scores, if missing."""
    experience, sums = inputs.experience, _sums(results)
    arrays_BT = _assembled(results, experience.samples)
    if inputs.is_first:
        old = experience.old
        old = replace(
            old,
            logprobs_BT=arrays_BT["logprobs"] if old.logprobs_BT is None else old.logprobs_BT,
            entropy_BT=arrays_BT.get("entropy") if old.entropy_BT is None else old.entropy_BT,
        )
        done = replace(
            done, entropy=sums.get("entropy", (0.0, 0.0)), experience=replace(experience, old=old)
        )
        if not reads_entropy(inputs.recipe):
            arrays_BT.pop("entropy", None)
    return replace(
        done,
        passes=(*done.passes, Pass(arrays_BT=arrays_BT, totals=totals)),
        sums=sums,
        complete_passes=done.complete_passes + (not done.has_ended),
    )


def _assembled(results: Sequence[MicroBatchResult], samples: Samples) -> dict[str, mx.array]:
    """The arrays of micro-batches as [B,T]; rows without a micro-batch are 0."""
    return {
        name: assembled(
            [(result.batch, result.arrays_BT[name]) for result in results],
            len(samples.rollouts),
            samples.width,
        )
        for name in results[0].arrays_BT
    }
