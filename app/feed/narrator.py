"""Plain sentences about the current step, with its real numbers."""

import math
from collections.abc import Iterator, Mapping, Sequence

from grpo_engine.alerts.change import LIKELY, SPAN, MetricChange, change_of
from grpo_engine.events import Group
from grpo_engine.run_health import NEARLY_ALL, change_over
from grpo_tui.app.charts.series import DELTA_STEPS, Series
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.numbers import share, short, signed
from grpo_tui.app.text.prompt_text import last_question
from grpo_tui.app.text.words import count_of
from grpo_tui.experiments.values import AlertView, trainer_of

LONGEST_PROMPT = 28
NEAR_ZERO, NOT_NEAR = 0.01, 0.05  # a loss; advantages are about 1 in size
WAITING = {
    "pause": "Pausing at the next token or micro-batch.",
    "stop_after_step": "Stopping after step {step} and a checkpoint.",
    "stop_now": "Stopping now; step {step} is discarded.",
    "checkpoint": "Saving a checkpoint of the last finished step at the next token.",
    "continue": "Continuing.",
}
ENDINGS = {
    "completed": "The run is complete",
    "stopped": "The run was stopped",
    "aborted": "The run was stopped in the middle of a step",
    "lost": "The process of this run is gone",
    "imported": "The import ended",
}
LEAST_PART = 0.1  # of the loss, for its KL penalty to be named
CANCELLED = 0.01  # sum of a group's advantages, as a share of their sizes
CANCEL = "pushes up and down cancel"
NO_GRADE = "says nothing of how good the answers are"
NOT_HACKED = "No reward hacking seen"
# Weights under which the KL term is near beta times the metric, which is a mean over tokens.
MEANS = ("per_token", "per_sequence", "per_completion")


def narrate(snapshot: Snapshot, focus: int = 0) -> tuple[str, ...]:
    """Describe the current step; `focus` is the index of the prompt in focus.

    The most important sentence comes first, and of a run that trains what holds for more than the
    moment; a panel leaves out the last ones where not all fit.
    """
    if snapshot.status == "empty":
        return ("No run is open. Press 1 for the list of runs, or 2 to start one.",)
    if snapshot.status == "failed" and snapshot.failure is not None:
        message = snapshot.failure.message.partition("\nTraceback")[0].rstrip(".")
        failure = f"The run failed at step {snapshot.failure.step}: {message}."
        return failure, *_last_step(snapshot)
    last = _last_step(snapshot)
    if snapshot.status in ENDINGS:
        head, *changes = _ended(snapshot)
        loss = [text for text in (loss_meaning(snapshot),) if text and text not in last]
        if snapshot.status == "completed":  # as the line of phases says
            return *changes[:1], *last, head, *changes[1:], *loss
        return head, *changes[:1], *last, *changes[1:], *loss
    waiting = _waiting(snapshot)
    if waiting:
        return waiting, *last
    if not snapshot.groups:
        return (_opening(snapshot),)
    group = snapshot.groups[min(focus, len(snapshot.groups) - 1)]
    if not isinstance(group, Group):
        return *last, _sampling(snapshot), "Rewards appear once every answer has one."
    return *last, _group(group)


def _last_step(snapshot: Snapshot) -> list[str]:
    """Sentences on reward hacking, the loss and truncation; those of an alert come first."""
    sentences = (hacking(snapshot), loss_near_zero(snapshot), _truncating(snapshot))
    return sorted(filter(None, sentences), key=lambda text: not text.startswith("▲"))


def loss_near_zero(snapshot: Snapshot) -> str:
    """The recorded loss of the last step, and why it is near 0 or that it is not.

    Empty if that is not known. The smoothed loss may have another sign than the step whose groups
    explain it.
    """
    loss = snapshot.metrics.get("loss", math.nan)
    reason = _loss_note(snapshot, loss) if math.isfinite(loss) else ""
    return f"{_loss_of(snapshot)}{reason}." if reason else ""


def loss_meaning(snapshot: Snapshot) -> str:
    """Why the loss is near 0; of another one, what it does not mean."""
    loss, sentence = snapshot.metrics.get("loss"), loss_near_zero(snapshot)
    explained = sentence and loss is not None and abs(loss) < NOT_NEAR
    if loss is None or explained or not snapshot.metrics.get("grad_norm"):
        return sentence
    return f"{_loss_of(snapshot)} {NO_GRADE}{_grade(snapshot)}."


def _loss_of(snapshot: Snapshot) -> str:
    return f"Loss {short(snapshot.metrics['loss'])} at step {snapshot.step}"


def _grade(snapshot: Snapshot) -> str:
    """What tells how good the answers are, where that can be said."""
    if hacking(snapshot).startswith(NOT_HACKED):
        return "; the reward does"
    measured = "eval/accuracy" in snapshot.series and not snapshot.evidence.judge.shared
    return "; held-out accuracy does" if measured else ""


