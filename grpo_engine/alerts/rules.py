"""Alert rules: each reads the metrics of recent steps and returns an alert or None."""

import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, permutations

from grpo_engine.alerts.change import (
    LIKELY,
    SPAN,
    SURE,
    TINY,
    Evaluation,
    MetricChange,
    change_of,
    go_back,
    mean,
    variance,
)
from grpo_engine.config.mismatch import ROUNDING, Gap
from grpo_engine.config.recipes import Recipe
from grpo_engine.config.settings import AlertsConfig
from grpo_engine.events import Severity
from grpo_engine.frozen import frozen
from grpo_engine.numbers import short

MOSTLY_RIGHT = 0.8  # above this accuracy, only the format is left to learn
SOLVED = 0.95  # above this accuracy, nothing is
# How many of the last steps are compared with a threshold, by its setting: KL by their median.
COMPARED = {"kl": 5, "clip": 5, "cut": 3}
MEAN_GAP, MAX_GAP = (f"sampling/sampling_logp_difference/{name}" for name in ("mean", "max"))
# limits of a corrected gap: as a multiple of the first step's, and of what rounding explains
GROWN, MAX_RATIO = 5.0, Gap(20.0, 4.0)
FAR = 5.0  # multiple of a limit beyond which right answers are no excuse
UNKNOWN = 2.0  # multiple while it cannot be told whether answers get better
EARLY = 3  # steps that tell how a run began
KL_JUMP, GRAD_NORM, STEP_TIME = 10.0, 10.0, 2.0  # multiples of the usual
ENTROPY_LEAST, LENGTH_LEAST = 0.1, 0.5  # shares of the first steps
LENGTH = 1.25  # growth of answers in 20 steps, as a factor
CLIP, CLIP_LEAST = 0.3, 1e-4  # shares of tokens at their bound: too many, and as good as none
REWARD_TIME = 0.5  # share of a step
MEMORY = 0.9  # share of the memory limit
SATURATED = 0.1  # spread of a reward as a share of that in the first steps
AT_REFERENCE = 1e-3  # KL in nats per token of a policy that has hardly moved
FAR_TEACHER = 1.0  # nats per token; where a teacher is learned from, there are a few tenths
DISTILLED, DISTANCE_LEFT = 8, 0.85  # steps in which a part of the first distance should be gone
MASKED = 0.25  # share of tokens that the correction may mask
SWAPPED = 0.05  # GB of swap in a step that are more than other programs' coming and going
SHORT = 2.0  # `memory/pressure` that macOS calls a warning
BUSIER = 0.5  # processors that other programs use beside those they used before


@frozen
class RunLimits:
    """What the rules need to know about the run besides its metrics.

    `weights` are those of the reward functions. `sequence_ratio` says that a completion has one
    ratio, so that whole completions are clipped. `demonstrates` says that they are the data's,
    `reads_rewards` that rewards are learned from and not only measured.
    """

    updates_per_step: int = 1
    has_bounds: bool = True
    sequence_ratio: bool = False
    demonstrates: bool = False
    reads_rewards: bool = True
    accuracy: str | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    sampler_gap: Gap = ROUNDING["float32"]
    corrected: bool = False
    has_teacher: bool = False
    memory_gb: float = math.inf
    planned_gb: float = math.inf
    processors: int = os.cpu_count() or 1
    thresholds: AlertsConfig = field(default_factory=AlertsConfig)

    @staticmethod
    def of(recipe: Recipe, thresholds: AlertsConfig) -> "RunLimits":
        """What follows from the settings alone."""
        return RunLimits(
            updates_per_step=recipe.passes * recipe.minibatches,
            has_bounds=recipe.trust_rule.stops_at == "bounds",
            sequence_ratio=recipe.has_sequence_ratio,
            demonstrates=recipe.demonstrates,
            reads_rewards=recipe.reads_rewards,
            corrected=recipe.importance_cap > 0,
            thresholds=thresholds,
        )


