"""Recipes: the shipped table, single changes, and refusals with reasons."""

import math
import re
import sys
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_engine.config.declaration import Setting
from grpo_engine.config.recipes import (
    RECIPES,
    SETTINGS,
    Recipe,
    recipe,
    settings_read,
)
from grpo_engine.config.settings import AlgorithmConfig
from grpo_engine.errors import RecipeError


@pytest.mark.parametrize("name", RECIPES)
def test_a_shipped_recipe_passes_its_own_rules(name: str) -> None:
    made = RECIPES[name]
    every = {key: getattr(made, key) for key in SETTINGS if key != "anchor"}
    assert recipe(name, **every) == made


def test_a_choice_can_be_changed_again_and_again_and_the_rest_stays() -> None:
    once = recipe("grpo", beta=0.1, clip_high=0.28)
    assert once == replace(RECIPES["grpo"], beta=0.1, clip_high=0.28)
    assert recipe(once, weight="per_token") == replace(once, weight="per_token")


@pytest.mark.parametrize(
    ("base", "changes", "anchor", "beta"),
    [
        ("grpo", {"beta": 0.0}, "none", 0.0),
        ("grpo", {"beta": 0.0, "anchor": "k3"}, "none", 0.0),
        ("grpo", {"anchor": "none"}, "none", 0.0),
        ("dapo", {"beta": 0.04}, "k3", 0.04),
        ("dapo", {"beta": 0.04, "anchor": "k2"}, "k2", 0.04),
    ],
)
def test_an_anchor_and_its_weight_come_and_go_together(
    base: str, changes: dict[str, Any], anchor: str, beta: float
) -> None:
    made = recipe(base, **changes)
    assert (made.anchor, made.beta) == (anchor, beta)


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        ("gpro", {}, "did you mean .*grpo"),
        ("nonsense", {}, "choose one of reinforce"),
        ("grpo", {"clip_hi": 0.3}, "did you mean clip_high"),
        ("grpo", {"trust": "clamp"}, "trust must be one of none, clip"),
        ("grpo", {"clip_low": 1.5}, "clip_low must be a number ≥ 0 and ≤ 1, such as 0.2; got 1.5"),
        ("grpo", {"clip_high": math.nan}, "clip_high must be a number ≥ 0, such as 0.2; got nan"),
        ("grpo", {"beta": None}, "beta must be a number ≥ 0, such as 0.04; got nothing"),
        ("grpo", {"delta": 1.0}, "delta must be none \\(off\\) or a number > 1"),
        ("grpo", {"mask_truncated": 1}, "mask_truncated must be true or false; got 1"),
        ("grpo", {"importance_cap": 0.5}, "would shrink every weight"),
        ("grpo", {"ratio": "none"}, "trust=clip bounds a ratio, but ratio=none has none"),
        ("reinforce", {"trust": "clip"}, "trust=clip bounds a ratio"),
        ("reinforce", {"passes": 2}, "ratio=none is right for fresh samples only"),
        ("reinforce", {"sampler_sync_every": 2}, "ratio=none is right for fresh samples only"),
        ("how-much", {"ratio": "sequence_mean"}, "every token its own target"),
        ("how-much", {"signal": "group_mean"}, "reads only the sign"),
        ("grpo", {"anchor": "none", "beta": 0.1}, "beta=0.1 has no effect"),
        ("dapo", {"anchor": "k1"}, "has no effect with beta=0"),
        ("grpo-process", {"anchor_place": "reward"}, "scores of steps"),
        ("rloo", {"combine": "normalize_then_sum"}, "normalises before it sums"),
        ("ppo", {"anchor_level": "sequence"}, "token by token"),
        (
            "reinforce",
            {"combine": "normalize_then_sum"},
            "combine=normalize_then_sum has no effect",
        ),
        ("grpo", {"passes": 2, "stop": "target"}, "sets none"),
        ("sapo", {"passes": 2, "stop": "all_at_bound"}, "has none that stops them"),
        ("reinforce", {"refill_rounds": 2}, "does not compare within a group"),
        ("sapo", {"clip_high": 0.3}, "clip_high=0.3 has no effect: it is read only with trust"),
        ("grpo", {"stop": "kl"}, "stop=kl has no effect: it is read only with passes above 1"),
        ("dapo", {"ref_refresh_every": 5}, "only with an anchor"),
        ("grpo", {"lam": 0.9}, "only with signal=gae"),
        ("grpo", {"importance_floor": 0.5}, "only with importance_cap above 0"),
        (
            "grpo",
            {"importance_cap": 1.0, "importance_floor": 1.0},
            "every weight would be the same",
        ),
        ("vespo", {"ratio": "token"}, "trust=vespo always takes the ratio of whole answers"),
        ("grpo", {"vespo_k_pos": 1.0}, "only with trust=vespo"),
        ("dapo", {"anchor_reweighted": True}, "only with an anchor in the loss and a ratio"),
        ("reinforce", {"beta": 0.1, "anchor_reweighted": True}, "in the loss and a ratio"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    base: str, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(RecipeError, match=words) as refused:
        recipe(base, **changes)
    named = refused.value.settings
    assert refused.value.setting == named[0]
    assert set(changes) & {*named} or named == ("recipe",)


def test_a_token_ratio_is_read_with_vespo_where_it_reweights_the_kl() -> None:
    made = recipe("vespo", ratio="token", beta=0.1, anchor_reweighted=True)
    assert made.reweights_anchor
    with pytest.raises(RecipeError, match="choose ratio=sequence_sum"):
        recipe(made, beta=0.0)


def test_the_settings_of_a_recipe_are_those_that_have_an_effect() -> None:
    read = settings_read(recipe("cispo"))
    assert "cispo_cap" in read
    assert not {"clip_low", "clip_high", "beta", "gamma", "stop", "name"} & set(read)


def test_a_process_signal_needs_no_second_answer() -> None:
    assert recipe("grpo-process", refill_rounds=2).compares == "steps"


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("value_clip", 0, True),  # off
        ("value_clip", -0.1, False),
        ("importance_cap", 0, True),  # off
        ("importance_cap", 1, True),
        ("target_tolerance", 0, False),  # no probability equals its target to the last bit
        ("target_tolerance", 1, True),
        ("stop_plateau", 0, True),  # until there is no improvement at all
        ("stop_plateau", 1.5, True),  # from J = -1 to 1 is an improvement by twice its own size
        ("overlong_buffer", 1, True),  # the penalty grows from the first token
        ("entropy_target", 0, True),
        ("entropy_target", None, True),  # off
        ("beta", None, False),
        ("passes", 101, True),
        ("passes", 2.0, True),
        ("passes", 2.5, False),
        ("minibatches", 1025, True),
        ("refill_rounds", 101, True),
        ("refill_rounds", -1, False),
        ("clip_high", 10**400, False),
    ],
)
def test_a_setting_has_the_range_that_its_formula_allows(
    name: str, value: Any, legal: bool
) -> None:
    setting = SETTINGS[name]
    if legal:
        assert setting.checked(value) == value
    else:
        with pytest.raises(ValueError, match=re.escape(setting.allowed)):
            setting.checked(value)


