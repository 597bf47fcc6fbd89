"""Descriptions of all metrics, under TRL's names where TRL has one."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from grpo_engine.events import Phase

# The phases of a training step. `time/others` and `time/environment` are none.
PHASES: tuple[Phase, ...] = ("generate", "score", "logprobs", "update")

Direction = Literal["up", "down", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """What a metric measures, which direction is better, and its guide lines.

    `also` are other words that people use for it; searches find it by them. `best` is whether its
    best value tells how good the run became, as a reward's does; the least time of a step does not.
    """

    name: str
    label: str
    also: str = ""
    unit: str = ""
    direction: Direction = "none"
    help: str
    guides: tuple[float, ...] = ()
    best: bool = False


def _spec(
    name: str, label: str, help: str, direction: Direction = "none", unit: str = "",
    guides: tuple[float, ...] = (), also: str = "", best: bool = False,
) -> MetricSpec:  # fmt: skip
    return MetricSpec(
        name=name, label=label, unit=unit, direction=direction, help=help, guides=guides,
        also=also, best=best,
    )  # fmt: skip


_SPECS = (
    _spec("reward", "reward", "Mean of the weighted rewards of this step's answers. "
          "It is noisy because each step has different prompts; look at the smoothed line.", "up",
          also="score, points", best=True),
    _spec("reward_std", "reward spread", "Standard deviation of the weighted rewards over this "
          "step's answers. At 0 all score alike and there is nothing to learn from.",
          also="variance, standard deviation of the reward"),
    _spec("frac_reward_zero_std", "groups without signal", "Share of groups whose answers all "
          "scored the same, a KL penalty in the reward included. They do not change the model: too "
          "easy or too hard.", "down",
          "share", (0.5,), also="no signal, wasted prompts, zero advantage"),
    _spec("groups/skipped", "groups skipped", "Groups that took no part in the update. Without a "
          "KL penalty a group without signal has no gradient, so its forward pass is saved.",
          "down", "groups"),
    _spec("groups/refilled", "groups refilled", "Groups without signal that dynamic sampling "
          "replaced by other prompts. Each costs the time of a whole group.", "down", "groups"),
    _spec("prompts/passed_over", "prompts passed over", "Training problems that were not drawn in "
          "this step, because of their pass rates or their length. See task.curriculum.", "none",
          "prompts"),
    _spec("loss", "loss", "The negative of the objective, which the last pass minimised. It often "
          "reads near 0: at ratio 1 the pushes up and down of a group cancel, and the model still "
          "learns.", "none",
          also="objective"),
    _spec("kl", "KL to reference", "Mean over tokens of the k3 estimate of the distance to the "
          "reference policy in the last pass, each times its ratio if the recipe's KL penalty is. "
          "It grows as the model learns; a sudden rise means it is drifting.", "none", "nats",
          (0.1,),
          also="distance from the reference, far, furthest, drift, divergence"),
    _spec("kl_to_old", "KL to sampling policy", "Distance to the policy that sampled the answers, "
          "in the last pass and before its updates: how far earlier ones moved the policy. With "
          "one pass of one minibatch it is 0 by construction.", "none", "nats",
          also="distance, drift, policy change"),
    _spec("entropy", "entropy", "Mean entropy of the next-token distribution on answer tokens, "
          "in the first pass. Near 0 the policy has stopped exploring and groups lose their "
          "signal.", "none", "nats",
          also="exploration, diversity, randomness, uncertainty"),
    _spec("clip_ratio/low_mean", "clipped low", "Share of tokens that are pushed down and whose "
          "ratio is below the lower bound in the last pass, so that the push stops. With one pass "
          "of one minibatch it is 0 by construction.",
          "none", "share"),
    _spec("clip_ratio/high_mean", "clipped high", "Share of tokens that are pushed up and whose "
          "ratio is above the upper bound in the last pass, so that the push stops. With one pass "
          "of one minibatch it is 0 by construction.",
          "none", "share"),
    _spec("clip_ratio/region_mean", "clipped", "Share of tokens whose push was stopped by either "
          "bound in the last pass. Above 0.3 the passes move the policy too far for one batch.",
          "none", "share",
          (0.3,), also="clipping, bound"),
    _spec("clip_ratio/low_min", "clipped low, least", "Smallest share of tokens clipped low "
          "among the answers, in the last pass. It shows how uneven the answers are.",
          unit="share"),
    _spec("clip_ratio/high_max", "clipped high, most", "Largest share of tokens clipped high "
          "among the answers, in the last pass. It shows how uneven the answers are.",
          unit="share"),
    _spec("cispo_clip_ratio", "weights capped", "Share of tokens that are pushed up and whose "
          "weight CISPO capped, in the last pass. They keep their gradient; only its size is "
          "bounded.", "none", "share"),
    _spec("vespo/phi_seq_mean", "VESPO's weight", "Mean weight that VESPO gives the gradient of an "
          "answer. It is 1 on fresh answers and falls as their ratios move far from 1.", "none"),
    _spec("at_bound", "pushes stopped", "Share of pushed tokens whose push has stopped at a bound, "
          "in the last pass. Near 1 another pass over the same rollouts would change nothing.",
          "none", "share"),
    _spec("completions/mean_length", "answer length", "Mean number of tokens of an answer, its "
          "end token included. Growth without reward is padding.", "none", "tokens",
          also="completion, long, short, verbose"),
    _spec("completions/min_length", "shortest answer", "Tokens of the shortest answer. Answers of "
          "one token often mean that the model gives up.", "none", "tokens"),
    _spec("completions/max_length", "longest answer", "Tokens of the longest answer. At the limit "
          "it was cut.", "none", "tokens"),
    _spec("completions/clipped_ratio", "answers cut", "Share of answers that hit the length limit "
          "before an end token. Their result is missing, so it earns no reward.", "down", "share",
          (0.5,), also="truncated, truncation, cut off, too long, length limit"),
    _spec("completions/mean_terminated_length", "finished length", "Mean tokens of the answers "
          "that ended by themselves. Compare it with the limit.", "none", "tokens"),
    _spec("completions/min_terminated_length", "shortest finished", "Tokens of the shortest answer "
          "that ended by itself. Very short ones often mean giving up.", "none", "tokens"),
    _spec("completions/max_terminated_length", "longest finished", "Tokens of the longest answer "
          "that ended by itself. If it nears the limit, raise the limit.", "none", "tokens"),
    _spec("completions/duplicates", "duplicates", "Share of answers that repeat an earlier one of "
          "their group token by token, so that 8 equal answers are 7 of 8. Many duplicates mean "
          "little exploration.", "down", "share",
          also="identical, repeated, same answers"),
    _spec("grad_norm", "gradient norm", "Length of the gradient of the step's last update before "
          "clipping, over all trained weights but a critic's. A spike is a batch that would have "
          "moved the policy too far.", "none",
          also="update size, explosion"),
    _spec("learning_rate", "learning rate", "Step size of the optimiser in this step. It follows "
          "the schedule.", "none", also="lr, step size"),
    _spec("num_tokens", "tokens", "Prompt and answer tokens processed since the start, a prompt's "
          "once for all of its group. Use it to compare runs at equal work.", "none", "tokens"),
    _spec("advantage/abs_mean", "advantage", "Mean size of the advantages over the tokens of the "
          "update, so that a long answer counts more. It is the strength of the push before any "
          "clipping."),
    _spec("ratio/mean", "ratio", "Mean ratio of new to old probability in the last pass. Far from "
          "1 the rollouts are stale."),
    _spec("ratio/clamped", "ratios clamped", "Share of tokens whose log-ratio was beyond 60 and "
          "was cut off, in the last pass. Anything above 0 means that the policies differ "
          "completely.", "down", "share"),
    _spec("sampling/sampling_logp_difference/mean", "sampler gap", "Mean difference between the "
          "sampler's log-probability and the trainer's for the same token. It should be tiny.",
          "down", "nats"),
    _spec("sampling/sampling_logp_difference/max", "sampler gap, largest", "Largest difference "
          "between the sampler's log-probability and the trainer's. Above 0.001 in float32 "
          "something differs between the two.", "down", "nats", (0.001,)),
    _spec("sampling/importance_sampling_ratio/min", "sampler weight, least", "Smallest "
          "importance weight of a token or an answer. It is 0 where some are left out."),
    _spec("sampling/importance_sampling_ratio/mean", "sampler weight", "Mean "
          "importance weight of tokens or answers. It is near 1 where sampler and trainer agree."),
    _spec("sampling/importance_sampling_ratio/max", "sampler weight, most", "Largest "
          "importance weight of a token or an answer. It is at most the cap."),
    _spec("sampling/masked_ratio", "masked for the gap", "Share of answer tokens left out of "
          "the loss because sampler and policy differ too much about them. They still count in "
          "every average.", "down", "share"),
    _spec("target/reached", "targets reached", "Share of pushed tokens within tolerance of their "
          "target probability after the last pass. The rest needs more passes.", "up", "share"),
    _spec("target/overshot", "targets overshot", "Share of pushed tokens beyond their target "
          "after the last pass. Shared weights move tokens together.", "down", "share"),
    _spec("target/wrong_way", "moved the wrong way", "Share of pushed tokens that moved away from "
          "their target. Shared weights move tokens together.", "down", "share"),
    _spec("value/loss", "critic loss", "Half the squared error of the critic's value of a token, "
          "mean over the last pass. It should fall while the critic learns what to expect.",
          "down"),
    _spec("value/explained_variance", "critic explains", "Share of the returns' variance that the "
          "critic explains. At 0 it is no better than a constant baseline.", "up", "share"),
    _spec("entropy_bonus", "entropy bonus", "Weight of the entropy bonus in this step. With an "
          "entropy target it is adjusted.", "none"),
    _spec("passes", "passes", "Passes over the rollouts that were made in this step. Early "
          "stopping makes it smaller than the setting.", "none", "passes"),
    _spec("time/generate", "time: generate", "Seconds spent sampling answers. Usually the largest "
          "part of a step.", "down", "s", also="slow, speed, duration, sampling"),
    _spec("time/score", "time: score", "Seconds spent in reward functions. It should be small "
          "beside sampling.", "down", "s", also="slow, speed, duration, reward functions"),
    _spec("time/logprobs", "time: logprobs", "Seconds spent on old and reference "
          "log-probabilities, and on those that are recorded after the update. It is 0 when none "
          "is needed.", "down", "s",
          also="slow, speed, duration"),
    _spec("time/update", "time: update", "Seconds spent in forward, backward and optimiser. It "
          "grows with passes.", "down", "s", also="slow, speed, duration, backward, optimiser"),
    _spec("time/others", "time: other programs", "Processor seconds that other programs used "
          "during the step. Where they and the step time grow together, the machine is busy.",
          "none", "s", also="slow, busy machine"),
    _spec("time/environment", "time: environment", "Seconds in which sampling waited for "
          "environments and no row could continue. It is part of the time for sampling.", "down",
          "s", also="slow, waiting"),
    _spec("turns/mean", "turns", "Mean turns of the model in an answer. It tells how much of a "
          "dialogue the model makes use of.", "none", "turns"),
    _spec("turns/max", "most turns", "Turns of the longest dialogue. At task.max_turns it was "
          "cut.", "none", "turns"),
    _spec("tools/call_frequency", "tool calls", "Calls of tools per answer. At 0 the model does "
          "not use its tools.", "none", "calls"),
    _spec("tools/failure_frequency", "tool calls failed", "Share of tool calls that could not be "
          "made or gave an error. The model sees the error and can learn from it.", "down",
          "share"),
    _spec("environment/errors", "environments failed", "Share of answers whose environment "
          "failed. They get no reward.", "down", "share"),
    _spec("step_time", "step time", "Seconds of the whole step without pauses. If it doubles, "
          "the machine is busy or answers got longer.", "down", "s", also="slow, speed, duration"),
    _spec("tokens_per_second", "tokens per second", "Answer tokens sampled per second of "
          "sampling. It tells how well decoding is batched.", "up", "tok/s",
          also="slow, speed, throughput"),
    _spec("memory/peak_gb", "peak memory", "Most memory that model, gradients and activations took "
          "in this step. It should stay flat over a run.", "down", "GB", also="RAM"),
    _spec("eval/accuracy", "held-out accuracy, sampled", "Share of answers to held-out problems "
          "that are right. It is the honest measure of progress.", "up", "share",
          also="test, validation, correct, right answers", best=True),
    _spec("eval/reward", "held-out reward, sampled", "Mean reward on held-out problems. Compare it "
          "with the training reward to see overfitting.", "up", best=True),
    _spec("eval/turns", "held-out turns, sampled", "Mean turns of the model in held-out dialogues. "
          "One that is cut counts with the turns it had.", "none", "turns"),
    _spec("eval/format", "held-out format, sampled", "Share of held-out answers in the requested "
          "format. A rise of format alone is not reasoning.", "up", "share", best=True),
)  # fmt: skip

METRICS: dict[str, MetricSpec] = {spec.name: spec for spec in _SPECS}


def time_of(phase: str) -> str:
    """The metric with the seconds of a phase."""
    return f"time/{phase}"


def phase_seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's seconds by phase and in what is no phase, `other`; they sum to `step_time`."""
    spent: dict[str, float] = {
        phase: metrics[time_of(phase)] for phase in PHASES if time_of(phase) in metrics
    }
    if not spent or not metrics.get("step_time"):
        return spent
    return {**spent, "other": max(0.0, metrics["step_time"] - math.fsum(spent.values()))}