@frozen
class MonitoredRun(RunLimits):
    """The run as rules see it; `history` ends with the current step, `start` has the first ten.

    `evaluations` are of one mode, oldest first.
    """

    step: int
    history: Sequence[Mapping[str, float]]
    start: Sequence[Mapping[str, float]]
    evaluations: Sequence[Evaluation]

    def last(self, key: str, count: int, skip: int = 0) -> list[float]:
        """Return `count` values of a metric before the last `skip`; empty if there are fewer."""
        end = len(self.history) - skip
        values = [row[key] for row in self.history[max(0, end - count) : end] if key in row]
        return values if len(values) == count else []

    def first(self, key: str) -> list[float]:
        """Return a metric's values in the first ten steps; empty until there are ten."""
        values = [row[key] for row in self.start if key in row]
        return values if len(values) == SPAN else []

    def changes(self, key: str) -> Iterator[MetricChange]:
        """How a metric's mean over ten steps changed since the ten before, and since the start."""
        return (change for (change,) in self.changes_of(key))

    def changes_of(self, *keys: str) -> Iterator[tuple[MetricChange, ...]]:
        """The changes of several metrics over the same steps."""
        if self.is_early:
            return
        late = [self.last(key, SPAN) for key in keys]
        latest, before = self.step - SPAN, self.step - 2 * SPAN
        for begin, early in (
            (before, [self.last(key, SPAN, skip=SPAN) for key in keys]),
            (0, [self.first(key) for key in keys]),
        ):
            steps = f"means of steps {begin + 1}–{begin + SPAN} and {latest + 1}–{self.step}"
            if all(late) and all(early):
                yield tuple(
                    replace(change_of(a, b), steps=steps) for a, b in zip(early, late, strict=True)
                )

    @property
    def rewards(self) -> list[str]:
        """The reward functions that scored in this step; penalties of the recipe are none."""
        names = [
            key[len("rewards/") : -len("/mean")]
            for key in self.history[-1]
            if key.startswith("rewards/") and key.endswith("/mean")
        ]
        return [name for name in names if name in self.weights or not self.weights]

    @property
    def held_out(self) -> MetricChange | None:
        """How held-out accuracy changed from the first evaluation to the last."""
        first, *later = self.evaluations or (None,)
        return first.change(later[-1]) if first and later else None

    @property
    def best(self) -> Evaluation | None:
        """The best evaluation before the last one."""
        return max(self.evaluations[:-1], key=lambda earlier: earlier.accuracy, default=None)

    @property
    def right(self) -> list[MetricChange]:
        """How the share of right answers in training changed: lately, and since the start."""
        return list(self.changes(mean_of(self.accuracy))) if self.accuracy else []

    @property
    def progress(self) -> MetricChange | None:
        """How right answers in training changed since the very first steps.

        Some recipes learn within ten steps, so the mean of ten says little about the start.
        """
        key = mean_of(self.accuracy or "")
        first, late = self.first(key), self.last(key, SPAN)
        if not first or not late or self.is_early:
            return None
        spread = max(variance(first), variance(late)) * (1 / EARLY + 1 / SPAN)
        return MetricChange(before=mean(first[:EARLY]), after=mean(late), error=math.sqrt(spread))

    @property
    def is_early(self) -> bool:
        """Whether there are too few steps to tell if answers get better."""
        return len(self.history) < 2 * SPAN

    @property
    def learns(self) -> bool:
        """Whether more answers are right than at the start, and no fewer than lately.

        Held-out problems decide where they were tried in the last twenty steps; those of the last
        ten also where right answers fell in training.
        """
        held_out, best, progress = self.held_out, self.best, self.progress
        fell = any(change.fell() for change in self.right[:1])
        if held_out and best and (age := self.step - self.evaluations[-1].step) < 2 * SPAN:
            if held_out.fell(LIKELY) or best.change(self.evaluations[-1]).fell():
                return False
            if held_out.rose(LIKELY) and (age < SPAN or not fell):
                return True
        if progress is None or fell:
            return False
        return progress.rose(1.0) or progress.after >= MOSTLY_RIGHT

    @property
    def solves(self) -> bool:
        """Whether most answers are right, and more than at the start where that can be told."""
        right = self.last(mean_of(self.accuracy), 5) if self.accuracy else []
        return mean(right) > 0.5 and (self.learns or self.is_early)

    @property
    def no_gain(self) -> str:
        """What an explanation adds on right answers, if there is an accuracy function."""
        return ", and no more of them are right than at the start" if self.accuracy else ""

    def excused(self, limit: float) -> float:
        """The limit, or a multiple of it while answers get better or that cannot be told."""
        if self.learns:
            return FAR * limit
        return UNKNOWN * limit if self.accuracy and self.is_early else limit


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule's finding: severity, explanation, remedy, and the value beside its limit."""

    severity: Severity
    explanation: str
    remedy: str
    value: float | None = None
    limit: float | None = None


