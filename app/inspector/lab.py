"""The lab: recompute stored steps under other settings, from their recorded numbers.

MLX is imported in the thread that asks first; callers must use one thread.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from grpo_engine.config import recipes
from grpo_engine.config.recipes import RECIPES, SETTINGS, Recipe
from grpo_engine.errors import RecipeError
from grpo_tui.app.inspector.terms import LAST, Packed, loss_terms, packed, slopes
from grpo_tui.experiments.values import GroupView, TokenRow

if TYPE_CHECKING:
    import mlx.core as mx

    from grpo_engine.maths.loss import Terms
    from grpo_engine.maths.weight import Totals

# Settings that can be varied, as far as recorded log-probabilities and rewards suffice.
_STEPS = {name: setting.steps for name, setting in SETTINGS.items() if setting.steps}
_MOST_ASKED = ("beta", "clip_low", "clip_high", "delta")
KNOBS: dict[str, tuple[Any, ...]] = {
    "name": tuple(RECIPES), **{name: _STEPS[name] for name in _MOST_ASKED}, **_STEPS,
}  # fmt: skip
# What advantages are made from, and what else if the anchor is in the reward.
_SIGNAL = ("signal", "std", "signal_eps", "combine", "gamma", "lam", "whiten")
_PENALTY = ("anchor", "beta", "anchor_level", "anchor_place")
# What decides which updates there are, and of which answers.
_OF_UPDATES = (
    "passes", "minibatches", "stop", "stop_share", "stop_kl", "stop_plateau", "target_tolerance",
    "ref_refresh_every", "ref_mix", "sampler_sync_every", "refill_rounds", "refill_on",
    "overlong_buffer", "mask_truncated", "entropy_bonus", "entropy_target",
)  # fmt: skip

LACKS = {
    "tokens": "Some answers have no token numbers: left out of the update, or not recorded "
    "(record.tokens=all records them). What they would have added is missing.",
    "ref": "Log-probabilities of the reference were not recorded (record.kl=true records them), so "
    "the KL term is not known.",
    "sampler": "The sampler's log-probabilities were not recorded, so its correction is left out.",
    "entropy": "Entropies were not recorded, so every token counts as one that is trained.",
    "advantages": "The advantages are those recorded: others need more than the stored rewards.",
}

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepNumbers:
    """The recorded numbers of one step's update: the rewards of all answers, tokens of most."""

    step: int
    groups: tuple[int, ...]  # index of each answer's group
    rewards: tuple[tuple[float | None, ...], ...]  # of each answer, by function
    weights: tuple[float, ...]
    advantages: tuple[float, ...]  # of each answer, as recorded
    places: tuple[int, ...]  # which answers have token numbers
    packed: Packed | None  # of those; None if there are none
    max_length: int


