"""The lab: recompute stored steps under other settings, from their recorded numbers.

MLX is imported in the thread that calls first; callers must use one thread.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from grpo_engine.config import recipes
from grpo_engine.config.choices import TRUSTS
from grpo_engine.config.recipes import RECIPES, SETTINGS, Recipe
from grpo_engine.errors import RecipeError
from grpo_tui.app.inspector.functions import evaluable
from grpo_tui.app.inspector.losses import Packed, gradients, loss_of, packed
from grpo_tui.experiments.values import GroupView, RecordedTokens

# The settings that recorded log-probabilities and rewards suffice to vary, in the lab's order, with
# the values that the arrows go through.
VARIED: Mapping[str, tuple[Any, ...]] = {
    "name": tuple(RECIPES),
    "beta": (0.0, 0.001, 0.01, 0.02, 0.04, 0.1, 0.3),
    "clip_low": (0.0003, 0.05, 0.1, 0.2, 0.3, 0.5),
    "clip_high": (0.0004, 0.05, 0.1, 0.2, 0.28, 0.3, 0.5, 1.0),
    "delta": (None, 1.5, 2.0, 4.0),
    "signal": ("group_standard", "group_mean", "leave_one_out", "batch_standard", "group_sign"),
    "teacher_weight": (0.0, 0.01, 0.1, 0.3, 1.0, 3.0),
    "ratio": ("token", "sequence_mean", "sequence_sum"),
    # Targets come from the samples, which the recorded numbers do not hold.
    "trust": tuple(v for v in SETTINGS["trust"].choices if TRUSTS[v].stops_at != "targets"),
    "anchor": SETTINGS["anchor"].choices,
    "anchor_reweighted": (False, True),
    "weight": ("per_sequence", "per_completion", "per_token", "constant", "sum"),
    "importance_cap": (0.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0),
    "importance_floor": (0.0, 0.2, 0.5, 0.8, 0.9),
    "importance_mode": SETTINGS["importance_mode"].choices,
    "off_policy_mask": (0.0, 0.001, 0.01, 0.1, 0.5, 1.0),
}
# Settings that decide which updates there are, and of which rollouts.
OF_UPDATES = (
    "passes",
    "minibatches",
    "stop",
    "stop_share",
    "stop_kl",
    "stop_plateau",
    "target_tolerance",
    "ref_refresh_every",
    "ref_mix",
    "sampler_sync_every",
    "refill_rounds",
    "refill_on",
    "overlong_buffer",
    "mask_truncated",
    "entropy_bonus",
    "entropy_target",
)

MISSING = {
    "tokens": "Some answers have no token numbers: left out of the update, or not recorded "
    "(record.tokens=all records them). What they would have added is missing.",
    "ref": "Log-probabilities of the reference were not recorded (record.kl=true records them), so "
    "the KL penalty is not known.",
    "sampler": "The sampler's log-probabilities were not recorded, so its correction is left out.",
    "advantages": "The advantages are those recorded: others need more than the stored rewards.",
}

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepNumbers:
    """The recorded numbers of one step's update: all rewards, and the tokens that were kept."""

    step: int
    groups: tuple[int, ...]  # by rollout
    rewards: tuple[tuple[float | None, ...], ...]  # by rollout and function
    weights: tuple[float, ...]
    pushed: tuple[bool, ...]  # by rollout: whether some token has an advantage
    recorded: tuple[int, ...]  # positions of the rollouts that have token numbers
    packed: Packed | None  # their numbers; None without any


def step_numbers(
    step: int,
    groups: Sequence[GroupView],
    rows: Mapping[tuple[int, int], RecordedTokens],
    max_length: int,
) -> StepNumbers:
    """Pack the last pass of a step; `rows`, by index of group and rollout, have tokens."""
    rollouts = [(group.index, rollout) for group in groups for rollout in group.rollouts]
    weights = {reward.name: reward.weight for _, rollout in rollouts for reward in rollout.rewards}
    scores = [{reward.name: reward.value for reward in rollout.rewards} for _, rollout in rollouts]
    keys = [(group, rollout.index) for group, rollout in rollouts]
    recorded = {position: rows[key] for position, key in enumerate(keys) if key in rows}
    group_of = [group for group, _ in rollouts]
    return StepNumbers(
        step=step,
        groups=tuple(group_of),
        rewards=tuple(tuple(score.get(name) for name in weights) for score in scores),
        weights=tuple(weights.values()),
        pushed=tuple(
            bool(rollout.advantage) or (i in recorded and any(recorded[i].advantages))
            for i, (_, rollout) in enumerate(rollouts)
        ),
        recorded=tuple(recorded),
        packed=packed(
            [*recorded.values()],
            [group_of[i] for i in recorded],
            step=step,
            max_length=max_length,
        )
        if recorded
        else None,
    )