def mean_of(function: str) -> str:
    """The metric with the mean of a reward function's scores."""
    return f"rewards/{function}/mean"


def _usual(values: Sequence[float], default: float = 0.0) -> float:
    return statistics.median(values) if values else default


def _share_above(
    run: MonitoredRun, key: str, steps: int, limit: float, explanation: str, remedy: str
) -> Alert | None:
    """A warning if a share is high in the mean of some steps; `explanation` formats it."""
    share = mean(run.last(key, steps))
    if share <= limit:
        return None
    return Alert("warning", explanation.format(share), remedy, share, limit)


def no_signal(run: MonitoredRun) -> Alert | None:
    """Too many groups teach nothing; where answers became right, that is how it should be."""
    if run.solves or run.has_teacher:
        return None
    return _share_above(
        run,
        "frac_reward_zero_std",
        5,
        run.thresholds.no_signal,
        "{:.0%} of the prompts in the last 5 steps had no signal: all their answers scored the "
        "same.",
        "Use harder tasks if all are right and easier ones if all are wrong, larger groups, "
        "or dynamic sampling (algorithm.refill_rounds).",
    )


def task_solved(run: MonitoredRun) -> Alert | None:
    share = mean(run.last("frac_reward_zero_std", SPAN))
    right = mean(run.last(mean_of(run.accuracy), SPAN)) if run.accuracy else 0.0
    if run.has_teacher or share <= run.thresholds.no_signal or right < SOLVED:
        return None
    return Alert(
        "info",
        f"{right:.0%} of the answers are right and {share:.0%} of the prompts have no "
        "signal: there is hardly anything left to learn from these problems.",
        "Stop here, or train on harder problems.",
        right,
        SOLVED,
    )


def format_hacking(run: MonitoredRun) -> Alert | None:
    """Reward rises while right answers become fewer, or stay as few as they were.

    Many models learn the format first, so answers that stay as they were count after 30 steps.
    """
    if run.accuracy is None or run.learns:
        return None
    is_late = len(run.history) >= 3 * SPAN
    for reward, right in run.changes_of("reward", mean_of(run.accuracy)):
        still = is_late and right.after < MOSTLY_RIGHT and not right.rose(1.0)
        if (right.fell() and not reward.fell()) or (reward.rose() and still):
            tried = f", and held-out accuracy {_held_out(run)}" if run.held_out else ""
            return Alert(
                "warning",
                "The model is rewarded for something other than right answers: "
                f"{run.accuracy} went {right} while reward went {reward} ({reward.steps})"
                f"{tried}.{_paid(run)}",
                f"Give {run.accuracy} more weight (rewards.weights), and the others less "
                "or none; look at the answers that score highest.",
                right.after,
            )
    return None


