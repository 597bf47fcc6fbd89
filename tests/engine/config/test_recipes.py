"""Recipes: the shipped table, single changes, and refusals with reasons."""

import math
import re
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grpo_engine.config.choices import SIGNALS, TRUSTS
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
    "luspo": ("group_standard", "sequence_mean", "clip", "none", "per_completion", 1),
    "cispo": ("group_standard", "token", "cispo", "none", "per_token", 1),
    "sapo": ("group_standard", "token", "sapo", "none", "per_sequence", 1),
    "vespo": ("group_standard", "sequence_sum", "vespo", "none", "per_token", 1),
    "bnpo": ("group_standard", "token", "clip", "none", "per_batch_token", 1),
    "rloo": ("leave_one_out", "sequence_sum", "clip", "k1", "per_sequence", 1),
    "how-much": ("group_sign", "token", "target", "none", "sum", 8),
    "ppo": ("gae", "token", "clip", "k1", "per_token", 4),
    "distill": ("none", "token", "clip", "none", "per_token", 4),
    "sft": ("demonstration", "none", "none", "none", "per_token", 1),
}

OWN: dict[str, dict[str, Any]] = {
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
    "luspo": {"clip_low": 2e-3, "clip_high": 2.5e-3, "minibatches": 4},
    "sapo": {"sapo_tau_pos": 1.0, "sapo_tau_neg": 1.05},
    "vespo": {
        "vespo_k_pos": 2.0,
        "vespo_lambda_pos": 3.0,
        "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0,
        "minibatches": 4,
    },
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
    "distill": {"teacher_weight": 1.0, "clip_low": 0.4, "clip_high": 0.4, "minibatches": 8},
}


def test_every_recipe_of_the_table_ships() -> None:
    assert list(RECIPES) == list(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
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
    assert {key: getattr(made, key) for key in OWN.get(name, {})} == OWN.get(name, {})


@pytest.mark.parametrize("name", ANSWERS)
def test_a_shipped_recipe_passes_its_own_rules(name: str) -> None:
    made = RECIPES[name]
    every = {key: getattr(made, key) for key in SETTINGS if key != "anchor"}
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
    with pytest.raises(RecipeError, match=words):
        recipe(base, **changes)


def test_a_token_ratio_is_read_with_vespo_where_it_reweights_the_kl() -> None:
    made = recipe("vespo", ratio="token", beta=0.1, anchor_reweighted=True)
    assert made.reweights_anchor
    with pytest.raises(RecipeError, match="choose ratio=sequence_sum"):
        recipe(made, beta=0.0)


def test_a_value_clip_of_nought_is_off_and_legal() -> None:
    assert AlgorithmConfig(recipe="ppo", options={"value_clip": 0}).resolved().value_clip == 0
    assert recipe("ppo", value_clip=0.0).value_clip == 0


def test_the_settings_of_a_recipe_are_those_that_have_an_effect() -> None:
    read = settings_read(recipe("cispo"))
    assert "cispo_cap" in read
    assert not {"clip_low", "clip_high", "beta", "gamma", "stop", "name"} & set(read)


def test_every_field_but_the_name_is_a_setting_with_help_and_a_legal_default() -> None:
    assert [field.name for field in fields(Recipe)] == ["name", *SETTINGS]
    for name, setting in SETTINGS.items():
        assert setting.help.endswith(".")
        assert setting.checked(setting.default) == getattr(RECIPES["grpo"], name)


def test_every_value_of_signal_and_trust_has_its_rule() -> None:
    assert tuple(SIGNALS) == SETTINGS["signal"].choices
    assert tuple(TRUSTS) == SETTINGS["trust"].choices


def test_a_process_signal_needs_no_second_answer() -> None:
    assert recipe("grpo-process", refill_rounds=2).compares == "steps"


@pytest.mark.parametrize(
    ("base", "changes", "settings"),
    [
        ("grpo", {"clip_low": 1.5}, ("clip_low",)),
        ("grpo", {"clip_hi": 0.3}, ("clip_hi",)),
        ("gpro", {}, ("recipe",)),
        ("grpo", {"ratio": "none"}, ("ratio", "trust")),
        ("dapo", {"anchor": "k1"}, ("anchor", "beta")),
        ("sapo", {"clip_high": 0.3}, ("clip_high", "trust")),
    ],
)
def test_a_refusal_carries_the_names_of_its_settings(
    base: str, changes: dict[str, Any], settings: tuple[str, ...]
) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe(base, **changes)
    assert refused.value.settings == settings
    assert refused.value.setting == settings[0]


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


def check_that_both_take_it_or_neither(base: str, name: str, value: Any) -> None:
    try:
        made: Recipe | None = recipe(base, **{name: value})
    except RecipeError:
        made = None
    given = {"options": {name: value}} if SETTINGS[name].option else {name: value}
    try:
        config = AlgorithmConfig(recipe=base, **given)
    except ValidationError:
        config = None
    assert (made is None) == (config is None), f"{base}: {name}={value!r}"
    if config is not None:
        assert config.resolved() == made
        assert AlgorithmConfig.model_validate_json(config.model_dump_json()) == config


def readers(name: str) -> list[str]:
    """The recipes that read a setting, or all if no shipped recipe does."""
    return [key for key, made in RECIPES.items() if SETTINGS[name].is_read(made)] or list(RECIPES)


@pytest.mark.parametrize("name", SETTINGS)
def test_at_the_edges_the_configuration_takes_what_the_recipe_takes(name: str) -> None:
    base = "grpo" if "grpo" in readers(name) else readers(name)[0]
    for value in edges(SETTINGS[name]):
        check_that_both_take_it_or_neither(base, name, value)


@given(st.data())
def test_the_configuration_takes_a_value_exactly_when_the_recipe_does(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(SETTINGS)))
    base = data.draw(st.sampled_from(readers(name)))
    numbers = st.integers(-3, 2000) | st.floats(-2, 3) | st.floats()
    value = data.draw(numbers | st.sampled_from(edges(SETTINGS[name])) | st.text(max_size=5))
    check_that_both_take_it_or_neither(base, name, value)