class LossEffect(NamedTuple):
    """What the loss did with some rollouts, summed."""

    tokens: int = 0  # those in the loss
    clipped: int = 0  # tokens that a bound stops from being pushed
    advantages: float = 0.0  # Σ over tokens in the loss
    push: float = 0.0  # Σ of the objective's gradient in each token, without the KL penalty
    pushed: float = 0.0  # Σ of its absolute value
    kl: float = 0.0  # Σ w·β·k, as a mean over the step's updates; NaN if not known
    steps: int = 0  # those with token numbers
    groups: int = 0
    with_signal: int = 0
    missing: frozenset[str] = frozenset()  # keys of MISSING

    @property
    def advantage(self) -> float:
        """The mean over the tokens in the loss."""
        return self.advantages / max(1, self.tokens)

    @property
    def measures(self) -> tuple[float | None, ...]:
        """In the order of MEASURES; None where there is nothing to take a mean of."""
        means = (
            (self.clipped, self.tokens),
            (self.with_signal, self.groups),
            (self.pushed, self.tokens),
            (self.kl, self.steps),
        )
        return tuple(
            total / count if count and not math.isnan(total) else None for total, count in means
        )


# names and units
MEASURES = (("clipped", "share"), ("with signal", "share"), ("mean push", ""), ("KL penalty", ""))


