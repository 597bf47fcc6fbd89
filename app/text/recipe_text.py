"""Describes a recipe to people: its six choices in words, as one sentence, and as a formula.

The words and fragments are in `recipe_meanings.toml` and put together here.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import NamedTuple

from grpo_engine.config.declaration import Setting
from grpo_engine.config.recipes import SETTINGS, Recipe


class ChoiceText(NamedTuple):
    """One of the six choices: its question, its value, what that means, the settings it reads."""

    question: str
    asks: str
    choice: str
    text: str
    settings: dict[str, object]


class Meaning(NamedTuple):
    """What a value of a choice means: its part of the recipe's sentence and of its formula."""

    text: str = ""
    formula: Sequence[str] = ()


class Addition(NamedTuple):
    """What a setting that is not off adds to the sentence and to the formula."""

    phrase: str = ""
    factor: str = ""
    term: str = ""
    outside: str = ""


_TEXTS = tomllib.loads(
    files(__package__).joinpath("recipe_meanings.toml").read_text(encoding="utf-8")
)
ADDITIONS = {name: Addition(**parts) for name, parts in _TEXTS.pop("setting").items()}
MEANINGS: Mapping[str, Mapping[str, Meaning]] = {
    choice: {value: Meaning(**parts) for value, parts in values.items()}
    for choice, values in _TEXTS.items()
}
ASKS = {
    "signal": "What is an answer's advantage?",
    "ratio": "How is old data re-weighted?",
    "trust": "When does the push stop?",
    "anchor": "How far from the reference?",
    "weight": "How are tokens averaged?",
    "reuse": "How often are rollouts used?",
}


def choice_texts(recipe: Recipe) -> tuple[ChoiceText, ...]:
    """The six choices of a recipe, with the settings that each reads."""
    values = values_of(recipe)
    result = []
    for question, asks in ASKS.items():
        settings = [s for s in SETTINGS.values() if s.belongs == question and s.is_read(recipe)]
        if question == "reuse":
            choice = f"{recipe.passes}×" + f" in {recipe.minibatches}" * (recipe.minibatches > 1)
            text = "rollouts are used {often}"
        else:
            choice, text = getattr(recipe, question), meaning(recipe, question).text
        text += "".join(addition.phrase for addition in additions(recipe, settings).values())
        if question == "weight" and counts_by_length(recipe):
            text += ", and the push of an answer counts once for each of its tokens"
        read = {s.path: getattr(recipe, s.path) for s in settings}
        result.append(ChoiceText(question, asks, choice, text.format(**values), read))
    return tuple(result)


def around(recipe: Recipe) -> dict[str, object]:
    """The settings that a recipe reads besides its six choices."""
    return {
        name: getattr(recipe, name)
        for name, setting in SETTINGS.items()
        if name not in ASKS and not setting.belongs and setting.is_read(recipe)
    }


def meaning(recipe: Recipe, choice: str) -> Meaning:
    """What the recipe's value of a choice means."""
    return MEANINGS[choice].get(getattr(recipe, choice)) or MEANINGS["function"][choice]


def additions(recipe: Recipe, settings: Iterable[Setting]) -> dict[str, Addition]:
    """What those of the settings add that are read and not off."""
    return {
        s.path: ADDITIONS[s.path] for s in settings if s.path in ADDITIONS and s.is_active(recipe)
    }


def sentence(recipe: Recipe) -> str:
    text = "; ".join(choice.text for choice in choice_texts(recipe))
    return text[0].upper() + text[1:] + "."


def formula(recipe: Recipe) -> tuple[str, ...]:
    """The lines of the formula: reward, signal, ratio, objective, sampler, anchor, loss."""
    values = values_of(recipe)
    lines = [
        *reward_lines(recipe),
        *meaning(recipe, "signal").formula,
        *teacher_lines(recipe),
        *ratio_lines(recipe),
        *meaning(recipe, "trust").formula,
        *sampler_lines(recipe),
        *anchor_lines(recipe),
        loss_line(recipe),
    ]
    return tuple(line.format(**values) for line in lines)


def values_of(recipe: Recipe) -> dict[str, object]:
    """The settings and values derived from them, by the names used in words and formulas."""
    rho = "ρᵢ" if recipe.has_sequence_ratio else "ρᵢₜ"
    advantage = "Aᵢₜ" if recipe.per_token else "Aᵢ"
    settings = asdict(recipe)
    return settings | {
        "s": "s" if recipe.anchor_in_reward else "r",
        "std_by": "G−1" if recipe.std == "sample" else "G",
        "whitened": "   then whitened over the update" if recipe.whiten else "",
        "A": advantage,
        "rho": rho,
        "J": "Jᵢ" if recipe.per_completion else "Jᵢₜ",
        "unbounded": f"{advantage}·log π(oᵢₜ)" if recipe.ratio == "none" else f"{rho}·{advantage}",
        "raw": rho if recipe.delta is None else f"min({rho}, {recipe.delta:g})",
        "low": f"{1 - recipe.clip_low:g}",
        "high": f"{1 + recipe.clip_high:g}",
        "payer": "token" if recipe.anchor_level == "token" else "answer",
        "paid": "subtracted from the reward" if recipe.anchor_in_reward else "in the loss",
        "w": "wᵢ" if recipe.has_sequence_importance else "wᵢₜ",
        "corrects": corrects(recipe),
        "corrected": correction_text(recipe),
        "often": often(recipe).format(**settings),
    }


