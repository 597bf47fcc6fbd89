"""Every recipe's gradient against central differences of an independent loss in float64."""

from dataclasses import asdict
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from grpo_engine.config.recipes import RECIPES, Recipe, recipe
from tests.engine.maths import oracle
from tests.engine.maths.helpers import assert_close, gradient_of, loss_of

ROWS, COLUMNS, MAX_LENGTH = 8, 5, 7
LENGTHS = np.array([5, 3, 1, 0, 4, 5, 2, 5])
GROUPS = np.repeat([0, 1], 4)


def inputs(how: Recipe, seed: int, forced: float = 0.0) -> dict[str, Any]:
    """Random completions of two groups, one of them empty; a share of the tokens was forced."""
    rng = np.random.default_rng(seed)
    shape = (ROWS, COLUMNS)
    drift = 0.002 if how.clip_high < 0.01 else 0.3
    per_token = how.signal in ("gae", "process")
    old = -rng.uniform(0.2, 3.0, shape)
    worth = rng.normal(size=shape if per_token else (ROWS, 1))
    hole = np.random.default_rng([seed, 1]).random(shape) < forced
    given: dict[str, Any] = {
        "new": old + drift * rng.normal(size=shape),
        "old": old,
        "ref": old + 0.4 * rng.normal(size=shape),
        "sampler": old + 0.5 * rng.normal(size=shape),
        "advantage": np.broadcast_to(worth, shape),
        "mask": (np.arange(COLUMNS)[None, :] < LENGTHS[:, None]) & ~hole,
        "entropy": rng.uniform(0.1, 2.0, shape),
        "token_ids": rng.integers(0, 2, shape),
        "group_ids": GROUPS,
        "max_length": MAX_LENGTH,
    }
    if how.signal == "gae":
        given["old_values"] = rng.normal(size=shape)
        given["values"] = given["old_values"] + 0.3 * rng.normal(size=shape)
        given["returns"] = rng.normal(size=shape)
    if how.trust == "target":
        given["signs"] = rng.choice([-1.0, 0.0, 1.0], ROWS)
        sign, _, given["target_low"], given["target_high"] = oracle.targets(given)
        given["advantage"] = sign
    return given


def smooth_inputs(how: Recipe) -> dict[str, Any]:
    """The first inputs that are at least 1e-3 (or what narrow bounds allow) away from any kink."""
    settings = asdict(how)
    least = 1e-3 if how.clip_high > 0.01 else 2e-5
    for seed in range(200):
        given = inputs(how, seed)
        if oracle.kink_distance(settings, given) > least:
            return given
    raise AssertionError("no smooth point found")


def batch_of(how: Recipe, given: dict[str, Any]) -> dict[str, Any]:
    """The same for the package."""
    names = given.keys() - {"advantage", "signs", "target_low", "target_high", "max_length"}
    worth = given["signs"] if how.trust == "target" else given["advantage"]
    arrays = {name: mx.array(given[name]) for name in names}
    return arrays | {"advantages": mx.array(worth), "max_length": MAX_LENGTH}


CHANGED: dict[str, dict[str, Any]] = {
    "delta": {"delta": 1.3},
    "asymmetric": {"clip_low": 0.1, "clip_high": 0.3},
    "k1": {"anchor": "k1", "beta": 0.3},
    "k2": {"anchor": "k2", "beta": 0.3},
    "k3 of completions": {"anchor_level": "sequence", "beta": 0.3},
    "k2 of completions": {"anchor": "k2", "anchor_level": "sequence", "beta": 0.3},
    "no trust": {"trust": "none"},
    "sequence ratio without trust": {"trust": "none", "ratio": "sequence_sum"},
    "sequence cispo": {"trust": "cispo", "cispo_cap": 1.1, "ratio": "sequence_mean"},
    "sequence sapo": {"trust": "sapo", "ratio": "sequence_sum", "sapo_tau_pos": 2.0},
    "per completion": {"weight": "per_completion"},
    "constant": {"weight": "constant"},
    "sum": {"weight": "sum"},
    "entropy bonus": {"entropy_bonus": 0.3},
    "entropy quantile": {"entropy_top_quantile": 0.4},
    "entropy bonus on a quantile": {"entropy_bonus": 0.3, "entropy_top_quantile": 0.4},
    "importance": {"importance_cap": 1.2},
    "importance between two caps": {"importance_cap": 1.2, "importance_floor": 0.8},
    "importance of tokens left out": {"importance_cap": 1.5, "importance_mode": "token_mask"},
    "importance of completions": {"importance_cap": 2.0, "importance_mode": "sequence_truncate"},
    "importance of completions left out": {
        "importance_cap": 2.0,
        "importance_floor": 0.5,
        "importance_mode": "sequence_mask",
    },
    "off-policy mask": {"off_policy_mask": 0.05, "beta": 0.3},
    "a reweighted k3": {"anchor_reweighted": True, "beta": 0.3},
    "a reweighted k1": {
        "anchor": "k1",
        "anchor_reweighted": True,
        "beta": 0.3,
    },
    "a reweighted k2 of completions": {
        "anchor": "k2",
        "anchor_reweighted": True,
        "anchor_level": "sequence",
        "ratio": "sequence_mean",
        "beta": 0.3,
    },
    "vespo with other numbers": {
        "trust": "vespo",
        "ratio": "sequence_sum",
        "vespo_k_pos": 1.0,
        "vespo_lambda_pos": 0.5,
        "vespo_k_neg": 0.5,
        "vespo_lambda_neg": 1.5,
    },
    "vespo with a reweighted k3 of tokens": {
        "trust": "vespo",
        "anchor_reweighted": True,
        "beta": 0.3,
    },
    "vespo with importance of tokens": {
        "trust": "vespo",
        "ratio": "sequence_sum",
        "importance_cap": 1.5,
        "importance_floor": 0.5,
        "importance_mode": "token_mask",
        "vespo_k_neg": 0.5,
    },
    "vespo with importance of completions": {
        "trust": "vespo",
        "ratio": "sequence_sum",
        "importance_cap": 1.5,
        "importance_mode": "sequence_truncate",
    },
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_gradient_of_a_recipe_equals_central_differences(name: str) -> None:
    compare(recipe(name))


@pytest.mark.parametrize("name", CHANGED)
def test_the_gradient_of_a_changed_choice_equals_central_differences(name: str) -> None:
    compare(recipe("grpo", **CHANGED[name]))


def test_the_gradient_of_a_plain_critic_equals_central_differences() -> None:
    compare(recipe("ppo", value_clip=0.0, value_coefficient=0.5))


def compare(how: Recipe) -> None:
    given, settings = smooth_inputs(how), asdict(how)
    batch = batch_of(how, given)
    expected = oracle.loss(settings, given, oracle.freeze(settings, given))
    assert_close(loss_of(batch, how).value, expected)
    for name in {"new", "entropy", "values"} & batch.keys():
        numeric = oracle.gradient(settings, given, name)
        assert_close(gradient_of(batch, how, name), numeric, rtol=1e-4, atol=2e-6)