def step_numbers(
    step: int, groups: Sequence[GroupView], rows: Mapping[tuple[int, int], TokenRow],
    max_length: int,
) -> StepNumbers:  # fmt: skip
    """Pack the last pass of a step; `rows` by index of group and answer."""
    answers = [(group.index, rollout) for group in groups for rollout in group.rollouts]
    weights = {reward.name: reward.weight for _, one in answers for reward in one.rewards}
    scores = [{reward.name: reward.value for reward in one.rewards} for _, one in answers]
    places = [
        place for place, (group, one) in enumerate(answers)
        if (row := rows.get((group, one.index))) is not None and row.ids
    ]  # fmt: skip
    told = [rows[answers[place][0], answers[place][1].index] for place in places]
    of_group = [group for group, _ in answers]
    return StepNumbers(
        step=step,
        groups=tuple(of_group),
        rewards=tuple(tuple(score.get(name) for name in weights) for score in scores),
        weights=tuple(weights.values()),
        advantages=tuple(one.advantage or 0.0 for _, one in answers),
        places=tuple(places),
        packed=packed(told, LAST, [of_group[place] for place in places]) if told else None,
        max_length=max_length,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What the loss did with some answers, summed; `+` takes steps together."""

    tokens: int = 0  # in the loss
    clipped: int = 0  # of them, where a bound stops the push
    pushed: float = 0.0  # Σ |what a token adds to the objective|
    kl: float | None = 0.0  # Σ w·β·k, as a mean over the step's updates; None if not known
    loss: float = 0.0  # likewise
    steps: int = 0  # with token numbers
    groups: int = 0
    with_signal: int = 0
    lowest: float = math.inf  # ratio
    highest: float = -math.inf
    lacks: frozenset[str] = frozenset()  # of LACKS

    def __add__(self, other: "Effect") -> "Effect":
        known = self.kl is not None and other.kl is not None
        return Effect(
            kl=(self.kl or 0.0) + (other.kl or 0.0) if known else None,
            lowest=min(self.lowest, other.lowest),
            highest=max(self.highest, other.highest),
            lacks=self.lacks | other.lacks,
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMMED},
        )

    @property
    def measures(self) -> tuple[float | None, ...]:
        """In the order of MEASURES; None where there is nothing to take a mean of."""
        return (
            self.clipped / self.tokens if self.tokens else None,
            self.with_signal / self.groups if self.groups else None,
            self.pushed / self.tokens if self.tokens else None,
            None if self.kl is None or not self.steps else self.kl / self.steps,
        )


_SUMMED = ("tokens", "clipped", "pushed", "loss", "steps", "groups", "with_signal")
MEASURES = (
    ("clipped", "share"), ("with signal", "share"), ("mean push", ""), ("KL term", ""),
)  # fmt: skip


def together(effects: Iterable[Effect]) -> Effect:
    """Several steps, at least one, as one."""
    return reduce(Effect.__add__, effects)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEffect:
    """One answer's part in the update: its advantage, its clipped share, its total push."""

    advantage: float
    clipped: float
    push: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WhatIf:
    """A step's last pass under one recipe: [A,T] of the answers that have token numbers."""

    numbers: StepNumbers
    signal: Mapping[int, bool]  # by group, whether any answer has an advantage
    lacks: frozenset[str] = frozenset()
    parts: Mapping[str, Array] = field(default_factory=dict)

    def _of(self, group: int | None) -> list[int]:
        places = self.numbers.places
        every = range(len(places))
        return [i for i in every if group is None or self.numbers.groups[places[i]] == group]

    def effect(self, group: int | None = None) -> Effect:
        """The whole step, or one of its groups."""
        signal = self.signal if group is None else {group: self.signal.get(group, False)}
        known = {"groups": len(signal), "with_signal": sum(signal.values())}
        packed, rows = self.numbers.packed, self._of(group)
        if packed is None or not rows:
            return Effect(lacks=self.lacks, **known)
        of = {name: values[rows] for name, values in self.parts.items()}
        inside = of["mask"].astype(bool)
        updates = len(set(packed.minibatches))
        ratios = of["ratio"][inside]
        return Effect(
            steps=1,
            tokens=int(inside.sum()),
            clipped=int((of["side"] != 0)[inside].sum()),
            pushed=float(np.abs(of["contribution"]).sum(dtype=np.float64)),
            kl=None if "ref" in self.lacks
            else float(of["penalty"].sum(dtype=np.float64)) / updates,
            loss=float(of["contribution"].sum(dtype=np.float64)) / updates,
            lowest=float(ratios.min(initial=math.inf)),
            highest=float(ratios.max(initial=-math.inf)),
            lacks=self.lacks,
            **known,
        )  # fmt: skip

    def answers(self, group: int) -> tuple[AnswerEffect, ...]:
        """The answers of a group that have token numbers."""
        return tuple(map(self._answer, self._of(group)))

    def _answer(self, row: int) -> AnswerEffect:
        of = {name: values[row] for name, values in self.parts.items()}
        inside = of["mask"].astype(bool)
        count = max(1, int(inside.sum()))
        return AnswerEffect(
            advantage=float(of["advantage"][inside].sum()) / count,
            clipped=float((of["side"] != 0)[inside].sum()) / count,
            push=-float(of["contribution"].sum()),
        )

    def pushes(self, group: int) -> tuple[Array, Array]:
        """The objective's slope in each token of a group, and where a bound stops it. [A,T]"""
        rows = self._of(group)
        return self.parts["slope"][rows], self.parts["side"][rows] != 0


def what_if(numbers: StepNumbers, recipe: Recipe, was: Recipe, *, sloped: bool = False) -> WhatIf:
    """Compute a step's last pass under another recipe than the run's, `was`.

    Advantages come from the step's rewards, denominators from the recorded updates. `sloped` adds
    what `pushes` reads.
    """
    numbers_of, lacks = numbers.packed, set()
    values = None
    if _signal_of(recipe) != _signal_of(was):
        values = _advantages(numbers, recipe)
        lacks |= {"advantages"} if values is None else set()
    pushed = _pushed(numbers, values)
    signal: dict[int, bool] = {}
    for group, is_pushed in zip(numbers.groups, pushed.tolist(), strict=True):
        signal[group] = signal.get(group, False) or is_pushed
    in_loss = recipe.anchor != "none" and recipe.anchor_place == "loss"
    unread = np.delete(pushed, list(numbers.places))
    if unread.any() or (in_loss and unread.size):
        lacks.add("tokens")
    if numbers_of is None:
        return WhatIf(numbers=numbers, signal=signal, lacks=frozenset(lacks))
    reads = {"ref": in_loss, "sampler": recipe.reads_sampler,
             "entropy": recipe.entropy_top_quantile < 1}  # fmt: skip
    lacks |= {name for name, read in reads.items() if read and name not in numbers_of.known}
    same_floor = recipe.entropy_top_quantile == was.entropy_top_quantile
    if values is not None:
        numbers_of = replace(numbers_of, advantages=_array(values[list(numbers.places)]))
    if not same_floor and (totals := _other_floor(numbers_of, recipe)) is not None:
        numbers_of = replace(numbers_of, totals=totals)
    parts = _parts(loss_terms(numbers_of, recipe, max_length=numbers.max_length), recipe)
    if sloped:
        push, pull = slopes(numbers_of, recipe, max_length=numbers.max_length)
        parts["slope"] = np.array(push + pull)
    return WhatIf(numbers=numbers, signal=signal, lacks=frozenset(lacks), parts=parts)


def _array(values: Array) -> "mx.array":
    import mlx.core as mx

    return mx.array(values)


def _signal_of(recipe: Recipe) -> tuple[Any, ...]:
    """What the advantages depend on."""
    names = (*_SIGNAL, *_PENALTY) if recipe.pays_in_reward else _SIGNAL
    return recipe.pays_in_reward, *(getattr(recipe, name) for name in names)


def _pushed(numbers: StepNumbers, values: Array | None) -> Array:
    """Whether each answer has an advantage on some token. [A]"""
    if values is not None:
        return np.array(values.reshape(len(values), -1).any(axis=1))
    pushed = np.array(numbers.advantages, bool)
    if numbers.packed is not None:
        pushed[list(numbers.places)] |= np.array(numbers.packed.advantages).any(axis=1)
    return pushed


def _advantages(numbers: StepNumbers, recipe: Recipe) -> Array | None:
    """The advantages of all answers from their rewards; None if more is needed. [A] or [A,T]"""
    from grpo_engine.maths.advantage import advantages

    tokens: dict[str, Any] = {}
    if recipe.signal == "gae" or recipe.pays_in_reward:
        packed = numbers.packed
        if packed is None or len(numbers.places) < len(numbers.groups):
            return None
        tokens = {"mask": packed.mask, "old": packed.old, "ref": packed.known.get("ref"),
                  "values": packed.known.get("old_values")}  # fmt: skip
    needs = {"ref": recipe.pays_in_reward, "values": recipe.signal == "gae"}
    lacking = any(need and tokens.get(name) is None for name, need in needs.items())
    if lacking or recipe.signal == "process" or not numbers.weights:
        return None
    found = advantages(numbers.rewards, numbers.groups, recipe, numbers.weights, **tokens)
    return np.array(found.values)


def _other_floor(numbers: Packed, recipe: Recipe) -> "Totals | None":
    """The denominators of each answer [B,1] for another share of tokens by entropy."""
    import mlx.core as mx

    from grpo_engine.maths.weight import totals_of

    if numbers.floor_entropy is None:
        return None
    floors = np.zeros((2, len(numbers.minibatches), 1), np.float32)
    for minibatch in set(numbers.minibatches):
        rows = [i for i, one in enumerate(numbers.minibatches) if one == minibatch]
        chosen = mx.array(rows)
        found = totals_of(
            numbers.mask[chosen], recipe=recipe, entropy=numbers.floor_entropy[chosen]
        )
        floors[:, rows, 0] = np.array([found.entropy_floor, found.updated_tokens])[:, None]
    floor, updated = map(mx.array, floors)
    return replace(numbers.totals, entropy_floor=floor, updated_tokens=updated)


def _parts(terms: "Terms", recipe: Recipe) -> dict[str, Array]:
    parts = {
        "mask": terms.mask, "side": terms.side, "ratio": terms.ratio,
        "contribution": terms.contribution, "advantage": terms.advantage,
        "penalty": terms.mask * terms.weight * recipe.beta * terms.anchor,
    }  # fmt: skip
    return {name: np.array(values) for name, values in parts.items()}


def turn(recipe: Recipe, knob: str, by: int) -> Recipe:
    """Move one setting by some notches, skipping values that the recipe does not allow."""
    notches = KNOBS[knob]
    now = getattr(recipe, knob)
    start = notches.index(now) if now in notches else _nearest(notches, now)
    step = 1 if by > 0 else -1
    for place in range(start + by, len(notches) if step > 0 else -1, step):
        try:
            return changed(recipe, knob, notches[place])
        except RecipeError:
            continue
    return recipe


def changed(recipe: Recipe, knob: str, value: Any) -> Recipe:
    """Return the recipe with one setting changed, and with it any setting that would conflict."""
    if knob == "name":
        return recipes.recipe(value)
    extra: dict[str, Any] = {}
    if knob == "anchor":
        extra["beta"] = 0.0 if value == "none" else recipe.beta or recipes.recipe("grpo").beta
    return recipes.recipe(recipe, **{knob: value, **extra})


def typed(recipe: Recipe, knob: str, text: str) -> Recipe:
    """Return the recipe with typed values: one for `knob`, or `beta=.1 clip_high=.3`."""
    words = re.findall(r"[^\s,=]+", text)
    words = [knob, *words] if len(words) == 1 else words
    if not words or len(words) % 2:
        raise RecipeError(f"{text!r} is not a value or name=value pairs: type .1, or beta=.1")
    for name, value in zip(words[::2], words[1::2], strict=True):
        known = "name" if name == "recipe" else name
        if known not in KNOBS:
            raise RecipeError(
                f"the stored numbers do not determine what another {name} would have done: c opens "
                f"New run; the lab changes {', '.join(KNOBS).replace('name', 'recipe', 1)}"
            )
        recipe = changed(recipe, known, _value(known, value))
    return recipe


def _value(knob: str, text: str) -> Any:
    setting = SETTINGS.get(knob)
    if setting is None or setting.choices:
        return text
    words = {"true": True, "on": True, "false": False, "off": setting.off, "none": setting.off}
    return words.get(text.lower(), text)


def _nearest(notches: Sequence[Any], value: Any) -> int:
    if not isinstance(value, int | float):
        return 0
    numbers = [(abs(n - value), i) for i, n in enumerate(notches) if isinstance(n, int | float)]
    return min(numbers)[1]


def differences(one: Recipe, other: Recipe) -> tuple[str, ...]:
    """Return the settings in which two recipes differ, except the name."""
    return tuple(
        field.name
        for field in fields(Recipe)
        if field.name != "name" and getattr(one, field.name) != getattr(other, field.name)
    )


def undetermined(recipe: Recipe, was: Recipe) -> tuple[str, ...]:
    """The settings that differ and that recorded numbers cannot show, since they change updates."""
    return tuple(
        name for name in differences(recipe, was)
        if name in _OF_UPDATES and any(SETTINGS[name].is_active(each) for each in (recipe, was))
    )  # fmt: skip