def correction_text(recipe: Recipe) -> str:
    """What the recipe does where the sampler's probabilities differ from the trainer's."""
    _, _, beyond = recipe.importance_mode.partition("_")
    whose = "answer" if recipe.has_sequence_importance else "token"
    low, high = f"{recipe.importance_floor:g}", f"{recipe.importance_cap:g}"
    inside = f"at most {high}" if recipe.importance_floor == 0 else f"between {low} and {high}"
    done = f"limited to {inside}" if beyond == "truncate" else f"left out unless that is {inside}"
    return (
        f"each {whose} is weighted by its trainer probability over its sampler probability, {done}"
    )


def often(recipe: Recipe) -> str:
    """How many passes run over the same rollouts, and what ends them."""
    if recipe.passes == 1:
        return "once"
    if recipe.stop == "never":
        return "in {passes} passes"
    return "in at most {passes} passes, " + meaning(recipe, "stop").text


def reward_lines(recipe: Recipe) -> tuple[str, ...]:
    """The line for the reward, if more than the plain reward is scored."""
    if recipe.has_critic:
        price = " − {beta:g}·k(π_old/π_ref)ᵢₜ" if recipe.anchor_in_reward else ""
        return (f"sᵢₜ = [t is the last token]·rᵢ{price}",)
    if not recipe.anchor_in_reward:
        return ()
    total = "Σₜ k(π_old/π_ref)ᵢₜ" if recipe.anchor_level == "token" else "k(Σₜ log π_old/π_ref)ᵢ"
    return (f"sᵢ = rᵢ − {{beta:g}}·{total}",)


def teacher_lines(recipe: Recipe) -> tuple[str, ...]:
    """What a teacher adds to the advantage of each token."""
    if recipe.teacher_weight == 0:
        return ()
    prefix = "← A + " if recipe.reads_rewards else "= "
    return (f"Aᵢₜ {prefix}{{teacher_weight:g}}·log π_teacher(oᵢₜ)/π_old(oᵢₜ)",)


def ratio_lines(recipe: Recipe) -> Sequence[str]:
    """The ratio, unless it is read only by a rule of trust that writes it out itself."""
    if recipe.trust_rule.weighs_completions and not recipe.reweights_anchor:
        return ()
    return meaning(recipe, "ratio").formula


def corrects(recipe: Recipe) -> str:
    """The factor with which VESPO's ratio contains the correction for the sampler."""
    if recipe.importance_cap == 0:
        return ""
    return "wᵢ·" if recipe.has_sequence_importance else "Πₜ wᵢₜ · "


def counts_by_length(recipe: Recipe) -> bool:
    """Whether a sum over tokens multiplies one number per answer by the answer's length."""
    return recipe.per_completion and recipe.weight != "per_sequence"


def sampler_lines(recipe: Recipe) -> tuple[str, ...]:
    """The weight and the mask that correct for the sampler's probabilities."""
    lines = []
    if recipe.importance_cap > 0:
        level, _, beyond = recipe.importance_mode.partition("_")
        ratio = "π_old(oᵢₜ)/π_sampler(oᵢₜ)"
        if level == "sequence":
            ratio = f"exp( Σₜ log {ratio} )"
        if beyond == "mask":
            lines.append(
                f"{{w}} = {ratio}   0 outside [{{importance_floor:g}}, {{importance_cap:g}}]"
            )
        elif recipe.importance_floor == 0:
            lines.append(f"{{w}} = min( {ratio}, {{importance_cap:g}} )")
        else:
            lines.append(f"{{w}} = clip( {ratio}, {{importance_floor:g}}, {{importance_cap:g}} )")
    if recipe.off_policy_mask > 0:
        gap = "1/|oᵢ| Σₜ log π_sampler(oᵢₜ)/π(oᵢₜ)"
        lines.append(f"mᵢ = [Aᵢ ≥ 0 or {gap} ≤ {{off_policy_mask:g}}]")
    return tuple(lines)


def anchor_lines(recipe: Recipe) -> tuple[str, ...]:
    """The distance to the reference, in the loss or in the reward."""
    if recipe.anchor == "none":
        return ()
    policy = "π" if recipe.anchor_place == "loss" else "π_old"
    (estimate,) = meaning(recipe, "anchor").formula
    if recipe.anchor_level == "token":
        return (f"kᵢₜ = {estimate}   x = log {policy}(oᵢₜ)/π_ref(oᵢₜ)",)
    return (f"kᵢ = {estimate}   x = Σₜ log {policy}(oᵢₜ)/π_ref(oᵢₜ)",)


def loss_line(recipe: Recipe) -> str:
    """What is minimised."""
    added = additions(recipe, SETTINGS.values())
    if recipe.trust_rule.weighs_completions:  # The correction for the sampler is in W.
        added.pop("importance_cap", None)
    penalty, repeated = "", ["{J}"] if counts_by_length(recipe) else []
    if recipe.anchor_in_loss:
        k = "kᵢₜ" if recipe.anchor_level == "token" else "kᵢ"
        penalty = f" − {{beta:g}}·{'{rho}·' if recipe.reweights_anchor else ''}{k}"
        repeated += [k] if k == "kᵢ" and recipe.weight != "per_sequence" else []
    factors, terms, outside = (
        "".join(getattr(addition, part) for addition in added.values())
        for part in ("factor", "term", "outside")
    )
    (over,) = meaning(recipe, "weight").formula
    note = "".join(f"   Σₜ {term} = |oᵢ|·{term}" for term in repeated)
    return f"L = −{over} ( {factors}{{J}}{penalty}{terms} ){outside}{note}"
