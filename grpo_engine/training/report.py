"""Turns a step's arrays into events: groups, token numbers and metrics as plain Python values."""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial

import mlx.core as mx
import numpy as np

from grpo_engine.events import (
    CUT,
    REPLACED,
    Group,
    GroupScored,
    Origin,
    RewardValue,
    Rollout,
    TokenNumbers,
    TokensScored,
    reward_std,
    rewards_differ,
)
from grpo_engine.maths.advantage import reward_metrics
from grpo_engine.metrics import PHASES, time_of
from grpo_engine.rollouts.types import Sampling, Trajectory
from grpo_engine.run.clock import Clock
from grpo_engine.run.session import EngineRun
from grpo_engine.tasks.base import prompt_hash
from grpo_engine.training.samples import (
    Experience,
    SampledGroup,
    mean_scores,
    row_values,
)
from grpo_engine.training.update import UpdateResult, mean

# Settings of sampling that are recorded with a group
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")


def groups_scored(
    run: EngineRun,
    step: int,
    groups: Sequence[SampledGroup],
    advantages_B: Sequence[float | None],
    *,
    origin: Origin = "train",
    sampling: Sampling | None = None,
) -> Iterator[GroupScored]:
    """The events of groups; `advantages_B` lists the advantages of all their rollouts in order."""
    remaining, sampling = iter(advantages_B), sampling or run.sampling
    mx.synchronize()  # no number of a failed command buffer is recorded
    for group in groups:
        advantages = list(itertools.islice(remaining, len(group.rollouts)))
        totals = group.totals
        numbers = [total for total in totals if total is not None]
        yield GroupScored(
            step=step,
            group=Group(
                index=group.index,
                origin=origin,
                example_key=group.example.key,
                prompt_text=group.prompt_text,
                prompt_ids=group.prompt_ids,
                prompt_hash=prompt_hash(group.example.prompt),
                target=group.example.target,
                refill=group.attempt,
                rollouts=tuple(
                    map(_rollout, group.rollouts, group.scores.rewards, totals, advantages)
                ),
                reward_mean=statistics.fmean(numbers) if numbers else None,
                reward_std=reward_std(numbers),
                no_signal=_no_signal(group, numbers, has_signal=any(advantages)),
                sampling={name: getattr(sampling, name) for name in SAMPLING},
            ),
        )


def _rollout(
    trajectory: Trajectory,
    rewards: tuple[RewardValue, ...],
    reward: float | None,
    advantage: float | None,
) -> Rollout:
    return Rollout(
        index=trajectory.index,
        ids=trajectory.ids,
        text=trajectory.text,
        finish=trajectory.finish,
        rewards=rewards,
        reward=reward,
        advantage=advantage,
        sampler_logprobs=trajectory.raw_logprobs,
        ends=trajectory.ends,
        spans=trajectory.spans,
    )


def _no_signal(group: SampledGroup, totals: Sequence[float], *, has_signal: bool) -> str:
    """Why a group has no signal, or was replaced; empty if it has a signal.

    Rollouts of equal totals have one if a function tells them apart.
    """
    scores = group.scores
    if len(group.rollouts) < 2 or ((has_signal or scores.differ) and not group.alike_in):
        return ""
    judged = [value for value in scores.column(group.right.function) if value is not None]
    all_equal = bool(judged) and not rewards_differ(judged)
    if not totals:
        reason = "no answer has a score"
    elif all_equal and judged[0] >= 1:
        reason = "all right"
    elif all_equal and judged[0] <= 0:
        reason = "all wrong"
    else:
        reason = f"equal in {group.alike_in}" if scores.differ else f"all scored {totals[0]:g}"
    if totals and (unscored := len(group.rollouts) - len(totals)):
        reason += f", {unscored} without a score"
    return f"{reason}{REPLACED}" if group.alike_in else reason


def tokens_scored(
    step: int,
    group: int,
    experience: Experience,
    result: UpdateResult | None,
    updated_BT: mx.array | None,
) -> TokensScored:
    """The event with the numbers of every token of a group.

    `updated_BT` are log-probabilities by the updated policy, if it scored the group.
    """
    samples = experience.samples
    numbers = tuple(
        _token_numbers(row, experience, result, updated_BT) for row in samples.rows_of(group)
    )
    return TokensScored(
        step=step, group=samples.groups[group].index, origin="train", numbers=numbers
    )