def _held_out(run: MonitoredRun) -> str:
    """How held-out accuracy changed between the first evaluation and the last, with their steps."""
    first, last = run.evaluations[0], run.evaluations[-1]
    return f"{first.change(last).in_percent} (steps {first.step} and {last.step})"


def _paid(run: MonitoredRun) -> str:
    """Which other reward rose most in all, as a sentence."""
    rises = {
        name: run.weights.get(name, 1.0) * change.size
        for name in run.rewards
        if name != run.accuracy
        for change in run.changes(mean_of(name))
        if change.rose()
    }
    best = max(rises, key=rises.__getitem__, default="")
    return f" Most of the rise is from {best}." if best else ""


def reward_conflict(run: MonitoredRun) -> Alert | None:
    """One reward function rises while another falls; the accuracy has a rule of its own."""
    for up, down in permutations(run.rewards, 2):
        if down == run.accuracy:
            continue
        for pair in run.changes_of(mean_of(up), mean_of(down)):
            rise, fall = map(partial(_gain, run), (up, down), pair)
            if rise.rose() and fall.fell():
                return Alert(
                    "warning",
                    f"{up} and {down} ask for opposite things: {up} went {rise} "
                    f"while {down} went {fall} ({fall.steps}).",
                    f"Read answers that score high in {up} and low in {down}; drop one of "
                    "the two or change rewards.weights.",
                    fall.after,
                )
    return None


def _gain(run: MonitoredRun, function: str, change: MetricChange) -> MetricChange:
    """The change of a reward's scores; one with a negative weight gains where they fall."""
    if run.weights.get(function, 1.0) >= 0:
        return change
    return MetricChange(before=-change.before, after=-change.after, error=change.error)


def reward_fell(run: MonitoredRun) -> Alert | None:
    for change in run.changes("reward"):
        if change.fell():
            return Alert(
                "warning",
                f"Reward fell {change} ({change.steps}): the updates make the answers worse.",
                "Lower optimizer.learning_rate or algorithm.passes, check the signs of "
                "rewards.weights, and go back to a checkpoint from before the fall.",
                change.after,
            )
    return None


def nothing_learned(run: MonitoredRun) -> Alert | None:
    """The policy stays at its reference, and the reward where it was."""
    kl, (*_, change) = _usual(run.last("kl", SPAN), math.inf), (None, *run.changes("reward"))
    if kl >= AT_REFERENCE or len(run.history) < 3 * SPAN:
        return None
    if change is None or change.rose(LIKELY):
        return None
    return Alert(
        "info",
        f"After {run.step} steps the policy is {short(kl)} nats per token from its reference, "
        f"and reward went {change} ({change.steps}): hardly anything is learned.",
        "Raise optimizer.learning_rate or lower algorithm.beta.",
        kl,
        AT_REFERENCE,
    )


def teacher_too_far(run: MonitoredRun) -> Alert | None:
    """The policy stays as far from its teacher as it was.

    A median, since the distance of a step is that of the few tokens which the teacher rules out.
    """
    first = _usual([row["teacher/kl"] for row in run.start[:EARLY] if "teacher/kl" in row])
    now, limit = _usual(run.last("teacher/kl", EARLY)), max(FAR_TEACHER, DISTANCE_LEFT * first)
    if len(run.history) < DISTILLED or now <= limit or run.learns:
        return None
    return Alert(
        "warning",
        f"After {run.step} steps the policy is {short(now)} nats per token from its teacher, and "
        f"was {short(first)} in the first {EARLY}: the teacher would hardly give any of its "
        "answers, so it does not tell better ones from worse.",
        "Learn answers of the teacher first (`grpo-tui export RUN --format sft`, algorithm.recipe "
        "sft) and continue from there, or choose a teacher whose answers have the same form.",
        now,
        limit,
    )


