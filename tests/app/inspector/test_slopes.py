"""A token's slope against central differences of an independent loss, for every recipe."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from grpo_engine.config.recipes import RECIPES, Recipe, recipe
from grpo_engine.events import UpdateTotals
from grpo_tui.app.inspector.losses import gradients, packed, token_losses
from grpo_tui.experiments.values import RecordedTokens
from tests.engine.maths import oracle
from tests.engine.maths.test_gradients import CHANGED, MAX_LENGTH, smooth_inputs


def recorded(given: dict[str, Any]) -> list[RecordedTokens]:
    """Those completions as a run records them, in its only pass."""
    mask = given["mask"]
    totals = UpdateTotals(rows=len(mask), tokens=int(mask.sum()))
    worth = given["signs"][:, None] if "signs" in given else given["advantage"]
    columns = {
        name: given.get(name)
        for name in (
            "new",
            "old",
            "ref",
            "sampler",
            "entropy",
            "values",
            "old_values",
            "returns",
            "token_ids",
        )
    }

    def of(name: str, row: int) -> tuple[Any, ...]:
        values = columns[name]
        return () if values is None else tuple(values[row].tolist())

    return [
        RecordedTokens(
            index=row,
            ids=of("token_ids", row),
            sampler=of("sampler", row),
            old=of("old", row),
            reference=of("ref", row),
            passes=(of("new", row),),
            entropy=of("entropy", row),
            advantages=tuple(worth[row].tolist()),
            mask=tuple(mask[row].astype(int).tolist()),
            updates=(totals,),
            values=(of("values", row),) if "values" in given else (),
            old_values=of("old_values", row),
            returns=of("returns", row),
        )
        for row in range(len(mask))
    ]


HOWS: dict[str, Recipe] = {
    **{name: recipe(name) for name in RECIPES},
    **{name: recipe("grpo", **changes) for name, changes in CHANGED.items()},
}


@pytest.mark.parametrize("name", HOWS)
def test_a_slope_equals_central_differences_of_the_whole_loss_and_of_its_parts(name: str) -> None:
    # the bonus is recorded with the step, and has no slope in a log-probability
    how = replace(HOWS[name], entropy_bonus=0.0)
    given = smooth_inputs(how)
    numbers = packed(recorded(given), given["group_ids"].tolist(), step=1, max_length=MAX_LENGTH)
    push, pull = (np.array(one) for one in gradients(numbers, how))
    np.testing.assert_allclose(push + pull, -oracle.gradient(asdict(how), given, "new"), 1e-4, 2e-6)
    without = asdict(how) | {"beta": 0.0}
    np.testing.assert_allclose(push, -oracle.gradient(without, given, "new"), 1e-4, 2e-6)
    assert (pull != 0).any() == (how.beta > 0 and how.anchor_place == "loss")


def test_a_clipped_token_has_no_push_and_only_the_kl_terms_pull() -> None:
    # ratio 1.5 > 1.2 at advantage 1; k3 at log(π/π_ref) = .5 has slope 1 - e^-.5 = .3935,
    # so .3 x .3935 / 1 token / 1 answer down; unclipped, 1.5 up outweighs it
    row = RecordedTokens(
        index=0,
        ids=(5,),
        sampler=(-1.0,),
        old=(-0.5 - np.log(1.5),),
        reference=(-1.0,),
        passes=((-0.5,),),
        advantages=(1.0,),
        updates=(UpdateTotals(rows=1, tokens=1),),
    )
    ((one,),) = token_losses([row], recipe("grpo", beta=0.3), max_length=8, step=1)
    assert one.push == 0.0
    assert one.pull == pytest.approx(-0.3 * (1 - np.exp(-0.5)), rel=1e-5)
    ((one,),) = token_losses([row], recipe("grpo", beta=0.3, clip_high=0.9), max_length=8, step=1)
    assert one.push == pytest.approx(1.5, rel=1e-5)
    assert one.gradient == pytest.approx(1.5 - 0.3 * (1 - np.exp(-0.5)), rel=1e-5)
