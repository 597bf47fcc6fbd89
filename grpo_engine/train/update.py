"""The passes over a step's answers: micro-batches, one denominator, one optimiser step each.

Every update divides by what belongs to the whole of it, so that neither micro-batches nor groups
left out for want of a signal change its value.
"""

import itertools
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from grpo_engine.config.recipes import Recipe
from grpo_engine.events import Event, PassFinished, PhaseAdvanced
from grpo_engine.maths.metrics import merged
from grpo_engine.maths.reuse import stop_reason
from grpo_engine.maths.target import Targets
from grpo_engine.maths.weight import Totals, totals_of
from grpo_engine.policy import optimizer as optim
from grpo_engine.policy.batch import TokenBatch, micro_batches
from grpo_engine.policy.trees import flatten
from grpo_engine.run.persist import let_go
from grpo_engine.run.requests import listen
from grpo_engine.run.session import Run
from grpo_engine.train.gather import all_gradients, all_seen
from grpo_engine.train.loss import Seen, Sums, gradient, loss, seen_of, step_targets
from grpo_engine.train.samples import Samples, as_float, assembled


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What the passes of a step did."""

    updates: int = 0
    passes: int = 0
    loss: float = 0.0
    grad_norm: float = 0.0
    learning_rate: float = 0.0
    sums: Sums = field(default_factory=dict)  # of the last pass
    entropy: tuple[float, float] = (0.0, 0.0)  # of the first pass
    not_finite: str = ""
    culprits: tuple[int, ...] = ()  # groups that the first non-finite gradient came from
    stopped: str = ""


@dataclass(slots=True, kw_only=True)
class Part:
    """One minibatch: its rows, its denominators and its micro-batches."""

    totals: Totals
    batches: list[TokenBatch]


def update(run: Run, samples: Samples, step: int) -> Generator[Event, None, Outcome]:
    """Make the recipe's passes over the rows in `samples.trained` and say what they did."""
    recipe = replace(run.recipe, entropy_bonus=run.progress.entropy_bonus)
    outcome = Outcome(
        learning_rate=optim.learning_rate(run.config.optimizer, step, run.config.steps)
    )
    run.optimizer.rule.learning_rate = outcome.learning_rate
    targets = step_targets(samples, recipe)
    before: float | None = None
    for index in range(1, recipe.passes + 1):
        seen: list[Seen] = []
        losses: list[float] = []
        parts = _parts(run, samples, recipe, step, index)
        for minibatch, cut in enumerate(parts):
            gradients, found, norm, critic_norm = yield from _gradient(
                run, samples, recipe, step, cut, targets
            )
            seen += found
            losses.append(math.fsum(item.loss for item in found))
            is_last = minibatch == len(parts) - 1
            objective = -math.fsum(losses) / len(losses)
            judged = found if recipe.stop == "kl" else seen
            if outcome.updates and (is_last or recipe.stop == "kl"):
                outcome.stopped = stop_reason(recipe, _sums(judged), objective, before) or ""
            if not (math.isfinite(norm + critic_norm) and math.isfinite(losses[-1])):
                _blame(run, samples, recipe, cut, targets, outcome, norm + critic_norm, losses[-1])
            elif not outcome.stopped:
                _apply(run, gradients, norm, critic_norm)
                outcome.updates += 1
            applied = not outcome.stopped and not outcome.not_finite
            if not outcome.not_finite:
                outcome.loss, outcome.grad_norm = -objective, norm
                yield _finished(step, index, minibatch, found, norm, outcome, applied)
            if outcome.stopped or outcome.not_finite:
                break
            yield from listen(run, step)
        _remember(samples, seen, outcome, index)
        if outcome.stopped or outcome.not_finite:
            break
        outcome.passes, before = index, objective
    return outcome