def reward_saturated(run: MonitoredRun) -> Alert | None:
    """A reward that varied gives nearly all answers the same high score, and accuracy is flat."""
    if run.accuracy is None or run.learns:
        return None
    for name in run.rewards:
        changes = list(run.changes_of(mean_of(name), f"rewards/{name}/std"))
        if name == run.accuracy or not changes:
            continue
        rise, spread = changes[-1]
        limit = SATURATED * spread.before
        if rise.rose() and spread.after < limit:
            right = run.history[-1].get(mean_of(run.accuracy), 0.0)
            return Alert(
                "warning",
                f"Nearly all answers have the highest score in {name}, which has "
                f"nothing more to teach, while {run.accuracy} is {short(right)}.",
                f"Drop {name} or give it less weight, so that {run.accuracy} counts.",
                spread.after,
                limit,
            )
    return None


def kl_above_limit(run: MonitoredRun) -> Alert | None:
    """The median of a few steps: some odd tokens can raise the mean of one step tenfold."""
    kl = _usual(run.last("kl", COMPARED["kl"]))
    limit = run.excused(run.thresholds.kl)
    if kl <= limit:
        return None
    return Alert(
        "warning",
        f"The policy is {short(kl)} nats per token away from its reference: it may be "
        "losing abilities of the base model.",
        "Raise algorithm.beta, lower optimizer.learning_rate, or stop here and evaluate.",
        kl,
        limit,
    )


def kl_exploding(run: MonitoredRun) -> Alert | None:
    """KL far above the usual: in two steps, or so far that it cannot be a few odd tokens."""
    now = run.last("kl", 2)
    for values, floor in (now, 0.05), (now[1:], KL_JUMP * run.thresholds.kl):
        usual = _usual(run.last("kl", 5, skip=len(values)), math.inf)
        limit = max(floor, KL_JUMP * usual)
        if values and min(values) > limit:
            return Alert(
                "error",
                f"KL jumped to {short(values[-1])} from a median of {short(usual)}: an "
                "update moved the policy too far.",
                "Lower optimizer.learning_rate or optimizer.max_grad_norm; go back to a "
                "checkpoint.",
                values[-1],
                limit,
            )
    return None


def _collapse(
    run: MonitoredRun,
    key: str,
    share: float,
    explanation: Callable[[float, float], str],
    remedy: str,
) -> Alert | None:
    """A warning if a metric fell below this share of its start; `explanation` gets both."""
    start, recent = mean(run.first(key)[:EARLY]), run.last(key, 5)
    now, limit = mean(recent), share * start
    if not recent or now >= limit or run.learns or run.is_early or run.demonstrates:
        return None
    return Alert("warning", explanation(start, now), remedy, now, limit)


def entropy_collapse(run: MonitoredRun) -> Alert | None:
    return _collapse(
        run,
        "entropy",
        ENTROPY_LEAST,
        lambda start, now: (
            f"Entropy fell to {short(now)} from {short(start)} at the start: the answers to a "
            "prompt become the same, and groups lose their signal."
        ),
        "Raise rollout.temperature, algorithm.clip_high or algorithm.entropy_bonus, or "
        "lower optimizer.learning_rate.",
    )


def length_collapse(run: MonitoredRun) -> Alert | None:
    return _collapse(
        run,
        "completions/mean_length",
        LENGTH_LEAST,
        lambda start, now: (
            f"Answers shrank from {start:.0f} to {now:.0f} tokens{run.no_gain}: the model gives up "
            "or is rewarded for being short."
        ),
        "Read the shortest answers of this step; drop or lower a reward that pays for "
        "short answers, or give a right answer more weight.",
    )


def length_growth(run: MonitoredRun) -> Alert | None:
    length = next(run.changes("completions/mean_length"), None)
    reward = next(run.changes("reward"), None)
    if length is None or reward is None or reward.rose(LIKELY) or run.learns:
        return None
    limit = LENGTH * length.before
    if length.after <= limit:
        return None
    return Alert(
        "warning",
        f"Answers grew from {length.before:.0f} to {length.after:.0f} tokens in 20 "
        "steps while the reward did not rise: the model is padding.",
        "Use algorithm.weight per_token or constant, or a soft length penalty "
        "(algorithm.overlong_buffer).",
        length.after,
        limit,
    )


