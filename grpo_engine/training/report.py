"""Turns a step's arrays into events: groups, token numbers and metrics as plain Python values."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx
import numpy as np

from grpo_engine.events import (
    CUT,
    REPLACED,
    Completion,
    Group,
    GroupScored,
    Origin,
    TokenNumbers,
    TokensScored,
    reward_std,
    rewards_differ,
)
from grpo_engine.maths.advantage import reward_metrics
from grpo_engine.metrics import PHASES, time_of
from grpo_engine.rollouts.types import Rollout, Sampling
from grpo_engine.run.session import Run
from grpo_engine.tasks.base import prompt_hash
from grpo_engine.training.samples import Experience, SampledGroup, Samples, by_row
from grpo_engine.training.sampling import StepGroups
from grpo_engine.training.update import UpdateResult, mean

GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class UpdatedScores:
    """Log-probabilities of some rows by the updated policy, [B, T]."""

    logprobs_BT: mx.array | None
    rows: frozenset[int]


NOT_SCORED: Final = UpdatedScores(None, frozenset())


def groups_scored(
    run: Run, step: int, groups: Sequence[SampledGroup], advantages_B: Sequence[float | None],
    *, origin: Origin = "train", sampling: Sampling | None = None,
) -> Iterator[GroupScored]:  # fmt: skip
    """The events of groups; `advantages` lists those of all their rollouts in order."""
    row = 0
    for group in groups:
        end = row + len(group.rollouts)
        yield group_scored(
            step,
            group,
            origin,
            sampling or run.sampling,
            advantages_B[row:end],
        )
        row = end


def group_scored(
    step: int,
    group: SampledGroup,
    origin: Origin,
    sampling: Sampling,
    advantages: Sequence[float | None],
) -> GroupScored:
    """The event of a group, with its answers, rewards and advantages."""
    totals = group.totals
    known = [value for value in totals if value is not None]
    return GroupScored(
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
                _completion(group, place, totals[place], advantages[place])
                for place in range(len(group.rollouts))
            ),
            reward_mean=statistics.fmean(known) if known else None,
            reward_std=reward_std(known),
            no_signal=_why_no_signal(group, advantages),
            sampling={
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p,
                "repetition_penalty": sampling.repetition_penalty,
                "max_new_tokens": sampling.max_new_tokens,
            },
        ),
    )


def _completion(
    group: SampledGroup, place: int, reward: float | None, advantage: float | None
) -> Completion:
    rollout = group.rollouts[place]
    return Completion(
        index=rollout.index,
        ids=rollout.ids,
        text=rollout.text,
        finish=rollout.finish,
        rewards=group.scores.rewards[place],
        reward=reward,
        advantage=advantage,
        sampler_logprobs=rollout.raw_logprobs,
        ends=rollout.ends,
        spans=rollout.spans,
    )


def _why_no_signal(group: SampledGroup, advantages: Sequence[float | None]) -> str:
    """Why a group has no signal, or was replaced; empty if it has one."""
    scores, accuracy = group.scores, group.right.function
    has_signal = scores.differ or any(advantages)  # by functions whose total is equal
    if len(group.rollouts) < 2 or (has_signal and not group.alike_in):
        return ""
    known = [value for value in group.totals if value is not None]
    right = scores.column(accuracy) if accuracy in scores.names else []
    decided = [value for value in right if value is not None]
    if not known:
        why = "no reward function applies"
    elif decided and not rewards_differ(decided) and decided[0] >= 1:
        why = "all right"
    elif decided and not rewards_differ(decided) and decided[0] <= 0:
        why = "all wrong"
    else:
        why = f"equal in {group.alike_in}" if scores.differ else f"all scored {known[0]:g}"
    return f"{why}{REPLACED}" if group.alike_in else why


def tokens_scored(
    step: int, group: int, experience: Experience, result: UpdateResult | None,
    updated: UpdatedScores,
) -> TokensScored:  # fmt: skip
    """The event with the numbers of every token of a group."""
    samples = experience.samples
    numbers = tuple(
        _token_numbers(row, experience, result, updated) for row in samples.rows_of(group)
    )
    return TokensScored(
        step=step, group=samples.groups[group].index, origin="train", numbers=numbers
    )


def _token_numbers(
    row: int, experience: Experience, result: UpdateResult | None, updated: UpdatedScores
) -> TokenNumbers:
    samples, old, advantages = experience.samples, experience.old, experience.advantages
    rollout = samples.rollouts[row]

    def of(values: mx.array | None) -> tuple[float, ...]:
        return by_row(values, samples, row)

    all_passes = result.passes if result is not None else ()
    passes = [item for item in all_passes if row in item.totals]
    mask = tuple(int(inside) for inside in of(samples.mask_BT))
    return TokenNumbers(
        index=rollout.index,
        old=of(old.logprobs_BT),
        reference=of(old.reference_logprobs_BT),
        passes=tuple(of(item.logprobs_BT) for item in passes),
        after=of(updated.logprobs_BT) if row in updated.rows else (),
        entropy=of(old.entropy_BT),
        advantages=of(advantages.values) if advantages.values.ndim == 2 else (),
        sampled=_sampled(rollout),
        mask=() if all(mask) else mask,
        updates=tuple(item.totals[row] for item in passes),
        entropies=tuple(of(item.entropy_BT) for item in passes if item.entropy_BT is not None),
        values=tuple(of(item.values_BT) for item in passes if item.values_BT is not None),
        old_values=of(old.values_BT),
        returns=of(advantages.returns),
        clip_fraction=_row_mean(all_passes[-1].clipped_BT if all_passes else None, samples, row),
        kl=_row_mean(all_passes[-1].kl_BT if all_passes else None, samples, row),
    )


def _sampled(rollout: Rollout) -> tuple[float, ...]:
    """Log-probabilities of the sampling distribution, if it differs from the policy's."""
    return () if rollout.logprobs == rollout.raw_logprobs else rollout.logprobs