def measure_after(
    run: Run, samples: Samples, step: int, outcome: Outcome
) -> Generator[Event, None, None]:
    """One more forward after the last pass: how far tokens really came towards their targets."""
    targets = step_targets(samples, run.recipe)
    totals = totals_of(samples.mask)
    own: dict[int, Seen] = {}
    batches = _batches(run, samples, samples.trained)
    mine = run.ranks.mine(batches)
    for done, (place, batch) in enumerate(mine, 1):
        value, kept = loss(run, samples, run.recipe, batch, totals, targets)
        mx.eval(value, kept)
        own[place] = seen_of(batch, {"loss": value, **kept})
        yield PhaseAdvanced(step=step, phase="logprobs", done=done, total=len(mine))
        yield from listen(run, step)
    found = all_seen(run.ranks, batches, own)
    after = _sums(found)
    outcome.sums |= {name: after[name] for name in after if name.startswith("target/")}
    outcome.sums["kl_to_old"] = after["kl_to_old"]
    samples.after = assembled(
        [(item.batch, item.logprobs) for item in found], len(samples.rollouts), samples.width
    )
    samples.after_rows = set(samples.trained)


def _batches(run: Run, samples: Samples, rows: Sequence[int]) -> list[TokenBatch]:
    return micro_batches(
        samples.rollouts, rows_at_most=run.micro_rows, pad_id=run.policy.pad_id,
        bucket=run.policy.fast.bucket, only=list(rows),
    )  # fmt: skip