def together(effects: Collection[LossEffect]) -> LossEffect:
    """Several steps as one."""
    *sums, missing = zip(*effects, strict=True)
    return LossEffect._make([*map(sum, sums), frozenset().union(*missing)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecipeOutcome:
    """A step's last pass under one recipe: [A,T] of the rollouts that have token numbers."""

    numbers: StepNumbers
    signal: frozenset[int] = frozenset()  # groups in which some rollout has an advantage
    missing: frozenset[str] = frozenset()
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def effect(self, row: int | None = None) -> LossEffect:
        """The step, or one of the rollouts that have token numbers."""
        effect = LossEffect(
            groups=len(set(self.numbers.groups)),
            with_signal=len(self.signal),
            missing=self.missing,
        )
        if self.numbers.packed is None:
            return effect
        rows = slice(None) if row is None else [row]
        arrays = {name: values[rows] for name, values in self.arrays.items()}
        in_loss = arrays["mask"].astype(bool)
        push = arrays["push"].astype(np.float64)
        updates = len(set(self.numbers.packed.minibatches))
        return effect._replace(
            steps=1,
            tokens=int(in_loss.sum()),
            clipped=int((arrays["side"] != 0)[in_loss].sum()),
            advantages=float(arrays["advantage"][in_loss].sum()),
            push=float(push.sum()),
            pushed=float(np.abs(push).sum()),
            kl=math.nan
            if "ref" in self.missing
            else float(arrays["penalty"].sum(dtype=np.float64)) / updates,
        )


def outcome_of(numbers: StepNumbers, recipe: Recipe, base: Recipe) -> RecipeOutcome:
    """Compute a step's last pass under another recipe than the run's, `base`.

    Advantages come from the step's rewards, denominators from the recorded updates.
    """
    import mlx.core as mx

    recipe = evaluable(recipe)
    packed, missing = numbers.packed, set[str]()
    values, pushed = None, np.array(numbers.pushed, bool)
    if _signal_settings(recipe) != _signal_settings(base):
        values = _advantages(numbers, recipe)
        if values is None:
            missing.add("advantages")
        else:
            pushed = np.any(values.reshape(len(values), -1), axis=1)
    signal = frozenset(np.array(numbers.groups)[pushed].tolist())
    reads_reference = recipe.anchor_in_loss
    without_tokens = np.delete(pushed, list(numbers.recorded))
    if without_tokens.any() or (reads_reference and without_tokens.size):
        missing.add("tokens")
    arrays: dict[str, Array] = {}
    if packed is not None:
        reads = {"ref": reads_reference, "sampler": recipe.reads_sampler}
        missing |= {name for name, read in reads.items() if read and name not in packed.arrays}
        if values is not None:
            advantages = mx.array(values[list(numbers.recorded)])
            packed = replace(packed, arrays={**packed.arrays, "advantages": advantages})
        arrays = _arrays(packed, recipe)
    return RecipeOutcome(numbers=numbers, signal=signal, missing=frozenset(missing), arrays=arrays)


def _signal_settings(recipe: Recipe) -> tuple[Any, ...]:
    """What the advantages depend on."""
    choices = ("signal", "anchor") if recipe.anchor_in_reward else ("signal",)
    return tuple(
        getattr(recipe, name)
        for name, setting in SETTINGS.items()
        if name in choices or setting.belongs in choices
    )


def _advantages(numbers: StepNumbers, recipe: Recipe) -> Array | None:
    """The advantages of all rollouts from their rewards; None if more is needed. [A] or [A,T]"""
    from grpo_engine.maths.advantage import advantages

    complete = len(numbers.recorded) == len(numbers.groups)
    arrays = numbers.packed.arrays if numbers.packed is not None and complete else {}
    tokens: dict[str, Any] = {name: arrays.get(name) for name in ("mask", "old", "ref", "teacher")}
    tokens["values"] = arrays.get("old_values")
    needs = {
        "ref": recipe.anchor_in_reward,
        "values": recipe.has_critic,
        "teacher": recipe.teacher_weight > 0,
    }
    lacking = any(is_needed and tokens[name] is None for name, is_needed in needs.items())
    if lacking or recipe.compares == "steps" or not numbers.weights:
        return None
    result = advantages(
        numbers.rewards,
        numbers.groups,
        recipe,
        numbers.weights,
        **tokens,
        extra={"step": numbers.step},
    )
    return np.array(result.values)


def _arrays(packed: Packed, recipe: Recipe) -> dict[str, Array]:
    terms = loss_of(packed, recipe).terms
    names = ("mask", "side", "advantage")
    arrays: dict[str, Any] = {name: getattr(terms, name) for name in names}
    arrays["penalty"] = terms.mask * terms.weight * recipe.beta * terms.anchor
    arrays["push"], pull = gradients(packed, recipe)
    arrays["gradient"] = arrays["push"] + pull
    return {name: np.array(values) for name, values in arrays.items()}


def with_next(recipe: Recipe, name: str, by: int) -> Recipe:
    """The recipe with the next value of a setting, or the one before, that it allows."""
    values, value = VARIED[name], getattr(recipe, name)

    def distance(index: int) -> float:
        candidate = values[index]
        if isinstance(value, int | float) and isinstance(candidate, int | float):
            return abs(candidate - value)
        return 0.0 if candidate == value else math.inf

    start = min(range(len(values)), key=distance)
    for candidate in values[start + 1 :] if by > 0 else values[:start][::-1]:
        with suppress(RecipeError):
            return with_setting(recipe, name, candidate)
    return recipe


def with_setting(recipe: Recipe, name: str, value: Any) -> Recipe:
    """The recipe with one setting changed, and with it any setting that would conflict."""
    if name == "name":
        return recipes.recipe(value)
    changes = {name: value}
    if name == "anchor" and value != "none":
        changes["beta"] = recipe.beta or recipes.recipe("grpo").beta
    return recipes.recipe(recipe, **changes)


def with_typed(recipe: Recipe, name: str, text: str) -> Recipe:
    """The recipe with a value as it is typed; `off` turns off what can be."""
    setting = SETTINGS.get(name)
    is_off = setting and not setting.choices and text.lower() in ("off", "none")
    return with_setting(recipe, name, setting.off if setting and is_off else text)


def undetermined(recipe: Recipe, base: Recipe) -> tuple[str, ...]:
    """The settings that differ and that recorded numbers cannot show, since they change updates."""
    return tuple(
        name
        for name in recipes.changes(base, recipe)
        if name in OF_UPDATES and any(SETTINGS[name].is_active(r) for r in (recipe, base))
    )