OTHER_TYPES = [
    True,
    "",
    "no",
    "0.5",
    "1",
    "nan",
    "1e400",
    math.nan,
    math.inf,
    -math.inf,
    10**400,
    [],
    {},
]


def edges(setting: Setting) -> list[Any]:
    """Values at, just inside, just outside and far from a setting's limits, and of other types."""
    low = setting.ge if setting.gt is None else setting.gt
    low = -math.inf if low is None else low
    high = sys.float_info.max if setting.le is None else setting.le
    numbers = [math.nextafter(edge, to) for edge in (low, high, 0, 1) for to in (-9e9, 9e9)]
    numbers += [low, high, 0, 1, -1, 0.5, 2, 2.0, 2.5, 101, 1e4, 10**6]
    default = [] if setting.default is None else [setting.default]
    return [*numbers, *default, *setting.choices, True, False, *OTHER_TYPES]


@pytest.mark.parametrize("name", SETTINGS)
def test_at_the_edges_the_configuration_takes_what_the_recipe_takes(name: str) -> None:
    setting = SETTINGS[name]
    # grpo if it reads the setting, else a recipe that does; grpo where none does
    grpo = RECIPES["grpo"]
    base = next((made for made in (grpo, *RECIPES.values()) if setting.is_read(made)), grpo).name
    for value in edges(setting):
        try:
            made: Recipe | None = recipe(base, **{name: value})
        except RecipeError:
            made = None
        given = {"options": {name: value}} if setting.option else {name: value}
        try:
            config = AlgorithmConfig(recipe=base, **given)
        except ValidationError:
            config = None
        assert (made is None) == (config is None), f"{base}: {name}={value!r}"
        if config is not None:
            assert config.resolved() == made
            assert AlgorithmConfig.model_validate_json(config.model_dump_json()) == config