def _row_mean(values: mx.array | None, samples: Samples, row: int) -> float | None:
    numbers = by_row(values, samples, row)
    return statistics.fmean(numbers) if numbers else None


def step_metrics(
    experience: Experience, sampled: StepGroups, result: UpdateResult | None, entropy_bonus: float
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
    metrics["completions/duplicates"] = _duplicates(samples)
    group_ids_B = np.array(samples.group_ids_B)
    trained_groups = len({int(group_ids_B[row]) for row in experience.trained_rows})
    metrics["groups/skipped"] = float(len(samples.groups) - trained_groups)
    if result is not None and result.complete_passes + result.updates:
        metrics |= _loss_metrics(experience, result)
    if entropy_bonus:
        metrics["entropy_bonus"] = entropy_bonus
    first_of_tasks = {group.example.task: group for group in reversed(sampled.groups)}
    for group in first_of_tasks.values():
        metrics |= dict(group.scores.logged)
    return metrics


def task_metrics(run: Run, groups: Sequence[SampledGroup]) -> dict[str, float]:
    """How each of several tasks did, over all answers that were sampled to its prompts."""
    metrics: dict[str, float] = {}
    for part in run.parts if len(run.parts) > 1 else ():
        own = [group for group in groups if run.part_of(group.example) is part]
        found = {
            name.removeprefix("sampled/"): value for name, value in sampled_metrics(own).items()
        }
        if own:
            found["frac_reward_zero_std"] = statistics.fmean(not g.scores.differ for g in own)
        found["groups"] = float(len(own))
        metrics |= {f"task/{part.label}/{name}": value for name, value in found.items()}
    return metrics


def sampled_metrics(groups: Sequence[SampledGroup]) -> dict[str, float]:
    """Mean rewards of all answers that were sampled, those of replaced groups included.

    Only groups whose answers differ are kept, so the means of the kept ones say little.
    """
    columns = {"sampled/reward": [total for group in groups for total in group.totals]}
    for name in dict.fromkeys(name for group in groups for name in group.scores.names):
        columns[f"sampled/rewards/{name}/mean"] = [
            value
            for group in groups if name in group.scores.names
            for value in group.scores.column(name)
        ]  # fmt: skip
    known = {key: [v for v in column if v is not None] for key, column in columns.items()}
    return {key: statistics.fmean(values) for key, values in known.items() if values}


def _loss_metrics(experience: Experience, result: UpdateResult) -> dict[str, float]:
    metrics = {
        name: mean(result.sums, name) for name in result.sums if name not in ("at_bound", "entropy")
    }
    metrics |= {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "learning_rate": result.learning_rate,
        "passes": float(result.complete_passes),
    }
    total, count = result.entropy
    if count:
        metrics["entropy"] = total / count
    if experience.old.logprobs_BT is not None:
        metrics |= sampler_gap(experience)
    if experience.old.values_BT is not None:
        metrics["value/explained_variance"] = _explained_variance(experience)
    return metrics


def length_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Length metrics of all completions, and of those that ended before the limit."""
    lengths = [rollout.length for rollout in rollouts]
    ended = [rollout.length for rollout in rollouts if rollout.finish not in CUT]
    metrics = {
        "completions/mean_length": statistics.fmean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": 1 - len(ended) / len(lengths),
    }
    if ended:
        metrics |= {
            "completions/mean_terminated_length": statistics.fmean(ended),
            "completions/min_terminated_length": float(min(ended)),
            "completions/max_terminated_length": float(max(ended)),
        }
    return metrics


def dialogue_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Turns, tools and what environments tell about themselves; empty without environments."""
    outcomes = [one.environment for one in rollouts if one.environment is not None]
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
    told: dict[str, list[float]] = {}
    for rollout in rollouts:
        last = {name: value for span in rollout.spans for name, value in span.info.items()}
        for name, value in last.items():
            if isinstance(value, int | float) and math.isfinite(value):
                told.setdefault(f"env/{name}", []).append(float(value))
    return metrics | {name: statistics.fmean(values) for name, values in told.items()}


def _duplicates(samples: Samples) -> float:
    """Share of completions with the same tokens as an earlier one of their group."""
    duplicates = 0
    for group in samples.groups:
        duplicates += len(group.rollouts) - len({rollout.ids for rollout in group.rollouts})
    return duplicates / len(samples.rollouts)


def sampler_gap(experience: Experience) -> dict[str, float]:
    """Difference of the sampler's and the trainer's log-probabilities, over the trained rows."""
    samples, rows = experience.samples, experience.trained_rows
    if not rows or experience.old.logprobs_BT is None:
        return {}
    mask = np.array(samples.mask_BT)[rows] > 0
    gap = np.abs(
        np.array(experience.old.logprobs_BT)[rows] - np.array(samples.raw_sampler_logprobs_BT)[rows]
    )[mask]
    if gap.size == 0:
        return {}
    return {
        "sampling/sampling_logp_difference/mean": float(gap.mean()),
        "sampling/sampling_logp_difference/max": float(gap.max()),
    }


def _explained_variance(experience: Experience) -> float:
    """1 - Var(return - value)/Var(return) over the tokens."""
    assert experience.advantages.returns is not None
    inside = np.array(experience.samples.mask_BT) > 0
    returns = np.array(experience.advantages.returns)[inside]
    missed = returns - np.array(experience.old.values_BT)[inside]
    spread = float(returns.var())
    return 1 - float(missed.var()) / spread if spread else 0.0


def time_metrics(phases: Mapping[str, float], step_time: float, sampled: int) -> dict[str, float]:
    """Seconds per phase, and the speed of sampling."""
    metrics = {time_of(phase): phases.get(phase, 0.0) for phase in PHASES}
    if "environment" in phases:
        metrics["time/environment"] = phases["environment"]
    metrics["step_time"] = step_time
    if phases.get("generate"):
        metrics["tokens_per_second"] = sampled / phases["generate"]
    return metrics


def memory_metrics(run: Run) -> dict[str, float]:
    """Peak memory in this step."""
    return {"memory/peak_gb": run.policy.peak_memory / GIGABYTE}
