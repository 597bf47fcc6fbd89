"""Help texts on each topic as plain paragraphs, without Textual."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from grpo_engine.metrics import METRICS, MetricSpec, spec
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.numbers import with_unit
from grpo_tui.experiments.values import AlertView

if TYPE_CHECKING:
    from grpo_engine.config.declaration import Setting


@dataclass(frozen=True, slots=True)
class Part:
    """A heading and its paragraphs; a paragraph may begin with a highlighted word."""

    heading: str
    paragraphs: tuple[tuple[str, str], ...]

    @property
    def haystack(self) -> str:
        """All its words, for a filter."""
        texts = (text for paragraph in self.paragraphs for text in paragraph)
        return " ".join((self.heading, *texts)).casefold()

    @property
    def stored_as(self) -> str:
        """The name in the store of a metric or an alert."""
        return dict(self.paragraphs).get("stored as", "")


PANELS: Mapping[str, Part] = {
    "curves": Part("curves", (
        ("", "One small chart per metric over the steps of the run. Bright is the smoothed line, "
             "faint dots are the steps themselves. The title gives the smoothed value and its "
             "change over ten steps; a held-out value is as measured, “at step 40” says when, and "
             "its change is that since the one before. Changes of shares are in points."),
        ("×1  .3 → .8", "a reward function: its weight, its mean in the first step and where it "
                        "is. ◂ moved the reward most, by weight × change."),
        ("limit", "a guide line: an alert comes when the median of five steps (KL) or the mean "
                  "of three or five (others) is beyond it. While answers get better, KL may be "
                  "five times its limit. A limit too far away to be drawn is in the title."),
        ("z", "shows the chosen chart alone; the arrows go to the next one."),
        ("m", "chooses among all metrics that the run records. 5 has them with a crosshair."),
        ("< >", "look at earlier steps: groups and answers show that step, curves the whole run."),
        ("⏎", "explains the chosen chart."),
    )),
    "answers": Part("answers", (
        ("", "One lane per answer to the prompt in focus. Siblings are compared with each other: "
             "an answer is pushed up if it is better than the rest of its group."),
        ("▲ +1.21", "better than its siblings by that many standard deviations: it is pushed up."),
        ("▼ −.69", "worse than its siblings: it is pushed down."),
        ("=", "as good as its siblings: no push. The next number is the reward."),
        ("▪", "the answer ended by itself."),
        ("[cut]", "it hit the length limit."),
        ("▌", "it is still being generated."),
        ("‹ ›", "a dialogue: what its environment replied."),
        ("⚙", "a tool call; ⚙ 3s waits for its environment."),
        ("[failed]", "the answer has lost its environment."),
        ("⏎", "opens the answer token by token."),
    )),
    "groups": Part("groups", (
        ("", "A row for each prompt of the step, a cell for each answer, the mean reward at the "
             "end. ▸ marks the row whose answers are shown; there is none while they are of "
             "the next step."),
        ("no push", "if all answers scored the same, advantages are 0: the prompt is too easy "
                    "or too hard, and the step learns nothing from it."),
        ("step", "which one it is. The groups scored last stay until the next ones have scores; "
                 "with the focus here, the answers are theirs."),
        ("signal", "bars: the share of prompts with a training signal in each of the last steps. "
                   "The number is that of the step shown, or – until it has scores."),
    )),
    "log": Part("alerts and log", (
        ("", "Alerts raised in the last ten steps come first; what still holds is raised again "
             "every ten. ⏎ explains what an alert means and what to try. Below is the log with "
             "older alerts, the newest line first."),
        ("x", "mutes that kind of alert in this run: it is listed below the others, dim, and is "
              "not counted as open. x on it unmutes it."),
    )),
    "phases": Part("phases of a step", (
        ("generate", "answers are sampled."),
        ("score", "reward functions score them."),
        ("logprobs", "old and reference probabilities of each token are computed."),
        ("update", "the weights are updated, once per minibatch of each pass."),
        ("other", "the rest: drawing problems, pinned prompts, advantages, handing results to the "
                  "store. In a narrow line the shortest phases are left out."),
    )),
    "prompts": Part("groups of a step", (
        ("", "A row for each prompt: mean reward of its answers and their spread. If all "
             "scored the same (=), the prompt gives no training signal."),
        ("↑ ↓", "choose a prompt; n and p do so from every panel."),
        ("s", "sorts by surprise (“surp”: the strongest push), reward, length, KL or clip, and "
              "goes to the answer or the token that is furthest."),
        ("t", "switches to pinned prompts, which are sampled at many steps, and to held-out ones."),
        ("[ ]", "go to the same prompt at an earlier or later step, @ to a step that you type; -50 "
                "is 50 steps earlier. d shows the words that changed since."),
        ("/", "finds a text in all prompts and answers of the run; n and p go through the hits."),
    )),
    "tokens": Part("tokens of an answer", (
        ("", "The bar under a token is what m chose: push (the gradient in its log-probability, "
             "with clipping and KL), change of its log-probability, KL to the reference, what a "
             "teacher finds likelier, entropy, or whether it is clipped. A full bar is the largest "
             "of the group, so bars of two answers can be compared. Yellow is down, blue is up."),
        ("← → ↑ ↓", "go to the next token and to the next answer."),
        ("f F", "go to the next and the previous clipped token of the run."),
        ("underlined", "the token is clipped: its ratio left the interval, its push has stopped."),
        ("prob.", "under the reference (the model before training), old (when the answer was "
                  "sampled), new (in the last pass), after (once the step was done; kept "
                  "for pinned prompts and the first groups of a step)."),
        ("ratio", "new ÷ old, in the last pass and in each pass. In the first it is 1 by "
                  "construction."),
        ("gradient", "which way the loss moves its log-probability: what the advantage pushes and "
                     "what KL pulls. Shown where the recipe has a KL penalty in the loss."),
        ("share", "what this token adds to the objective, which is the negative of the loss; "
                  "“for the sampler” is the "
                  "weight that corrects for a sampler that rounds differently than the trainer."),
        ("▸ ▾", "a turn of a dialogue, folded or open: tokens, reply, what the environment "
                "recorded, reward. space opens all; page down and page up go through them. "
                "Thinking of more than 512 tokens is folded, and its answer is what opens."),
    )),
    "why": Part("why this reward", (
        ("", "Each reward function's value, its weight, and its reason. The weighted sum is the "
             "reward; advantage is how far it lies above its siblings' mean."),
        ("█", "a full bar is the function's largest score in this step."),
        ("↑ ↓", "scroll, where not all of it fits."),
    )),
    "lab": Part("lab: what if", (
        ("", "What if a setting had been another? v on Rollouts (4) opens the lab. It shows the "
             "stored answers of all steps, a step or a group under other settings: "
             "computed by the loss from their stored numbers, beside what the run did."),
        ("↑ ↓ ← →", "choose a setting and change it; on the right, choose a group or an answer."),
        ("mean push", "what a token adds to the objective, without its sign, on average."),
        ("KL penalty", "what the distance to the reference adds to the loss."),
        ("→", "before and after the change; in the bars, which way the loss moves each token, "
              "on one scale for the group; an underlined one is clipped."),
    )),
}  # fmt: skip

PANELS_OF: Mapping[str, tuple[str, ...]] = {
    "watch": ("phases", "curves", "answers", "groups", "log"),
    "rollouts": ("prompts", "tokens", "why", "lab"),
    "lab": ("lab",),
}

# What each alert means, and which setting holds its threshold.
ALERTS: Mapping[str, tuple[str, str]] = {
    "no_signal": (
        "Most prompts give no signal: their answers all scored the same. Where most answers "
        "have become right, it is not raised.",
        "no_signal",
    ),
    "task_solved": ("Nearly all answers are right: little is left to learn.", ""),
    "format_hacking": (
        "Reward rises while right answers become fewer, or stay few; held-out accuracy is looked "
        "at first.",
        "",
    ),
    "reward_conflict": ("One reward rises while another falls: they ask for opposite things.", ""),
    "nothing_learned": ("The policy stays at its reference, and reward does not rise.", ""),
    "reward_fell": ("Reward falls: the updates make the answers worse.", ""),
    "reward_saturated": (
        "Nearly all answers have a reward's highest score, while few of them are right.",
        "",
    ),
    "kl_above_limit": (
        "The policy is far from its reference: beyond the limit, or five times the limit while "
        "answers get better.",
        "kl",
    ),
    "kl_exploding": ("One update moved the policy too far.", ""),
    "entropy_collapse": (
        "Answers to a prompt are nearly all alike, and no more of them are right.",
        "",
    ),
    "length_collapse": (
        "Answers are a fraction of their first length, and no more of them are right.",
        "",
    ),
    "length_growth": ("Answers grow while the reward does not: padding.", ""),
    "most_truncated": ("Most answers are cut at the length limit.", "cut"),
    "clip_too_much": ("Many tokens are at their bound; later passes do little.", ""),
    "clip_never": ("No token reaches its bound: the bounds have no effect.", ""),
    "gradient_spike": (
        "The gradient is many times as large as usual; five times more is allowed while answers "
        "get better.",
        "",
    ),
    "sampler_disagrees": (
        "Sampler and trainer give the same token different probabilities, more than rounding does.",
        "",
    ),
    "many_masked": ("Many tokens are masked: the trainer disagrees with the sampler on them.", ""),
    "not_finite": ("A value was NaN or infinite: the update was skipped.", ""),
    "refills_exhausted": ("New prompts were drawn, and too few of them gave a signal.", ""),
    "slow_products": ("Matrix products are slow here: a fast BLAS is missing.", ""),
    "busy_machine": ("Other programs use the processor; training uses one core less.", ""),
    "reward_slow": ("Reward functions take most of a step.", ""),
    "reward_exception": ("A reward function failed with an error.", ""),
    "reward_crash": ("A reward function crashed its process.", ""),
    "reward_timeout": ("A reward function took longer than rewards.time_limit.", ""),
    "reward_count": ("A reward function did not give one value per answer.", ""),
    "reward_type": ("A reward function gave something that is not a number.", ""),
    "reward_value": ("A reward function gave NaN or a number too large to add up.", ""),
    "reward_no_score": ("A judge gave no score: an outage, or a reply of another form.", ""),
    "reward_constant": ("A reward function gives every answer the same score.", ""),
    "duplicates": (
        "Many answers repeat another of their group, and no more of them are right.",
        "duplicates",
    ),
    "memory_near_limit": ("A step needs nearly all available memory.", ""),
    "step_time_doubled": ("Steps take much longer than before.", ""),
    "held_out_flat": ("More answers are right in training and no more on held-out problems.", ""),
    "held_out_fell": ("Held-out accuracy is lower than at an earlier evaluation.", ""),
}

# the rules whose value and limit are shares
SHARES = ("no_signal", "most_truncated", "clip_too_much", "reward_slow", "duplicates")

SCREENS: Mapping[str, str] = {
    "runs": "All runs in the store. Mark some with space, or a whole sweep with G, and press d to "
            "compare them. Settings that differ among the listed runs, as in a sweep, are columns "
            "by themselves; m chooses others, and a click on a title sorts. x archives or deletes, "
            "and u undoes it: what is deleted is removed when the workbench closes.",
    "new_run": "The settings of a new run. What differs from the preset is marked. Several values, "
               "such as 0.04,0.4 in a number or marked in a list, and a number of seeds make a "
               "sweep.",
    "watch": "The run while it trains: where the step is, what its numbers are, what the model "
             "answers, which prompts give a signal, and what needs attention.",
    "rollouts": "Every recorded answer, down to the single token and its share of the loss.",
    "compare": "Runs side by side. One crosshair reads every run at the same step, tokens or "
               "time. In the column verdict, ▲ is better and ▼ worse than the baseline ◆ for "
               "sure, and tie is neither; other differences may be chance. Settings are pooled "
               "over their seeds and compared on the same held-out problems; the 95% intervals "
               "of a ranking hold for all settings at once, over seeds and problems, or over "
               "problems alone where each setting has one seed.",
}  # fmt: skip

DIRECTIONS = {"up": "Higher is better.", "down": "Lower is better.", "none": ""}


def metric_part(name: str, snapshot: Snapshot | None = None) -> Part:
    """Describe a metric: its meaning, better direction, guide lines and current value."""
    metric: MetricSpec = spec(name)
    paragraphs = [("", metric.help)]
    if DIRECTIONS[metric.direction]:
        paragraphs.append(("", DIRECTIONS[metric.direction]))
    if metric.guides:
        lines = ", ".join(with_unit(guide, metric.unit) for guide in metric.guides)
        paragraphs.append(("guide line", lines))
    if snapshot is not None and name in snapshot.series:
        view = snapshot.series[name]
        unit = metric.unit
        now = f"{with_unit(view.last, unit)} at step {view.last_step}, smoothed "
        paragraphs.append(("now", now + with_unit(view.value, unit)))
    if metric.also:
        paragraphs.append(("also called", metric.also))
    paragraphs.append(("stored as", name))
    return Part(metric.label, tuple(paragraphs))


def setting_part(path: str) -> Part:
    """Describe a setting: its effect, range and default."""
    from grpo_engine.config.parse import settings

    info = settings().get(path)
    return _setting_part(info) if info else Part(path, (("", "There is no such setting."),))


def _setting_part(info: "Setting") -> Part:
    paragraphs = [("", info.help)]
    paragraphs.append(("values", info.allowed))
    empty = "set by the recipe" if info.path.startswith("algorithm.") else "nothing"
    default = empty if info.default is None else json.dumps(info.default).strip('"')
    paragraphs.append(("default", default or empty))
    return Part(info.path, tuple(paragraphs))


def alert_part(rule: str, snapshot: Snapshot) -> Part:
    """Describe an alert: its meaning, when it was raised, and what to try."""
    for alert in snapshot.alerts:
        if alert.rule == rule:
            paragraphs = [("", alert.explanation), ("try", alert.remedy)]
            if alert.value is not None and alert.limit is not None:
                unit = "share" if rule in SHARES else ""
                limit = with_unit(alert.limit, unit)
                paragraphs.append(("value", f"{with_unit(alert.value, unit)}, limit {limit}"))
            paragraphs.append(("raised", _raised(alert)))
            if alert.group is not None:
                paragraphs.append(("prompt", f"{alert.group + 1} of the step"))
            if alert.muted:
                paragraphs.append(("muted", "in this run; x in the list unmutes it"))
            return Part(_name_of(rule), (*paragraphs, ("stored as", rule)))
    meaning = ALERTS[rule][0] if rule in ALERTS else ""
    return Part(_name_of(rule), (("", meaning), ("", "It was not raised in this run."),
                                 ("stored as", rule)))  # fmt: skip


def _name_of(rule: str) -> str:
    """An alert's heading; Watch's sentence has reward hacking, of which form is the usual kind."""
    name = {"format_hacking": "reward hacking"}.get(rule, rule.replace("_", " "))
    return f"alert: {name}"


def _raised(alert: AlertView) -> str:
    if alert.count == 1:
        return f"at step {alert.last_step}"
    return f"{alert.count} times, first at step {alert.first_step}, last at step {alert.last_step}"


def topic_parts(topic: str, snapshot: Snapshot) -> list[Part]:
    """Return the parts that explain a topic such as `metric:kl`, `setting:seed`, `panel:groups`."""
    kind, _, name = topic.partition(":")
    match kind:
        case "metric":
            return [metric_part(name, snapshot)]
        case "setting":
            return [setting_part(name)]
        case "alert":
            return [alert_part(name, snapshot)]
        case "panel" if name in PANELS:
            return [PANELS[name]]
        case "screen" if name in SCREENS:
            return [Part(name.replace("_", " "), (("", SCREENS[name]),))]
    return [Part(name or kind, (("", "There is no help on this."),))]


def matching(needle: str, keys: Sequence[Part]) -> dict[str, tuple[Part, ...]]:
    """The keys, screens and panels that match a text, by what they are."""
    rows = [row for part in keys for row in part.paragraphs]
    matches = tuple(row for row in rows if needle in " ".join(row).casefold())
    screens = (Part(name.replace("_", " "), (("", text),)) for name, text in SCREENS.items())
    return {"keys": (Part("keys of this screen", matches),) if matches else (),
            "screens and panels": (*screens, *PANELS.values())}  # fmt: skip


def panel_parts(mode: str) -> list[Part]:
    return [PANELS[name] for name in PANELS_OF.get(mode, ())]


def alert_parts() -> list[Part]:
    """Return every alert and where its threshold is set."""
    parts = []
    for rule, (meaning, threshold) in ALERTS.items():
        setting = [("threshold", f"alerts.{threshold}")] if threshold else []
        parts.append(Part(_name_of(rule), (("", meaning), *setting, ("stored as", rule))))
    return parts


@cache
def setting_parts() -> tuple[Part, ...]:
    from grpo_engine.config.parse import settings

    return tuple(_setting_part(info) for info in settings().values())


def metric_parts(snapshot: Snapshot) -> list[Part]:
    """Return all metrics, and those that are only in the shown run."""
    custom = [name for name in snapshot.series if name not in METRICS]
    return [metric_part(name, snapshot) for name in (*METRICS, *custom)]