def _token_numbers(
    row: int, experience: Experience, result: UpdateResult | None, updated_BT: mx.array | None
) -> TokenNumbers:
    samples, old, advantages = experience.samples, experience.old, experience.advantages
    rollout = samples.rollouts[row]

    of = partial(row_values, row=row, length=len(rollout.ids))
    all_passes = result.passes if result is not None else ()
    passes = [item for item in all_passes if row in item.totals]  # those that updated the row

    def of_passes(name: str) -> tuple[tuple[float, ...], ...]:
        return tuple(of(item.arrays_BT[name]) for item in passes if name in item.arrays_BT)

    def mean_of_last(name: str) -> float | None:
        numbers = of(all_passes[-1].arrays_BT.get(name)) if all_passes else ()
        return statistics.fmean(numbers) if numbers else None

    mask = tuple(map(int, of(samples.mask_BT)))
    return TokenNumbers(
        index=rollout.index,
        old=of(old.logprobs_BT),
        reference=of(old.reference_logprobs_BT),
        passes=of_passes("logprobs"),
        after=of(updated_BT),
        entropy=of(old.entropy_BT),
        advantages=of(advantages.values) if advantages.values.ndim == 2 else (),
        sampled=() if rollout.logprobs == rollout.raw_logprobs else rollout.logprobs,
        mask=() if all(mask) else mask,
        updates=tuple(item.totals[row] for item in passes),
        entropies=of_passes("entropy"),
        values=of_passes("values"),
        old_values=of(old.values_BT),
        returns=of(advantages.returns),
        teacher=of(old.teacher_logprobs_BT),
        clip_fraction=mean_of_last("clipped"),
        kl=mean_of_last("kl"),
    )


def step_metrics(
    experience: Experience, result: UpdateResult | None, entropy_bonus: float
) -> dict[str, float]:
    """Every metric of the step except token counts, times and memory."""
    samples = experience.samples
    metrics = {
        name: total / count
        for name, (total, count) in reward_metrics(
            samples.rewards(), experience.advantages, [name for name, _ in samples.columns]
        ).items()
        if count
    }
    metrics |= length_metrics(samples.rollouts)
    metrics |= dialogue_metrics(samples.rollouts)
    distinct = sum(len({r.ids for r in group.rollouts}) for group in samples.groups)
    total = len(samples.rollouts)
    metrics["completions/duplicates"] = (total - distinct) / total
    trained_groups_N = np.array(samples.group_ids_B)[experience.trained_rows]
    metrics["groups/skipped"] = float(len(samples.groups) - len(set(trained_groups_N.tolist())))
    if result is not None and result.complete_passes + result.updates:
        metrics |= _loss_metrics(experience, result)
    if entropy_bonus:
        metrics["entropy_bonus"] = entropy_bonus
    metrics |= _teacher_gap(experience)
    first_of_tasks = {group.example.task: group for group in reversed(samples.groups)}
    for group in first_of_tasks.values():
        metrics |= dict(group.scores.logged)
    return metrics


def groups_by_task(run: EngineRun, groups: Sequence[SampledGroup]) -> dict[str, list[SampledGroup]]:
    """The groups of each task by its label, if the run has several tasks."""
    parts = run.parts if len(run.parts) > 1 else ()
    return {
        part.label: [group for group in groups if run.part_of(group.example) is part]
        for part in parts
    }


def task_metrics(run: EngineRun, groups: Sequence[SampledGroup]) -> dict[str, float]:
    """Metrics of each of several tasks, over all rollouts of its prompts."""
    metrics: dict[str, float] = {}
    for label, of_task in groups_by_task(run, groups).items():
        values = {"groups": float(len(of_task)), **mean_rewards(of_task)}
        if of_task:
            values["frac_reward_zero_std"] = statistics.fmean(not g.scores.differ for g in of_task)
        metrics |= {f"task/{label}/{name}": value for name, value in values.items()}
    return metrics


def mean_rewards(groups: Sequence[SampledGroup]) -> dict[str, float]:
    """Means of the total reward and of each function's scores, over all rollouts of the groups."""
    totals = [total for group in groups for total in group.totals if total is not None]
    metrics = {"reward": statistics.fmean(totals)} if totals else {}
    means = mean_scores(groups)
    return metrics | {f"rewards/{name}/mean": mean for name, mean in means.items()}


def _loss_metrics(experience: Experience, result: UpdateResult) -> dict[str, float]:
    assert result.objective is not None
    metrics = {
        name: mean(result.sums, name) for name in result.sums if name not in ("at_bound", "entropy")
    }
    metrics |= {
        "loss": -result.objective,
        **({} if result.grad_norm is None else {"grad_norm": result.grad_norm}),
        "learning_rate": result.learning_rate,
        "passes": float(result.complete_passes),
    }
    total, count = result.entropy
    if count:
        metrics["entropy"] = total / count
    if experience.old.values_BT is not None:
        metrics["value/explained_variance"] = _explained_variance(experience)
    return metrics | _sampler_gap(experience)