_BY_FUNCTION = re.compile(r"(?:sampled/)?rewards/(.+)/(?:mean|std)|eval/(?:greedy/)?rewards/(.+)")
_HELD_OUT = re.compile(
    r"eval/(?:greedy/)?(?:task/.+/)?"
    r"(?:(?:accuracy|accuracy_of_formatted|format|reward|turns)(?:_low|_high)?"
    r"|mean_length|truncated|pass@\d+)"
)


_BY_TASK = re.compile(
    r"task/(?P<task>.+?)/(?P<rest>reward|frac_reward_zero_std|groups|rewards/.+/mean)"
)


def is_metric(name: str) -> bool:
    """Whether a run may measure this: a described metric, or one named after what it measures."""
    found = (
        name in METRICS,
        function_of(name),
        _HELD_OUT.fullmatch(name),
        _BY_TASK.fullmatch(name),
    )
    return any(found)


def function_of(name: str) -> str:
    """The reward function that a metric is named after; empty for other metrics."""
    found = _BY_FUNCTION.fullmatch(name)
    return (found[1] or found[2]) if found else ""


def spec(name: str) -> MetricSpec:
    """Describe a metric; names that contain a reward function's name are matched by pattern."""
    if name in METRICS:
        return METRICS[name]
    head, _, rest = name.partition("/")
    if head == "env":
        return _spec(name, rest, f"{rest}, as the environments told it at the end of their "
                     "episodes. It is the mean over answers.")  # fmt: skip
    if of_task := _BY_TASK.fullmatch(name):
        return _of_task(name, of_task["task"], of_task["rest"])
    if head == "rewards":
        return _reward_spec(name, rest)
    if head == "sampled":
        kept = spec(rest)
        return _spec(name, f"{kept.label}, all sampled", f"As {kept.label}, over all answers that "
                     "were sampled. Dynamic sampling keeps only groups whose answers differ.",
                     kept.direction, best=kept.best)  # fmt: skip
    if head == "eval" and rest.startswith("greedy/"):
        found = spec(f"eval/{rest.removeprefix('greedy/')}")
        label = f"{found.label.removesuffix(', sampled')}, greedy"
        return replace(found, name=name, label=label)
    if head == "eval" and rest.startswith("task/"):
        task, _, leaf = rest.removeprefix("task/").rpartition("/")
        found = spec(f"eval/{leaf}")
        return replace(found, name=name, label=f"{task}: {found.label}")
    if head == "eval":
        leaf = rest.rpartition("/")[2]
        if leaf in ("truncated", "mean_length"):
            return _held_out_length(name, leaf)
        return _spec(name, f"held-out {rest}, sampled", f"{rest} on held-out problems. It is "
                     "measured without training on them.", "up", best=True)  # fmt: skip
    return _spec(name, name, f"{name}, logged by a reward function or a newer engine. It has no "
                 "description of its own.")  # fmt: skip


