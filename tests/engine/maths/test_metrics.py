"""Logged metrics: sign-aware, as (sum, count), and combined over the parts of an update."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from grpo_engine.config.recipes import Recipe, recipe
from grpo_engine.maths.metrics import merged, metrics
from tests.engine.maths.helpers import loss_of, number

# Ratios of two completions of three tokens, the last of the second is padding.
#   A = +1:  .5 free   1.5 high  1.0 free
#   A = -1:  .5 low    1.5 free  (.5)
RATIOS = mx.array([[0.5, 1.5, 1.0], [0.5, 1.5, 0.5]])
BATCH: dict[str, Any] = {
    "new": mx.log(RATIOS) - 1,
    "old": mx.full((2, 3), -1.0),
    "ref": mx.full((2, 3), -1.0),
    "advantages": mx.array([1.0, -1.0]),
    "mask": mx.array([[1, 1, 1], [1, 1, 0]]),
    "entropy": mx.array([[1.0, 2.0, 3.0], [4.0, 5.0, 99.0]]),
    "group_ids": None,
}


def pairs(how: str | Recipe, **changes: Any) -> dict[str, Any]:
    made = recipe(how)
    found = metrics(loss_of(BATCH | changes, made).terms, made)
    return {name: (number(total), number(count)) for name, (total, count) in found.items()}


def test_empty_completions_have_no_share() -> None:
    found = pairs("grpo", mask=mx.array([[0, 0, 0], [1, 0, 0]]))
    assert found["clip_ratio/low_min"] == (1, 1)
    assert found["clip_ratio/high_max"] == (0, 1)
    nothing = pairs("grpo", mask=mx.zeros((2, 3)))
    assert nothing["clip_ratio/low_min"] == nothing["clip_ratio/high_max"] == (0, 0)
    assert nothing["clip_ratio/low_mean"] == (0, 0)


def test_a_ratio_of_completions_is_counted_once_for_each() -> None:
    # sums: .5·1.5·1 = .75 (A = +1, free), .5·1.5 = .75 (A = -1, low)
    how = recipe("grpo", ratio="sequence_sum")
    found = pairs(how)
    assert found["clip_ratio/low_mean"] == (1, 2)
    assert found["clip_ratio/region_mean"] == (1, 2)
    assert found["clip_ratio/high_mean"] == (0, 2)
    assert found["clip_ratio/low_min"] == (0, 1)
    assert found["at_bound"] == (2, 5)
    up = pairs(how, advantages=mx.array([-1.0, 1.0]))
    assert up["clip_ratio/low_mean"] == (1, 2)
    assert up["clip_ratio/high_max"] == (0, 1)
    both = pairs(recipe("grpo", ratio="sequence_sum", clip_high=0.0), old=BATCH["old"] - 1)
    assert both["clip_ratio/high_max"] == (1, 1)


def test_a_ratio_of_completions_with_advantages_of_tokens_is_counted_per_token() -> None:
    how = recipe("grpo", ratio="sequence_sum")
    worth = mx.array([[1.0, 1.0, 1.0], [-1.0, 1.0, -1.0]])
    assert pairs(how, advantages=worth)["clip_ratio/low_mean"] == (1, 5)


def test_distances_and_entropy_are_means_over_tokens() -> None:
    # entropies 1 2 3 4 5 on five tokens; k3(log r) with r = new/ref: 1/r + log r - 1
    found = pairs("grpo")
    assert found["entropy"] == (15, 5)
    r = np.array([0.5, 1.5, 1.0, 0.5, 1.5])
    assert found["kl"] == (pytest.approx((1 / r + np.log(r) - 1).sum(), abs=1e-5), 5)
    assert found["kl_to_old"] == (pytest.approx((r - 1 - np.log(r)).sum(), abs=1e-5), 5)
    assert found["ratio/mean"] == (pytest.approx(5.0, abs=1e-5), 5)
    assert found["advantage/abs_mean"] == (5, 5)
    assert found["ratio/clamped"] == (0, 5)


def test_tokens_without_advantage_are_at_no_bound() -> None:
    assert pairs("grpo", advantages=mx.array([1.0, 0.0]))["at_bound"] == (1, 3)


def test_what_was_not_given_is_not_measured() -> None:
    found = pairs("dapo", ref=None, entropy=None)
    assert not {"kl", "entropy", "target/reached", "value/loss"} & set(found)


def test_parts_of_an_update_add_up_and_extremes_stay_extremes() -> None:
    parts = [
        {"kl": (1.0, 2.0), "clip_ratio/low_min": (0.5, 1.0), "clip_ratio/high_max": (0.5, 1.0)},
        {"kl": (3.0, 4.0), "clip_ratio/low_min": (0.25, 1.0), "clip_ratio/high_max": (0.25, 1.0)},
        {
            "clip_ratio/low_min": (0.0, 0.0),
            "clip_ratio/high_max": (0.0, 0.0),
            "entropy": (1.0, 1.0),
        },
    ]
    assert merged(parts) == {
        "kl": (4.0, 6.0),
        "clip_ratio/low_min": (0.25, 1.0),
        "clip_ratio/high_max": (0.5, 1.0),
        "entropy": (1.0, 1.0),
    }
    nought = {"clip_ratio/low_min": (0.0, 1.0)}
    assert merged([parts[0], nought])["clip_ratio/low_min"] == (0.0, 1.0)
    assert merged(parts[2:])["clip_ratio/low_min"] == (0.0, 0.0)
    assert merged([]) == {}


def test_metrics_of_the_weights_are_over_tokens_or_over_completions() -> None:
    # token weights .5, 2, 1.5 of two completions; their products are 1 and 1.5
    x = mx.log(mx.array([[0.5, 2.0], [1.5, 7.0]]))
    batch: dict[str, Any] = {
        "new": mx.zeros((2, 2)),
        "old": mx.zeros((2, 2)),
        "ref": None,
        "sampler": -x,
        "mask": mx.array([[1, 1], [1, 0]]),
        "advantages": mx.ones(2),
        "group_ids": None,
    }
    expected = {
        ("token_truncate", 2.0): (0.5, 4 / 3, 2.0, 0.0),
        ("token_truncate", 1.0): (0.5, 2.5 / 3, 1.0, 0.0),
        # 2 is above 1.8: 0, .5 and 1.5, mean 2/3; one of three tokens is masked
        ("token_mask", 1.8): (0.0, 2 / 3, 1.5, 1 / 3),
        ("sequence_truncate", 2.0): (1.0, 1.25, 1.5, 0.0),
    }
    for (mode, cap), wanted in expected.items():
        how = recipe("dr-grpo", importance_cap=cap, importance_mode=mode)
        found = metrics(loss_of(batch, how).terms, how)
        names = [f"sampling/importance_sampling_ratio/{part}" for part in ("min", "mean", "max")]
        pairs = [found[name] for name in (*names, "sampling/masked_ratio")]
        shares = [number(total / count) for total, count in pairs]
        assert shares == pytest.approx(wanted, rel=1e-5, abs=1e-7)
    assert not any(
        name.startswith("sampling/") for name in metrics(loss_of(batch, "dr-grpo").terms, "dr-grpo")
    )