def _parts(run: Run, samples: Samples, recipe: Recipe, step: int, index: int) -> list[Part]:
    """Cut the rows into minibatches of whole groups in a seeded order, as even as it goes.

    Rows left out of the forward still count in the denominators of their minibatch.
    """
    rows = list(range(len(samples.rollouts)))
    if recipe.minibatches > 1:
        groups = np.array(samples.group_ids)
        order = np.random.default_rng([run.config.seed, step, index]).permutation(
            len(samples.groups)
        )
        rows = [row for group in order for row in np.flatnonzero(groups == group).tolist()]
    ends = [len(rows) * n // recipe.minibatches for n in range(recipe.minibatches + 1)]
    kept = set(samples.trained)
    parts = []
    for start, end in itertools.pairwise(ends):
        chosen = rows[start:end]
        batches = _batches(run, samples, [row for row in chosen if row in kept])
        if not batches:
            continue
        where = mx.array(chosen)
        totals = totals_of(
            samples.mask[where],
            micro_batches=len(batches),
            entropy=None if samples.entropy is None else samples.entropy[where],
            recipe=recipe,
        )
        parts.append(Part(totals=totals, batches=batches))
    return parts


def _gradient(
    run: Run, samples: Samples, recipe: Recipe, step: int, cut: Part, targets: Targets | None
) -> Generator[Event, None, tuple[Any, list[Seen], float, float]]:
    """The gradient of a minibatch, what gave it, and its norms for the policy and the critic.

    Where only the scaled gradient overflows, the same answers are run once more with less scale.
    """
    while True:
        gradients, found = yield from _accumulate(run, samples, recipe, step, cut, targets)
        norm, critic_norm = _norms(gradients)
        finite = math.isfinite(norm + critic_norm)
        lost = not all(math.isfinite(item.loss) for item in found)
        if finite or lost or not run.optimizer.lower_scale():
            return gradients, found, norm, critic_norm


def _accumulate(
    run: Run, samples: Samples, recipe: Recipe, step: int, cut: Part, targets: Targets | None
) -> Generator[Event, None, tuple[Any, list[Seen]]]:
    """Add up the gradients of a minibatch over all ranks, one evaluation per micro-batch."""
    gradients: Any = None
    seen: dict[int, Seen] = {}
    mine = run.ranks.mine(cut.batches)
    for done, (place, batch) in enumerate(mine, 1):
        found, own = gradient(run, samples, recipe, batch, cut.totals, targets)
        gradients = own if gradients is None else tree_map(mx.add, gradients, own)
        mx.eval(gradients, found)
        seen[place] = seen_of(batch, found)
        yield PhaseAdvanced(step=step, phase="update", done=done, total=len(mine))
        if done < len(mine):
            yield from listen(run, step)
    summed = all_gradients(run.ranks, gradients, run.policy.module.trainable_parameters())
    return summed, all_seen(run.ranks, cut.batches, seen)


def _sums(seen: Sequence[Seen]) -> Sums:
    return merged([item.sums for item in seen])


def _norms(gradients: Any) -> tuple[float, float]:
    """Gradient norms of the policy and of the critic."""
    norm = optim.global_norm(gradients["model"])
    critic = optim.global_norm(gradients.get("critic", {}))
    mx.eval(norm, critic)
    return as_float(norm), as_float(critic)


def _apply(run: Run, gradients: Any, norm: float, critic_norm: float) -> None:
    """One optimiser step, for the policy and for the critic, each clipped to its own norm."""
    let_go(run, changing=True)
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


def _blame(
    run: Run, samples: Samples, recipe: Recipe, cut: Part, targets: Targets | None,
    outcome: Outcome, norm: float, loss: float,
) -> None:  # fmt: skip
    """Say what is not finite, and find the first group whose own gradient is not."""
    outcome.not_finite = f"the loss is {loss:g} and the gradient norm {norm:g}"
    owners = np.array(samples.group_ids)
    for batch in cut.batches:
        for group in sorted({int(owners[row]) for row in batch.rows}):
            rows = [row for row in batch.rows if owners[row] == group]
            alone = micro_batches(
                samples.rollouts, rows_at_most=len(rows), pad_id=run.policy.pad_id, only=rows
            )[0]
            found, own = gradient(run, samples, recipe, alone, cut.totals, targets)
            size = optim.global_norm(own) + mx.abs(found["loss"])
            if not math.isfinite(as_float(size)):
                outcome.culprits = (group,)
                return


def _finished(
    step: int, index: int, minibatch: int, seen: Sequence[Seen], norm: float,
    outcome: Outcome, applied: bool,
) -> PassFinished:  # fmt: skip
    """The event of one update; learning rate 0 marks a forward after which the passes ended."""
    sums = _sums(seen)
    return PassFinished(
        step=step,
        index=index,
        minibatch=minibatch,
        loss=math.fsum(item.loss for item in seen),
        clip_low=mean(sums, "clip_ratio/low_mean"),
        clip_high=mean(sums, "clip_ratio/high_mean"),
        kl_to_old=mean(sums, "kl_to_old"),
        grad_norm=norm,
        learning_rate=outcome.learning_rate if applied else 0.0,
        stop_reason=outcome.stopped,
    )


def mean(sums: Mapping[str, tuple[float, float]], name: str) -> float:
    """Sum over count of a metric; 0 where it is not measured or nothing was counted."""
    total, count = sums.get(name, (0.0, 0.0))
    return total / count if count else 0.0


def _remember(samples: Samples, seen: Sequence[Seen], outcome: Outcome, index: int) -> None:
    """Keep a pass's token numbers; those of a first pass over fresh answers are the old ones."""
    rows, width = len(samples.rollouts), samples.width

    def whole(parts: Sequence[tuple[TokenBatch, mx.array | None]]) -> mx.array:
        return assembled([(b, v) for b, v in parts if v is not None], rows, width)

    new = whole([(item.batch, item.logprobs) for item in seen])
    samples.passes.append(new)
    outcome.sums = _sums(seen)
    if index == 1:
        outcome.entropy = outcome.sums.get("entropy", (0.0, 0.0))
        if samples.entropy is None:
            samples.entropy = whole([(item.batch, item.entropy) for item in seen])
        if samples.old is None:
            samples.old = new
    samples.clipped = whole([(item.batch, item.clipped) for item in seen])
    if seen and seen[0].kl is not None:
        samples.kl = whole([(item.batch, item.kl) for item in seen])
