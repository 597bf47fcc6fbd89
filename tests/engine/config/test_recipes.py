"""Recipes: the shipped table, single changes, and refusals that say why."""

from dataclasses import replace
from typing import Any

import pytest

from grpo_engine.config.recipes import CHOICES, RANGES, RECIPES, Recipe, recipe, settings_read
from grpo_engine.errors import RecipeError

SHIPPED: list[str] = [
    "reinforce",
    "reinforce-baseline",
    "off-policy",
    "grpo",
    "grpo-iterative",
    "grpo-process",
    "grpo-sequence",
    "dr-grpo",
    "dapo",
    "gspo",
    "cispo",
    "sapo",
    "bnpo",
    "rloo",
    "how-much",
    "ppo",
]

# recipe: signal, ratio, trust, anchor, weight, passes
ANSWERS = {
    "reinforce": ("return", "none", "none", "none", "per_completion", 1),
    "reinforce-baseline": ("minus_batch_mean", "none", "none", "none", "per_completion", 1),
    "off-policy": ("minus_batch_mean", "token", "none", "none", "per_completion", 4),
    "grpo": ("group_standard", "token", "clip", "k3", "per_sequence", 1),
    "grpo-iterative": ("group_standard", "token", "clip", "k3", "per_sequence", 1),
    "grpo-process": ("process", "token", "clip", "k3", "per_sequence", 1),
    "grpo-sequence": ("group_standard", "sequence_sum", "clip", "k3", "per_sequence", 1),
    "dr-grpo": ("group_mean", "token", "clip", "none", "constant", 1),
    "dapo": ("group_standard", "token", "clip", "none", "per_token", 1),
    "gspo": ("group_standard", "sequence_mean", "clip", "none", "per_sequence", 1),
    "cispo": ("group_standard", "token", "cispo", "none", "per_token", 1),
    "sapo": ("group_standard", "token", "sapo", "none", "per_sequence", 1),
    "bnpo": ("group_standard", "token", "clip", "none", "per_batch_token", 1),
    "rloo": ("leave_one_out", "sequence_sum", "clip", "k1", "per_sequence", 1),
    "how-much": ("group_sign", "token", "target", "none", "sum", 8),
    "ppo": ("gae", "token", "clip", "k1", "per_token", 4),
}

SETTINGS: dict[str, dict[str, Any]] = {
    "grpo": {"clip_low": 0.2, "clip_high": 0.2, "beta": 0.04, "std": "sample", "signal_eps": 1e-4},
    "grpo-iterative": {"ref_refresh_every": 50, "ref_mix": 1.0},
    "grpo-sequence": {
        "std": "population",
        "signal_eps": 1e-8,
        "beta": 0.01,
        "anchor_level": "sequence",
        "sampler_sync_every": 10,
    },
    "dapo": {"clip_high": 0.28, "minibatches": 4, "refill_rounds": 4, "overlong_buffer": 0.2},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4, "minibatches": 4},
    "cispo": {"cispo_cap": 5.0},
    "sapo": {"sapo_tau_pos": 1.0, "sapo_tau_neg": 1.05},
    "rloo": {"anchor_place": "reward", "beta": 0.05},
    "how-much": {"stop": "target", "stop_share": 0.99, "target_tolerance": 0.02},
    "ppo": {
        "gamma": 1.0,
        "lam": 0.95,
        "anchor_place": "reward",
        "beta": 0.05,
        "value_clip": 0.2,
        "value_coefficient": 0.1,
        "whiten": True,
    },
}


def test_every_recipe_of_the_table_ships() -> None:
    assert list(RECIPES) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_recipe_gives_the_answers_of_the_table(name: str) -> None:
    made = recipe(name)
    assert made.name == name
    assert (
        made.signal,
        made.ratio,
        made.trust,
        made.anchor,
        made.weight,
        made.passes,
    ) == ANSWERS[name]
    assert {key: getattr(made, key) for key in SETTINGS.get(name, {})} == SETTINGS.get(name, {})


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_passes_its_own_rules(name: str) -> None:
    made = RECIPES[name]
    every = {key: getattr(made, key) for key in [*CHOICES, *RANGES] if key != "anchor"}
    assert recipe(name, **every) == made


def test_one_choice_can_be_changed_and_the_rest_stays() -> None:
    made = recipe("grpo", beta=0.1, clip_high=0.28)
    assert made == replace(RECIPES["grpo"], beta=0.1, clip_high=0.28)


def test_a_changed_recipe_can_be_changed_again() -> None:
    once = recipe("grpo", clip_high=0.28)
    assert recipe(once, weight="per_token") == recipe("grpo", clip_high=0.28, weight="per_token")


def test_beta_zero_takes_the_anchor_away() -> None:
    assert recipe("grpo", beta=0.0).anchor == "none"
    assert recipe("grpo", beta=0.0, anchor="k3").anchor == "none"