def length_metrics(rollouts: Sequence[Trajectory]) -> dict[str, float]:
    """Length metrics of all completions, and of those that ended before the limit."""
    lengths = [rollout.length for rollout in rollouts]
    ended = [rollout.length for rollout in rollouts if rollout.finish not in CUT]
    metrics = {"completions/clipped_ratio": 1 - len(ended) / len(lengths)}
    for name, values in (("length", lengths), ("terminated_length", ended)):
        if values:
            metrics |= {
                f"completions/mean_{name}": statistics.fmean(values),
                f"completions/min_{name}": float(min(values)),
                f"completions/max_{name}": float(max(values)),
            }
    return metrics


def dialogue_metrics(rollouts: Sequence[Trajectory]) -> dict[str, float]:
    """Metrics of turns, of tools and from environments themselves; empty without environments."""
    outcomes = [rollout.environment for rollout in rollouts if rollout.environment is not None]
    if not outcomes:
        return {}
    turns = [sum(span.kind == "model" for span in rollout.spans) for rollout in rollouts]
    calls = sum(outcome.calls for outcome in outcomes)
    metrics = {
        "turns/mean": statistics.fmean(turns),
        "turns/max": float(max(turns)),
        "environment/errors": statistics.fmean(rollout.failed for rollout in rollouts),
        "tools/call_frequency": calls / len(rollouts),
    }
    if calls:
        failures = sum(outcome.failures for outcome in outcomes)
        metrics["tools/failure_frequency"] = failures / calls
    info: dict[str, list[float]] = {}
    for rollout in rollouts:
        last = {name: value for span in rollout.spans for name, value in span.info.items()}
        for name, value in last.items():
            if isinstance(value, int | float) and math.isfinite(value):
                info.setdefault(f"env/{name}", []).append(float(value))
    return metrics | {name: statistics.fmean(values) for name, values in info.items()}


def _sampler_gap(experience: Experience) -> dict[str, float]:
    """Difference of the sampler's and the trainer's log-probabilities, over trained rows.

    Demonstrations have no sampler.
    """
    samples = experience.samples
    rows = [row for row in experience.trained_rows if samples.rollouts[row].raw_logprobs]
    gap_BT = np.array(experience.old.logprobs_BT) - np.array(samples.raw_sampler_logprobs_BT)
    gap_N = np.abs(gap_BT[rows][np.array(samples.mask_BT)[rows] > 0])
    if not gap_N.size:
        return {}
    name = "sampling/sampling_logp_difference"
    return {f"{name}/mean": float(gap_N.mean()), f"{name}/max": float(gap_N.max())}


def _teacher_gap(experience: Experience) -> dict[str, float]:
    """The mean of log π_old - log π_teacher over the tokens in the loss; empty without any."""
    old, mask_BT = experience.old, experience.samples.mask_BT
    if old.logprobs_BT is None or old.teacher_logprobs_BT is None or not mask_BT.any():
        return {}
    gap_BT = mask_BT * (old.logprobs_BT - old.teacher_logprobs_BT)
    return {"teacher/kl": float(gap_BT.sum() / mask_BT.sum())}


def _explained_variance(experience: Experience) -> float:
    """1 - Var(return - value)/Var(return) over the tokens."""
    assert experience.advantages.returns is not None
    mask_BT = np.array(experience.samples.mask_BT) > 0
    returns_N = np.array(experience.advantages.returns)[mask_BT]
    error_N = returns_N - np.array(experience.old.values_BT)[mask_BT]
    variance = float(returns_N.var())
    return 1 - float(error_N.var()) / variance if variance else 0.0


def time_metrics(clock: Clock, step_time: float, sampled: int) -> dict[str, float]:
    """Seconds per phase and of processors, and the speed of sampling."""
    phases = clock.phases
    metrics = {time_of(phase): phases.get(phase, 0.0) for phase in PHASES}
    if "environment" in phases:
        metrics["time/environment"] = phases["environment"]
    metrics["step_time"] = step_time
    metrics["time/processor"] = clock.processor_seconds
    metrics["time/others"] = clock.external_seconds
    if sampled and phases.get("generate"):
        metrics["tokens_per_second"] = sampled / phases["generate"]
    return metrics
