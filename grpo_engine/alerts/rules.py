"""Alert rules: each reads the metrics of recent steps and returns a finding or None."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grpo_engine.config.mismatch import Gap
from grpo_engine.config.settings import AlertsConfig
from grpo_engine.events import Severity

MOSTLY_RIGHT = 0.8  # above this accuracy, only the format is left to learn
MEAN_GAP, MAX_GAP = (f"sampling/sampling_logp_difference/{name}" for name in ("mean", "max"))
# limits of a corrected gap: as a multiple of the first step's, and of what rounding explains
GROWN, FARTHEST = 5.0, Gap(20.0, 4.0)
MASKED = 0.25  # share of tokens that the correction may mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Input of the rules; `history` ends with the current step, `start` holds the first ten."""

    history: Sequence[Mapping[str, float]]
    start: Sequence[Mapping[str, float]]
    evaluations: Sequence[tuple[int, float]]
    updates_per_step: int
    has_bounds: bool
    accuracy: str | None
    sampler_gap: Gap
    corrected: bool
    memory_gb: float | None
    limits: AlertsConfig

    def last(self, key: str, count: int, skip: int = 0) -> list[float]:
        """Return `count` values of a metric before the last `skip`; empty if there are fewer."""
        end = len(self.history) - skip
        values = [row[key] for row in self.history[max(0, end - count) : end] if key in row]
        return values if len(values) == count else []

    def rise(self, key: str, count: int = 10) -> float | None:
        """Return the change of a metric's mean between the last two windows, 0 if it is noise.

        Noise is below two standard errors of the difference. None without two full windows.
        """
        late, early = self.last(key, count), self.last(key, count, skip=count)
        if not late or not early:
            return None
        noise = 2 * ((statistics.variance(late) + statistics.variance(early)) / count) ** 0.5
        change = statistics.fmean(late) - statistics.fmean(early)
        return change if abs(change) > noise else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule found: severity, explanation, what to try, and the value beside its limit."""

    severity: Severity
    explanation: str
    remedy: str
    value: float | None = None
    limit: float | None = None


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def no_signal(facts: Facts) -> Finding | None:
    share = _mean(facts.last("frac_reward_zero_std", 5))
    limit = facts.limits.no_signal
    if share <= limit:
        return None
    return Finding(
        severity="warning",
        explanation=f"{share:.0%} of the prompts in the last 5 steps had no signal: all their "
        "answers scored the same.",
        remedy="Use harder tasks if all are right and easier ones if all are wrong, larger groups, "
        "or dynamic sampling (algorithm.refill_rounds).",
        value=share,
        limit=limit,
    )


def format_hacking(facts: Facts) -> Finding | None:
    if facts.accuracy is None or f"rewards/{facts.accuracy}/mean" not in facts.history[-1]:
        return None
    reward, right = facts.rise("reward"), facts.rise(f"rewards/{facts.accuracy}/mean")
    if not reward or reward <= 0 or right is None or right > 0:
        return None
    if _mean(facts.last(f"rewards/{facts.accuracy}/mean", 10)) >= MOSTLY_RIGHT:
        return None
    return Finding(
        severity="warning",
        explanation=f"Reward rose by {reward:.3f} over the last 20 steps while {facts.accuracy} "
        "did not: the model is rewarded for its format, not for right answers.",
        remedy=f"Give {facts.accuracy} more weight (rewards.weights) or drop a reward that is "
        "already at its maximum.",
        value=right,
        limit=0.0,
    )


def kl_above_limit(facts: Facts) -> Finding | None:
    values, limit = facts.last("kl", 5), facts.limits.kl
    if _mean(values) <= limit:
        return None
    return Finding(
        severity="warning",
        explanation=f"The policy is {_mean(values):.3f} nats per token away from its reference: "
        "it may be losing abilities of the base model.",
        remedy="Raise algorithm.beta, lower optimizer.learning_rate, or stop here and evaluate.",
        value=_mean(values),
        limit=limit,
    )


def kl_exploding(facts: Facts) -> Finding | None:
    now, before = facts.last("kl", 1), facts.last("kl", 20, skip=1)
    if not now or not before:
        return None
    limit = max(0.02, facts.limits.kl_jump * statistics.median(before))
    if now[0] <= limit:
        return None
    return Finding(
        severity="error",
        explanation=f"KL jumped to {now[0]:.3g} from a median of {statistics.median(before):.3g}: "
        "one update moved the policy too far.",
        remedy="Lower optimizer.learning_rate or optimizer.max_grad_norm; go back to a checkpoint.",
        value=now[0],
        limit=limit,
    )


def entropy_collapse(facts: Facts) -> Finding | None:
    first = [row["entropy"] for row in facts.start if "entropy" in row]
    now = facts.last("entropy", 5)
    limit = facts.limits.entropy * _mean(first)
    if len(first) < 10 or not now or _mean(now) >= limit:
        return None
    return Finding(
        severity="warning",
        explanation=f"Entropy fell to {_mean(now):.3f} from {_mean(first):.3f} at the start: the "
        "answers to a prompt become the same, and groups lose their signal.",
        remedy="Raise rollout.temperature, algorithm.clip_high or algorithm.entropy_bonus, or "
        "lower optimizer.learning_rate.",
        value=_mean(now),
        limit=limit,
    )


def length_growth(facts: Facts) -> Finding | None:
    now = _mean(facts.last("completions/mean_length", 10))
    before = _mean(facts.last("completions/mean_length", 10, skip=10))
    reward = facts.rise("reward")
    limit = facts.limits.length * before
    if reward is None or reward > 0 or now <= limit:
        return None
    return Finding(
        severity="warning",
        explanation=f"Answers grew from {before:.0f} to {now:.0f} tokens in 20 steps while the "
        "reward did not rise: the model is padding.",
        remedy="Use algorithm.weight per_token or constant, or a soft length penalty "
        "(algorithm.overlong_buffer).",
        value=now,
        limit=limit,
    )


def most_truncated(facts: Facts) -> Finding | None:
    share = _mean(facts.last("completions/clipped_ratio", 3))
    limit = facts.limits.cut
    if share <= limit:
        return None
    return Finding(
        severity="warning",
        explanation=f"{share:.0%} of the answers in the last 3 steps were cut at the length limit "
        "and could not finish.",
        remedy="Raise rollout.max_new_tokens, or ask for shorter answers in task.system_prompt.",
        value=share,
        limit=limit,
    )


def clip_too_much(facts: Facts) -> Finding | None:
    share = _mean(facts.last("clip_ratio/region_mean", 5))
    limit = facts.limits.clip
    if facts.updates_per_step < 2 or share <= limit:
        return None
    return Finding(
        severity="warning",
        explanation=f"{share:.0%} of the tokens were at their bound over the last 5 steps: later "
        "passes have little effect.",
        remedy="Lower optimizer.learning_rate or algorithm.passes.",
        value=share,
        limit=limit,
    )


def clip_never(facts: Facts) -> Finding | None:
    shares = facts.last("clip_ratio/region_mean", 10)
    limit = facts.limits.clip_least
    if facts.updates_per_step < 2 or not facts.has_bounds or not shares or max(shares) > limit:
        return None
    return Finding(
        severity="info",
        explanation="No token was clipped in 10 steps although each batch is used for "
        f"{facts.updates_per_step} updates: the bounds have no effect.",
        remedy="The learning rate may be raised, or passes lowered to save time.",
        value=max(shares),
        limit=limit,
    )


def gradient_spike(facts: Facts) -> Finding | None:
    now, before = facts.last("grad_norm", 1), facts.last("grad_norm", 20, skip=1)
    usual = statistics.median(before) if before else 0.0
    if not now or not before or now[0] <= facts.limits.grad_norm * usual:
        return None
    return Finding(
        severity="warning",
        explanation=f"The gradient norm was {now[0]:.3g}, more than "
        f"{facts.limits.grad_norm:g} times the usual {usual:.3g}.",
        remedy="Look at this step's groups; lower optimizer.max_grad_norm if it happens again.",
        value=now[0],
        limit=facts.limits.grad_norm * usual,
    )


def sampler_disagrees(facts: Facts) -> Finding | None:
    """Report a gap that rounding does not explain; a corrected gap is judged by the first step."""
    keys = (MEAN_GAP, MAX_GAP)
    now = {key: facts.history[-1][key] for key in keys if key in facts.history[-1]}
    limits = dict(zip(keys, facts.sampler_gap, strict=True))
    if facts.corrected:
        first = next((row for row in facts.start if MEAN_GAP in row), {})
        for (key, usual), farthest in zip(limits.items(), FARTHEST, strict=True):
            grown = GROWN * first.get(key, 0.0)
            limits[key] = min(max(usual, grown), farthest * usual)
    beyond = [key for key in keys if now.get(key, 0.0) > limits[key]]
    if not beyond:
        return None
    sizes = f"{now.get(MEAN_GAP, 0.0):.2g} nats per token on average, {now[MAX_GAP]:.2g} at most"
    problem = f"Sampler and trainer give the same tokens different log-probabilities: {sizes}. "
    if facts.corrected:
        why = "Importance correction compensates for it, but rounding does not explain so much."
        remedy = "Set model.shared_prefix false, and if that does not help model.dtype float32."
    else:
        why = "The policy is updated on answers that a different policy sampled."
        remedy = "Set algorithm.importance_cap 3 to correct for it, or model.dtype float32."
    return Finding(
        severity="warning" if facts.corrected else "error", explanation=problem + why,
        remedy=remedy, value=now[beyond[0]], limit=limits[beyond[0]],
    )  # fmt: skip


def many_masked(facts: Facts) -> Finding | None:
    share = _mean(facts.last("sampling/masked_ratio", 5))
    if share <= MASKED:
        return None
    return Finding(
        severity="warning",
        explanation=f"{share:.0%} of the tokens in the last 5 steps were left out of the loss, "
        "because sampler and policy differ too much about their answers.",
        remedy="Set algorithm.importance_mode token_truncate, which masks nothing; if "
        "algorithm.off_policy_mask is set, raise it; or lower algorithm.passes or "
        "optimizer.learning_rate.",
        value=share,
        limit=MASKED,
    )


def reward_slow(facts: Facts) -> Finding | None:
    score, step = facts.last("time/score", 3), facts.last("step_time", 3)
    limit = facts.limits.reward_time
    if not score or not step or sum(score) < 1.0 or sum(score) < limit * sum(step):
        return None
    return Finding(
        severity="warning",
        explanation=f"Reward functions took {sum(score) / sum(step):.0%} of the last 3 steps.",
        remedy="Make the slow function faster or async, or lower rewards.time_limit.",
        value=sum(score) / sum(step),
        limit=limit,
    )


def reward_constant(facts: Facts) -> Finding | None:
    for key in facts.history[-1]:
        if key.startswith("rewards/") and key.endswith("/std"):
            spread = facts.last(key, 10)
            if spread and max(spread) == 0:
                name = key.removeprefix("rewards/").removesuffix("/std")
                return Finding(
                    severity="warning",
                    explanation=f"Reward function {name} gave every answer in 10 steps the same "
                    "score, so it has no effect.",
                    remedy=f"Try {name} with `grpo-tui rewards test`; drop it if it is always at "
                    "its maximum.",
                    value=0.0,
                    limit=0.0,
                )
    return None


def duplicates(facts: Facts) -> Finding | None:
    share = _mean(facts.last("completions/duplicates", 3))
    if share <= facts.limits.duplicates:
        return None
    return Finding(
        severity="warning",
        explanation=f"{share:.0%} of the answers in the last 3 steps equal a sibling token by "
        "token: there is little exploration.",
        remedy="Raise rollout.temperature or use harder tasks.",
        value=share,
        limit=facts.limits.duplicates,
    )


def memory_near_limit(facts: Facts) -> Finding | None:
    peak = facts.last("memory/peak_gb", 1)
    if not peak or facts.memory_gb is None or peak[0] <= facts.limits.memory * facts.memory_gb:
        return None
    return Finding(
        severity="error",
        explanation=f"The step used {peak[0]:.1f} of {facts.memory_gb:.1f} GB of memory.",
        remedy="Lower optimizer.micro_rows or rollout.max_new_tokens, or set "
        "model.grad_checkpoint.",
        value=peak[0],
        limit=facts.limits.memory * facts.memory_gb,
    )


def step_time_doubled(facts: Facts) -> Finding | None:
    now, before = facts.last("step_time", 3), facts.last("step_time", 20, skip=3)
    if not now or not before:
        return None
    limit = max(facts.limits.step_time * statistics.median(before), 0.5)
    if statistics.median(now) <= limit:
        return None
    return Finding(
        severity="warning",
        explanation=f"A step takes {statistics.median(now):.1f} s, up from "
        f"{statistics.median(before):.1f} s.",
        remedy="Check whether answers got longer or another program uses the CPU.",
        value=statistics.median(now),
        limit=limit,
    )


def held_out_flat(facts: Facts) -> Finding | None:
    if len(facts.evaluations) < 3 or len(facts.history) < 20:
        return None
    first, last = facts.evaluations[0][1], facts.evaluations[-1][1]
    early = [row["reward"] for row in facts.start if "reward" in row]
    late = facts.last("reward", 10)
    if not late or len(early) < 10 or last > first:
        return None
    noise = 2 * ((statistics.variance(late) + statistics.variance(early)) / 10) ** 0.5
    if _mean(late) - _mean(early) <= noise:
        return None
    return Finding(
        severity="warning",
        explanation=f"Training reward rose from {_mean(early):.2f} to {_mean(late):.2f} while "
        f"held-out accuracy went from {first:.2f} to {last:.2f}: the gain does not "
        "generalise.",
        remedy="Use more or more varied training problems, or a higher algorithm.beta.",
        value=last,
        limit=first,
    )


RULES: tuple[Callable[[Facts], Finding | None], ...] = (
    no_signal,
    format_hacking,
    kl_above_limit,
    kl_exploding,
    entropy_collapse,
    length_growth,
    most_truncated,
    clip_too_much,
    clip_never,
    gradient_spike,
    sampler_disagrees,
    many_masked,
    reward_slow,
    reward_constant,
    duplicates,
    memory_near_limit,
    step_time_doubled,
    held_out_flat,
)
