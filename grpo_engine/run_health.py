"""One word on whether a run is healthy, and the reason: from its alerts and held-out accuracy.

The word describes the end of the run: an alert counts if it was raised in the last ten steps, and a
gain in held-out accuracy if chance does not explain it, as does a fall since the best evaluation. A
run is learning if there is a gain in the second half of its steps too, else it has learned, or is
slowing while it goes on. Greedy
and sampled answers are both evidence, each compared with its own kind. Where the held-out numbers
come from a function of the user's that is also a reward, they rise whatever is learned, so they say
nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal

from grpo_engine.alerts.change import (
    LIKELY,
    SPAN,
    SURE,
    Evaluation,
    MetricChange,
    change_of,
    mean,
)
from grpo_engine.errors import ConfigError
from grpo_engine.frozen import frozen
from grpo_engine.metrics import count_of, function_of
from grpo_engine.numbers import percent
from grpo_engine.rewards.right import RIGHT_OR_WRONG, Right

ACCURACY = ("eval/accuracy", "eval/greedy/accuracy")

Point = tuple[int, float]  # a step and the accuracy there
Label = Literal[
    "learning",
    "slowing",
    "learned",
    "flat",
    "unstable",
    "hacked?",
    "broken",
    "unjudged",
    "too early",
]

NEARLY_ALL = 0.95  # accuracy above which there is hardly any gain to have
COLLAPSED, LATEST = 0.5, 5  # the share of the first step that is left in so many last steps
# What an alert means for the run, the worst first. All others leave open whether it learns.
HACKED = ("format_hacking",)
BROKEN = (
    "not_finite", "loss_not_finite", "reward_exception", "reward_crash", "reward_type",
    "reward_count", "reward_value", "environment_error",
)  # fmt: skip
UNSTABLE = (
    "kl_exploding", "kl_above_limit", "reward_fell", "gradient_spike", "clip_too_much",
    "sampler_disagrees", "many_masked", "entropy_collapse", "length_collapse",
)  # fmt: skip
# Why nothing is learned, if it is not.
REASONS_FOR_FLAT = (
    "teacher_too_far", "nothing_learned", "reward_constant", "no_signal", "most_truncated",
    "duplicates", "reward_saturated", "held_out_flat", "clip_never",
)  # fmt: skip


@frozen
class Health:
    """The word, and a sentence or two that say why."""

    label: Label
    reason: str


@frozen
class Judge:
    """Which function says that answers are right.

    `function` is the reward that does, if one does; `shared` are the user's rewards without which
    nothing would.
    """

    function: str = ""
    shared: str = ""

    @classmethod
    def of(cls, settings: Mapping[str, Any], metrics: Iterable[str]) -> "Judge":
        """The judge of a run, by its settings and the names of its metrics."""
        named = [str(name) for name in _listed(settings.get("rewards.functions"))]
        weights = _listed(settings.get("rewards.weights")) or [1.0] * len(named)
        rule = settings.get("evaluation.accuracy")
        # a function is named in metrics without the file that it comes from
        listed = {name.rpartition(":")[2]: name for name in named}
        unweighted = {name for name, weight in zip(listed, weights, strict=False) if not weight}
        trained, measured, is_given = list[str](), set[str](), False
        for metric in metrics:
            # another trainer says itself which held-out answers are right
            is_given |= metric in ACCURACY and "trainer.name" in settings
            if (name := function_of(metric)) and metric.startswith("eval/"):
                measured.add(name)
            elif name and metric.startswith("rewards/") and metric.endswith("/mean"):
                trained.append(name)
        try:
            function = Right.of(rule if isinstance(rule, str) else "", "", trained).function
        except ConfigError:  # of another version
            function = ""
        if function:
            is_own = ":" in listed.get(function, ":") and function not in RIGHT_OR_WRONG
            is_shared = is_own and function not in unweighted and not is_given
            return cls(function=function, shared=function if is_shared else "")
        if is_given or not measured.issubset(trained):  # or the task's function, which is no reward
            return cls()
        return cls(shared=", ".join(name for name in trained if name not in unweighted))

    @property
    def metric(self) -> str:
        """The mean of the function in training."""
        return f"rewards/{self.function}/mean"


@frozen
class Evidence:
    """What is known of a run: `alerts` are the explanations of recent ones, by rule.

    `held_out` are its evaluations, of sampled answers if there are any, and `greedy` those of
    greedy answers beside them. The mean of the judging function went through `training` from the
    first ten steps to the last ten, through `lately` from ten in the middle, and fell through
    `collapse` since the first step.
    """

    step: int
    active: bool
    error: str = ""
    alerts: Mapping[str, str] = field(default_factory=dict)
    held_out: Sequence[Evaluation] = ()
    greedy: Sequence[Evaluation] = ()
    judge: Judge = Judge()
    training: MetricChange | None = None
    lately: MetricChange | None = None
    collapse: MetricChange | None = None

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        points: Mapping[str, Iterable[Point]],
        *,
        judge: Judge,
        step: int,
        **known: Any,
    ) -> "Evidence":
        """The evidence on a run, from those of `HEALTH_METRICS` and the judge's that it has.

        Other fields are `known`.
        """
        rewarded = [*points.get(judge.metric, ())]
        training, lately = changes_in_training(rewarded, step)
        sampled, greedy = (_evaluations_of(key, settings, points) for key in ACCURACY)
        return cls(
            **known,
            step=step,
            held_out=sampled or greedy,
            greedy=greedy if sampled else (),
            judge=judge,
            training=training,
            lately=lately,
            collapse=collapse_of(rewarded, step, settings.get("rollout.prompts")),
        )

    @property
    def falls(self) -> "list[Fall]":
        """How held-out accuracy fell since its best; none where it is that of a trained reward."""
        return [] if self.judge.shared else falls_of(self.held_out, self.greedy)

    @property
    def collapsed(self) -> MetricChange | None:
        """The collapse, unless held-out answers were tried again at the end, which decide."""
        is_measured = len(self.held_out) > 1 and self.held_out[-1].step > self.step - LATEST
        return None if is_measured else self.collapse


@frozen
class Fall:
    """The best evaluation of some answers and the last one, which chance does not explain."""

    answers: str = ""  # ` of greedy answers` where there are sampled ones as well
    best: Evaluation
    last: Evaluation

    @property
    def change(self) -> MetricChange:
        return self.best.change(self.last)

    @property
    def reward(self) -> MetricChange | None:
        """How the held-out reward rose meanwhile; None if it did not."""
        change = self.best.reward_change(self.last)
        return change if change is not None and change.rose(LIKELY) else None

    def __str__(self) -> str:
        return f"Held-out accuracy{self.answers} fell {_percent(self.best, self.last)}"


def falls_of(held_out: Sequence[Evaluation], greedy: Sequence[Evaluation] = ()) -> list[Fall]:
    """The falls of held-out accuracy: likely in all kinds of answers, or sure in one."""
    kinds = {"": held_out, " of greedy answers": greedy}
    ends = [
        Fall(answers=answers, best=max(earlier, key=lambda one: one.accuracy), last=last)
        for answers, (*earlier, last) in ((name, kind) for name, kind in kinds.items() if kind)
        if earlier
    ]
    if all(fall.change.fell(LIKELY) for fall in ends):
        return ends
    return [fall for fall in ends if fall.change.fell(SURE)]


def health(run: Evidence) -> Health:
    if run.error:
        return Health(label="broken", reason=f"The run failed: {run.error.rstrip('.')}.")
    hacked = HACKED if "reward_fell" not in run.alerts else ()  # a hacked reward rises
    return (
        _alarming(run, "hacked?", hacked)
        or _rewarded_fall(run)
        or _alarming(run, "broken", BROKEN)
        or _fallen(run)
        or _alarming(run, "unstable", UNSTABLE)
        or _unjudged(run)
        or _learned(run)
    )


def _alarming(run: Evidence, label: Label, rules: Sequence[str]) -> Health | None:
    alert = _first(run.alerts, rules)
    return Health(label=label, reason=alert) if alert else None


def _first(alerts: Mapping[str, str], rules: Sequence[str]) -> str:
    return next((alerts[rule] for rule in rules if rule in alerts), "")


def _rewarded_fall(run: Evidence) -> Health | None:
    """Held-out answers became worse and score more."""
    for fall in run.falls:
        if (reward := fall.reward) is not None:
            text = (
                f"{fall} while the held-out reward rose {reward}: the model is rewarded for "
                "something other than right answers."
            )
            return Health(label="hacked?", reason=text)
    return None


def _fallen(run: Evidence) -> Health | None:
    """Held-out accuracy is below the start, or far below an earlier measurement.

    Between two evaluations, a collapse shows in the answers of training.
    """
    falls = [str(fall) for fall in falls_of(run.held_out, run.greedy) if fall.change.fell()]
    if len(run.held_out) > 1 and run.held_out[0].change(run.held_out[-1]).fell(LIKELY):
        falls = [f"Held-out accuracy fell {_percent(run.held_out[0], run.held_out[-1])}"]
    elif not falls and (change := run.collapsed) is not None:
        falls = [
            f"Right answers in training fell from {percent(change.before)} in the first step to "
            f"{percent(change.after)} in the steps since {max(2, run.step - LATEST + 1)}"
        ]
    elif not falls and len(run.held_out) < 2 and run.training and run.training.fell(LIKELY):
        falls = [f"Right answers in training fell {_tens(run, run.training)}"]
    if not falls:
        return None
    return Health(label="broken", reason=f"{falls[0]}: the model gets worse at the task.")


def _unjudged(run: Evidence) -> Health | None:
    if not run.judge.shared or not run.step:
        return None
    reward = run.judge.shared
    numbers = f"there is only the reward, {reward}, which rises"
    if run.held_out:
        numbers = f"the held-out numbers use the same reward, {reward}, so they rise"
    text = (
        f"Cannot be judged: {numbers} also where it is gamed. Read the answers that score highest, "
        "or name a function with weight 0 in evaluation.accuracy that says which answers are right."
    )
    return Health(label="unjudged", reason=text)


def _learned(run: Evidence) -> Health:
    """Whether answers get better: by held-out problems, else by those of training."""
    if len(run.held_out) < 2:
        return _learned_in_training(run)
    first, last = run.held_out[0], run.held_out[-1]
    if first.change(last).rose(LIKELY):
        return _rose(run, f"Held-out accuracy rose {_percent(first, last)}")
    if run.active and run.step < 2 * SPAN:
        return _too_early(run)
    text = f"Held-out accuracy went {_percent(first, last)}, which chance alone can explain."
    text = " ".join([text, *(f"{fall}." for fall in run.falls)])
    if first.accuracy >= NEARLY_ALL:
        text = f"{percent(first.accuracy)} of the held-out answers were right before training."
    return Health(label="flat", reason=_with_cause(run, text))


def _learned_in_training(run: Evidence) -> Health:
    measured = "was measured once" if run.held_out else "was never measured"
    if run.active and not run.held_out:
        measured = "was not measured yet"
    if run.active and (run.step < 2 * SPAN or run.training is None):
        return _too_early(run)
    change = run.training
    if change is None:
        text = f"Cannot be judged: held-out accuracy {measured} (evaluation.every)."
        return Health(label="unjudged", reason=text)
    ends = _tens(run, change)
    measured = f"Held-out accuracy {measured}."
    if change.rose(LIKELY):
        return _rose(run, f"Right answers in training rose {ends}", measured)
    text = f"Right answers in training went {ends}, which chance alone can explain. {measured}"
    return Health(label="flat", reason=_with_cause(run, text))


def _rose(run: Evidence, text: str, measured: str = "") -> Health:
    """What a run is called that has learned something: whether it still does."""
    if run.falls:
        best = run.falls[0].best
        ends = (
            f", but was {percent(best.accuracy)} at step {best.step}, a fall that chance does not "
            "explain"
        )
    else:
        ends = _flat_since(run)
    if not ends:
        reason = f"{text}, which chance does not explain. {measured}"
        return Health(label="learning", reason=reason.strip())
    label: Label = "slowing" if run.active else "learned"
    return Health(label=label, reason=_with_cause(run, f"{text}{ends}. {measured}".strip()))


def _flat_since(run: Evidence) -> str:
    """Since when answers became no better, as the end of a sentence; empty if they still did.

    An evaluation is compared with all later ones together, and training counts as well unless the
    held-out answers are known not to follow it.
    """
    half = run.step // 2
    if run.step < 2 * SPAN:
        return ""
    if _gains(run) and "held_out_flat" not in run.alerts:
        return ""
    if len(run.held_out) < 3:
        if run.lately is None:
            return ""
        period = f"in the second half of the steps{' so far' if run.active else ''}"
        if len(run.held_out) < 2:
            return _little(run.lately, period)
        return (
            f"; {period}, right answers in training went {run.lately.in_percent}, which chance "
            "alone can explain"
        )
    index, since = next(
        (index, earlier)
        for index, earlier in enumerate(run.held_out, 1)
        if not earlier.change(_together(run.held_out[index:] or [earlier])).rose(LIKELY)
    )
    if since.step > half:
        return ""
    on_average = " on average" if len(run.held_out) > index + 1 else ""
    later = since.change(_together(run.held_out[index:] or [since]))
    return _little(later, f"since step {since.step}", on_average)


def _gains(run: Evidence) -> bool:
    """Whether right answers in training became more in the second half of the steps.

    Of a run that goes on there may be too few steps to tell: it still gains if it does so at half
    the pace of the first half.
    """
    if run.lately is None or run.lately.rose(LIKELY):
        return run.lately is not None
    if not run.active or run.training is None:
        return False
    earlier = run.training.size - run.lately.size
    return run.lately.size > max(earlier, 0.0) / 2


def _little(change: MetricChange, period: str, on_average: str = "") -> str:
    """That a share rose no more than by chance, or not at all, as the end of a sentence."""
    if change.size <= 0:
        return f", but no further {period}"
    return f", but {period} only {change.in_percent}{on_average}, which chance alone can explain"


def _together(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Evaluations as one, of all their answers."""
    answers = sum(evaluation.answers for evaluation in evaluations)
    right = sum(evaluation.accuracy * evaluation.answers for evaluation in evaluations)
    return Evaluation(step=evaluations[-1].step, accuracy=right / answers, answers=answers)