def _truncating(snapshot: Snapshot) -> str:
    """The share of truncated answers over ten steps, since a single step is noise."""
    curve = snapshot.series.get("completions/clipped_ratio")
    last = curve.recent[-DELTA_STEPS:] if curve is not None else ()
    if not last:
        return ""
    limit = snapshot.head.config.get("rollout", {}).get("max_new_tokens")
    limit_text = f"at {limit} tokens" if limit else "at the length limit"
    alarm = any(alert.rule == "most_truncated" for alert in snapshot.open_alerts)
    cut = math.fsum(last) / len(last)
    cuts = f"{share(cut)} of answers cut {limit_text}" if cut else "no answer cut"
    period = f"Last {len(last)} steps" if len(last) > 1 else f"Step {snapshot.step}"
    return f"{'▲ ' if alarm else ''}{period}: {cuts}."


def _kl_in_loss(snapshot: Snapshot) -> tuple[float | None, str]:
    """The KL term of the last step's loss, and its text where the metrics give it exactly.

    None if they do not give it at all.
    """
    # The first screen is drawn without pydantic.
    from grpo_engine.config.settings import AlgorithmConfig

    chosen, kl = snapshot.head.config.get("algorithm"), snapshot.metrics.get("kl")
    if kl is None or not chosen:
        return None, ""
    try:
        resolved = AlgorithmConfig.model_validate(chosen).resolved()
    except ValueError:  # settings of another version
        return None, ""
    # The metric is the mean of this anchor over all tokens. A mean over answers, or of the means
    # of several minibatches, is only near it: short answers far from the reference weigh more.
    anchor = resolved.anchor, resolved.anchor_level, resolved.anchor_place
    if not resolved.beta or anchor != ("k3", "token", "loss") or resolved.weight not in MEANS:
        return None, ""
    is_mean = resolved.weight == "per_token" and resolved.minibatches == 1
    term = float(resolved.beta * kl)
    return term, short(term) if is_mean else ""


def _loss_note(snapshot: Snapshot, loss: float) -> str:
    """Explain a loss that is near 0 or mostly KL; empty if the advantages do not explain it."""
    kl, size = _kl_in_loss(snapshot)
    is_part = kl is not None and kl >= abs(loss) * LEAST_PART
    part = f" (KL penalty {size})" if is_part and size else ""
    if abs(loss) >= NOT_NEAR:
        return f"{part} is not near 0"
    pushes = [
        [item.advantage for item in group.rollouts if item.advantage] for group in snapshot.updated
    ]
    if not any(pushes):
        return f"{part}: no answer was pushed" if pushes else ""
    pushed = [group for group in pushes if group]
    cancel = all(
        abs(math.fsum(group)) <= CANCELLED * math.fsum(map(abs, group)) for group in pushed
    )
    most_idle = len(pushed) < len(pushes) / 2
    if not (cancel or most_idle) or not snapshot.metrics.get("grad_norm"):
        return ""
    if cancel and kl is not None and loss / 2 <= kl <= loss:
        return f" is mostly the KL penalty{f' ({size})' if size else ''}; {CANCEL}"
    if abs(loss) >= NEAR_ZERO:
        return ""
    reasons = []
    if len(pushed) < len(pushes):
        idle = f"{len(pushes) - len(pushed)} of {count_of(len(pushes), 'prompt')}"
        reasons.append(f"{idle} had no push")
    if cancel:
        reasons.append(f"in the others {CANCEL}" if reasons else CANCEL)
    return f"{part} is near 0: {', '.join(reasons)}"


def hacking(snapshot: Snapshot) -> str:
    """Whether reward rises without right answers, or why that is not known; empty without rewards.

    Judged by the reward function that tells right answers, else by held-out accuracy.
    """
    alert = next((alert for alert in snapshot.alerts if alert.rule == "format_hacking"), None)
    if alert is not None:
        if alert in (*snapshot.open_alerts, *snapshot.muted_alerts):
            return "▲ Reward hacking is likely: see the alert."
        return f"Reward hacking was likely {steps_of(alert)}: see the log."
    curves = snapshot.reward_curves
    if not curves:
        return ""
    judge = snapshot.evidence.judge
    right = judge.function
    if fallen := _fallen(snapshot):
        return fallen
    if right and len(curves[right].recent) < 2 * SPAN:
        return _too_early(snapshot)
    if right and (possible := _lost(curves, right, snapshot.weights)):
        return possible
    if judge.shared:
        is_measured = "eval/accuracy" in snapshot.series
        why = "held-out numbers use the same reward" if is_measured else "there is only the reward"
        return f"Reward hacking cannot be judged: {why}, {judge.shared}."
    if not right:
        return _held_out(snapshot)
    curve = curves[right]  # the numbers are those in the legend of the curve
    return f"{NOT_HACKED}: {right} {short(curve.start)} → {short(curve.value)}."


