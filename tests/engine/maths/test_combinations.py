"""Any choice may be combined with any other, or is refused with a reason."""

from dataclasses import asdict
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_engine.config.recipes import SETTINGS, Recipe, recipe
from grpo_engine.errors import RecipeError
from tests.engine.maths import oracle
from tests.engine.maths.helpers import assert_close, gradient_of, loss_of
from tests.engine.maths.test_gradients import batch_of, inputs

CHOICE: dict[str, Any] = {
    name: st.sampled_from(SETTINGS[name].choices)
    for name in ("signal", "ratio", "trust", "anchor", "anchor_level", "anchor_place", "weight")
}
EXTRAS: dict[str, Any] = {
    "entropy_bonus": st.sampled_from([0.0, 0.2]),
    "entropy_top_quantile": st.sampled_from([1.0, 0.5]),
    "importance_cap": st.sampled_from([0.0, 1.5]),
    "importance_floor": st.sampled_from([0.0, 0.7]),
    "importance_mode": st.sampled_from(SETTINGS["importance_mode"].choices),
    "off_policy_mask": st.sampled_from([0.0, 0.1]),
    "anchor_reweighted": st.booleans(),
    "vespo_k_pos": st.sampled_from([2.0, 0.5]),
    "vespo_lambda_neg": st.sampled_from([2.0, 3.5]),
}


def asked(choices: dict[str, Any]) -> Recipe | None:
    """The recipe, or None if refused; settings that a choice does not read are not set."""
    if choices["anchor"] == "none":
        choices = {k: v for k, v in choices.items() if not k.startswith("anchor_")}
    else:
        choices = choices | {"beta": 0.3}
    if choices.get("importance_cap") == 0:
        choices = {k: v for k, v in choices.items() if not k.startswith("importance_")}
    if choices["trust"] != "vespo":
        choices = {k: v for k, v in choices.items() if not k.startswith("vespo_")}
    if choices.get("anchor_place") == "reward" or choices["ratio"] == "none":
        choices = {k: v for k, v in choices.items() if k != "anchor_reweighted"}
    try:
        return recipe("grpo", **choices)
    except RecipeError:
        return None


@settings(max_examples=150)
@given(
    st.fixed_dictionaries(CHOICE | EXTRAS), st.integers(0, 1000), st.sampled_from([0.0, 0.0, 0.3])
)
def test_every_legal_combination_has_the_loss_of_the_independent_one(
    choices: dict[str, Any], seed: int, forced: float
) -> None:
    how = asked(choices)
    if how is None:
        return
    given_, settings_ = inputs(how, seed, forced), asdict(how)
    batch = batch_of(how, given_)
    expected = oracle.loss(settings_, given_, oracle.freeze(settings_, given_))
    assert_close(loss_of(batch, how).value, expected, rtol=1e-4, atol=1e-5)
    assert np.isfinite(np.array(gradient_of(batch, how))).all()