def _with_cause(run: Evidence, text: str) -> str:
    return f"{text} {_first(run.alerts, REASONS_FOR_FLAT)}".strip()


def _too_early(run: Evidence) -> Health:
    text = f"It can be told from step {2 * SPAN} on, or once held-out accuracy has risen."
    if not run.step:
        text = "No step is done yet."
    elif run.step >= 2 * SPAN:
        again = " again since the start" if run.held_out else " yet"
        text = f"Held-out accuracy has not been measured{again}."
    return Health(label="too early", reason=text)


def _percent(before: Evaluation, after: Evaluation) -> str:
    return (
        f"from {percent(before.accuracy)} at step {before.step} to {percent(after.accuracy)} at "
        f"step {after.step}"
    )


def _tens(run: Evidence, change: MetricChange) -> str:
    end = run.step - run.step % SPAN
    return (
        f"from {percent(change.before)} in steps 1 to {SPAN} to {percent(change.after)} in steps "
        f"{end - SPAN + 1} to {end}"
    )


def _listed(value: object) -> list[Any]:
    """A setting that should be a list; what a damaged store has instead is empty."""
    return [*value] if isinstance(value, list | tuple) else []


def evaluations(
    points: Iterable[Point], answers: object, *rewards: Iterable[Point]
) -> tuple[Evaluation, ...]:
    """The evaluations of a run by step and accuracy, in order.

    `rewards` are the mean rewards and the ends of their 95 % intervals, as far as they are known.
    """
    means, lows, highs = map(dict, rewards or ((), (), ()))
    items = []
    for step, share in points:
        if not math.isfinite(share):
            continue
        evaluation = Evaluation.of(step, share, answers)
        width = highs.get(step, math.nan) - lows.get(step, math.nan)
        if step in means and math.isfinite(width):
            evaluation = replace(evaluation, reward=means[step], reward_error=width / 2 / 1.96)
        items.append(evaluation)
    return tuple(items)


