"""Recipes in words: six choices, one sentence, and the formula they make."""

import pytest

from grpo_engine.config.declaration import NEVER
from grpo_engine.config.recipes import OPEN, RECIPES, SETTINGS, recipe, settings_read
from grpo_tui.app.text.recipe_cards import CARDS
from grpo_tui.app.text.recipe_text import ADDITIONS, MEANINGS, around, choice_texts, formula


def test_every_value_of_a_choice_has_its_words() -> None:
    words = {choice: tuple(values) for choice, values in MEANINGS.items()}
    assert set(words.pop("function")) == set(OPEN)
    assert words == {choice: SETTINGS[choice].choices for choice in words}


def test_only_a_setting_that_can_be_off_adds_words() -> None:
    assert [name for name in ADDITIONS if SETTINGS[name].off is NEVER] == []


def test_every_recipe_has_a_card() -> None:
    assert list(CARDS) == list(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_that_is_read_belongs_to_one_answer_or_stands_around(name: str) -> None:
    made = RECIPES[name]
    settings = [key for answer in choice_texts(made) for key in answer.settings] + list(
        around(made)
    )
    choices = ["signal", "ratio", "trust", "anchor", "weight"]
    assert sorted(settings + choices) == sorted(settings_read(made))


@pytest.mark.parametrize(
    ("name", "changes", "lines"),
    [
        ("reinforce", {}, ["Aᵢ = rᵢ", "Jᵢₜ = Aᵢ·log π(oᵢₜ)", "L = −1/B Σᵢ Σₜ ( Jᵢₜ )"]),
        (
            "grpo-sequence",
            {},
            [
                "Aᵢ = (rᵢ − mean(r)) / (std(r) + 1e-08)   over the group, std by G",
                "ρᵢ = exp( Σₜ log π(oᵢₜ)/π_old(oᵢₜ) )",
                "Jᵢ = min( ρᵢ·Aᵢ, clip(ρᵢ, 0.8, 1.2)·Aᵢ )",
                "kᵢ = e⁻ˣ + x − 1   x = Σₜ log π(oᵢₜ)/π_ref(oᵢₜ)",
                "L = −1/B Σᵢ 1/|oᵢ| Σₜ ( Jᵢ − 0.01·kᵢ )",
            ],
        ),
        (
            "rloo",
            {},
            [
                "sᵢ = rᵢ − 0.05·Σₜ k(π_old/π_ref)ᵢₜ",
                "Aᵢ = sᵢ − mean of the other s of the group",
                "ρᵢ = exp( Σₜ log π(oᵢₜ)/π_old(oᵢₜ) )",
                "Jᵢ = min( ρᵢ·Aᵢ, clip(ρᵢ, 0.8, 1.2)·Aᵢ )",
                "kᵢₜ = x   x = log π_old(oᵢₜ)/π_ref(oᵢₜ)",
                "L = −1/B Σᵢ 1/|oᵢ| Σₜ ( Jᵢ )",
            ],
        ),
        (
            "luspo",
            {"beta": 0.1, "anchor_level": "sequence"},
            [
                "Aᵢ = (rᵢ − mean(r)) / (std(r) + 0.0001)   over the group, std by G−1",
                "ρᵢ = exp( 1/|oᵢ| Σₜ log π(oᵢₜ)/π_old(oᵢₜ) )",
                "Jᵢ = min( ρᵢ·Aᵢ, clip(ρᵢ, 0.998, 1.0025)·Aᵢ )",
                "kᵢ = e⁻ˣ + x − 1   x = Σₜ log π(oᵢₜ)/π_ref(oᵢₜ)",
                "L = −1/B Σᵢ Σₜ ( Jᵢ − 0.1·kᵢ )   Σₜ Jᵢ = |oᵢ|·Jᵢ   Σₜ kᵢ = |oᵢ|·kᵢ",
            ],
        ),
        (
            "vespo",
            {"importance_cap": 3.0, "beta": 0.1, "anchor_reweighted": True, "ratio": "token"},
            [
                "Aᵢ = (rᵢ − mean(r)) / (std(r) + 0.0001)   over the group, std by G−1",
                "ρᵢₜ = π(oᵢₜ) / π_old(oᵢₜ)",
                "Wᵢ = Πₜ wᵢₜ · exp( Σₜ log π(oᵢₜ)/π_old(oᵢₜ) )",
                "φᵢ = e^λ · Wᵢ^k · e^(−λ·Wᵢ)   k = 2, λ = 3 where Aᵢ ≥ 0, else 3, 2",
                "Jᵢₜ = [φᵢ]·Aᵢ·log π(oᵢₜ)   [.] held constant",
                "wᵢₜ = min( π_old(oᵢₜ)/π_sampler(oᵢₜ), 3 )",
                "kᵢₜ = e⁻ˣ + x − 1   x = log π(oᵢₜ)/π_ref(oᵢₜ)",
                "L = −1/Σᵢ|oᵢ| Σᵢ Σₜ ( Jᵢₜ − 0.1·ρᵢₜ·kᵢₜ )",
            ],
        ),
        (
            "grpo",
            {"importance_cap": 2.0},
            [
                "Aᵢ = (rᵢ − mean(r)) / (std(r) + 0.0001)   over the group, std by G−1",
                "ρᵢₜ = π(oᵢₜ) / π_old(oᵢₜ)",
                "Jᵢₜ = min( ρᵢₜ·Aᵢ, clip(ρᵢₜ, 0.8, 1.2)·Aᵢ )",
                "wᵢₜ = min( π_old(oᵢₜ)/π_sampler(oᵢₜ), 2 )",
                "kᵢₜ = e⁻ˣ + x − 1   x = log π(oᵢₜ)/π_ref(oᵢₜ)",
                "L = −1/B Σᵢ 1/|oᵢ| Σₜ ( wᵢₜ·Jᵢₜ − 0.04·kᵢₜ )",
            ],
        ),
        (
            "ppo",
            {},
            [
                "sᵢₜ = [t is the last token]·rᵢ − 0.05·k(π_old/π_ref)ᵢₜ",
                "δᵢₜ = sᵢₜ + 1·Vᵢₜ₊₁ − Vᵢₜ",
                "Aᵢₜ = δᵢₜ + 1·0.95·Aᵢₜ₊₁   then whitened over the update",
                "ρᵢₜ = π(oᵢₜ) / π_old(oᵢₜ)",
                "Jᵢₜ = min( ρᵢₜ·Aᵢₜ, clip(ρᵢₜ, 0.8, 1.2)·Aᵢₜ )",
                "kᵢₜ = x   x = log π_old(oᵢₜ)/π_ref(oᵢₜ)",
                "L = −1/Σᵢ|oᵢ| Σᵢ Σₜ ( Jᵢₜ − 0.1·½(Vᵢₜ − Rᵢₜ)² )",
            ],
        ),
        (
            "grpo",
            {
                "delta": 4.0,
                "beta": 0.0,
                "entropy_bonus": 0.01,
                "entropy_top_quantile": 0.2,
                "importance_cap": 2.0,
            },
            [
                "Aᵢ = (rᵢ − mean(r)) / (std(r) + 0.0001)   over the group, std by G−1",
                "ρᵢₜ = π(oᵢₜ) / π_old(oᵢₜ)",
                "Jᵢₜ = min( min(ρᵢₜ, 4)·Aᵢ, clip(ρᵢₜ, 0.8, 1.2)·Aᵢ )",
                "wᵢₜ = min( π_old(oᵢₜ)/π_sampler(oᵢₜ), 2 )",
                "L = −1/B Σᵢ 1/|oᵢ| Σₜ ( [Hᵢₜ in the top 20%]·wᵢₜ·Jᵢₜ ) − 0.01·mean(H)",
            ],
        ),
        (
            "dapo",
            {
                "importance_cap": 3.0,
                "importance_floor": 0.5,
                "importance_mode": "sequence_mask",
                "off_policy_mask": 0.1,
            },
            [
                "Aᵢ = (rᵢ − mean(r)) / (std(r) + 0.0001)   over the group, std by G−1",
                "ρᵢₜ = π(oᵢₜ) / π_old(oᵢₜ)",
                "Jᵢₜ = min( ρᵢₜ·Aᵢ, clip(ρᵢₜ, 0.8, 1.28)·Aᵢ )",
                "wᵢ = exp( Σₜ log π_old(oᵢₜ)/π_sampler(oᵢₜ) )   0 outside [0.5, 3]",
                "mᵢ = [Aᵢ ≥ 0 or 1/|oᵢ| Σₜ log π_sampler(oᵢₜ)/π(oᵢₜ) ≤ 0.1]",
                "L = −1/Σᵢ|oᵢ| Σᵢ Σₜ ( wᵢ·mᵢ·Jᵢₜ )",
            ],
        ),
    ],
)
def test_the_formula_is_made_from_the_choices(
    name: str, changes: dict[str, object], lines: list[str]
) -> None:
    assert list(formula(recipe(name, **changes))) == lines