def most_truncated(run: MonitoredRun) -> Alert | None:
    return _share_above(
        run,
        "completions/clipped_ratio",
        COMPARED["cut"],
        run.thresholds.cut,
        "{:.0%} of the answers in the last "
        f"{COMPARED['cut']} steps were cut at the length limit and could not finish.",
        "Raise rollout.max_new_tokens, or ask for shorter answers in task.system_prompt.",
    )


def clip_too_much(run: MonitoredRun) -> Alert | None:
    if run.updates_per_step < 2 or run.sequence_ratio:
        return None
    return _share_above(
        run,
        "clip_ratio/region_mean",
        COMPARED["clip"],
        CLIP,
        "{:.0%} of the tokens were at their bound over the last "
        f"{COMPARED['clip']} steps: later passes have little effect.",
        "Lower optimizer.learning_rate or algorithm.passes.",
    )


def clip_never(run: MonitoredRun) -> Alert | None:
    shares = run.last("clip_ratio/region_mean", 10)
    if run.updates_per_step < 2 or not run.has_bounds or not shares or max(shares) > CLIP_LEAST:
        return None
    return Alert(
        "info",
        "No token was clipped in 10 steps although each batch is used for "
        f"{run.updates_per_step} updates: the bounds have no effect.",
        "The learning rate may be raised, or passes lowered to save time.",
        max(shares),
        CLIP_LEAST,
    )


def loss_not_finite(run: MonitoredRun) -> Alert | None:
    """Another trainer's loss; this program leaves such an update out, and says so itself."""
    loss = run.history[-1].get("loss", 0.0)
    if math.isfinite(loss):
        return None
    return Alert(
        "error",
        f"The loss was {loss}: unless the trainer left this update out, the weights are broken.",
        "Go back to a checkpoint from before it; lower the learning rate, and train in bfloat16 or "
        "float32 rather than float16.",
    )


def gradient_spike(run: MonitoredRun) -> Alert | None:
    now, before = run.last("grad_norm", 1), run.last("grad_norm", 20, skip=1)
    usual, times = _usual(before), run.excused(GRAD_NORM)
    if not now or not before or now[0] <= times * usual:
        return None
    return Alert(
        "warning",
        f"The gradient norm was {short(now[0])}, more than {times:g} times the usual "
        f"{short(usual)}.",
        "Look at this step's groups; lower optimizer.max_grad_norm if it happens again.",
        now[0],
        times * usual,
    )


def sampler_disagrees(run: MonitoredRun) -> Alert | None:
    """Report a gap that rounding does not explain; a corrected gap is judged by the first step."""
    mean, largest = now = [run.history[-1].get(key, 0.0) for key in (MEAN_GAP, MAX_GAP)]
    limits: Sequence[float] = run.sampler_gap
    if run.corrected:
        row = next((row for row in run.start if MEAN_GAP in row), {})
        first = (row.get(key, 0.0) for key in (MEAN_GAP, MAX_GAP))
        limits = [
            min(max(usual, GROWN * before), max_ratio * usual)
            for usual, before, max_ratio in zip(limits, first, MAX_RATIO, strict=True)
        ]
    beyond = [pair for pair in zip(now, limits, strict=True) if pair[0] > pair[1]]
    if not beyond:
        return None
    sizes = f"{short(mean)} nats per token on average, {short(largest)} at most"
    problem = f"Sampler and trainer give the same tokens different log-probabilities: {sizes}. "
    if run.corrected:
        reason = "Importance correction compensates for it, but rounding does not explain so much."
        remedy = "Set model.compute rows, and if that does not help model.dtype float32."
    else:
        reason = "The policy is updated on answers that a different policy sampled."
        remedy = "Set algorithm.importance_cap 3 to correct for it, or model.dtype float32."
    return Alert("warning" if run.corrected else "error", problem + reason, remedy, *beyond[0])


