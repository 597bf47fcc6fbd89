"""Agreement with TRL 1.16: loss, gradients and metrics, made by TRL (`make_trl_cases.py`)."""

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from grpo_engine.config.recipes import CHOICES, Recipe, recipe
from grpo_engine.config.trl_names import NO_CAP
from grpo_engine.maths.loss import policy_loss
from grpo_engine.maths.metrics import metrics
from grpo_engine.maths.weight import Totals
from tests.engine.maths.helpers import assert_close

FILE = Path(os.environ.get("TRL_CASES", Path(__file__).parent / "data" / "trl_cases.npz"))
with np.load(FILE, allow_pickle=False) as _file:
    CASES: list[dict[str, Any]] = json.loads(str(_file["cases"]))
    DATA = {name: _file[name] for name in _file.files if name != "cases"}

KINDS = ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo")
NAMES = {"grpo": "grpo", "dapo": "dapo", "bnpo": "bnpo", "dr_grpo": "dr-grpo", "cispo": "cispo",
         "sapo": "sapo", "rloo": "rloo"}  # fmt: skip


def as_recipe(case: dict[str, Any]) -> Recipe:
    """TRL's settings in our words."""
    kind = case["loss_type"]
    changes: dict[str, Any] = {
        "entropy_top_quantile": case.get("quantile", 1.0),
        "entropy_bonus": case.get("entropy_coef", 0.0),
        "off_policy_mask": case.get("off_policy", 0.0),
    }
    if "mode" in case:
        changes |= {
            "importance_mode": case["mode"],
            "importance_cap": case["cap"] or NO_CAP,
            "importance_floor": case.get("floor") or 0.0,
        }
    if kind == "cispo":
        changes["cispo_cap"] = case.get("high", 5.0)
    elif kind == "sapo":
        changes |= {
            "sapo_tau_pos": case.get("tau_pos", 1.0),
            "sapo_tau_neg": case.get("tau_neg", 1.05),
        }
    else:
        changes |= {"clip_low": case.get("low", 0.2), "clip_high": case.get("high", 0.2)}
        changes["delta"] = case.get("delta")
    if kind != "rloo":
        changes["beta"] = case.get("beta", 0.0)
        changes["ratio"] = "sequence_mean" if case.get("level") == "sequence" else "token"
    return recipe(NAMES[kind], **changes)


def as_totals(case: dict[str, Any], mask: np.ndarray) -> Totals:
    """The denominators of TRL's accumulation window, of which this is one micro-batch."""
    steps = case.get("accumulation", 1)
    tokens = case.get("items", float(mask.sum() * steps))
    return Totals(rows=float(len(mask) * steps), tokens=tokens, micro_batches=steps)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_loss_gradient_and_metrics_are_those_of_trl(index: int) -> None:
    case, given = CASES[index], {name: values[index] for name, values in DATA.items()}
    how = as_recipe(case)
    arrays = {name: mx.array(values) for name, values in given.items()}
    worth = arrays["advantages"] if case.get("per_token") else arrays["advantages"][:, 0]

    def loss(new: mx.array, entropy: mx.array) -> Any:
        return policy_loss(
            new,
            arrays["old"] if case.get("old", True) else None,
            arrays["ref"],
            worth,
            arrays["mask"],
            how,
            group_ids=None,
            entropy=entropy,
            max_length=11,
            totals=as_totals(case, given["mask"]),
            sampler=arrays["sampler"] if "mode" in case or case.get("sampler") else None,
        )

    (value, terms), gradients = mx.value_and_grad(loss, argnums=(0, 1))(
        arrays["new"], arrays["entropy"]
    )
    assert_close(value, given["loss"], rtol=1e-5, atol=1e-6)
    assert_close(gradients[0], given["gradient"], rtol=1e-5, atol=1e-6)
    assert_close(gradients[1], given["entropy_gradient"], rtol=1e-5, atol=1e-6)
    measured = metrics(terms, how)
    for name, expected in given.items():
        if name.startswith("metric:") and not np.isnan(expected):
            total, count = measured[name.removeprefix("metric:")]
            assert_close(total / count, expected, rtol=1e-5, atol=1e-6)


def test_the_cases_hold_every_loss_type_at_both_levels_with_and_without_beta() -> None:
    seen = {(c["loss_type"], c.get("level", "token"), c.get("beta", 0) > 0) for c in CASES}
    both = [(level, beta) for level in ("token", "sequence") for beta in (False, True)]
    assert {(kind, *rest) for kind in KINDS for rest in both} <= seen
    assert any(c.get("delta") for c in CASES)
    assert any(c.get("low") != c.get("high") for c in CASES)


def test_the_cases_hold_every_correction_for_the_sampler_and_leave_some_tokens_out() -> None:
    modes = set(CHOICES["importance_mode"])
    assert {(c["loss_type"], c["mode"]) for c in CASES if "mode" in c} >= set(product(KINDS, modes))
    least = DATA["metric:sampling/importance_sampling_ratio/min"]
    for mode in modes:
        found = [least[index] for index, case in enumerate(CASES) if case.get("mode") == mode]
        assert (min(found) == 0) == mode.endswith("mask")
    assert {c.get("sampler", False) for c in CASES if "off_policy" in c} == {False, True}


def test_the_cases_clip_on_both_sides_and_have_an_empty_completion() -> None:
    assert np.nanmax(DATA["metric:clip_ratio/low_mean"]) > 0
    assert np.nanmax(DATA["metric:clip_ratio/high_mean"]) > 0
    assert np.nanmax(DATA["metric:cispo_clip_ratio"]) > 0
    assert (DATA["mask"].sum(axis=2) == 0).any()
