"""A recipe for people: its six answers in words, as one sentence, and as a formula."""

from typing import NamedTuple

from grpo_engine.config.recipe_rules import settings_read
from grpo_engine.config.recipe_types import Recipe


class Answer(NamedTuple):
    """One of the six questions, the choice, what it means, and the settings it reads."""

    question: str
    asks: str
    choice: str
    words: str
    settings: dict[str, object]


ASKS = {
    "signal": "What is a completion worth?",
    "ratio": "How is old data re-weighted?",
    "trust": "When does the push stop?",
    "anchor": "How far from the reference?",
    "weight": "How are tokens averaged?",
    "reuse": "How often are rollouts used?",
}

BELONGS = {
    "signal": ("std", "signal_eps", "combine", "gamma", "lam", "whiten"),
    "ratio": (
        "sampler_sync_every", "importance_cap", "importance_floor", "importance_mode",
        "off_policy_mask",
    ),
    "trust": (
        "clip_low", "clip_high", "delta", "cispo_cap", "sapo_tau_pos", "sapo_tau_neg",
        "target_tolerance",
    ),
    "anchor": ("beta", "anchor_level", "anchor_place", "ref_refresh_every", "ref_mix"),
    "weight": (),
    "reuse": (
        "passes", "minibatches", "stop", "stop_share", "stop_kl", "stop_plateau", "drop_at_bound",
    ),
}  # fmt: skip

SIGNAL = {
    "return": "a completion is worth its reward",
    "minus_batch_mean": "a completion is worth its reward less the mean of the batch",
    "group_mean": "a completion is worth its reward less the mean of its group",
    "group_standard": "a completion is worth its reward less the mean of its group, in units of "
    "the group's spread",
    "leave_one_out": "a completion is worth its reward less the mean of its siblings",
    "batch_standard": "a completion is worth its reward less the mean of its group, in units of "
    "the batch's spread",
    "group_sign": "of a completion only counts whether it is better or worse than its group",
    "process": "a token is worth the steps that end at or after it, in units of the group's spread",
    "gae": "a token is worth what came on top of what a critic expected",
}
RATIO = {
    "none": "nothing is re-weighted: fresh samples only",
    "token": "old tokens are re-weighted, each by its own probability ratio",
    "sequence_mean": "old completions are re-weighted, each by the geometric mean of its tokens' "
    "ratios",
    "sequence_sum": "old completions are re-weighted, each by its probability ratio",
}
WEIGHT = {
    "per_sequence": "every completion counts the same, whatever its length",
    "per_completion": "tokens are summed and completions averaged: long ones count more",
    "per_token": "every token of the update counts the same",
    "per_batch_token": "every token of a micro-batch counts the same, then micro-batches do",
    "constant": "tokens are summed, then divided by completions times the maximum length",
    "sum": "tokens are summed",
}
STOP = {
    "all_at_bound": "until {stop_share:.0%} of the pushed tokens are at their bound",
    "plateau": "until the objective grows by less than {stop_plateau:g} of itself",
    "kl": "until KL to the sampling policy passes {stop_kl:g}",
    "target": "until {stop_share:.0%} of the pushed tokens are within {target_tolerance:.0%} of "
    "their target",
}


def answers(recipe: Recipe) -> tuple[Answer, ...]:
    """The six answers of a recipe, with the settings that each reads."""
    said = {
        "signal": (recipe.signal, SIGNAL[recipe.signal]),
        "ratio": (recipe.ratio, ratio_words(recipe)),
        "trust": (recipe.trust, trust_words(recipe)),
        "anchor": (recipe.anchor, anchor_words(recipe)),
        "weight": (recipe.weight, WEIGHT[recipe.weight]),
        "reuse": (reuse_choice(recipe), reuse_words(recipe)),
    }
    read = settings_read(recipe)
    return tuple(
        Answer(
            question,
            ASKS[question],
            choice,
            words,
            {name: getattr(recipe, name) for name in BELONGS[question] if name in read},
        )
        for question, (choice, words) in said.items()
    )


def around(recipe: Recipe) -> dict[str, object]:
    """The settings that a recipe reads beside its six answers."""
    answered = {*ASKS, *(name for names in BELONGS.values() for name in names)}
    return {name: getattr(recipe, name) for name in settings_read(recipe) if name not in answered}


def ratio_words(recipe: Recipe) -> str:
    """How old data is re-weighted, and what is done about the sampler's own probabilities."""
    words = RATIO[recipe.ratio]
    if recipe.importance_cap > 0:
        level, _, beyond = recipe.importance_mode.partition("_")
        whose = "token" if level == "token" else "completion"
        low, high = f"{recipe.importance_floor:g}", f"{recipe.importance_cap:g}"
        inside = f"at most {high}" if recipe.importance_floor == 0 else f"from {low} to {high}"
        done = f"held {inside}" if beyond == "truncate" else f"left out unless it is {inside}"
        words += f", and each {whose} weighs what the trainer gives it over what the sampler gave "
        words += f"it, {done}"
    if recipe.off_policy_mask > 0:
        words += f", and worse completions more than {recipe.off_policy_mask:g} nats per token "
        words += "from their sampler are left out"
    return words


def trust_words(recipe: Recipe) -> str:
    """When the push stops."""
    low, high = f"{1 - recipe.clip_low:g}", f"{1 + recipe.clip_high:g}"
    ceiling = "" if recipe.delta is None else f", and no ratio counts above {recipe.delta:g}"
    return {
        "none": "the push never stops",
        "clip": f"a push down stops at ratio {low}, a push up at {high}{ceiling}",
        "cispo": f"the push never stops, but no token weighs more than {recipe.cispo_cap:g}",
        "sapo": "the push fades smoothly as the ratio leaves 1",
        "target": "the push stops when the token has reached its target probability",
    }[recipe.trust]


def anchor_words(recipe: Recipe) -> str:
    """How far from the reference."""
    if recipe.anchor == "none":
        return "the policy may go anywhere"
    place = "in the loss" if recipe.anchor_place == "loss" else "out of the reward"
    level = "token" if recipe.anchor_level == "token" else "completion"
    words = f"each {level} pays {recipe.beta:g} times {recipe.anchor} to the reference, {place}"
    if recipe.ref_refresh_every:
        words += f", and the reference is renewed every {recipe.ref_refresh_every} steps"
    return words


def reuse_choice(recipe: Recipe) -> str:
    """Passes and minibatches, as short as they go."""
    return f"{recipe.passes}×" + (f" in {recipe.minibatches}" if recipe.minibatches > 1 else "")


def reuse_words(recipe: Recipe) -> str:
    """How often the same rollouts are used."""
    often = "once" if recipe.passes == 1 else f"in {recipe.passes} passes"
    if recipe.stop != "never":
        values = {name: getattr(recipe, name) for name in settings_read(recipe)}
        often = f"in at most {recipe.passes} passes, {STOP[recipe.stop].format(**values)}"
    if recipe.minibatches > 1:
        often += f", in {recipe.minibatches} minibatches"
    if recipe.sampler_sync_every > 1:
        often += f", sampled by a copy of the policy {recipe.sampler_sync_every} steps at a time"
    return f"rollouts are used {often}"


def sentence(recipe: Recipe) -> str:
    """The recipe as one sentence."""
    words = "; ".join(answer.words for answer in answers(recipe))
    return words[0].upper() + words[1:] + "."