def many_masked(run: MonitoredRun) -> Alert | None:
    return _share_above(
        run,
        "sampling/masked_ratio",
        5,
        MASKED,
        "{:.0%} of the tokens in the last 5 steps were left out of the loss, because sampler and "
        "policy differ too much about their answers.",
        "Set importance_mode of algorithm.options to token_truncate, which masks nothing; if "
        "off_policy_mask is set there, raise it; or lower algorithm.passes or "
        "optimizer.learning_rate.",
    )


def reward_slow(run: MonitoredRun) -> Alert | None:
    score, step = sum(run.last("time/score", 3)), sum(run.last("step_time", 3))
    if not step or score < max(1.0, REWARD_TIME * step):
        return None
    return Alert(
        "warning",
        f"Reward functions took {score / step:.0%} of the last 3 steps.",
        "Make the slow function faster or async, or lower rewards.time_limit.",
        score / step,
        REWARD_TIME,
    )


def reward_constant(run: MonitoredRun) -> Alert | None:
    """A function that gives every answer the same score, and no higher one than at the start."""
    for name in run.rewards if run.reads_rewards else ():
        spread, now = run.last(f"rewards/{name}/std", SPAN), run.last(mean_of(name), SPAN)
        if not spread or max(spread) > 0 or mean(now) > mean(run.first(mean_of(name))) + TINY:
            continue
        return Alert(
            "warning",
            f"Reward function {name} gave every answer in 10 steps the same score, "
            "so it has no effect.",
            f"Try {name} with `grpo-tui rewards test`; drop it if it is always at its maximum.",
        )
    return None


def duplicates(run: MonitoredRun) -> Alert | None:
    """Many answers are copies, and no more of them are right than at the start."""
    if run.learns or run.is_early:
        return None
    return _share_above(
        run,
        "completions/duplicates",
        3,
        run.thresholds.duplicates,
        "{:.0%} of the answers in the last 3 steps repeat an earlier one of their group"
        f"{run.no_gain}: there is little exploration.",
        "Raise rollout.temperature or use harder tasks.",
    )


def memory_near_limit(run: MonitoredRun) -> Alert | None:
    peak, limit = run.last("memory/peak_gb", 1), MEMORY * run.memory_gb
    if not peak or peak[0] <= limit:
        return None
    return Alert(
        "error",
        f"The step used {peak[0]:.1f} of {run.memory_gb:.1f} GB of memory.",
        "Lower optimizer.micro_rows or rollout.max_new_tokens, or set model.grad_checkpoint on.",
        peak[0],
        limit,
    )


def memory_swapped(run: MonitoredRun) -> Alert | None:
    """Swap grows for three steps while memory is short, or while the run has more than planned."""
    swap, footprint = run.last("memory/swap_gb", 4), run.last("memory/footprint_gb", 1)
    grows = all(later - earlier > SWAPPED for earlier, later in pairwise(swap))
    if not swap or not footprint or not grows:
        return None
    is_short = run.last("memory/pressure", 1)[0] >= SHORT
    if not is_short and footprint[0] <= run.planned_gb:
        return None
    planned = "" if is_short else f" and planned to have {run.planned_gb:.1f}"
    return Alert(
        "error",
        f"Memory is swapped to disk: {swap[-1] - swap[0]:.1f} GB more in three steps, while this "
        f"run has {footprint[0]:.1f} GB{planned}. Steps take many times as long so.",
        "Close other programs, or lower rollout.max_rows, optimizer.micro_rows or "
        "rollout.max_new_tokens.",
        swap[-1],
        swap[0],
    )


