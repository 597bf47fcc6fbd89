"""From a step's arrays to its events: groups, token numbers and metrics of plain Python."""

import statistics
from collections.abc import Mapping, Sequence

import mlx.core as mx
import numpy as np

from grpo_engine.events import (
    Completion,
    Group,
    GroupScored,
    Origin,
    TokenNumbers,
    TokensScored,
)
from grpo_engine.maths.advantage import reward_metrics
from grpo_engine.rollouts.types import Rollout, Sampling
from grpo_engine.tasks.base import prompt_hash
from grpo_engine.train.samples import SampledGroup, Samples, by_row
from grpo_engine.train.sampling import Collected
from grpo_engine.train.update import Outcome, mean

GIGABYTE = 1e9


def group_scored(
    step: int,
    group: SampledGroup,
    origin: Origin,
    sampling: Sampling,
    advantages: Sequence[float | None],
    accuracy: str,
) -> GroupScored:
    """The event of a group with its answers, rewards and advantages."""
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
            reward_std=statistics.stdev(known) if len(known) > 1 else None,
            no_signal=_why_no_signal(group, accuracy),
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
    )


def _why_no_signal(group: SampledGroup, accuracy: str) -> str:
    """Why siblings teach nothing; empty where they do."""
    if group.scores.differ or len(group.rollouts) < 2:
        return ""
    known = [value for value in group.totals if value is not None]
    if not known:
        why = "no reward function applies"
    elif accuracy in group.scores.names:
        right = [value for value in group.scores.column(accuracy) if value is not None]
        alike = bool(right) and min(right) == max(right)
        why = f"all scored {known[0]:g}"
        if alike and right[0] >= 1:
            why = "all right"
        elif alike and right[0] <= 0:
            why = "all wrong"
    else:
        why = f"all scored {known[0]:g}"
    return f"{why}, replaced" if group.replaced else why


def scalar_advantages(samples: Samples) -> list[float]:
    """One advantage per answer; the mean over its tokens where each token has its own."""
    assert samples.worth is not None
    values = np.array(samples.worth.values)
    if values.ndim == 1:
        return [float(value) for value in values]
    mask = np.array(samples.mask)
    return [float(v) for v in (values * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)]


def tokens_scored(step: int, samples: Samples, rows: Sequence[int], group: int) -> TokensScored:
    """The token numbers of one training group."""
    assert samples.worth is not None
    per_token = samples.worth.values if samples.worth.values.ndim == 2 else None
    trained = set(samples.trained)
    return TokensScored(
        step=step,
        group=group,
        origin="train",
        numbers=tuple(
            TokenNumbers(
                index=samples.rollouts[row].index,
                old=by_row(samples.old, samples, row),
                reference=by_row(samples.reference, samples, row),
                passes=tuple(by_row(one, samples, row) for one in samples.passes)
                if row in trained
                else (),
                after=by_row(samples.after, samples, row) if row in samples.after_rows else (),
                entropy=by_row(samples.entropy, samples, row),
                advantages=by_row(per_token, samples, row),
                sampled=_sampled(samples.rollouts[row]),
                clip_fraction=_row_mean(samples.clipped, samples, row),
                kl=_row_mean(samples.kl, samples, row),
            )
            for row in rows
        ),
    )


def _sampled(rollout: Rollout) -> tuple[float, ...]:
    """What the tokens were drawn with, where that is not the policy at the temperature."""
    return () if rollout.logprobs == rollout.raw_logprobs else rollout.logprobs


def _row_mean(values: mx.array | None, samples: Samples, row: int) -> float | None:
    found = by_row(values, samples, row)
    return statistics.fmean(found) if found else None