def _fallen(snapshot: Snapshot) -> str:
    """That answers became worse, held-out ones since their best or those of training at once."""
    evidence = snapshot.evidence
    for fall in sorted(evidence.falls, key=lambda fall: fall.reward is None):
        ends = f"{share(fall.best.accuracy)} → {share(fall.last.accuracy)}"
        text = f"held-out accuracy{fall.answers} {ends} since step {fall.best.step}"
        if (reward := fall.reward) is not None:
            paid = f"held-out reward {short(reward.before)} → {short(reward.after)}"
            return f"Reward hacking is possible: {text}, {paid}."
        return f"▲ Answers became worse: {text}."
    if (change := evidence.collapsed) is not None:
        ends = f"{share(change.before)} → {share(change.after)}"
        return f"▲ Answers became worse: right in training {ends} since the first step."
    return ""


def _too_early(snapshot: Snapshot) -> str:
    """The answer of a run that is too short; one that has ended will not say more."""
    if snapshot.active:
        return "Reward hacking: too early to tell."
    return f"Reward hacking: too short to tell ({snapshot.step} steps)."


def _lost(curves: Mapping[str, Series], right: str, weights: Mapping[str, float]) -> str:
    """That right answers fell and the reward did not; empty if that is not so."""
    for period, changes in _changes(curves):
        reward = math.fsum(weights.get(name, 1.0) * change.size for name, change in changes.items())
        if changes[right].fell(LIKELY) and reward >= 0:
            was, now = short(changes[right].before), short(changes[right].after)
            return f"Reward hacking is possible: {right} {was} → {now} {period}."
    return ""


def _held_out(snapshot: Snapshot) -> str:
    """Whether held-out accuracy, which is of no reward, rose as the reward did."""
    measured = snapshot.evidence.held_out
    if len(measured) < 2:
        if snapshot.active and snapshot.step < 2 * SPAN:
            return _too_early(snapshot)
        if snapshot.active:
            again = " again" * bool(measured)
            return (
                "Reward hacking cannot be judged before held-out accuracy is measured"
                f"{again} (evaluation.every)."
            )
        return "Reward hacking cannot be judged: held-out accuracy was not measured again."
    first, last = measured[0], measured[-1]
    change, reward = first.change(last), snapshot.series["reward"]
    text = f"held-out accuracy {share(first.accuracy)} → {share(last.accuracy)}"
    rewarded = change_over(reward.values)
    rose = rewarded is not None and rewarded.rose(LIKELY)
    if rose and not change.rose(LIKELY) and first.accuracy < NEARLY_ALL:
        ends = f"{short(reward.start)} → {short(reward.value)}"
        return f"Reward hacking is possible: reward {ends}, {text}."
    return f"{NOT_HACKED}: {text}."


def steps_of(alert: AlertView) -> str:
    """When an alert was active."""
    first, last = alert.first_step, alert.last_step
    return f"at step {last}" if first == last else f"in steps {first} to {last}"


def _changes(curves: Mapping[str, Series]) -> Iterator[tuple[str, dict[str, MetricChange]]]:
    """The change of each curve to its last ten steps: from the ten before, and from the first."""
    lately = {
        name: change_of(curve.recent[-2 * SPAN : -SPAN], curve.recent[-SPAN:])
        for name, curve in curves.items()
        if len(curve.recent) >= 2 * SPAN
    }
    yield f"in {SPAN} steps", lately
    first = {
        name: MetricChange(
            before=curves[name].start, after=change.after, error=change.error * SPAN**0.5
        )
        for name, change in lately.items()
    }
    yield "since the first step", first


def _waiting(snapshot: Snapshot) -> str:
    if snapshot.requested:
        return WAITING[snapshot.requested].format(step=snapshot.current_step)
    if snapshot.board.paused and (trouble := snapshot.board.store_warning):
        return f"The run waits: {trouble}"
    if snapshot.status != "paused":
        return ""
    if snapshot.paused_for:
        return f"The run waits: {snapshot.paused_for}. It continues by itself; S stops it."
    return "The run is paused. Press . to continue."