def natural_range(name: str) -> tuple[float, float]:
    """The least and the greatest value that a metric can have."""
    if name == "value/explained_variance":
        return -math.inf, 1.0
    unit = spec(name).unit
    if unit == "share":
        return 0.0, 1.0
    positive = unit or name.endswith(("std", "grad_norm"))
    return (0.0 if positive else -math.inf), math.inf


def _held_out_length(name: str, leaf: str) -> MetricSpec:
    if leaf == "truncated":
        return _spec(name, "held-out truncated, sampled", "Share of held-out answers that were "
                     "cut at the longest length. A cut answer rarely contains its result.", "down",
                     "share")  # fmt: skip
    return _spec(name, "held-out length, sampled", "Mean length of held-out answers. Longer is "
                 "neither better nor worse by itself.", "none", "tokens")  # fmt: skip


def _of_task(name: str, task: str, rest: str) -> MetricSpec:
    if rest == "groups":
        return _spec(name, f"{task}: groups", f"Prompts of task {task} in this step, those that "
                     "were replaced included. Its weight decides how many.",
                     unit="groups")  # fmt: skip
    found = spec(rest)
    return replace(found, name=name, label=f"{task}: {found.label}")


def _reward_spec(name: str, rest: str) -> MetricSpec:
    function, _, part = rest.rpartition("/")
    if part == "std":
        text = (
            f"Standard deviation of {function} over this step's answers. "
            "At 0 the function scores all answers the same."
        )
        return _spec(name, f"{function} spread", text)
    text = (
        f"Mean of {function or rest} over this step's answers. "
        "Answers it does not apply to are left out."
    )
    return _spec(name, function or rest, text, "up", also="reward function, score", best=True)