def step_metrics(
    samples: Samples, collected: Collected, outcome: Outcome | None, steps_bonus: float
) -> dict[str, float]:
    """Every metric of the step except tokens, times and memory."""
    assert samples.worth is not None
    found = {
        name: total / count
        for name, (total, count) in reward_metrics(
            samples.rewards(), samples.worth, samples.names
        ).items()
        if count
    }
    found |= length_metrics(samples.rollouts)
    found["completions/duplicates"] = _duplicates(samples)
    owners = np.array(samples.group_ids)
    trained_groups = len({int(owners[row]) for row in samples.trained})
    found["groups/skipped"] = float(len(samples.groups) - trained_groups)
    found["groups/refilled"] = float(len(collected.replaced))
    if outcome is not None and outcome.passes + outcome.updates:
        found |= _loss_metrics(samples, outcome)
    if steps_bonus:
        found["entropy_bonus"] = steps_bonus
    for group in collected.groups[:1]:
        found |= dict(group.scores.logged)
    return found


def _loss_metrics(samples: Samples, outcome: Outcome) -> dict[str, float]:
    found = {
        name: mean(outcome.sums, name)
        for name in outcome.sums
        if name not in ("at_bound", "entropy")
    }
    found |= {
        "loss": outcome.loss,
        "grad_norm": outcome.grad_norm,
        "learning_rate": outcome.learning_rate,
        "passes": float(outcome.passes),
    }
    total, count = outcome.entropy
    if count:
        found["entropy"] = total / count
    if samples.old is not None:
        found |= sampler_gap(samples)
    if samples.values is not None and samples.worth is not None:
        found["value/explained_variance"] = _explained(samples)
    return found


def length_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Lengths of all answers and of those that ended by themselves."""
    lengths = [len(rollout.ids) for rollout in rollouts]
    ended = [len(rollout.ids) for rollout in rollouts if rollout.finish != "length"]
    found = {
        "completions/mean_length": statistics.fmean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": 1 - len(ended) / len(lengths),
    }
    if ended:
        found |= {
            "completions/mean_terminated_length": statistics.fmean(ended),
            "completions/min_terminated_length": float(min(ended)),
            "completions/max_terminated_length": float(max(ended)),
        }
    return found


def _duplicates(samples: Samples) -> float:
    """Share of answers that equal a sibling token by token."""
    again = 0
    for group in samples.groups:
        again += len(group.rollouts) - len({rollout.ids for rollout in group.rollouts})
    return again / len(samples.rollouts)


def sampler_gap(samples: Samples) -> dict[str, float]:
    """How far the sampler's log-probabilities are from the trainer's, over the trained rows."""
    rows = samples.trained
    if not rows or samples.old is None:
        return {}
    mask = np.array(samples.mask)[rows] > 0
    gap = np.abs(np.array(samples.old)[rows] - np.array(samples.raw_sampler)[rows])[mask]
    if gap.size == 0:
        return {}
    return {
        "sampling/sampling_logp_difference/mean": float(gap.mean()),
        "sampling/sampling_logp_difference/max": float(gap.max()),
    }


def _explained(samples: Samples) -> float:
    """1 - Var(return - value)/Var(return) over the tokens."""
    assert samples.worth is not None
    assert samples.worth.returns is not None
    inside = np.array(samples.mask) > 0
    returns = np.array(samples.worth.returns)[inside]
    missed = returns - np.array(samples.values)[inside]
    spread = float(returns.var())
    return 1 - float(missed.var()) / spread if spread else 0.0


def time_metrics(phases: Mapping[str, float], step_time: float, sampled: int) -> dict[str, float]:
    """Seconds by phase, and the speed of sampling."""
    found = {
        f"time/{name}": phases.get(name, 0.0)
        for name in ("generate", "score", "logprobs", "update")
    }
    found["step_time"] = step_time
    if phases.get("generate"):
        found["tokens_per_second"] = sampled / phases["generate"]
    return found


def forget_peak_memory() -> None:
    """Begin a step's peak anew, so that an evaluation before it does not count."""
    mx.reset_peak_memory()


def memory_metrics() -> dict[str, float]:
    """Most memory that MLX held in this step."""
    return {"memory/peak_gb": mx.get_peak_memory() / GIGABYTE}