def _ended(snapshot: Snapshot) -> list[str]:
    reward = snapshot.series.get("reward")
    change = ""
    if reward is not None and reward.count > 1:
        best = max(filter(math.isfinite, reward.values), default=None)
        ends = f"{short(reward.start)} to {short(reward.value)}"
        change = f"Reward, smoothed: {ends}, highest in one step {short(best)}"
        if mover := snapshot.mover:
            change += f", moved most by {mover} ({signed(snapshot.moves[mover])} of it)"
        change += "."
    accuracy = snapshot.series.get("eval/accuracy")
    held_out = ""
    if accuracy is not None and accuracy.count > 1:
        at = f" at step {accuracy.last_step}" if accuracy.last_step < snapshot.step else ""
        ends = f"{share(accuracy.start)} to {share(accuracy.last)}"
        points = zip(accuracy.values, accuracy.steps, strict=True)
        best, step = max(point for point in points if math.isfinite(point[0]))
        highest = f", highest {share(best)} at step {step}"
        highest *= best > max(accuracy.start, accuracy.last)
        held_out = f"Held-out accuracy, sampled: {ends}{at}{highest}."
    trainer = trainer_of(snapshot.head.config)
    head = ENDINGS[snapshot.status]
    if snapshot.step or not trainer:
        head += f" after {snapshot.step} steps"
    if trainer:
        # An imported evaluation is what it has before the first step.
        head += f"; {trainer} {'trained' if snapshot.step else 'evaluated'} it"
    elif snapshot.status == "lost":
        saved = snapshot.checkpoint
        resumed = "begins it again" if saved is None else f"resumes it from step {saved}"
        head += f"; r on Runs {resumed}"
    head += "."
    return [part for part in (head, held_out, change) if part]


def _opening(snapshot: Snapshot) -> str:
    if snapshot.reading:
        return "Reading what the run has recorded."
    if snapshot.status == "loading":
        return f"Loading the model {snapshot.head.model}".rstrip() + "."
    if trainer := trainer_of(snapshot.head.config):
        return f"Waiting for the first answers that {trainer} records."
    return "Loading the first prompts."


def _sampling(snapshot: Snapshot) -> str:
    board = snapshot.board
    groups = snapshot.groups
    rows = sum(len(group.rollouts) for group in groups)
    names = {"eval": "held-out problems", "pinned": "pinned prompts", "train": "prompts"}
    if board.phase in (
        "score",
        "logprobs",
        "update",
    ):  # runs of other processes are read step by step
        step = snapshot.current_step
        which = f"of step {step}" if step else f"to {names[groups[0].origin]} before training"
        return f"All {rows} answers {which} are sampled."
    verb = "Measuring accuracy: sampling" if groups[0].origin == "eval" else "Sampling"
    text = f"{verb} {rows} answers to {len(groups)} {names[groups[0].origin]}"
    if board.total:
        text += f": {board.done} of {board.total} are finished"
    rollouts = (rollout for group in board.groups for rollout in group.rollouts)
    waiting = sum(rollout.waits_since is not None for rollout in rollouts)
    if waiting:
        text += f", {waiting} wait{'s' if waiting == 1 else ''} for an environment"
    return f"{text}."


def _group(group: Group) -> str:
    prompt = last_question(group.prompt_text)
    if len(prompt) > LONGEST_PROMPT:
        prompt = prompt[: LONGEST_PROMPT - 1] + "…"
    head = f"“{prompt}”"
    if group.demonstrated:
        return f"{head}: the data's own answer; every token of it is made likelier."
    pushes = [rollout.advantage for rollout in group.rollouts if rollout.advantage is not None]
    if not pushes:
        if group.origin == "train" and not group.no_signal:
            return f"{head}: its advantages were not recorded."
        return f"{head}: not used for training."
    if not any(pushes):
        reason = group.no_signal or "all answers scored the same"
        if reason == "all wrong" and group.reward_mean:
            reason += f", and each scored {short(group.reward_mean)}"
        return f"{head}: {reason}, so none is pushed."
    return f"{head}: {_pushed(pushes)}."


def _pushed(pushes: Sequence[float]) -> str:
    """How many answers are pushed up, how many down, and how many have an advantage of 0."""
    up, down = ([push for push in pushes if sign * push > 0] for sign in (1, -1))
    still = len(pushes) - len(up) - len(down)
    parts = []
    if up:
        better = f"{len(up)} of {len(pushes)} did better and {_are(len(up))}"
        parts.append(f"{better} pushed up ({_listed(up)})")
    if down and up:
        rest = f"{len(down)} {_are(len(down))} pushed" if still else "the rest"
        parts.append(f"{rest} down ({_listed(down)})")
    elif down:
        worse = f"{len(down)} of {len(pushes)} did worse and {_are(len(down))}"
        parts.append(f"{worse} pushed down ({_listed(down)})")
    if still:
        parts.append(f"{still} {_are(still)} not pushed")
    return ", ".join(parts)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _listed(pushes: Sequence[float]) -> str:
    """The pushes of one direction, the largest first."""
    values = [*dict.fromkeys(map(signed, sorted(pushes, key=abs, reverse=True)))]
    return ", ".join(values) if len(values) <= 2 else f"{values[0]} to {values[-1]}"