def step_time_doubled(run: MonitoredRun) -> Alert | None:
    """A step takes much longer, and not because other programs use the processors."""
    now, before = (_usual(run.last("step_time", *span)) for span in STEP_TIMES)
    limit = max(STEP_TIME * before, 0.5)
    if not before or now <= limit or not _is_slow_itself(run):
        return None
    length, was = (_usual(run.last("completions/mean_length", *span)) for span in STEP_TIMES)
    if length > LENGTH * was:
        reason = f"answers went from {was:.0f} to {length:.0f} tokens"
        remedy = "Lower rollout.max_new_tokens if answers need not be so long."
    else:
        reason = "other programs use no more of the processors than before"
        remedy = (
            "Check whether memory is short, so that it is swapped to disk, or the processor is "
            "slowed down by heat."
        )
    return Alert(
        "warning",
        f"A step takes {now:.1f} s, up from {before:.1f} s: {reason}.",
        remedy,
        now,
        limit,
    )


STEP_TIMES = (3, 0), (20, 3)  # steps that are compared: how many, before how many others


def _is_slow_itself(run: MonitoredRun) -> bool:
    """Whether a slow step is slow by itself: other programs were measured and are no busier.

    On a full machine a little more for them can be half of what they leave, so a step must also
    take longer in processor time that they left to it.
    """
    (now, left), (before, left_before) = (_external_load(run, *span) for span in STEP_TIMES)
    return now - before <= BUSIER and left > STEP_TIME * left_before


def _external_load(run: MonitoredRun, count: int, skip: int) -> tuple[float, float]:
    """Processors that other programs used, and seconds of a step less their share of them all."""
    steps, loads = (run.last(key, count, skip) for key in ("step_time", "time/others"))
    pairs = [pair for pair in zip(steps, loads, strict=False) if pair[0]]
    left = _usual([step - load / run.processors for step, load in pairs])
    return _usual([load / step for step, load in pairs]), left


def held_out_flat(run: MonitoredRun) -> Alert | None:
    """Training answers become right and held-out ones do not."""
    held_out, right = run.held_out, run.right
    if held_out is None or not right or run.evaluations[0].step > SPAN:
        return None
    gap = right[-1].size - held_out.size
    error = math.hypot(right[-1].error, held_out.error)
    if not right[-1].rose() or held_out.rose(1.0) or gap <= SURE * error:
        return None
    return Alert(
        "warning",
        f"{run.accuracy} went {right[-1]} in training ({right[-1].steps}) while held-out accuracy "
        f"went {_held_out(run)}: the gain does not generalise.",
        "Use more or more varied training problems, or a higher algorithm.beta.",
        held_out.after,
    )


def held_out_fell(run: MonitoredRun) -> Alert | None:
    """Held-out accuracy is below the best of an earlier evaluation."""
    best = run.best
    if best is None or not (change := best.change(run.evaluations[-1])).fell():
        return None
    return Alert(
        "error",
        f"Held-out accuracy fell {change.in_percent} since step {best.step}: the model gets "
        "worse at the task, whatever the reward says.",
        f"{go_back(best)}; check what scores high, and lower optimizer.learning_rate or raise "
        "algorithm.beta.",
        change.after,
    )


# The functions' names are in users' files: none is renamed.
RULES: Mapping[str, Callable[[MonitoredRun], Alert | None]] = {rule.__name__: rule for rule in (
    no_signal, task_solved, format_hacking, reward_conflict, reward_fell, nothing_learned,
    teacher_too_far, reward_saturated, kl_above_limit, kl_exploding, entropy_collapse,
    length_collapse, length_growth, most_truncated, clip_too_much, clip_never, loss_not_finite,
    gradient_spike, sampler_disagrees, many_masked, reward_slow, reward_constant, duplicates,
    memory_near_limit, memory_swapped, step_time_doubled, held_out_flat, held_out_fell,
)}  # fmt: skip