def _evaluations_of(
    accuracy: str, settings: Mapping[str, Any], points: Mapping[str, Iterable[Point]]
) -> tuple[Evaluation, ...]:
    """The evaluations by sampled or by greedy answers, as the metric is."""
    counts = [count for _, count in points.get(count_of(accuracy), ())]
    answers = counts[-1] if counts else settings.get("evaluation.problems")
    rewards = (points.get(name, ()) for name in _rewards_beside(accuracy))
    return evaluations(points.get(accuracy, ()), answers, *rewards)


def _rewards_beside(accuracy: str) -> tuple[str, str, str]:
    """The metrics of the held-out reward and of its interval beside one of `ACCURACY`."""
    reward = accuracy.removesuffix("accuracy") + "reward"
    return reward, f"{reward}_low", f"{reward}_high"


# What the evidence on a run is taken from, beside the metric of its judge.
HEALTH_METRICS = tuple(
    name for key in ACCURACY for name in (key, count_of(key), *_rewards_beside(key))
)


def collapse_of(points: Iterable[Point], step: int, prompts: object) -> MetricChange | None:
    """How right answers in training fell by half or more from the first step to the last ones.

    The answers of the first step are those of the model before training. The answers to a prompt
    are alike, so a prompt counts as one of them: chance is rather overestimated.
    """
    values = dict(points)
    first = values.get(1, math.nan)
    late = [values[at] for at in range(max(2, step - LATEST + 1), step + 1) if at in values]
    if not isinstance(prompts, int) or prompts < 1 or len(late) < 3:
        return None
    if not all(0 <= value <= 1 for value in (first, *late)):  # nor NaN
        return None
    before = Evaluation.of(1, first, prompts)
    change = before.change(Evaluation.of(step, mean(late), prompts * len(late)))
    return change if change.fell(LIKELY) and change.after <= COLLAPSED * change.before else None


def changes_in_training(
    points: Iterable[Point], step: int
) -> tuple[MetricChange | None, MetricChange | None]:
    """The changes to the last ten of so many steps: from the first ten, and from ten halfway.

    Whole tens of steps count, so that a verdict does not come and go with every step.
    """
    step -= step % SPAN
    early, middle, late = list[float](), list[float](), list[float]()
    for at, value in points:
        if math.isfinite(value):
            if at <= SPAN:
                early.append(value)
            if step // 2 - SPAN < at <= step // 2:
                middle.append(value)
            if step - SPAN < at <= step:
                late.append(value)
    if step < 2 * SPAN or min(len(early), len(middle), len(late)) < SPAN // 2:
        return None, None
    return change_of(early, late), change_of(middle, late)


def change_over(values: Sequence[float]) -> MetricChange | None:
    """The change from the first ten values to the last ten; None if there are fewer than twenty."""
    return change_of(values[:SPAN], values[-SPAN:]) if len(values) >= 2 * SPAN else None
