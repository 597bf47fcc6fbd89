"""Recipes: an algorithm is one choice for each of six questions, and the settings they read.

The questions are signal, ratio, trust, anchor, weight and reuse; `RECIPES` answers them for every
algorithm that ships, and `recipe` changes single answers and refuses those that exclude each
other. Nothing here computes: `grpo_engine.maths` reads a recipe and does what it says.
"""

import difflib
from dataclasses import replace
from typing import Any

from grpo_engine.config.recipe_rules import (
    RANGES,
    Range,
    check_value,
    refuse_exclusions,
    refuse_unread,
    settings_read,
)
from grpo_engine.config.recipe_types import CHOICES, Recipe
from grpo_engine.errors import RecipeError

__all__ = ["CHOICES", "RANGES", "RECIPES", "Range", "Recipe", "recipe", "settings_read"]


def recipe(base: str | Recipe, **changes: Any) -> Recipe:
    """A recipe by name, or a recipe, with some answers changed; refused if they exclude each other.

    `beta` above 0 on a recipe without an anchor means `anchor="k3"`, and `beta=0` means no anchor.
    """
    start = base if isinstance(base, Recipe) else _by_name(base)
    for name, value in changes.items():
        check_value(name, value)
    if changes.get("beta", 0) > 0 and start.anchor == "none":
        changes.setdefault("anchor", "k3")
    if changes.get("anchor") == "none":
        changes.setdefault("beta", 0.0)
    elif changes.get("beta", start.beta) == 0 and changes.get("anchor", "k3") != "none":
        if "anchor" in changes and "beta" not in changes:
            raise RecipeError(
                f"anchor={changes['anchor']} has no effect with beta=0, as recipe {start.name} "
                "has it: set beta, for example beta=0.04"
            )
        changes["anchor"] = "none"
    made = replace(start, **changes)
    refuse_exclusions(made)
    refuse_unread(start, made, changes)
    return made


def _by_name(name: object) -> Recipe:
    if isinstance(name, str) and name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(str(name), RECIPES, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise RecipeError(f"there is no recipe {name!r}: {hint}choose one of {', '.join(RECIPES)}")


_GRPO = Recipe(name="grpo")
_NO_ANCHOR: dict[str, Any] = {"anchor": "none", "beta": 0.0}
_NO_TRUST: dict[str, Any] = {"trust": "none", "weight": "per_completion", **_NO_ANCHOR}

RECIPES: dict[str, Recipe] = {
    made.name: made
    for made in (
        Recipe(name="reinforce", signal="return", ratio="none", **_NO_TRUST),
        Recipe(name="reinforce-baseline", signal="minus_batch_mean", ratio="none", **_NO_TRUST),
        Recipe(name="off-policy", signal="minus_batch_mean", passes=4, **_NO_TRUST),
        _GRPO,
        replace(_GRPO, name="grpo-iterative", ref_refresh_every=50),
        replace(_GRPO, name="grpo-process", signal="process"),
        Recipe(
            name="grpo-sequence",
            std="population",
            signal_eps=1e-8,
            ratio="sequence_sum",
            beta=0.01,
            anchor_level="sequence",
            sampler_sync_every=10,
        ),
        Recipe(name="dr-grpo", signal="group_mean", weight="constant", **_NO_ANCHOR),
        Recipe(
            name="dapo",
            clip_high=0.28,
            weight="per_token",
            minibatches=4,
            refill_rounds=4,
            overlong_buffer=0.2,
            **_NO_ANCHOR,
        ),
        Recipe(
            name="gspo",
            ratio="sequence_mean",
            clip_low=3e-4,
            clip_high=4e-4,
            minibatches=4,
            **_NO_ANCHOR,
        ),
        Recipe(name="cispo", trust="cispo", weight="per_token", **_NO_ANCHOR),
        Recipe(name="sapo", trust="sapo", **_NO_ANCHOR),
        Recipe(name="bnpo", weight="per_batch_token", **_NO_ANCHOR),
        Recipe(
            name="rloo",
            signal="leave_one_out",
            ratio="sequence_sum",
            anchor="k1",
            beta=0.05,
            anchor_place="reward",
        ),
        Recipe(
            name="how-much",
            signal="group_sign",
            trust="target",
            weight="sum",
            passes=8,
            stop="target",
            **_NO_ANCHOR,
        ),
        Recipe(
            name="ppo",
            signal="gae",
            anchor="k1",
            beta=0.05,
            anchor_place="reward",
            weight="per_token",
            passes=4,
        ),
    )
}