def test_no_anchor_takes_beta_away() -> None:
    assert recipe("grpo", anchor="none").beta == 0.0


def test_beta_on_a_recipe_without_an_anchor_means_k3() -> None:
    made = recipe("dapo", beta=0.04)
    assert (made.anchor, made.beta) == ("k3", 0.04)
    assert recipe("dapo", beta=0.04, anchor="k2").anchor == "k2"


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        ("gpro", {}, "did you mean .*'grpo'"),
        ("nonsense", {}, "choose one of reinforce"),
        ("grpo", {"clip_hi": 0.3}, "did you mean 'clip_high'"),
        ("grpo", {"trust": "clamp"}, "trust must be one of none, clip"),
        ("grpo", {"clip_low": 1.5}, "clip_low must be at least 0 and at most 1, got 1.5"),
        ("grpo", {"clip_low": "a"}, "clip_low must be at least 0 and at most 1, got 'a'"),
        ("grpo", {"clip_low": True}, "clip_low must be"),
        ("grpo", {"clip_high": float("nan")}, "clip_high must be at least 0, got nan"),
        ("grpo", {"beta": -0.1}, "beta must be at least 0"),
        ("grpo", {"beta": None}, "beta must be at least 0, got None"),
        ("grpo", {"delta": 1.0}, "delta must be none \\(off\\) or above 1"),
        ("grpo", {"passes": 1.5}, "passes must be a whole number at least 1, got 1.5"),
        ("grpo", {"passes": 0}, "passes must be a whole number at least 1, got 0"),
        ("grpo", {"mask_truncated": 1}, "mask_truncated must be true or false, got 1"),
        ("grpo", {"importance_cap": 0.5}, "importance_cap must be 0 \\(off\\) or at least 1"),
        ("grpo", {"entropy_top_quantile": 0.0}, "entropy_top_quantile must be above 0"),
        ("grpo", {"ratio": "none"}, "trust=clip bounds a ratio, but ratio=none has none"),
        ("reinforce", {"trust": "clip"}, "trust=clip bounds a ratio"),
        ("reinforce", {"passes": 2}, "ratio=none is right for fresh samples only"),
        ("reinforce", {"minibatches": 2}, "ratio=none is right for fresh samples only"),
        ("reinforce", {"sampler_sync_every": 2}, "ratio=none is right for fresh samples only"),
        ("how-much", {"ratio": "sequence_mean"}, "every token its own target"),
        ("how-much", {"signal": "group_mean"}, "reads only the sign"),
        ("grpo", {"anchor": "none", "beta": 0.1}, "anchor=none measures none"),
        ("dapo", {"anchor": "k1"}, "has no effect with beta=0"),
        ("grpo-process", {"anchor_place": "reward"}, "scores of steps"),
        ("rloo", {"combine": "normalize_then_sum"}, "normalises before it sums"),
        ("ppo", {"anchor_level": "sequence"}, "token by token"),
        ("reinforce", {"combine": "normalize_then_sum"}, "gives nothing to sum"),
        ("grpo", {"passes": 2, "stop": "target"}, "sets none"),
        ("sapo", {"passes": 2, "stop": "all_at_bound"}, "has none that stops them"),
        ("reinforce", {"refill_rounds": 2}, "does not compare within a group"),
        ("sapo", {"clip_high": 0.3}, "clip_high=0.3 has no effect: it is read only with trust"),
        ("grpo", {"stop": "kl"}, "stop=kl has no effect: it is read only with passes above 1"),
        ("dapo", {"ref_refresh_every": 5}, "only with an anchor"),
        ("grpo", {"lam": 0.9}, "only with signal=gae"),
        ("grpo", {"importance_floor": 0.5}, "only with importance_cap above 0"),
        ("grpo", {"importance_mode": "token_mask"}, "only with importance_cap above 0"),
        ("grpo", {"importance_cap": 2.0, "importance_floor": 1.5}, "at least 0 and at most 1"),
        (
            "grpo",
            {"importance_cap": 1.0, "importance_floor": 1.0},
            "every weight would be the same",
        ),
        ("grpo", {"off_policy_mask": -1.0}, "off_policy_mask must be at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    base: str, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        recipe(base, **changes)


def test_the_settings_of_a_recipe_are_those_that_have_an_effect() -> None:
    read = settings_read(recipe("cispo"))
    assert "cispo_cap" in read
    assert not {"clip_low", "clip_high", "beta", "gamma", "stop", "name"} & set(read)


def test_every_numeric_setting_has_a_range_and_every_choice_its_values() -> None:
    named = set(CHOICES) | set(RANGES) | {"name", "drop_at_bound", "mask_truncated", "whiten"}
    assert named == set(Recipe.__dataclass_fields__)
